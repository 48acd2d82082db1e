//! `list`: the models that are here, or the catalogue.

mod all;

use clap::Args;
use pianola_hub::{LocalModels, Program, Settings, State, Store};
use serde_json::{Value, json};

use crate::console::{self, Console};
use crate::device;
use crate::failure::Failure;
use pianola_plan::size_text;

/// List the models on this machine; with --all, the catalogue.
///
/// Besides Pianola's own folder: the hub's cache (HF_HOME), Ollama (OLLAMA_MODELS), llama.cpp
/// (LLAMA_CACHE) and LM Studio. Other commands take these names with -m and use the files where they
/// are.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  pianola list
  pianola list --all
  pianola list --json | jq -r '.[].path'")]
pub struct Arguments {
    /// Show every model of the catalogue: size, licence, memory, and whether it fits here
    #[arg(long, short)]
    all: bool,
    /// Memory that a model may use, as in 12GiB [default: what is free]
    #[arg(long, value_name = "BYTES", value_parser = device::bytes, requires = "all")]
    memory: Option<u64>,
    /// Print a JSON array
    #[arg(long)]
    json: bool,
}

pub fn run(arguments: &Arguments, console: Console) -> Result<(), Failure> {
    let store = Store::open()?;
    let listed = store.list()?;
    if arguments.all {
        return all::run(&listed, arguments.memory, arguments.json, console);
    }
    // Without a home there is no cache of the hub either.
    let others = LocalModels::find(Settings::from_environment().ok().as_ref());
    if arguments.json {
        let models = listed.iter().map(|model| {
            json!({
                "name": model.name,
                "bytes": model.bytes,
                "state": model.state.name(),
                "source": "pianola",
                "path": model.path,
            })
        });
        let others = others.models.iter().map(|model| {
            json!({
                "name": model.full_name(),
                "bytes": model.bytes,
                "state": State::Present.name(),
                "source": source(model.program),
                "path": model.path,
            })
        });
        return console::print_json(&Value::Array(models.chain(others).collect()));
    }
    let mut rows = vec![["name", "size", "state", "source", "path"].map(String::from).to_vec()];
    for model in &listed {
        let path = model.path.display().to_string();
        rows.push(vec![
            model.name.clone(),
            size_text(model.bytes),
            model.state.name().into(),
            "pianola".into(),
            path,
        ]);
    }
    for model in &others.models {
        rows.push(vec![
            model.full_name(),
            size_text(model.bytes),
            State::Present.name().into(),
            source(model.program).into(),
            model.path.display().to_string(),
        ]);
    }
    if rows.len() == 1 {
        console.notice(&format!("there is no model in {} yet", store.models().display()));
    } else {
        console::print(&console::table(&rows))?;
    }
    for line in &others.unreadable {
        console.notice(line);
    }
    for model in listed.iter().filter(|model| model.state != State::Present) {
        console.notice(&format!("`pianola pull {}` repairs it", model.name));
    }
    console.notice("`pianola list --all` shows what can be fetched by name");
    Ok(())
}

/// Whose a model is, in the list.
fn source(program: Program) -> &'static str {
    match program {
        Program::Hub => "hub",
        program => program.prefix(),
    }
}
