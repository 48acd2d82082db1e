//! Counts and times in Prometheus' text form.

use std::collections::BTreeMap;
use std::fmt::{Display, Write};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

/// Upper ends of the buckets, in seconds.
const FIRST_TOKEN: &[f64] =
    &[0.005, 0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.25, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0];
const BETWEEN_TOKENS: &[f64] =
    &[0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.125, 0.25, 0.5, 1.0, 2.5];
const WHOLE: &[f64] = &[0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0];

/// A distribution.
#[derive(Clone)]
struct Histogram {
    bounds: &'static [f64],
    /// One for each bound, and one above all.
    counts: Vec<u64>,
    sum: f64,
}

impl Histogram {
    fn new(bounds: &'static [f64]) -> Histogram {
        Histogram { bounds, counts: vec![0; bounds.len() + 1], sum: 0.0 }
    }

    fn observe(&mut self, seconds: f64) {
        let bucket = self.bounds.partition_point(|&bound| bound < seconds);
        self.counts[bucket] += 1;
        self.sum += seconds;
    }
}

#[derive(Default)]
struct Counts {
    /// By route, status and model.
    requests: BTreeMap<(&'static str, u16, String), u64>,
    /// By model.
    first: BTreeMap<String, Histogram>,
    between: BTreeMap<String, Histogram>,
    whole: BTreeMap<String, Histogram>,
}

/// Counts and times of requests.
#[derive(Default)]
pub(crate) struct Metrics {
    counts: Mutex<Counts>,
}

impl Metrics {
    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// A request has ended.
    pub fn count_request(&self, route: &'static str, status: u16, model: &str, took: Duration) {
        let mut counts = self.counts();
        *counts.requests.entry((route, status, model.to_string())).or_default() += 1;
        if !model.is_empty() && status < 400 {
            observe(&mut counts.whole, model, WHOLE, took);
        }
    }

    /// The first token of an answer came `time` after its request.
    pub fn observe_first(&self, model: &str, time: Duration) {
        observe(&mut self.counts().first, model, FIRST_TOKEN, time);
    }

    /// A token came `time` after the one before.
    pub fn observe_gap(&self, model: &str, time: Duration) {
        observe(&mut self.counts().between, model, BETWEEN_TOKENS, time);
    }

    /// All of it as text.
    pub fn render(&self, text: &mut MetricsText) {
        let counts = self.counts();
        text.family("pianola_requests_total", "counter", "Requests by route, status and model.");
        for ((route, status, model), count) in &counts.requests {
            let status = status.to_string();
            text.sample(
                "pianola_requests_total",
                &[("route", route), ("status", &status), ("model", model)],
                count,
            );
        }
        let histograms = [
            ("time_to_first_token_seconds", "From a request to its first token.", &counts.first),
            ("inter_token_latency_seconds", "Between two tokens of an answer.", &counts.between),
            (
                "e2e_request_latency_seconds",
                "From a request to the end of its answer.",
                &counts.whole,
            ),
        ];
        for (name, help, histograms) in histograms {
            // Gateways read the names that vLLM gives them.
            for prefix in ["pianola_", "vllm:"] {
                text.histograms(&format!("{prefix}{name}"), help, histograms);
            }
        }
    }
}

fn observe(
    histograms: &mut BTreeMap<String, Histogram>,
    model: &str,
    bounds: &'static [f64],
    time: Duration,
) {
    let histogram = histograms.entry(model.to_string()).or_insert_with(|| Histogram::new(bounds));
    histogram.observe(time.as_secs_f64());
}

/// Metrics as text.
#[derive(Default)]
pub(crate) struct MetricsText {
    text: String,
}

impl MetricsText {
    /// Begins a family of samples.
    pub fn family(&mut self, name: &str, kind: &str, help: &str) {
        self.line(format_args!("# HELP {name} {help}\n# TYPE {name} {kind}\n"));
    }

    /// Adds a sample to the family.
    pub fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: impl Display) {
        let label = |(name, value): &(&str, &str)| format!("{name}=\"{}\"", escaped(value));
        let labels: Vec<String> = labels.iter().map(label).collect();
        match labels.is_empty() {
            true => self.line(format_args!("{name} {value}\n")),
            false => self.line(format_args!("{name}{{{}}} {value}\n", labels.join(","))),
        }
    }

    fn histograms(&mut self, name: &str, help: &str, all: &BTreeMap<String, Histogram>) {
        self.family(name, "histogram", help);
        for (model, histogram) in all {
            let mut below = 0;
            let bounds = histogram.bounds.iter().map(f64::to_string).chain(["+Inf".to_string()]);
            for (bound, count) in bounds.zip(&histogram.counts) {
                below += count;
                let labels = [("model_name", model.as_str()), ("le", bound.as_str())];
                self.sample(&format!("{name}_bucket"), &labels, below);
            }
            let labels = [("model_name", model.as_str())];
            self.sample(&format!("{name}_sum"), &labels, histogram.sum);
            self.sample(&format!("{name}_count"), &labels, below);
        }
    }

    fn line(&mut self, line: std::fmt::Arguments<'_>) {
        // Writing to a string does not fail.
        let _ = self.text.write_fmt(line);
    }

    pub fn into_text(self) -> String {
        self.text
    }
}

fn escaped(label: &str) -> String {
    label.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_count_all_that_lies_below() {
        let metrics = Metrics::default();
        for milliseconds in [3, 7, 700, 500_000] {
            metrics.observe_first("m\"x", Duration::from_millis(milliseconds));
        }
        let mut text = MetricsText::default();
        metrics.render(&mut text);
        let text = text.into_text();
        let line = |start: &str| {
            let name = format!("pianola_time_to_first_token_seconds{start}");
            let found = text.lines().find(|line| line.starts_with(&name));
            found.and_then(|line| line.rsplit(' ').next()).map(str::to_string)
        };
        assert_eq!(line("_bucket{model_name=\"m\\\"x\",le=\"0.005\"}").as_deref(), Some("1"));
        assert_eq!(line("_bucket{model_name=\"m\\\"x\",le=\"0.64\"}").as_deref(), Some("2"));
        assert_eq!(line("_bucket{model_name=\"m\\\"x\",le=\"+Inf\"}").as_deref(), Some("4"));
        assert_eq!(line("_count").as_deref(), Some("4"));
    }
}
