//! `rm`: removes a model from the store.

use clap::Args;
use pianola_hub::Store;

use crate::console::{self, Console};
use crate::failure::Failure;
use pianola_plan::size_text;

/// Remove a fetched model and the remains of an unfinished pull.
#[derive(Args, Debug)]
#[command(after_help = "Example:\n  pianola rm gemma3:270m")]
pub struct Arguments {
    /// Name, as `pianola list` shows it
    name: String,
}

pub fn run(arguments: &Arguments, _: Console) -> Result<(), Failure> {
    let freed = Store::open()?.remove(&arguments.name)?;
    console::print_line(&format!("removed {}, {} freed", arguments.name, size_text(freed)))
}
