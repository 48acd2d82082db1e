//! Measured rows as a table, and as JSON.

use pianola_cpu::CpuDevice;
use pianola_engine::BenchRow;
use pianola_plan::DeviceId;
use serde_json::{Value, json};

use super::subject::{Subject, check_object, quant};
use crate::console;
use crate::failure::Failure;

pub(super) fn object(subject: &Subject, row: &BenchRow) -> Value {
    let devices = subject.engine.devices().iter();
    let cpu = devices.filter_map(|device| device.as_any().downcast_ref::<CpuDevice>()).next();
    let cpu = cpu.map(|cpu| cpu.options);
    let plan = subject.engine.plan();
    let head = plan.head_device();
    let layers = |id: DeviceId| json!({ "device": plan.devices[id.0].name, "layers": plan.layers_on(id).len() });
    json!({
        "model": subject.label,
        "quant": quant(subject),
        "device": plan.devices[head.0].name,
        "device_name": subject.engine.devices()[head.0].description(),
        "placement": plan.device_ids().map(layers).collect::<Vec<_>>(),
        "test": row.test.to_string(),
        "lanes": row.test.lanes(),
        "lanes_at_once": row.at_once,
        "drafted_tokens": row.drafted,
        "accepted_tokens": row.accepted,
        "tokens_per_second": row.tokens_per_second,
        "stddev": row.deviation,
        "ceiling_tokens_per_second": row.ceiling,
        "fraction_of_ceiling": row.fraction(),
        "host_microseconds_per_step": row.host_microseconds,
        "busy_share": row.busy,
        "submits_per_step": row.launches.map(|launches| launches.submits),
        "dispatches_per_step": row.launches.map(|launches| launches.dispatches),
        "allocations_per_step": row.launches.map(|launches| launches.allocations),
        "threads": cpu.map(|cpu| cpu.threads),
        "simd": cpu.map(|cpu| cpu.level.name()),
        "numeric": subject.engine.plan().options.numeric.to_string(),
        "mixed": subject.mixed,
        "checked": subject.checks.is_some(),
        "check": check_object(subject),
    })
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
            format!("{:.1} %", 100.0 * row.busy),
            format!("{:.1}", row.host_microseconds),
        ];
        if let Some(launches) = row.launches {
            let counts = [launches.submits, launches.dispatches, launches.allocations];
            cells.extend(counts.map(|count| format!("{count:.1}")));
        }
        table.push(cells);
    }
    console::print(&console::table(&table))?;
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
            "; switched off, because it lost"
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
