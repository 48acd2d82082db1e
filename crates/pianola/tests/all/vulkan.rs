//! The commands on a Vulkan device: by default Mesa's software driver, or what
//! `PIANOLA_TEST_VULKAN` names.

use crate::common;
use crate::common::Folder;
use serde_json::Value;
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::Path;

fn device() -> OsString {
    common::vulkan_device().into()
}

fn greedy(model: &Path, device: OsString, more: &[&str]) -> Vec<OsString> {
    let mut list =
        words!["run", "-m", model, "--temp", "0", "--ignore-eos", "-n", "20", "--device"].to_vec();
    list.push(device);
    list.extend(more.iter().map(OsString::from));
    list.push("hello".into());
    list
}

/// The same words whatever the device, the number of tokens a submission, and the placement.
#[test]
fn answers_are_those_of_the_processor() {
    let folder = Folder::new();
    let model = folder.model();
    let expected = folder.pianola(greedy(&model, "cpu".into(), &["--exact"])).output();
    for more in [
        &["--exact"][..],
        &["--exact", "--tokens-per-submit", "7"],
        &["--exact", "--layers-on-gpu", "1"],
    ] {
        let run = folder.pianola_vulkan(greedy(&model, device(), more));
        assert!(run.err.contains("tiny on vulkan ("), "{run:#?}");
        assert_eq!(run.output(), expected, "{more:?}");
    }
}

#[test]
fn devices_and_plans_tell_of_vulkan() {
    let folder = Folder::new();
    let devices = folder.pianola_vulkan(["devices", "--json"]).json();
    let devices = devices.as_array().unwrap();
    assert_eq!(devices[0]["device"], "cpu");
    let vulkan = devices.iter().find(|device| device["device"] == "vulkan:0").unwrap();
    for field in ["name", "driver", "type", "heaps", "subgroup", "largest_binding_bytes"] {
        assert!(!vulkan[field].is_null(), "{field} of {vulkan}");
    }
    assert!(vulkan["bytes_per_second"].as_f64().unwrap() > 1e6);
    let plan = folder.pianola_vulkan(
        ["plan", "--shape", "gemma3:1b", "--quant", "q4_0", "--context", "256", "--device"]
            .map(OsString::from)
            .into_iter()
            .chain([device()]),
    );
    let text = plan.output();
    assert!(text.contains("a layer: 5 dispatches, 5 barriers"), "{text}");
    // Without a driver the processor is listed, and a line says why it is alone.
    let alone = folder.pianola(["devices"]);
    assert!(alone.err.contains("no Vulkan device"), "{alone:#?}");
    assert!(alone.output().starts_with("cpu:"));
}

#[test]
fn benchmarks_count_what_a_step_costs_and_ablate() {
    let folder = Folder::new();
    let model = folder.model();
    let trace = folder.path.join("trace.json");
    let mut words = words!["bench", "-m", &model, "-p", "9", "-n", "4", "--repeat", "1"].to_vec();
    words.extend(words![
        "--tokens-per-submit",
        "1",
        "--ablate",
        "--json",
        "--profile",
        &trace,
        "--device"
    ]);
    words.push(device());
    let rows = folder.pianola_vulkan(words).json();
    let rows = rows.as_array().unwrap();
    let generate = rows.iter().find(|row| row["test"] == "tg4" && row["ablation"].is_null());
    let generate = generate.unwrap();
    assert_eq!(generate["submits_per_step"], 1.0);
    assert_eq!(generate["allocations_per_step"], 0.0);
    // Embedding and angles, two layers of five, the head, and two that sample.
    assert_eq!(generate["dispatches_per_step"], 15.0);
    assert_eq!(generate["checked"], false);
    let ablated: Vec<&str> = rows.iter().filter_map(|row| row["ablation"].as_str()).collect();
    assert_eq!(ablated.len(), 3, "{ablated:?}");
    let last = rows.last().unwrap();
    assert_eq!(last["allocations_per_step"], 13.0);
    // Outputs of one row, the largest of which are the logits: far from room for 512 rows.
    let bytes = last["allocated_bytes_per_step"].as_f64().unwrap();
    assert!(bytes > 1000.0 && bytes < 100_000.0, "{bytes}");
    for row in rows {
        let busy = row["busy_share"].as_f64().unwrap();
        assert!(busy > 0.0 && busy < 1.0, "{row}");
    }
    assert!(!generate["options"]["drivers"][0].as_str().unwrap().is_empty());
    let trace: Value = serde_json::from_str(&std::fs::read_to_string(trace).unwrap()).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    check_trace(events);
}

