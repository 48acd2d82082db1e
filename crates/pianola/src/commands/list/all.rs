//! `list --all`: the catalogue, and what of it fits this machine.

use std::path::PathBuf;

use pianola_engine::{Engine, LoadOptions};
use pianola_hub::catalogue::{CATALOGUE, Entry, Size, SizeOrigin, Source};
use pianola_hub::obtain::OnMachine;
use pianola_hub::{Listed, State};
use pianola_plan::size_text;
use serde_json::{Value, json};

use crate::console::{self, Console};
use crate::failure::Failure;
use crate::memory::{DeviceMemory, ListedMemory};
use crate::options::ComputeOptions;

/// A model of the catalogue on this machine.
struct Row {
    entry: &'static Entry,
    size: Size,
    memory: ListedMemory,
    /// Where it would run; none where memory does not hold it.
    fits: Option<&'static str>,
    state: Option<State>,
    path: Option<PathBuf>,
}

pub fn run(
    listed: &[Listed],
    memory: Option<u64>,
    json: bool,
    console: Console,
) -> Result<(), Failure> {
    let options = ComputeOptions { memory, ..ComputeOptions::without_npu() }.load(console)?;
    // Without a home there is no cache of the hub.
    let machine = OnMachine::look().ok();
    let row = |entry: &'static Entry| row(entry, listed, machine.as_ref(), &options);
    let rows = CATALOGUE.iter().map(row).collect::<Result<Vec<Row>, Failure>>()?;
    if json {
        return console::print_json(&Value::Array(rows.iter().map(object).collect()));
    }
    let heads = ["name", "size", "licence", "memory", "context", "fits", "state", "model"];
    let mut table = vec![heads.map(String::from).to_vec()];
    table.extend(rows.iter().map(cells));
    console::print(&console::table(&table))?;
    console.notice(
        "memory: weights, keys and values of that many tokens of context, and working memory. \
         ~: computed from the model's shape. `pianola pull NAME --plan` shows more and fetches nothing",
    );
    Ok(())
}

fn row(
    entry: &'static Entry,
    listed: &[Listed],
    machine: Option<&OnMachine>,
    options: &LoadOptions,
) -> Result<Row, Failure> {
    let (state, path) = match &entry.source {
        Source::Packages(_) => {
            let here = listed.iter().find(|model| model.name == entry.name);
            (here.map(|model| model.state), here.map(|model| model.path.clone()))
        }
        Source::Hub(file) => match machine.map(|machine| machine.catalogued(entry, file)) {
            Some(Ok(Some(located))) => (Some(State::Present), Some(located.path)),
            // Several programs have it.
            Some(Err(_)) => (Some(State::Present), None),
            Some(Ok(None)) | None => (None, None),
        },
    };
    let memory = ListedMemory::of(entry, options)?;
    let fits = match options.devices.len() {
        1 => memory.fits.then_some("CPU"),
        _ => fits(entry, LoadOptions { context: Some(memory.context), ..options.clone() })?,
    };
    Ok(Row { entry, size: entry.size(), memory, fits, state, path })
}

/// Where a model fits on a GPU and the CPU.
fn fits(entry: &Entry, options: LoadOptions) -> Result<Option<&'static str>, Failure> {
    let plan = Engine::plan_of_shape(entry.shape(), &entry.mixture(), &options);
    let plan = match plan.map_err(Failure::from) {
        Err(Failure::Memory(_)) => return Ok(None),
        plan => plan?,
    };
    let devices = plan.devices_among(&options.all_devices());
    let parts = DeviceMemory::of(&plan, &devices)?;
    let holds = parts.iter().all(|part| part.heaps.is_some());
    let gpu = plan.devices.iter().any(|device| device.asynchronous);
    let cpu = plan.devices.iter().any(|device| !device.asynchronous);
    let place = match (gpu, cpu) {
        (true, true) => "GPU and CPU",
        (true, false) => "GPU",
        _ => "CPU",
    };
    Ok(holds.then_some(place))
}

fn cells(row: &Row) -> Vec<String> {
    let about = if row.size.origin == SizeOrigin::Computed { "~" } else { "" };
    vec![
        row.entry.name.into(),
        format!("{about}{}", size_text(row.size.bytes)),
        row.entry.terms.licence.into(),
        size_text(row.memory.bytes),
        row.memory.context.to_string(),
        row.fits.unwrap_or("no").into(),
        row.state.map_or("absent", State::name).into(),
        format!("{}, {}", row.entry.title, row.entry.quantisation),
    ]
}

fn object(row: &Row) -> Value {
    let entry = row.entry;
    let source = match &entry.source {
        Source::Packages(packages) => json!({
            "packages": packages.file.parts().map(|part| part.package).collect::<Vec<_>>(),
            "download_bytes": packages.download,
        }),
        Source::Hub(file) => json!({
            "repository": file.repository,
            "file": file.file,
            "gated": file.gated,
        }),
    };
    json!({
        "name": entry.name,
        "aliases": entry.aliases,
        "title": entry.title,
        "quantisation": entry.quantisation,
        "licence": entry.terms.licence,
        "source": source,
        "bytes": row.size.bytes,
        "bytes_are": row.size.origin.name(),
        "memory_bytes": row.memory.bytes,
        "context": row.memory.context,
        "fits": row.fits.is_some(),
        "fits_on": row.fits,
        "state": row.state.map_or("absent", State::name),
        "path": row.path,
    })
}
