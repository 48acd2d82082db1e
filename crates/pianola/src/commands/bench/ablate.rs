//! `--ablate`: what recording once is worth.

use pianola_engine::{BenchOptions, BenchRow, Engine, LoadOptions};
use pianola_plan::Ceilings;
use pianola_vulkan::{Ablation, VulkanRecording};

use crate::console;
use crate::failure::Failure;

/// Refuses what cannot be measured, before a model is loaded for it.
pub(super) fn check(options: &LoadOptions, bench: &BenchOptions) -> Result<(), Failure> {
    if bench.generate == 0 {
        return Err(Failure::usage("--ablate measures generation; -n must be above 0"));
    }
    match options.gpu() {
        Some(_) => Ok(()),
        None => Err(Failure::usage(
            "--ablate measures what recording saves on a GPU; name one with --device",
        )),
    }
}

/// The founding experiment: the same tokens, with what recording once saves done anew for each.
pub(super) fn ablate(
    engine: &mut Engine,
    options: &BenchOptions,
    ceilings: &[Ceilings],
) -> Result<Vec<(&'static str, BenchRow)>, Failure> {
    let kinds = [
        ("recorded once", Ablation::Nothing),
        ("recorded for every token", Ablation::Record),
        ("and a buffer allocated for every kernel", Ablation::Allocate),
    ];
    let mut rows = Vec::new();
    // Dispatches with barriers first; kernels that overlap last, where the model was loaded with them.
    let chained = recording(engine)?.is_chained();
    let overlap = chained.then_some((("recorded once, kernels overlap", Ablation::Nothing), true));
    for ((name, kind), on) in kinds.map(|kind| (kind, false)).into_iter().chain(overlap) {
        set_ablation(engine, Some(kind))?;
        let recording = recording(engine)?;
        recording.set_chained(on && chained).map_err(pianola_engine::EngineError::from)?;
        let options =
            BenchOptions { prompt: 0, lanes: Vec::new(), depths: vec![0], ..options.clone() };
        let (found, _) = pianola_engine::bench(
            engine,
            &options,
            &mut |_| Some(ceilings.to_vec()),
            &mut |_, _| (),
        )?;
        rows.extend(found.into_iter().map(|row| (name, row)));
    }
    set_ablation(engine, None)?;
    Ok(rows)
}

fn set_ablation(engine: &mut Engine, kind: Option<Ablation>) -> Result<(), Failure> {
    Ok(recording(engine)?.ablate(kind).map_err(pianola_engine::EngineError::from)?)
}

fn recording(engine: &mut Engine) -> Result<&mut VulkanRecording, Failure> {
    let device = engine.runs_on();
    let whole = engine.devices().len() == 1;
    let recording = engine.recording_mut::<VulkanRecording>().filter(|_| whole);
    recording.ok_or_else(|| {
        Failure::usage(format!("--ablate needs a model wholly on a Vulkan device, not on {device}"))
    })
}

pub(super) fn print_ablations(rows: &[(&'static str, BenchRow)]) -> Result<(), Failure> {
    let head = [
        "generation",
        "tokens/s",
        "+/-",
        "of recorded once",
        "host us/step",
        "allocations",
        "bytes",
    ];
    let mut table = vec![head.map(String::from).to_vec()];
    for (name, row) in rows {
        table.push(vec![
            name.to_string(),
            format!("{:.2}", row.tokens_per_second),
            format!("{:.2}", row.deviation),
            format!("{:.1} %", 100.0 * row.tokens_per_second / rows[0].1.tokens_per_second),
            format!("{:.1}", row.host_microseconds),
            format!("{:.1}", row.launches.map_or(0.0, |launches| launches.allocations)),
            format!("{:.0}", row.launches.map_or(0.0, |launches| launches.allocated_bytes)),
        ]);
    }
    console::print(&console::table(&table))
}
