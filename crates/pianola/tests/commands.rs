//! The commands on a tiny model: what they print, and that they agree with each other.

mod common;

use std::fs;

use common::{CONTEXT, Folder, MARKERS, VOCABULARY, display};
use serde_json::Value;

/// Arguments of a short greedy answer.
fn greedy(model: &std::path::Path) -> Vec<std::ffi::OsString> {
    words!["run", "-m", model, "--temp", "0", "--ignore-eos", "-n", "24", "hello"].to_vec()
}

#[test]
fn run_prints_text_and_statistics() {
    let folder = Folder::new();
    let model = folder.model();
    let run = folder.pianola(greedy(&model));
    assert!(run.err.contains("tiny on cpu"), "{run:#?}");
    assert!(run.err.contains("generated 24 tokens"), "{run:#?}");
    let text = run.output();
    assert!(text.ends_with('\n'));
    let quiet = folder.pianola([greedy(&model), words!["--quiet"].to_vec()].concat());
    assert!(quiet.err.is_empty(), "{quiet:#?}");
    assert_eq!(quiet.output(), text);
    let verbose = folder.pianola([greedy(&model), words!["--verbose"].to_vec()].concat());
    assert!(verbose.err.contains("device: cpu, because"), "{verbose:#?}");
}

#[test]
fn run_prints_json() {
    let folder = Folder::new();
    let model = folder.model();
    let object = folder.pianola([greedy(&model), words!["--json"].to_vec()].concat()).json();
    assert_eq!(object["model"], "tiny");
    assert_eq!(object["finish"], "max_tokens");
    assert_eq!(object["generated_tokens"], 24);
    assert_eq!(object["tokens"].as_array().unwrap().len(), 24);
    // <|im_start|> u s e r \n h e l l o <|im_end|> \n <|im_start|> a s s i s t a n t \n
    assert_eq!(object["prompt_tokens"], 1 + 5 + 5 + 2 + 1 + 10);
    let text = folder.pianola(greedy(&model)).output();
    assert_eq!(
        object["text"].as_str().unwrap().trim_end_matches('\n'),
        text.trim_end_matches('\n')
    );
}

#[test]
fn seeds_decide() {
    let folder = Folder::new();
    let model = folder.model();
    let run = |seed: &str| {
        let arguments = words![
            "run",
            "-m",
            &model,
            "--temp",
            "1.5",
            "--ignore-eos",
            "-n",
            "32",
            "--seed",
            seed,
            "hello"
        ];
        folder.pianola(arguments).output()
    };
    assert_eq!(run("7"), run("7"));
    assert_ne!(run("7"), run("8"));
}

#[test]
fn stop_texts_end_and_are_not_shown() {
    let folder = Folder::new();
    let model = folder.model();
    let json = |extra: &[&str]| {
        let extra: Vec<std::ffi::OsString> = extra.iter().map(Into::into).collect();
        folder.pianola([greedy(&model), words!["--json"].to_vec(), extra].concat()).json()
    };
    let whole = json(&[])["text"].as_str().unwrap().to_string();
    let stop: String = whole.chars().skip(5).take(2).collect();
    let cut = json(&["--stop", &stop]);
    assert_eq!(cut["finish"], "stop_text");
    let expected = &whole[..whole.find(&stop).unwrap()];
    assert_eq!(cut["text"], expected);
}

