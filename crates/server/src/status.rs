//! The state of the models: `/metrics` for Prometheus and gateways, `/status` for the page. Both answer at
//! once, from what the engines said after their last steps.

use crate::generation::default_sampling;
use crate::hub::{EngineState, ModelState};
use crate::metrics::{Metrics, MetricsText};
use crate::reply::{self, Reply};
use crate::state::State;
use hyper::StatusCode;
use pianola_engine::{BusyTime, DevicePart, DeviceUse, PAGE_TOKENS, Report, ServiceInfo};
use serde_json::{Value, json};
use std::collections::HashMap;
use std::sync::Mutex;

/// Shares of the time in which devices computed, since `/status` was asked before.
#[derive(Default)]
pub(crate) struct BusyShares {
    /// By model: the last report, and the share until then.
    last: Mutex<HashMap<String, (BusyTime, f64)>>,
}

impl BusyShares {
    /// Seconds that a share is of at least, however often it is asked for.
    const LEAST: f64 = 0.5;

    fn share(&self, model: &str, now: &BusyTime) -> f64 {
        let mut last = self.last.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let (before, share) = last.entry(model.to_string()).or_default();
        let wall = now.wall_seconds - before.wall_seconds;
        // A model that was loaded anew counts from zero again.
        if !(0.0..Self::LEAST).contains(&wall) {
            let busy = now.seconds - before.seconds;
            *share = if wall > 0.0 { (busy / wall).clamp(0.0, 1.0) } else { 0.0 };
            *before = *now;
        }
        *share
    }
}

/// A number of a report, under its own name and those that gateways for vLLM read.
struct Family {
    names: &'static [&'static str],
    kind: &'static str,
    help: &'static str,
    value: fn(&Report) -> f64,
}

const fn counter(
    names: &'static [&'static str],
    help: &'static str,
    value: fn(&Report) -> f64,
) -> Family {
    Family { names, kind: "counter", help, value }
}

const fn gauge(
    names: &'static [&'static str],
    help: &'static str,
    value: fn(&Report) -> f64,
) -> Family {
    Family { names, kind: "gauge", help, value }
}

const FAMILIES: &[Family] = &[
    gauge(&["pianola_requests_running", "vllm:num_requests_running"], "Requests that run.", |r| {
        r.running as f64
    }),
    gauge(&["pianola_requests_waiting", "vllm:num_requests_waiting"], "Requests that wait.", |r| {
        r.waiting as f64
    }),
    counter(
        &[
            "pianola_prompt_tokens_total",
            "vllm:prompt_tokens_total",
            "vllm:prefix_cache_queries_total",
        ],
        "Tokens of prompts.",
        |r| r.counters.prompt_tokens as f64,
    ),
    counter(
        &["pianola_cached_tokens_total", "vllm:prefix_cache_hits_total"],
        "Tokens of prompts that were computed before.",
        |r| r.counters.cached_tokens as f64,
    ),
    counter(
        &["pianola_generated_tokens_total", "vllm:generation_tokens_total"],
        "Tokens generated.",
        |r| r.counters.generated_tokens as f64,
    ),
    counter(
        &["pianola_preemptions_total", "vllm:num_preemptions_total"],
        "Requests that made room for others.",
        |r| r.counters.preemptions as f64,
    ),
    counter(&["pianola_drafted_tokens_total"], "Tokens guessed ahead.", |r| {
        r.counters.drafted_tokens as f64
    }),
    counter(&["pianola_accepted_tokens_total"], "Guesses that were right.", |r| {
        r.counters.accepted_tokens as f64
    }),
    counter(&["pianola_steps_total"], "Steps played.", |r| r.counters.steps as f64),
    counter(&["pianola_device_busy_seconds_total"], "Seconds in which steps were played.", |r| {
        r.busy.seconds
    }),
    gauge(&["pianola_kv_bytes"], "Bytes of all KV pages.", |r| r.cache.bytes as f64),
    gauge(&["pianola_kv_held_bytes"], "Bytes of KV pages of running requests.", |r| {
        r.cache.held_bytes as f64
    }),
    gauge(&["pianola_kv_kept_bytes"], "Bytes of KV pages kept for later requests.", |r| {
        r.cache.kept_bytes as f64
    }),
    counter(&["pianola_kv_evictions_total"], "KV pages given away although they were kept.", |r| {
        r.cache.evictions as f64
    }),
    gauge(
        &["pianola_kv_usage_ratio", "vllm:kv_cache_usage_perc"],
        "Share of the KV pages that running requests hold.",
        |r| r.cache.held_bytes as f64 / (r.cache.bytes as f64).max(1.0),
    ),
];

