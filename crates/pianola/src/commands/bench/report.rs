//! Measured rows as a table, and as JSON.

use pianola_cpu::CpuDevice;
use pianola_engine::{BenchRow, Engine, Repetition};
use pianola_plan::{Ceilings, DeviceId};
use pianola_vulkan::VulkanDevice;
use serde_json::{Value, json};

use super::subject::{Subject, check_object, quant};
use crate::console;
use crate::failure::Failure;
use crate::version::{COMMIT, VERSION};

/// A row with all that is needed to repeat it.
pub(super) fn object(subject: &Subject, row: &BenchRow, ceilings: &[Ceilings]) -> Value {
    let cpu = devices::<CpuDevice>(&subject.engine).next().map(|cpu| cpu.options);
    let plan = subject.engine.plan();
    let head = plan.head_device();
    let layers = |id: DeviceId| json!({ "device": plan.devices[id.0].name, "layers": plan.layers_on(id).len() });
    let repetition = |repetition: &Repetition| json!({ "tokens_per_second": repetition.tokens_per_second, "left_out": repetition.left_out });
    json!({
        "version": VERSION,
        "commit": COMMIT,
        "command": command_line(),
        "model": subject.label,
        "quant": quant(subject),
        "device": plan.devices[head.0].name,
        "device_name": subject.engine.devices()[head.0].description(),
        "placement": plan.device_ids().map(layers).collect::<Vec<_>>(),
        "options": options(&subject.engine),
        "test": row.test.to_string(),
        "lanes": row.test.lanes(),
        "depth": row.test.depth,
        "lanes_at_once": row.at_once,
        "drafted_tokens": row.drafted,
        "accepted_tokens": row.accepted,
        "tokens_per_second": row.tokens_per_second,
        "stddev": row.deviation,
        "repetitions": row.repetitions.iter().map(repetition).collect::<Vec<_>>(),
        "left_out": row.left_out(),
        "warm_up_rounds": row.warm_up.rounds,
        "warm_up_agreed": row.warm_up.agreed,
        "ceiling_tokens_per_second": row.ceiling,
        "bytes_per_token": row.bytes_per_token,
        "ceilings": ceilings_of(&subject.engine, ceilings),
        "fraction_of_ceiling": row.fraction(),
        "host_microseconds_per_step": row.host_microseconds,
        "busy_share": row.busy,
        "submits_per_step": row.launches.map(|launches| launches.submits),
        "dispatches_per_step": row.launches.map(|launches| launches.dispatches),
        "allocations_per_step": row.launches.map(|launches| launches.allocations),
        "allocated_bytes_per_step": row.launches.map(|launches| launches.allocated_bytes),
        "threads": cpu.map(|cpu| cpu.threads),
        "simd": cpu.map(|cpu| cpu.level.name()),
        "numeric": plan.options.numeric.to_string(),
        "mixed": subject.mixed,
        "checked": subject.checks.is_some(),
        "check": check_object(subject),
    })
}

/// The engine's devices of one kind.
fn devices<D: 'static>(engine: &Engine) -> impl Iterator<Item = &D> {
    engine.devices().iter().filter_map(|device| device.as_any().downcast_ref())
}

/// The words of the command; of the program its name only, wherever it lies.
fn command_line() -> Vec<String> {
    let words = std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned());
    std::iter::once("pianola".to_string()).chain(words).collect()
}

/// What the plan and the devices were set to.
fn options(engine: &Engine) -> Value {
    let plan = engine.plan();
    let types = plan.graph.kv_groups.iter().map(|group| group.ty.to_string());
    let gpus: Vec<&VulkanDevice> = devices(engine).collect();
    let driver = |gpu: &&VulkanDevice| gpu.options.gpu.description().driver.clone();
    json!({
        "kv_types": types.collect::<Vec<_>>(),
        "context": plan.options.context,
        "sequences": plan.options.sequences,
        "batch_rows": plan.options.max_rows,
        "logit_rows": plan.options.max_logit_rows,
        "drivers": gpus.iter().map(driver).collect::<Vec<_>>(),
        "reproducible": plan.options.reproducible,
        "weights_in_two_forms": engine.keeps_prompt_weights(),
        "tuned": gpus.iter().any(|gpu| !gpu.options.tuning.is_empty()),
    })
}

