//! What this machine can do with a model: `plan`, `bench`, `check` and `devices`.

use crate::common::{Folder, with};

#[test]
fn plan_prints_what_runs() {
    let folder = Folder::new();
    let model = folder.model();
    let text =
        folder.pianola(words!["plan", "-m", &model, "--rows", "4", "--memory", "1GiB"]).output();
    assert!(text.contains("blk.0.ffn_down") && text.contains("tokens/s"), "{text}");
    assert!(text.lines().next().unwrap().contains(" fits on cpu"), "{text}");
    let full = folder.pianola(words!["plan", "-m", &model, "--full"]).output();
    assert!(full.lines().count() >= text.lines().count() && full.contains("blk.1.ffn_down"));
    let object = folder.pianola(words!["plan", "-m", &model, "--memory", "1GiB", "--json"]).json();
    assert!(object["ops"].as_array().unwrap().len() > 8);
    assert!(object["seconds"].as_f64().unwrap() > 0.0);
    let answer = &object["answer"];
    assert_eq!(answer["fits"], true);
    let speed = &answer["generation_tokens_per_second"];
    assert!(speed["best"].as_f64() > speed["expected"].as_f64(), "{answer}");
    let part = &answer["devices"][0];
    let bytes = |key: &str| part[key].as_u64().unwrap();
    let sum = ["weight_bytes", "prompt_weight_bytes", "kv_bytes", "working_bytes"].map(bytes);
    assert_eq!(part["heaps"][0]["bytes"].as_u64().unwrap(), sum.iter().sum::<u64>());
    // The weights' second form is said, and left where that is asked for.
    let off = folder.pianola(words!["plan", "-m", &model, "--prompt-weights", "off"]).output();
    let said = " for their int8 copy";
    assert_eq!(
        (text.contains(said), off.contains(said)),
        (bytes("prompt_weight_bytes") > 0, false)
    );
    let plan = words!["plan", "-m", &model, "--kv-type", "q8_0"];
    assert!(folder.pianola(&plan).output().contains(", q8_0, "));
    let small = folder.pianola(with(&plan, &["--json"])).json();
    assert_eq!(small["kv_types"][0], "q8_0");
    assert!(small["kv_bytes"].as_u64() < object["kv_bytes"].as_u64());
    let shape = folder.pianola([
        "plan",
        "--shape",
        "gemma3:27b",
        "--quant",
        "q4_0",
        "--memory",
        "64GiB",
        "--json",
    ]);
    let shape = shape.json();
    let parameters = shape["parameters"].as_f64().unwrap();
    assert!((26e9..28.5e9).contains(&parameters), "{parameters}");
}

/// The numbers of what does not fit, and what to do: by a plan, and by a load before a byte is read.
#[test]
fn too_little_memory_is_explained() {
    let folder = Folder::new();
    // More than the weights take, and with what is left to other programs less than they need.
    let plan = folder.pianola(["plan", "gemma3:27b", "--memory", "17GB"]).output();
    assert!(plan.contains("gemma3:27b does not fit on cpu"), "{plan}");
    assert!(plan.contains(" with 4096 tokens of context: weights 16."), "{plan}");
    let free = "17.0 GB are free, 14.9 GB may be used; a smaller model, --context";
    assert!(plan.contains(free) && !plan.contains("memory holds no more"), "{plan}");
    let model = folder.model();
    let base = words!["run", "-m", &model, "-n", "2", "hi"];
    let run = |memory: &str| folder.pianola(with(&base, &["--memory", memory]));
    let words = ["no room for the model: ", " for weights, ", " are free", "list --all"];
    run("50kB").fails(1, &words);
    assert_eq!(run("1GiB").code, Some(0));
}

#[test]
fn bench_has_the_keys_of_a_table() {
    let folder = Folder::new();
    let model = folder.model();
    let base = words!["bench", "-m", &model, "--check", "-p", "32", "-n", "8", "--repeat", "2"];
    let rows = folder.pianola(with(&base, &["--json"])).json();
    let rows = rows.as_array().unwrap();
    assert_eq!([&rows[0]["test"], &rows[1]["test"]], ["pp32", "tg8"]);
    for row in rows {
        assert_eq!((&row["model"], &row["quant"]), (&"tiny".into(), &"q8_0".into()));
        assert_eq!((&row["device"], &row["lanes"]), (&"cpu".into(), &1.into()));
        for key in [
            "tokens_per_second",
            "ceiling_tokens_per_second",
            "fraction_of_ceiling",
            "host_microseconds_per_step",
        ] {
            assert!(row[key].as_f64().unwrap() > 0.0, "{key}: {row}");
        }
        assert!(row["stddev"].is_number());
        // All that is needed to repeat it.
        assert_eq!(row["version"], env!("CARGO_PKG_VERSION"));
        let commit = row["commit"].as_str().unwrap();
        assert!(folder.pianola(["--version"]).output().contains(commit));
        assert_eq!((&row["command"][0], &row["command"][1]), (&"pianola".into(), &"bench".into()));
        assert_eq!(row["command"].as_array().unwrap().last().unwrap(), "--json");
        assert_eq!(row["options"]["kv_types"][0], "f16");
        assert_eq!(row["options"]["tuned"], false);
        assert!(row["ceilings"][0]["bytes_per_second"].as_f64().unwrap() > 1e8);
        // Raw repetitions are kept, also those that would not count.
        let speeds = row["repetitions"].as_array().unwrap();
        let speed = |at: usize| speeds[at]["tokens_per_second"].as_f64().unwrap();
        let mean = row["tokens_per_second"].as_f64().unwrap();
        assert_eq!((speeds.len(), &row["left_out"]), (2, &0.into()));
        assert!(((speed(0) + speed(1)) / 2.0 / mean - 1.0).abs() < 1e-9, "{row}");
        assert!(row["warm_up_rounds"].as_u64().unwrap() >= 2);
    }
    let run = folder.pianola(base);
    assert!(run.err.contains("checked: `pianola check --quick`: cpu"), "{run:#?}");
    assert!(run.err.contains("kernel variants, worst error"), "{run:#?}");
    assert_eq!(rows[0]["checked"], true);
    assert!(rows[0]["check"]["comparisons"].as_u64().unwrap() > 50);
    assert!(run.output().contains("tokens/s"));
}