#[test]
fn prompts_come_from_everywhere() {
    let folder = Folder::new();
    let model = folder.model();
    let base = words!["run", "-m", &model, "--temp", "0", "--ignore-eos", "-n", "8", "--json"];
    let with = |extra: &[&str], input: &[u8]| {
        let extra: Vec<std::ffi::OsString> = extra.iter().map(Into::into).collect();
        folder.pianola_with([base.to_vec(), extra].concat(), input, &[]).json()["tokens"].clone()
    };
    let expected = with(&["--raw", "hi there"], b"");
    assert_eq!(with(&["--raw", "hi", "there"], b""), expected);
    assert_eq!(with(&["--raw"], b"hi there\n"), expected);
    assert_eq!(with(&["--raw", "-"], b"hi there"), expected);
    assert_eq!(with(&["--tokens", "104,105,32,116,104,101,114,101"], b""), expected);
    assert_ne!(with(&["hi there"], b""), expected, "the template counts");
    assert_ne!(with(&["--system", "Be brief.", "hi there"], b""), with(&["hi there"], b""));
}

#[test]
fn penalties_and_biases_take_effect() {
    let folder = Folder::new();
    let model = folder.model();
    let json = |extra: &[&str]| {
        let extra: Vec<std::ffi::OsString> = extra.iter().map(Into::into).collect();
        folder.pianola([greedy(&model), words!["--json"].to_vec(), extra].concat()).json()
    };
    let forced = json(&["--logit-bias", "65=1000", "--logit-bias", "66=-inf"]);
    assert!(forced["tokens"].as_array().unwrap().iter().all(|token| token == 65));
    assert_eq!(forced["text"], "A".repeat(24));
}

#[test]
fn tokenize_shows_ids_and_pieces() {
    let folder = Folder::new();
    let model = folder.model();
    let json = |extra: &[&str], input: &[u8]| {
        let extra: Vec<std::ffi::OsString> = extra.iter().map(Into::into).collect();
        let base = words!["tokenize", "-m", &model, "--json"].to_vec();
        folder.pianola_with([base, extra].concat(), input, &[]).json()
    };
    let plain = json(&["hi"], b"");
    assert_eq!(plain["tokens"], serde_json::json!([104, 105]));
    assert_eq!(plain["pieces"], serde_json::json!(["h", "i"]));
    assert_eq!(json(&[], b"hi\n"), plain);
    assert_eq!(json(&["--special", MARKERS[1]], b"")["tokens"], serde_json::json!([257]));
    assert_eq!(json(&[MARKERS[1]], b"")["tokens"].as_array().unwrap().len(), MARKERS[1].len());
    assert_eq!(json(&["--bos", "h"], b"")["tokens"], serde_json::json!([256, 104]));
    let text = folder.pianola(words!["tokenize", "-m", &model, "a b"]).output();
    assert_eq!(text.lines().count(), 3);
    assert!(text.contains("\" \""));
}

#[test]
fn logits_do_not_depend_on_chunks() {
    let folder = Folder::new();
    let model = folder.model();
    let tokens = "10,20,30,40,50,60,70,80,90,100,110";
    let out = folder.path.join("out.npy");
    let logits = |extra: &[&str]| {
        let extra: Vec<std::ffi::OsString> = extra.iter().map(Into::into).collect();
        let base = words!["logits", "-m", &model, "--tokens", tokens, "-o", &out].to_vec();
        let printed = folder.pianola([base, extra].concat()).output();
        let (shape, values) = pianola_formats::npy::read_f32(&out).unwrap();
        assert_eq!(shape, [11, VOCABULARY]);
        (values, printed)
    };
    let close = |a: &[f32], b: &[f32]| a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-3);
    let (whole, printed) = logits(&["--exact"]);
    assert!(printed.is_empty());
    for chunk in ["1", "3", "512"] {
        assert!(close(&logits(&["--exact", "--chunk", chunk]).0, &whole), "chunk {chunk}");
    }
    for level in ["reference", "portable"] {
        assert!(close(&logits(&["--exact", "--simd", level]).0, &whole), "{level}");
    }
    let greedy: Value = serde_json::from_str(&logits(&["--exact", "--greedy", "6"]).1).unwrap();
    let run = words![
        "run",
        "-m",
        &model,
        "--exact",
        "--temp",
        "0",
        "--ignore-eos",
        "-n",
        "6",
        "--json",
        "--tokens",
        tokens
    ];
    assert_eq!(greedy["greedy"], folder.pianola(run).json()["tokens"]);
}