/// Devices of a model with what each did; beyond those of a report nothing is known.
fn parts_in_use<'a>(
    info: &'a ServiceInfo,
    report: &'a Report,
) -> impl Iterator<Item = (&'a DevicePart, DeviceUse)> {
    let known = report.devices.iter().copied();
    info.placement.parts.iter().zip(known.chain(std::iter::repeat(DeviceUse::default())))
}

/// What each device of each model did.
fn device_metrics(loaded: &[(&str, &ServiceInfo, &Report)], text: &mut MetricsText) {
    type Value = fn(&DeviceUse) -> f64;
    let families: [(&str, &str, &str, Value); 3] = [
        (
            "pianola_device_work_seconds_total",
            "counter",
            "Seconds that one of several devices worked, as the host sees it; the rate per second is the share \
             of the time that it was busy.",
            |device| device.busy_seconds,
        ),
        (
            "pianola_device_failures_total",
            "counter",
            "Plays that a device failed and others did instead.",
            |device| device.failures as f64,
        ),
        (
            "pianola_device_left_out",
            "gauge",
            "Whether a device is left out since it failed.",
            |device| f64::from(u8::from(device.left_out)),
        ),
    ];
    for (name, kind, help, value) in families {
        text.family(name, kind, help);
        for (model, info, report) in loaded {
            // A single device's share is that of the steps.
            let several = info.placement.parts.len() > 1;
            for (part, device) in parts_in_use(info, report).filter(|_| several) {
                let labels = [("model_name", *model), ("device", part.device.as_str())];
                text.sample(name, &labels, value(&device));
            }
        }
    }
}

/// Counts in Prometheus' form.
pub(crate) fn metrics(state: &State) -> Reply {
    let content_type = "text/plain; version=0.0.4; charset=utf-8";
    let text = metrics_text(&state.metrics, &state.hub.states());
    reply::whole(StatusCode::OK, content_type, text)
}

fn metrics_text(requests: &Metrics, models: &[ModelState]) -> String {
    let mut text = MetricsText::default();
    requests.render(&mut text);
    let loaded: Vec<(&str, &ServiceInfo, &Report)> = models
        .iter()
        .filter_map(|model| {
            let EngineState { info, report } = model.loaded.as_ref()?;
            Some((model.card.id.as_str(), info, report.as_ref()?))
        })
        .collect();
    text.family("pianola_model_loaded", "gauge", "Whether a model is loaded.");
    for model in models {
        let loaded = u8::from(model.loaded.is_some());
        text.sample("pianola_model_loaded", &[("model_name", &model.card.id)], loaded);
    }
    for Family { names, kind, help, value } in FAMILIES {
        for name in *names {
            text.family(name, kind, help);
            for (model, _, report) in &loaded {
                text.sample(name, &[("model_name", model)], value(report));
            }
        }
    }
    device_metrics(&loaded, &mut text);
    text.family("pianola_memory_bytes", "gauge", "Bytes of weights, pages and activations.");
    for (model, info, report) in &loaded {
        for part in &info.placement.parts {
            for (heap, used, _) in heaps(part, report) {
                let labels = [("model_name", *model), ("device", &part.device), ("heap", heap)];
                text.sample("pianola_memory_bytes", &labels, used);
            }
        }
    }
    text.family("vllm:cache_config_info", "gauge", "The size of the KV cache.");
    for (model, info, report) in &loaded {
        let page_bytes = (info.kv_bytes_per_token * PAGE_TOKENS as u64).max(1);
        let (size, count) =
            (PAGE_TOKENS.to_string(), (report.cache.bytes / page_bytes).to_string());
        let labels = [
            ("model_name", *model),
            ("block_size", size.as_str()),
            ("num_gpu_blocks", count.as_str()),
        ];
        text.sample("vllm:cache_config_info", &labels, 1);
    }
    text.into_text()
}

/// Bytes that a device's part takes, by heap, and those that there are. Where a device has no heaps of
/// its own, all is in the machine's memory, and pages take it only once they are filled.
fn heaps(part: &DevicePart, report: &Report) -> Vec<(&'static str, u64, Option<u64>)> {
    match part.heaps {
        Some(heaps) => {
            let all =
                [("device memory", heaps.device_local, None), ("shared memory", heaps.host, None)];
            all.into_iter().filter(|(_, used, _)| *used > 0).collect()
        }
        None => {
            let filled = report.cache.bytes - report.cache.free_bytes();
            let used = part.weight_bytes + if part.head { filled } else { 0 };
            vec![("system memory", used, system_memory())]
        }
    }
}