/// What each device reached in this run.
fn ceilings_of(engine: &Engine, ceilings: &[Ceilings]) -> Vec<Value> {
    let devices = engine.plan().devices.iter().zip(ceilings);
    let value = |(device, ceilings): (&pianola_plan::DeviceSpec, &Ceilings)| {
        json!({
            "device": device.name,
            "bytes_per_second": ceilings.bytes_per_second,
            "operations_per_second": ceilings.operations_per_second,
        })
    };
    devices.map(value).collect()
}

pub(super) fn print(subject: &Subject, rows: &[BenchRow]) -> Result<(), Failure> {
    console::print_line(&format!(
        "{} {} on {}, {} mode{}",
        subject.label,
        quant(subject),
        subject.engine.runs_on(),
        subject.engine.plan().options.numeric,
        if subject.mixed { ", prompts of a half to twice the length" } else { "" },
    ))?;
    let mut head = vec!["test", "tokens/s", "+/-", "ceiling", "reached", "busy", "host us/step"];
    if rows.iter().any(|row| row.launches.is_some()) {
        head.extend(["submits", "dispatches", "allocations"]);
    }
    let mut table = vec![head.into_iter().map(String::from).collect::<Vec<_>>()];
    for row in rows {
        let mut cells = vec![
            row.test.to_string(),
            format!("{:.2}", row.tokens_per_second),
            format!("{:.2}", row.deviation),
            format!("{:.2}", row.ceiling),
            format!("{:.1} %", 100.0 * row.fraction()),
            row.busy.map_or("?".to_string(), |busy| format!("{:.1} %", 100.0 * busy)),
            format!("{:.1}", row.host_microseconds),
        ];
        if let Some(launches) = row.launches {
            let counts = [launches.submits, launches.dispatches, launches.allocations];
            cells.extend(counts.map(|count| format!("{count:.1}")));
        }
        table.push(cells);
    }
    console::print(&console::table(&table))?;
    for row in rows.iter().filter(|row| !row.warm_up.agreed) {
        console::print_line(&format!(
            "{}: {} warm-up rounds differed by more than 3 %: the speed of this machine varies",
            row.test, row.warm_up.rounds
        ))?;
    }
    for row in rows.iter().filter(|row| row.left_out() > 0) {
        let slowest = row.repetitions.iter().map(|repetition| repetition.tokens_per_second);
        console::print_line(&format!(
            "{}: {} of {} repetitions left out: the device took up to {:.1} times as long for the same \
             work, as a card does that runs at a fraction of its clock",
            row.test,
            row.left_out(),
            row.repetitions.len(),
            row.tokens_per_second / slowest.fold(f64::INFINITY, f64::min),
        ))?;
    }
    for row in rows.iter().filter(|row| row.at_once < row.test.lanes()) {
        console::print_line(&format!(
            "{}: the KV pages hold {} requests at once, the others waited or were computed anew; give \
             more --kv-memory",
            row.test, row.at_once
        ))?;
    }
    for row in rows.iter().filter(|row| row.drafted > 0) {
        let (right, all) = (row.accepted, row.drafted);
        let share = 100.0 * right as f64 / all as f64;
        let off = if let Some(reason) = subject.engine.draft_failure() {
            &format!("; the draft model failed: {reason}")
        } else if subject.engine.is_speculation_off() {
            "; turned off, because it was slower"
        } else {
            ""
        };
        console::print_line(&format!(
            "{}: {right} of {all} guesses right ({share:.0} %){off}",
            row.test
        ))?;
    }
    Ok(())
}
