//! Segments of several devices over time: a row for each device.

use pianola_engine::Span;
use pianola_plan::Plan;
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// Columns of the rows.
const COLUMNS: usize = 64;

/// The longest step as a row for each device, and the share of the time that each worked. Of a device that is
/// only `emulated` the order is shown and no time.
pub fn text(plan: &Plan, spans: &[Span], emulated: Option<&str>) -> String {
    let Some(step) = longest(spans) else { return String::new() };
    let of_step: Vec<&Span> = spans.iter().filter(|span| span.step == step).collect();
    let start = of_step.iter().map(|span| span.start).fold(f64::INFINITY, f64::min);
    let end = of_step.iter().map(|span| span.end).fold(0.0, f64::max);
    let slots = slots(&of_step);
    let rows: usize = slots.iter().filter_map(|&slot| rows_of(&of_step, slot)).sum();
    let halves = if slots.len() > 1 { " in two halves, 1 and 2" } else { "" };
    let mut text = match emulated {
        Some(name) => format!(
            "a step of {rows} rows{halves}, in order of time; {name} has no speed, so that times say nothing\n"
        ),
        None => format!(
            "the longest step, {rows} rows{halves}, {:.1} ms; a column is {:.2} ms\n",
            1e3 * (end - start),
            1e3 * (end - start) / COLUMNS as f64
        ),
    };
    let widest = plan.devices.iter().map(|device| device.name.len()).max().unwrap_or(0);
    for (device, spec) in plan.devices.iter().enumerate() {
        let mut row = vec![b'.'; COLUMNS];
        for span in of_step.iter().filter(|span| span.device == device) {
            let column = |time: f64| {
                let share = (time - start) / (end - start).max(f64::MIN_POSITIVE);
                ((share * COLUMNS as f64) as usize).min(COLUMNS - 1)
            };
            let half = slots.iter().position(|&slot| slot == span.slot).unwrap_or(0);
            row[column(span.start)..=column(span.end)].fill(b'1' + half as u8);
        }
        let share = match emulated {
            Some(_) => String::new(),
            None => format!("  busy {:.0} %", 100.0 * busy_share(spans, device)),
        };
        text += &format!("{:<widest$}  {}{share}\n", spec.name, String::from_utf8_lossy(&row));
    }
    text.trim_end().to_string()
}

/// The step that took longest from its first segment to its last.
fn longest(spans: &[Span]) -> Option<u64> {
    // Steps that overlap have their spans in turn.
    let mut steps: BTreeMap<u64, (f64, f64)> = BTreeMap::new();
    for span in spans {
        let (start, end) = steps.entry(span.step).or_insert((span.start, span.end));
        (*start, *end) = (start.min(span.start), end.max(span.end));
    }
    let length = |(start, end): (f64, f64)| end - start;
    let longest = steps.into_iter().max_by(|a, b| length(a.1).total_cmp(&length(b.1)));
    longest.map(|(step, _)| step)
}

/// Slots of a step, in the order of its halves.
fn slots(spans: &[&Span]) -> Vec<usize> {
    let mut slots = Vec::new();
    for span in spans {
        if !slots.contains(&span.slot) {
            slots.push(span.slot);
        }
    }
    slots
}

fn rows_of(spans: &[&Span], slot: usize) -> Option<usize> {
    spans.iter().find(|span| span.slot == slot).map(|span| span.rows)
}

/// Share of all the time that a device worked.
fn busy_share(spans: &[Span], device: usize) -> f64 {
    let start = spans.iter().map(|span| span.start).fold(f64::INFINITY, f64::min);
    let end = spans.iter().map(|span| span.end).fold(0.0, f64::max);
    let mine = spans.iter().filter(|span| span.device == device);
    mine.map(|span| span.end - span.start).sum::<f64>() / (end - start).max(f64::MIN_POSITIVE)
}

/// For a viewer of traces: a row for each device.
pub fn trace(plan: &Plan, spans: &[Span]) -> Value {
    let name = |(device, spec): (usize, &pianola_plan::DeviceSpec)| {
        json!({
            "name": "thread_name", "ph": "M", "pid": 0, "tid": device,
            "args": { "name": spec.name },
        })
    };
    let event = |span: &Span| {
        let ops = &plan.segments[span.segment].ops;
        json!({
            "name": format!("{} to {}", plan.ops[ops.start].name, plan.ops[ops.end - 1].name),
            "cat": "segment",
            "ph": "X",
            "pid": 0,
            "tid": span.device,
            "ts": 1e6 * span.start,
            "dur": 1e6 * (span.end - span.start),
            "args": {
                "step": span.step, "slot": span.slot, "rows": span.rows, "context": span.context,
                "segment": span.segment,
            },
        })
    };
    let names = plan.devices.iter().enumerate().map(name);
    let events: Vec<Value> = names.chain(spans.iter().map(event)).collect();
    json!({ "displayTimeUnit": "ms", "traceEvents": events })
}