#[test]
fn bench_measures_lanes_and_a_scenario() {
    let folder = Folder::new();
    let model = folder.model();
    let sizes = words!["bench", "-m", &model, "-p", "12", "-n", "6", "--repeat", "1"];
    let more = |words: &[&str]| with(&sizes, words);
    let rows = folder.pianola(more(&["-b", "1,3", "--mixed", "--json"])).json();
    let rows = rows.as_array().unwrap();
    let tests: Vec<&str> = rows.iter().map(|row| row["test"].as_str().unwrap()).collect();
    assert_eq!(
        tests,
        ["pp12 x 1", "tg6 x 1", "pp12+tg6 x 1", "pp12 x 3", "tg6 x 3", "pp12+tg6 x 3"]
    );
    assert_eq!((&rows[0]["lanes"], &rows[3]["lanes"]), (&1.into(), &3.into()));
    let rows = folder.pianola(more(&["-d", "0,64", "--json"])).json();
    let tests: Vec<&str> =
        rows.as_array().unwrap().iter().map(|row| row["test"].as_str().unwrap()).collect();
    assert_eq!(tests, ["pp12", "tg6", "pp12 @ d64", "tg6 @ d64"]);
    assert_eq!((&rows[1]["depth"], &rows[3]["depth"]), (&0.into(), &64.into()));
    let run = folder.pianola(more(&["-b", "3", "--speculate"]));
    assert!(run.err.contains("keys and values:") && run.err.contains("3 requests"), "{run:#?}");
    assert!(run.output().contains("tg6 x 3"));
    let scenario = ["--scenario", "chat", "--conversations", "3", "--rate", "50", "-b", "2"];
    let report = folder.pianola(more(&[&scenario[..], &["--json"]].concat())).json();
    assert_eq!(report["requests"], 9);
    assert!(report["cached_tokens"].as_u64().unwrap() > 0, "{report}");
    for key in ["first_token_seconds", "between_tokens_seconds"] {
        let times = &report[key];
        let at = |percentile: &str| times[percentile].as_f64().unwrap();
        assert!(at("p50") > 0.0 && at("p50") <= at("p95") && at("p95") <= at("p99"), "{times}");
    }
    assert!(folder.pianola(more(&scenario)).output().contains("to the first token"));
}

#[test]
fn bench_refuses_what_cannot_fit() {
    let folder = Folder::new();
    let words = "bench --shape gemma3:27b --quant f32 -p 0 -n 1 --memory 100GB";
    let run = folder.pianola(words.split(' '));
    run.fails(1, &["gemma3:27b needs", "100.0 GB are available", "smaller"]);
}

#[test]
fn check_says_what_it_covered() {
    let folder = Folder::new();
    let model = folder.model();
    let base = words!["check", "-m", &model, "--quick", "--device", "cpu"];
    let output = folder.pianola(&base).output();
    for words in ["tiny on cpu", "whole vocabulary: ", "layers as a whole", "nothing is wrong"] {
        assert!(output.contains(words), "{output}");
    }
    let checks = folder.pianola(with(&base, &["--simd", "portable", "--json"])).json();
    assert_eq!(checks.as_array().unwrap().len(), 1, "one instruction set");
    let check = &checks[0];
    assert_eq!((&check["passed"], &check["model"]), (&true.into(), &"tiny".into()));
    let own = &check["coverage"][0];
    assert_eq!(own["covered"], own["variants"]);
    assert!(own["variants"].as_u64().unwrap() > 5);
    assert!(check["issues"].as_array().unwrap().is_empty());
    folder.pianola(["check", "--simd", "reference"]).fails(2, &["name another --simd"]);
    folder.pianola(["check", "--shape", "gemma9:1t"]).fails(2, &["no such shape", "gemma3:27b"]);
    folder.pianola(["check", "--device", "gpu"]).fails(2, &["a device is auto, cpu, vulkan"]);
    folder.pianola(["bench", "--no-check"]).fails(2, &["--shape"]);
}

#[test]
fn devices_are_described() {
    let folder = Folder::new();
    let devices = folder.pianola(["devices", "--json"]).json();
    assert_eq!(devices[0]["device"], "cpu");
    assert!(devices[0]["bytes_per_second"].as_f64().unwrap() > 1e8);
    assert!(folder.pianola(["devices"]).output().contains("GB/s"));
    let limited = |limit: &str| {
        folder.pianola_with(["devices", "--json"], b"", &[("PIANOLA_SIMD", limit.as_ref())])
    };
    assert_eq!(limited("portable").json()[0]["simd"], serde_json::json!(["portable", "reference"]));
    limited("avx3").fails(2, &["PIANOLA_SIMD is 'avx3'", "avx512-bf16"]);
}
