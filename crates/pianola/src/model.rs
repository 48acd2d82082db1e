//! From the name a user gives to a loaded engine.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use pianola_engine::{Engine, EngineError, LoadOptions, Request, Speculation, Text, Vocabulary};
pub use pianola_hub::Located;
use pianola_hub::catalogue::{self, Entry};
use pianola_hub::obtain::{self, Freshness, stem};
use pianola_hub::{Resolved, Store, StoreError};
use pianola_model::ModelFile;
use pianola_plan::{DeviceId, PAGE_TOKENS, Plan, size_text};
use pianola_vulkan::VulkanDevice;

use crate::console::Console;
use crate::failure::Failure;
use crate::memory;
use crate::options::{BETTER_MODEL, ComputeOptions, DEFAULT_MODEL, SpeculationOptions};
use crate::progress;

/// What a name turned out to mean.
#[derive(Debug)]
pub enum Found {
    /// A model on this machine.
    Here(Located),
    /// A model of the catalogue that is not here yet.
    Catalogued(&'static Entry),
}

/// Finds a model, fetching it if it is not here yet.
pub fn locate(name: impl AsRef<OsStr>, console: Console) -> Result<Located, Failure> {
    match find(name, console)? {
        Found::Here(located) => Ok(located),
        Found::Catalogued(entry) => {
            console
                .notice(&format!("{} is not on this machine yet and is fetched once", entry.name));
            let mut report = progress::on_stderr(console.quiet);
            let located = obtain::fetch(entry, &Store::open()?, report.as_mut())?;
            if entry.name == DEFAULT_MODEL {
                tell_first_try(console);
            }
            Ok(located)
        }
    }
}

/// Names a model that answers well, after the first one was fetched: that one only shows that all works.
fn tell_first_try(console: Console) {
    let better = catalogue::find(BETTER_MODEL).filter(|better| {
        memory::for_weights().is_none_or(|memory| 2 * better.size().bytes < memory)
    });
    let advice = match better {
        Some(better) => format!("; `pianola chat -m {}` answers better", better.name),
        None => String::new(),
    };
    console.notice(&format!("{DEFAULT_MODEL} is a tiny model for a first try{advice}"));
}

/// Finds a model: in the catalogue; in the store; by its path; among those of other programs; or by its
/// own name on the hub, from where it is fetched, since nothing is known of it before.
pub fn find(name: impl AsRef<OsStr>, console: Console) -> Result<Found, Failure> {
    let name = name.as_ref();
    let Some(name) = name.to_str() else {
        // No name of the catalogue, so a path; one that is not there is an error of its reader.
        let path = pianola_hub::model_at(PathBuf::from(name))?;
        return Ok(Found::Here(Located { label: stem(&path), path }));
    };
    let store = Store::open()?;
    tell_namesake(name, console);
    let path = match store.resolve(name) {
        Ok(Resolved::Installed(path)) => path,
        Ok(Resolved::Path(path)) => pianola_hub::model_at(path)?,
        Err(error @ (StoreError::Unknown { .. } | StoreError::NoSuchPath { .. })) => {
            return elsewhere(name, Freshness::AnyCopy, &store, console)?
                .map(Found::Here)
                .ok_or_else(|| error.into());
        }
        Err(error) => return Err(error.into()),
        Ok(Resolved::NotYet(entry)) => {
            let here = here(entry, &store, console)?;
            return Ok(here.map_or(Found::Catalogued(entry), Found::Here));
        }
    };
    // A file of the user's in the store may share its name with a model of the hub.
    let label = match catalogue::find(name).filter(|entry| entry.packages().is_some()) {
        Some(entry) => entry.name.to_string(),
        None => stem(&path),
    };
    Ok(Found::Here(Located { label, path }))
}

/// Says which of two is meant: a name of the catalogue comes before a file or folder here.
fn tell_namesake(name: &str, console: Console) {
    if let Some(entry) = catalogue::find(name).filter(|_| Path::new(name).exists()) {
        console.notice(&format!(
            "{name} means {} of the catalogue; the file of that name is ./{name}",
            entry.name
        ));
    }
}

/// The catalogue's model, if it is here; says so where another program has it.
pub fn here(entry: &Entry, store: &Store, console: Console) -> Result<Option<Located>, Failure> {
    let found = obtain::here(entry, store)?;
    if let Some(other) = found.as_ref().filter(|found| found.label != entry.name) {
        console.notice(&format!("{}: run where it is, {}", other.label, other.path.display()));
    }
    Ok(found)
}

/// Finds or fetches a model whose name the store does not know.
pub fn elsewhere(
    name: &str,
    freshness: Freshness,
    store: &Store,
    console: Console,
) -> Result<Option<Located>, Failure> {
    let mut report = progress::on_stderr(console.quiet);
    Ok(obtain::locate(name, freshness, store, memory::for_weights, report.as_mut())?)
}

/// Loads a model, with a bar if that takes a while.
pub fn load(model: &Located, options: LoadOptions, console: Console) -> Result<Engine, Failure> {
    let mut bar =
        console.bar("loading [{bar:24}] {decimal_bytes} of {decimal_total_bytes}, {eta} left");
    let asked = options.clone();
    let engine = Engine::load(&model.path, options, &mut |done, all| bar.reach(done, all))
        .map_err(|error| Failure::from(error).about(&model.path))?;
    drop(bar);
    tell_fit(engine.plan(), &asked, console);
    let idle = engine.plan().segmentations.len() == 1 && asked.place.is_empty();
    if idle && !asked.accelerators.is_empty() {
        let told = |remark: &&String| asked.remarks.contains(remark);
        let remarks = engine.plan().remarks.iter().filter(|remark| !told(remark));
        remarks.for_each(|remark| console.notice(remark));
    }
    let vision = engine.vision_tensors();
    if vision.count > 0 {
        console.notice(&format!(
            "{} vision tensors ({}) are ignored: only text is supported",
            vision.count,
            size_text(vision.bytes)
        ));
    }
    console.detail(&format!("placement: {}", engine.placement()));
    tell_kv(engine.plan(), asked.kv_memory, console);
    let timing = engine.timing();
    console.detail(&format!(
        "loaded {} in {:.2} s (file {:.2} s, tokeniser {:.2} s, weights {:.2} s), {} mode, context {}",
        model.path.display(),
        timing.open + timing.text + timing.weights,
        timing.open,
        timing.text,
        timing.weights,
        engine.plan().options.numeric,
        engine.context(),
    ));
    Ok(engine)
}

/// Loads a model as [`load`] does, and the smaller one that guesses for it, if one was requested.
pub fn load_with_draft(
    model: &Located,
    options: LoadOptions,
    speculation: &SpeculationOptions,
    console: Console,
) -> Result<Engine, Failure> {
    // The smaller one first: the larger takes what memory is left for its pages.
    let draft = match &speculation.draft {
        None => None,
        Some(name) => {
            let located = locate(name, console)?;
            check_draft(&located, model)?;
            let config = ModelFile::open(&located.path)?.config()?;
            let wanted = options.context.unwrap_or(config.context);
            if wanted > config.context {
                console.notice(&format!(
                    "{} guesses for the first {} tokens only; its context holds no more",
                    located.label, config.context
                ));
            }
            let small = LoadOptions {
                accelerators: Vec::new(),
                place: Vec::new(),
                layers_on_first: None,
                context: Some(wanted.min(config.context)),
                kv_memory: None,
                ..options.clone()
            };
            Some(load(&located, small, console)?)
        }
    };
    let mut options = options;
    // What the user grants is for both.
    for part in draft.iter().flat_map(|draft| draft.placement().parts) {
        let taken = part.heaps.map_or(0, |heaps| heaps.device_local + heaps.host);
        for device in &mut options.devices {
            let gpu = device.as_any().downcast_ref::<VulkanDevice>();
            if let Some(gpu) = gpu.filter(|gpu| gpu.name == part.device) {
                let mut gpu = gpu.clone();
                gpu.options.memory = gpu.options.memory.map(|most| most.saturating_sub(taken));
                *device = Arc::new(gpu);
            }
        }
    }
    let mut engine = load(model, options, console)?;
    if let Some(draft) = draft {
        engine.set_draft(draft)?;
    } else if speculation.speculate {
        engine.set_speculation(Speculation::Lookup)?;
    }
    Ok(engine)
}

/// Refuses a draft model of another vocabulary before either is loaded.
fn check_draft(draft: &Located, main: &Located) -> Result<(), Failure> {
    let read = |model: &Located| -> Result<(usize, Option<Text>), Failure> {
        let file = ModelFile::open(&model.path)?;
        let text = Text::of(&file).map_err(|error| Failure::from(error).about(&model.path))?;
        Ok((file.config()?.vocabulary, text))
    };
    let ((own, own_text), (others, others_text)) = (read(draft)?, read(main)?);
    let draft = Vocabulary { model: &draft.label, tokens: own, text: own_text.as_ref() };
    let main = Vocabulary { model: &main.label, tokens: others, text: others_text.as_ref() };
    Ok(pianola_engine::check_draft(draft, main)?)
}

/// Reports what the GPU's memory forced on a model without a request for it: layers on another
/// device, or a shorter context.
pub fn tell_fit(plan: &Plan, asked: &LoadOptions, console: Console) {
    let context = plan.options.context;
    let head = plan.head_device();
    let limited = asked.gpu().is_some_and(|gpu| gpu.options.memory.is_some());
    let chosen = asked.layers_on_first.is_some() || !asked.place.is_empty();
    let apart = |id: &DeviceId| *id != head && !plan.layers_on(*id).is_empty();
    for id in plan.device_ids().filter(apart).filter(|_| !chosen) {
        console.notice(&format!(
            "layers on {}: {} of {}, because {}",
            plan.devices[id.0].name,
            plan.layers_on(id).len(),
            plan.layers(),
            match limited {
                true => "--gpu-memory allows no more".to_string(),
                false => format!("{} has no memory for more", plan.devices[head.0].name),
            }
        ));
    }
    if context < plan.graph.context && asked.context.is_none() {
        console.notice(&format!(
            "the context has {context} of {} tokens; memory holds no more{}",
            plan.graph.context,
            match (asked.gpu(), asked.kv_memory) {
                (Some(_), None) if plan.devices.len() > 1 => {
                    "; with a larger --context more layers move to the CPU"
                }
                (Some(_), None) => "; with a larger --context layers move to the CPU",
                (None, None) => "",
                (_, Some(_)) => "; more --kv-memory holds more",
            }
        ));
    }
}

/// Says what there is for keys and values.
pub fn tell_kv(plan: &Plan, asked: Option<u64>, console: Console) {
    let tokens = plan.kv_pages.iter().zip(&plan.graph.kv_groups).map(|(pages, group)| {
        format!("{} tokens of {} layers ({})", pages * PAGE_TOKENS, group.layers, group.name)
    });
    let line = format!(
        "keys and values: at most {} for {}, {} at once",
        size_text(plan.kv_bytes()),
        tokens.collect::<Vec<_>>().join(" and "),
        match plan.options.sequences {
            1 => "one request".to_string(),
            lanes => format!("{lanes} requests"),
        }
    );
    match plan.options.sequences > 1 || asked.is_some() {
        true => console.notice(&line),
        false => console.detail(&line),
    }
}

/// Says where tokens will be sampled, where that is a question at all.
pub fn tell_sampling(
    engine: &Engine,
    request: &Request,
    compute: &ComputeOptions,
    console: Console,
) {
    if engine.plan().devices.iter().all(|device| !device.asynchronous) {
        return;
    }
    match engine.sampling_unsupported(request) {
        None => console.detail("sampling: on the GPU"),
        Some(reason) => {
            let line = format!("sampling: on the CPU, because {reason}");
            match compute.tokens_per_submit {
                Some(_) => console.notice(&format!("{line}; --tokens-per-submit has no effect")),
                None => console.detail(&line),
            }
        }
    }
}

/// A model's text side alone, without its weights.
pub fn text(model: &Located) -> Result<Text, Failure> {
    let file = ModelFile::open(&model.path)?;
    let text = Text::of(&file).map_err(|error| Failure::from(error).about(&model.path))?;
    text.ok_or_else(|| EngineError::NoTokenizer(model.label.clone()).into())
}
