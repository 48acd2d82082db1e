//! `--profile`: where a device's time went, as a table and as a trace.

mod timeline;

use std::collections::BTreeMap;
use std::path::Path;

use pianola_engine::{Engine, Span};
use pianola_plan::{Ceilings, KernelTime, Plan, PlanOp};
use serde_json::{Value, json};

use crate::console::{self, Console};
use crate::failure::Failure;
use crate::output;

/// Asks the engine to time its kernels from now on, for a trace in `path`; where several devices work at
/// once their segments, because timing single kernels would keep them from it.
pub fn start(engine: &mut Engine, overlap: bool, path: &Path) -> Result<(), Failure> {
    // Before the work, which would be lost; what is there stays until there is a trace.
    output::check_writable(path).map_err(|error| unwritable(path, &error))?;
    if engine.plan().devices.len() > 1 && overlap {
        engine.start_timeline();
        return Ok(());
    }
    if engine.start_profile() {
        return Ok(());
    }
    Err(Failure::usage(format!(
        "{} keeps no times of single kernels; --profile needs timestamps on every device",
        engine.runs_on()
    )))
}

/// Prints the table to standard error and writes the trace to `path`.
pub fn finish(engine: &mut Engine, path: &Path, console: Console) -> Result<(), Failure> {
    let spans = engine.take_timeline();
    if !spans.is_empty() {
        return finish_timeline(engine, &spans, path, console);
    }
    let times = engine.take_profile();
    let ceilings = engine.measure();
    let plan = engine.plan();
    let trace = trace(plan, &times, ceilings.as_deref()).to_string();
    output::write(path, &trace).map_err(|error| unwritable(path, &error))?;
    console.notice(&table(plan, &times, ceilings.as_deref()));
    console.notice(&format!(
        "{} kernels of {} plays timed; trace for chrome://tracing or Perfetto: {}",
        times.len(),
        times.last().map_or(0, |time| time.play + 1),
        path.display()
    ));
    Ok(())
}

/// The same for segments of several devices.
fn finish_timeline(
    engine: &Engine,
    spans: &[Span],
    path: &Path,
    console: Console,
) -> Result<(), Failure> {
    let trace = timeline::trace(engine.plan(), spans).to_string();
    output::write(path, &trace).map_err(|error| unwritable(path, &error))?;
    console.notice(&timeline::text(engine.plan(), spans, engine.emulated_device()));
    console.notice(&format!(
        "{} segments timed, as the host sees them; trace for chrome://tracing or Perfetto: {}",
        spans.len(),
        path.display()
    ));
    Ok(())
}

fn unwritable(path: &Path, error: &std::io::Error) -> Failure {
    Failure::failed(format!("the trace cannot be written to {}: {error}", path.display()))
}

/// What kernels of one kind have in common: `blk.3.attn_q` and `blk.4.attn_q` are alike.
fn kind(plan: &Plan, time: &KernelTime) -> String {
    let Some(op) = time.op else { return time.kernel.clone() };
    let PlanOp { name, layer, device, .. } = &plan.ops[op];
    let short = match layer.map(|layer| name.replacen(&format!("blk.{layer}."), "blk.*.", 1)) {
        Some(name) => name,
        None => name.clone(),
    };
    let short = match plan.devices.len() {
        1 => short,
        _ => format!("{}: {short}", plan.devices[device.0].name),
    };
    format!("{short} {}", time.kernel)
}

/// Bytes that a launch had to move. A kernel that is launched in parts shares them evenly.
fn bytes(plan: &Plan, time: &KernelTime, launches: usize) -> f64 {
    let Some(op) = time.op else { return 0.0 };
    let work = plan.ops[op].cost.work(time.rows, time.logits, time.context);
    work.bytes as f64 / launches.max(1) as f64
}