#[test]
fn tokens_come_from_numpy_files() {
    let folder = Folder::new();
    let model = folder.model();
    let header = "{'descr': '<i8', 'fortran_order': False, 'shape': (3,), }";
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    bytes.extend((header.len() as u16).to_le_bytes());
    bytes.extend(header.as_bytes());
    bytes.extend([5i64, 6, 7].iter().flat_map(|token| token.to_le_bytes()));
    let tokens = folder.file("tokens.npy", bytes);
    let base = words!["run", "-m", &model, "--temp", "0", "-n", "4", "--json", "--ignore-eos"];
    let run = |extra: [std::ffi::OsString; 2]| {
        folder.pianola([base.to_vec(), extra.to_vec()].concat()).json()["tokens"].clone()
    };
    assert_eq!(run(words!["--tokens-file", tokens]), run(words!["--tokens", "5,6,7"]));
}

fn text() -> String {
    (0..200).map(|number| format!("line {number} of a text. ")).collect()
}

#[test]
fn perplexity_is_measured() {
    let folder = Folder::new();
    let model = folder.model();
    let text = folder.file("text.txt", text());
    let base = words!["perplexity", "-m", &model, "--context", "64", &text];
    let object = folder.pianola([base.to_vec(), words!["--json"].to_vec()].concat()).json();
    let perplexity = object["perplexity"].as_f64().unwrap();
    // Random weights know nothing: about as surprised as a fair choice of a byte.
    assert!(perplexity > 20.0 && perplexity < 5000.0, "{perplexity}");
    assert!(object["error"].as_f64().unwrap() > 0.0);
    let windows = object["windows"].as_u64().unwrap();
    assert_eq!(object["scored"], 31 * windows);
    assert!(object["tokens"].as_u64().unwrap() >= 64 * windows);
    assert!(folder.pianola(base).output().starts_with("perplexity "));
}

#[test]
fn compare_tells_modes_apart() {
    let folder = Folder::new();
    let model = display(&folder.model());
    let text = folder.file("text.txt", text());
    let compare = |a: &str, b: &str, extra: &[&str]| {
        let (a, b) = (format!("{model},{a}"), format!("{model},{b}"));
        let base = words!["compare", a, b, "--text", &text, "--context", "64"].to_vec();
        let extra: Vec<std::ffi::OsString> = extra.iter().map(Into::into).collect();
        folder.pianola([base, extra].concat())
    };
    let modes = compare("exact", "fast", &["--json"]).json();
    let mean = modes["mean_kl"].as_f64().unwrap();
    assert!(mean > 0.0 && mean < 0.05, "{mean}");
    assert!(modes["top1_agreement"].as_f64().unwrap() > 0.8);
    assert_eq!(modes["worst"].as_array().unwrap().len(), 10);
    let levels = compare("exact", "exact,simd=portable", &["--json"]).json();
    assert!(levels["max_kl"].as_f64().unwrap() < 1e-6, "{levels}");
    let bytes = compare("exact", "exact,kv-type=q8_0", &["--json"]).json();
    let mean = bytes["mean_kl"].as_f64().unwrap();
    assert!(mean > 0.0 && mean < 0.01, "{mean}");
    let printed = compare("exact", "fast,threads=1", &[]).output();
    assert!(printed.contains("KL divergence") && printed.contains("worst positions"));
}

