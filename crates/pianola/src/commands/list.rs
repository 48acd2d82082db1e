//! `list`: the models that are here.

use clap::Args;
use serde_json::{Value, json};

use crate::catalogue::CATALOGUE;
use crate::console::{self, Console};
use crate::failure::Failure;
use crate::progress::megabytes;
use crate::store::{State, Store};

/// List the models that are here.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  pianola list
  pianola list --json | jq -r '.[].path'")]
pub struct Arguments {
    /// Print a JSON array
    #[arg(long)]
    json: bool,
}

pub fn run(arguments: &Arguments, console: Console) -> Result<(), Failure> {
    let store = Store::open()?;
    let listed = store.list()?;
    let state = |state: State| match state {
        State::Present => "present",
        State::Partial => "partial",
        State::Damaged => "damaged",
    };
    if arguments.json {
        let models = listed.iter().map(|model| {
            json!({
                "name": model.name,
                "bytes": model.bytes,
                "state": state(model.state),
                "path": model.path,
            })
        });
        return console::print_json(&Value::Array(models.collect()));
    }
    let mut rows = vec![["name", "size", "state", "path"].map(String::from).to_vec()];
    for model in &listed {
        let path = model.path.display().to_string();
        rows.push(vec![
            model.name.clone(),
            megabytes(model.bytes),
            state(model.state).into(),
            path,
        ]);
    }
    if listed.is_empty() {
        console.notice(&format!("there are no models in {} yet", store.models().display()));
    } else {
        console::print(&console::table(&rows))?;
    }
    for model in listed.iter().filter(|model| model.state != State::Present) {
        console.notice(&format!("`pianola pull {}` makes it whole", model.name));
    }
    let absent: Vec<&str> = CATALOGUE
        .iter()
        .map(|entry| entry.name)
        .filter(|name| !listed.iter().any(|model| model.name == *name))
        .collect();
    if !absent.is_empty() {
        console.notice(&format!("to be had with `pianola pull`: {}", absent.join(", ")));
    }
    Ok(())
}