/// Bytes of this machine's memory.
fn system_memory() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kibibytes * 1024)
}

/// What a request gets that leaves sampling to the server.
fn described_sampling() -> Value {
    let sampling = default_sampling();
    // In decimal digits: 0.7 has no exact form, and a wider one shows it.
    let digits = |value: f32| value.to_string().parse::<f64>().ok();
    json!({
        "temperature": digits(sampling.temperature),
        "top_k": sampling.top_k,
        "top_p": digits(sampling.top_p),
        "min_p": digits(sampling.min_p),
    })
}

/// The numbers that the page's panel shows.
pub(crate) fn status(state: &State) -> Reply {
    let described = |model: &ModelState| {
        let mut value = describe(model);
        let engine = model.loaded.as_ref();
        if let Some(report) = engine.and_then(|engine| engine.report.as_ref()) {
            let id = &model.card.id;
            value["busy_share"] = state.busy.share(id, &report.busy).into();
            value["ceiling_tokens_per_second"] = state.hub.ceiling(id).into();
        }
        value
    };
    let mut models: Vec<Value> = state.hub.states().iter().map(described).collect();
    // A first model that is loaded and cannot generate has a reason, too.
    if let (Some(first), Some(reason)) = (models.first_mut(), state.start_failure())
        && first["reason"].is_null()
    {
        first["reason"] = reason.into();
    }
    reply::ok(&json!({
        "version": state.options.version,
        "sampling": described_sampling(),
        "uptime_seconds": state.started.elapsed().as_secs_f64(),
        "active_requests": state.active(),
        "models": models,
    }))
}

fn describe(model: &ModelState) -> Value {
    let mut value = json!({
        "id": model.card.id, "state": model.state, "reason": model.reason,
        "expires_in_seconds": model.expires_in.map(|time| time.as_secs()),
    });
    let Some(EngineState { info, report: Some(report) }) = &model.loaded else { return value };
    let wall = report.busy.wall_seconds.max(1e-9);
    let part = |(part, device): (&DevicePart, DeviceUse)| {
        let heap = |(name, used, total): (&str, u64, Option<u64>)| json!({ "name": name, "used_bytes": used, "total_bytes": total });
        json!({
            "device": part.device, "layers": [part.layers.start, part.layers.end], "head": part.head,
            "weight_bytes": part.weight_bytes,
            "work_share": device.busy_seconds / wall, "failures": device.failures, "left_out": device.left_out,
            "heaps": heaps(part, report).into_iter().map(heap).collect::<Vec<_>>(),
        })
    };
    let (cache, counters) = (&report.cache, &report.counters);
    let pages = |bytes: u64| bytes.div_ceil((info.kv_bytes_per_token * PAGE_TOKENS as u64).max(1));
    let more = json!({
        "devices": info.devices, "context": info.context, "lanes": info.lanes,
        "layers": info.layers, "parameters": info.parameters, "quantization": info.quantization,
        "parts": parts_in_use(info, report).map(part).collect::<Vec<_>>(),
        "running": report.running, "waiting": report.waiting,
        "kv": {
            "pages": pages(cache.bytes), "used": pages(cache.held_bytes), "kept": pages(cache.kept_bytes),
            "free": pages(cache.free_bytes()), "bytes": cache.bytes,
        },
        "counters": {
            "steps": counters.steps, "prompt_tokens": counters.prompt_tokens,
            "cached_tokens": counters.cached_tokens, "generated_tokens": counters.generated_tokens,
            "preemptions": counters.preemptions, "drafted_tokens": counters.drafted_tokens,
            "accepted_tokens": counters.accepted_tokens,
        },
    });
    if let (Value::Object(value), Value::Object(more)) = (&mut value, more) {
        value.extend(more);
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    /// Names and kinds, from the page's tables: the second cell holds the name that gateways read.
    #[test]
    fn the_reference_lists_the_metrics() {
        let text = metrics_text(&Metrics::default(), &[]);
        let kinds = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '));
        let page = include_str!("../../../docs/reference/metrics.md");
        let mut listed = BTreeMap::new();
        for line in page.lines().filter(|line| line.starts_with("| `")) {
            let cells: Vec<&str> = line.split('|').map(str::trim).collect();
            let names = [cells[1], cells[2]].into_iter().flat_map(|names| names.split(", "));
            let names = names.map(|name| name.trim_matches('`')).filter(|name| !name.is_empty());
            listed.extend(names.map(|name| (name, cells[3])));
        }
        assert_eq!(listed, kinds.collect());
    }
}