#[test]
fn plan_prints_what_runs() {
    let folder = Folder::new();
    let model = folder.model();
    let text = folder.pianola(words!["plan", "-m", &model, "--rows", "4"]).output();
    assert!(text.contains("blk.0.ffn_down") && text.contains("tokens/s"), "{text}");
    assert!(text.lines().next().unwrap().contains(" fits on cpu"), "{text}");
    let full = folder.pianola(words!["plan", "-m", &model, "--full"]).output();
    assert!(full.lines().count() >= text.lines().count() && full.contains("blk.1.ffn_down"));
    let object = folder.pianola(words!["plan", "-m", &model, "--json"]).json();
    assert!(object["ops"].as_array().unwrap().len() > 8);
    assert!(object["seconds"].as_f64().unwrap() > 0.0);
    let answer = &object["answer"];
    assert_eq!(answer["fits"], true);
    let speed = &answer["generation_tokens_per_second"];
    assert!(speed["best"].as_f64() > speed["expected"].as_f64(), "{answer}");
    let part = &answer["devices"][0];
    let sum = ["weight_bytes", "kv_bytes", "working_bytes"].map(|key| part[key].as_u64().unwrap());
    assert_eq!(part["heaps"][0]["bytes"].as_u64().unwrap(), sum.iter().sum::<u64>());
    let plan = words!["plan", "-m", &model, "--kv-type", "q8_0"];
    assert!(folder.pianola(&plan).output().contains(", q8_0, "));
    let small = folder.pianola([&plan[..], &words!["--json"][..]].concat()).json();
    assert_eq!(small["kv_types"][0], "q8_0");
    assert!(small["kv_bytes"].as_u64() < object["kv_bytes"].as_u64());
    let shape =
        folder.pianola(["plan", "--shape", "gemma3:27b", "--quant", "q4_0", "--json"]).json();
    let parameters = shape["parameters"].as_f64().unwrap();
    assert!((26e9..28.5e9).contains(&parameters), "{parameters}");
}