/// Each layer's five kernels in each play of one row, each taking some time, one behind another as
/// they depend on each other.
fn check_trace(events: &[Value]) {
    let number = |event: &Value, key: &str| event[key].as_f64().unwrap();
    let plays: BTreeSet<u64> = events
        .iter()
        .filter(|event| event["args"]["rows"] == 1)
        .map(|event| event["args"]["play"].as_u64().unwrap())
        .collect();
    assert!(!plays.is_empty());
    for play in plays {
        for layer in ["blk.0.", "blk.1."] {
            let mut kernels: Vec<&Value> = events
                .iter()
                .filter(|event| event["args"]["play"] == play)
                .filter(|event| event["name"].as_str().unwrap().starts_with(layer))
                .collect();
            assert_eq!(kernels.len(), 5, "play {play}: {kernels:#?}");
            kernels.sort_by(|a, b| number(a, "ts").total_cmp(&number(b, "ts")));
            assert_eq!(kernels[4]["name"], format!("{layer}ffn_down"));
            for pair in kernels.windows(2) {
                let end = number(pair[0], "ts") + number(pair[0], "dur");
                // In microseconds, of which a trace keeps the thousandths.
                assert!(end <= number(pair[1], "ts") + 1e-2, "{pair:#?}");
            }
            for kernel in kernels {
                assert!(number(kernel, "dur") > 0.0, "{kernel}");
                assert!(number(&kernel["args"], "bytes") > 0.0, "{kernel}");
            }
        }
    }
}

/// The processor's layers of a chunk run while the GPU is still busy with the chunk before.
#[test]
fn a_timeline_has_a_row_for_each_device() {
    let folder = Folder::new();
    let long = common::tiny().set("llama.context_length", 2048u32).to_bytes().unwrap();
    let (model, trace) = (folder.file("long.gguf", long), folder.path.join("trace.json"));
    let prompt = folder.file("prompt.txt", "a day in april ".repeat(100));
    let device = format!("cpu+{}", common::vulkan_device());
    let mut words = words!["run", "-m", &model, "--temp", "0", "--ignore-eos", "-n", "2"].to_vec();
    words.extend(words!["--device", device, "--layers-on-gpu", "1", "--profile", &trace]);
    words.extend(words!["-f", &prompt]);
    let run = folder.pianola_vulkan(words);
    for row in ["the longest step, ", "\ncpu     ", "\nvulkan  ", "  busy "] {
        assert!(run.err.contains(row), "no '{row}': {run:#?}");
    }
    run.output();
    let trace: Value = serde_json::from_str(&std::fs::read_to_string(trace).unwrap()).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    let names: Vec<&Value> = events.iter().filter(|event| event["ph"] == "M").collect();
    assert_eq!(names.len(), 2, "{names:#?}");
    let spans = |device: &str| -> Vec<(f64, f64)> {
        let name = names.iter().find(|name| name["args"]["name"] == device).unwrap();
        let mine = events.iter().filter(|event| event["ph"] == "X" && event["tid"] == name["tid"]);
        mine.map(|event| {
            let start = event["ts"].as_f64().unwrap();
            (start, start + event["dur"].as_f64().unwrap())
        })
        .collect()
    };
    let (cpu, vulkan) = (spans("cpu"), spans("vulkan"));
    // Three chunks and a token; the last chunk may be cut in halves.
    assert!(cpu.len() >= 4 && cpu.len() == vulkan.len(), "{events:#?}");
    let at_once =
        |(from, to): (f64, f64)| vulkan.iter().any(|other| from < other.1 && other.0 < to);
    assert!(cpu.iter().any(|&span| at_once(span)), "{cpu:?} beside {vulkan:?}");
}

#[test]
fn stale_and_broken_tunings_are_ignored_with_a_notice() {
    let folder = Folder::new();
    let model = folder.model();
    let devices = folder.pianola_vulkan(["devices", "--json"]).json();
    let name = devices[1]["name"].as_str().unwrap().to_string();
    let word = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' };
    let file: String = name.chars().map(word).collect();
    let path = format!("tuning/{}.txt", file.trim_matches('-'));
    for (content, why) in [
        ("something else", "line 1 cannot be read"),
        ("pianola tuning 1\nanother card | 1.0 | kernels 0\n", "measured for another card"),
    ] {
        folder.file(&path, content);
        let run = folder.pianola_vulkan(greedy(&model, "vulkan:0".into(), &[]));
        assert!(run.err.contains("ignored") && run.err.contains(why), "{run:#?}");
        assert_eq!(run.code, Some(0));
    }
}
