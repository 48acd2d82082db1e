//! `--scenario`: requests that arrive over time.

use pianola_engine::{ChatScenario, ScenarioReport};
use serde_json::json;

use super::subject::{Subject, quant};
use crate::console;
use crate::failure::Failure;

/// Conversations that begin over time: what their users see.
pub(super) fn chat_scenario(
    subject: &mut Subject,
    scenario: &ChatScenario,
    json: bool,
) -> Result<(), Failure> {
    let report = pianola_engine::run_scenario(&mut subject.engine, scenario)?;
    let ScenarioReport { first_token, between_tokens, .. } = &report;
    if json {
        let percentiles = |times: &[f64]| {
            let at = |share: f64| pianola_engine::percentile(times, share);
            json!({ "p50": at(0.5), "p95": at(0.95), "p99": at(0.99) })
        };
        return console::print_json(&json!({
            "model": subject.label,
            "quant": quant(subject),
            "device_name": subject.engine.runs_on(),
            "scenario": "chat",
            "lanes": subject.engine.plan().options.sequences,
            "conversations": scenario.conversations,
            "conversations_per_second": scenario.rate,
            "requests": report.requests,
            "seconds": report.seconds,
            "generated_tokens": report.generated_tokens,
            "prompt_tokens": report.prompt_tokens,
            "cached_tokens": report.cached_tokens,
            "preemptions": report.preemptions,
            "tokens_per_second": report.generated_tokens as f64 / report.seconds,
            "first_token_seconds": percentiles(first_token),
            "between_tokens_seconds": percentiles(between_tokens),
        }));
    }
    console::print_line(&format!(
        "{} {} on {}: {} conversations of {} turns, {} begun a second, {} lanes",
        subject.label,
        quant(subject),
        subject.engine.runs_on(),
        scenario.conversations,
        ChatScenario::TURNS,
        scenario.rate,
        subject.engine.plan().options.sequences,
    ))?;
    let mut table = vec![["milliseconds", "p50", "p95", "p99"].map(String::from).to_vec()];
    for (name, times) in [("to the first token", first_token), ("between tokens", between_tokens)] {
        let cell = |share: f64| format!("{:.1}", 1e3 * pianola_engine::percentile(times, share));
        table.push(vec![name.to_string(), cell(0.5), cell(0.95), cell(0.99)]);
    }
    console::print(&console::table(&table))?;
    console::print_line(&format!(
        "{} requests in {:.1} s: {:.1} tokens/s generated; {} of {} prompt tokens cached, {} preemptions",
        report.requests,
        report.seconds,
        report.generated_tokens as f64 / report.seconds,
        report.cached_tokens,
        report.prompt_tokens,
        report.preemptions,
    ))
}