#[test]
fn bench_has_the_keys_of_a_table() {
    let folder = Folder::new();
    let model = folder.model();
    let sizes = words!["-p", "32", "-n", "8", "--repeat", "2"].to_vec();
    let base = [words!["bench", "-m", &model, "--check"].to_vec(), sizes].concat();
    let rows = folder.pianola([base.clone(), words!["--json"].to_vec()].concat()).json();
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
fn check_says_what_it_covered() {
    let folder = Folder::new();
    let model = folder.model();
    let base = words!["check", "-m", &model, "--quick", "--device", "cpu"].to_vec();
    let output = folder.pianola(base.clone()).output();
    for words in ["tiny on cpu", "whole vocabulary: ", "layers as a whole", "nothing is wrong"] {
        assert!(output.contains(words), "{output}");
    }
    let more = words!["--simd", "portable", "--json"].to_vec();
    let checks = folder.pianola([base, more].concat()).json();
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
fn bench_measures_lanes_and_a_scenario() {
    let folder = Folder::new();
    let model = folder.model();
    let sizes = words!["bench", "-m", &model, "-p", "12", "-n", "6", "--repeat", "1"].to_vec();
    let more = |words: &[&str]| -> Vec<std::ffi::OsString> {
        sizes.iter().cloned().chain(words.iter().map(Into::into)).collect()
    };
    let rows = folder.pianola(more(&["-b", "1,3", "--mixed", "--json"])).json();
    let rows = rows.as_array().unwrap();
    let tests: Vec<&str> = rows.iter().map(|row| row["test"].as_str().unwrap()).collect();
    assert_eq!(tests, ["pp12 x 1", "tg6 x 1", "pp12 x 3", "tg6 x 3"]);
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
fn guesses_do_not_change_the_text() {
    let folder = Folder::new();
    let model = folder.model();
    let base = words!["run", "-m", &model, "--temp", "0.8", "--seed", "3", "-n", "30", "--raw"];
    let with = |more: &[&std::ffi::OsStr]| {
        let words: Vec<std::ffi::OsString> =
            base.iter().cloned().chain(more.iter().map(|&word| word.into())).collect();
        folder.pianola(words)
    };
    let plain = with(&["a b a b a".as_ref()]).output();
    let looked_up = with(&["--speculate".as_ref(), "a b a b a".as_ref()]);
    assert_eq!(looked_up.output(), plain);
    let drafted = with(&["--draft".as_ref(), model.as_os_str(), "a b a b a".as_ref()]);
    assert!(drafted.err.contains("guesses right"), "{drafted:#?}");
    assert_eq!(drafted.output(), plain);
}

/// Too large for any machine that runs this test.
#[test]
fn bench_refuses_what_cannot_fit() {
    let folder = Folder::new();
    let arguments = ["bench", "--shape", "gemma3:27b", "--quant", "f32", "-p", "0", "-n", "1"];
    let run = folder.pianola(arguments);
    let all = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let kilobytes: u64 = all.split_whitespace().nth(1).and_then(|n| n.parse().ok()).unwrap_or(0);
    if (1..100_000_000).contains(&kilobytes) {
        run.fails(1, &["gemma3:27b needs", "GB are available", "smaller"]);
    }
}

#[test]
fn devices_are_described() {
    let folder = Folder::new();
    let devices = folder.pianola(["devices", "--json"]).json();
    assert_eq!(devices[0]["device"], "cpu");
    assert!(devices[0]["bytes_per_second"].as_f64().unwrap() > 1e8);
    assert!(folder.pianola(["devices"]).output().contains("GB/s"));
}

#[test]
fn inspect_tells_what_is_there() {
    let folder = Folder::new();
    let model = folder.model();
    let object =
        folder.pianola(words!["inspect", &model, "--json", "--tensors", "--template"]).json();
    assert_eq!(object["config"]["architecture"], "llama");
    assert_eq!(object["config"]["context"], CONTEXT);
    assert_eq!(object["tokenizer"]["tokens"], VOCABULARY);
    assert_eq!(object["chat_template"]["origin"], "the model file's own");
    assert!(object["chat_template"]["text"].as_str().unwrap().contains("message.role"));
    assert_eq!(object["metadata"]["tokenizer.ggml.tokens"], format!("array of {VOCABULARY}"));
    assert!(object["tensor_types"]["q8_0"]["count"].as_u64().unwrap() > 10);
    let text = folder.pianola(words!["inspect", &model]).output();
    assert!(text.contains("feed_forward") && text.contains("chat template"), "{text}");
}

#[test]
fn inspect_explains_what_cannot_run() {
    let folder = Folder::new();
    let mut writer = common::tiny();
    writer.set("general.architecture", "mamba9");
    let model = folder.file("odd.gguf", writer.to_bytes().unwrap());
    let text = folder.pianola(words!["inspect", &model]).output();
    assert!(text.contains("cannot be run: architecture 'mamba9'"), "{text}");
}

#[test]
fn models_in_the_store_are_listed_and_removed() {
    let folder = Folder::new();
    let empty = folder.pianola(["list"]);
    assert!(empty.err.contains("there are no models"), "{empty:#?}");
    assert_eq!(folder.pianola(["list", "--json"]).json(), serde_json::json!([]));
    let bytes = common::tiny().to_bytes().unwrap();
    folder.file("models/mine.gguf", &bytes);
    folder.file("models/smollm2-135m.gguf", b"short");
    let listed = folder.pianola(["list", "--json"]).json();
    assert_eq!(
        (&listed[0]["name"], &listed[0]["state"]),
        (&"smollm2:135m".into(), &"damaged".into())
    );
    assert_eq!((&listed[1]["name"], &listed[1]["bytes"]), (&"mine".into(), &bytes.len().into()));
    folder.pianola(["run", "hello"]).fails(1, &["is damaged", "pianola pull smollm2:135m"]);
    folder.pianola(["run", "-m", "mine", "-n", "2", "hello"]).output();
    assert!(folder.pianola(["rm", "mine"]).output().starts_with("removed mine"));
    assert!(folder.pianola(["rm", "smollm2"]).output().starts_with("removed smollm2"));
    assert!(!folder.path.join("models/mine.gguf").exists());
}

#[test]
fn chat_follows_a_script() {
    let folder = Folder::new();
    let model = folder.model();
    let script = "/help\nhello\n/stats\nonce more\n/stats\n/nonsense\n/system Be brief.\n/reset\n\
                  /stats\nagain\n/exit\nnever heard\n";
    let arguments = words!["chat", "-m", &model, "-n", "8", "--temp", "0", "--verbose"];
    let run = folder.pianola_with(arguments, script.as_bytes(), &[]);
    assert!(run.err.contains("/reset         begin a new conversation"), "{run:#?}");
    assert!(run.err.contains("there is no command /nonsense"), "{run:#?}");
    assert!(run.err.contains("there is no answer yet"), "{run:#?}");
    // Three answers; the second found the first turn in the cache. Each line is said twice for
    // the two /stats.
    assert_eq!(run.err.matches("tiny on cpu").count(), 3 + 2, "{run:#?}");
    // All that was played before but the last token, whose logits nobody had asked for yet.
    assert_eq!(run.err.matches("(31 cached)").count(), 2, "{run:#?}");
    run.output();
}

#[test]
fn chat_survives_a_turn_that_does_not_fit() {
    let folder = Folder::new();
    let model = folder.model();
    let long = "x".repeat(100);
    let script = format!("hi\n{long}\nhi\n");
    let arguments =
        words!["chat", "-m", &model, "-n", "4", "--context", "100", "--quiet", "--temp", "0"];
    let run = folder.pianola_with(arguments, script.as_bytes(), &[]);
    run.fails_softly();
    assert!(run.err.contains("this turn is forgotten"), "{run:#?}");
}

impl common::Run {
    /// It reported one error and went on to succeed.
    fn fails_softly(&self) {
        assert_eq!(self.code, Some(0), "{self:#?}");
        assert_eq!(self.err.matches("context_length_exceeded").count(), 1, "{self:#?}");
    }
}

#[test]
fn chat_needs_a_template() {
    let folder = Folder::new();
    let mut writer = common::tiny();
    // Without markers there is no built-in template either.
    let mut tokens: Vec<String> = (0..VOCABULARY).map(|id| format!("t{id}")).collect();
    tokens[0] = "h".to_string();
    writer.set("tokenizer.chat_template", 0u32).set("tokenizer.ggml.tokens", tokens);
    let model = folder.file("base.gguf", writer.to_bytes().unwrap());
    folder.pianola(words!["chat", "-m", &model]).fails(1, &["no chat template", "run --raw"]);
    let run = folder.pianola(words!["run", "-m", &model, "-n", "2", "--ignore-eos", "h"]);
    assert!(run.err.contains("continued as it is"), "{run:#?}");
}

#[test]
fn help_teaches() {
    let folder = Folder::new();
    let commands = [
        "run",
        "chat",
        "pull",
        "list",
        "rm",
        "inspect",
        "tokenize",
        "logits",
        "perplexity",
        "compare",
        "plan",
        "devices",
        "bench",
    ];
    let overview = folder.pianola(["--help"]).output();
    for command in commands {
        assert!(overview.contains(&format!("\n  {command}")), "{command} in {overview}");
        let help = folder.pianola([command, "--help"]).output();
        assert!(help.contains("Example"), "{command}: {help}");
    }
    // The version, and the commit of the build: seven digits, or a word for what is not known.
    let version = folder.pianola(["--version"]).output();
    let build = version.trim().strip_prefix(concat!("pianola ", env!("CARGO_PKG_VERSION"), " ("));
    let commit = build.and_then(|build| build.strip_suffix(')')).expect("a commit");
    let digits = commit.strip_suffix("-dirty").unwrap_or(commit);
    let hexadecimal = digits.len() >= 7 && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    assert!(hexadecimal || commit == "unknown", "{version}");
}