/// Launches of each kernel of the plan in each play.
fn launches(times: &[KernelTime]) -> BTreeMap<(usize, usize), usize> {
    let mut counts = BTreeMap::new();
    for time in times {
        if let Some(op) = time.op {
            *counts.entry((time.play, op)).or_default() += 1;
        }
    }
    counts
}

/// Bytes a second that the device of a kernel reaches at best; the head's for what is in no plan.
fn bandwidth(plan: &Plan, time: &KernelTime, ceilings: Option<&[Ceilings]>) -> Option<f64> {
    let device = time.op.map_or(plan.head_device(), |op| plan.ops[op].device);
    ceilings.map(|ceilings| ceilings[device.0].bytes_per_second)
}

#[derive(Default)]
struct Total {
    count: usize,
    seconds: f64,
    bytes: f64,
    /// Bytes a second that the device reaches at best.
    ceiling: Option<f64>,
}

fn table(plan: &Plan, times: &[KernelTime], ceilings: Option<&[Ceilings]>) -> String {
    let counts = launches(times);
    let mut totals: BTreeMap<(bool, String), Total> = BTreeMap::new();
    for time in times {
        let total = totals.entry((time.rows > 1, kind(plan, time))).or_default();
        let parts = time.op.map_or(1, |op| counts[&(time.play, op)]);
        total.count += 1;
        total.seconds += time.seconds;
        total.bytes += bytes(plan, time, parts);
        total.ceiling = bandwidth(plan, time, ceilings);
    }
    let whole: f64 = totals.values().map(|total| total.seconds).sum();
    let mut rows: Vec<(&(bool, String), &Total)> = totals.iter().collect();
    rows.sort_by(|a, b| b.1.seconds.total_cmp(&a.1.seconds));
    let head =
        ["rows", "kernel", "launches", "us each", "ms in all", "share", "GB/s", "of ceiling"];
    let mut table = vec![head.map(String::from).to_vec()];
    for ((many, kind), total) in rows {
        let speed = total.bytes / total.seconds;
        let share = total
            .ceiling
            .map_or(String::new(), |ceiling| format!("{:.0} %", 100.0 * speed / ceiling));
        table.push(vec![
            if *many { "many" } else { "one" }.to_string(),
            kind.clone(),
            total.count.to_string(),
            format!("{:.2}", 1e6 * total.seconds / total.count as f64),
            format!("{:.3}", 1e3 * total.seconds),
            format!("{:.1} %", 100.0 * total.seconds / whole),
            gigabytes(speed),
            share,
        ]);
    }
    console::table(&table)
}

/// Bytes a second in GB/s, with as many digits as tell slow ones apart.
fn gigabytes(speed: f64) -> String {
    match speed / 1e9 {
        fast if fast >= 10.0 => format!("{fast:.0}"),
        slow => format!("{slow:.2}"),
    }
}

fn trace(plan: &Plan, times: &[KernelTime], ceilings: Option<&[Ceilings]>) -> Value {
    let counts = launches(times);
    let event = |time: &KernelTime| {
        let parts = time.op.map_or(1, |op| counts[&(time.play, op)]);
        let bytes = bytes(plan, time, parts);
        let speed = bytes / time.seconds.max(1e-9);
        json!({
            "name": time.op.map_or(time.kernel.clone(), |op| plan.ops[op].name.clone()),
            "cat": time.kernel,
            "ph": "X",
            "pid": 0,
            "tid": time.op.map_or(0, |op| plan.ops[op].device.0),
            "ts": 1e6 * time.start,
            "dur": 1e6 * time.seconds,
            "args": {
                "play": time.play,
                "rows": time.rows,
                "context": time.context,
                "bytes": bytes,
                "gigabytes_per_second": speed / 1e9,
                "share_of_ceiling": bandwidth(plan, time, ceilings).map(|ceiling| speed / ceiling),
            },
        })
    };
    json!({ "displayTimeUnit": "ns", "traceEvents": times.iter().map(event).collect::<Vec<_>>() })
}
