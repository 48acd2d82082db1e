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
    let short = folder.pianola(greedy(&model));
    let lines: Vec<&str> = short.err.lines().filter(|line| line.contains("device: ")).collect();
    assert_eq!(lines, ["device: cpu (no GPU can be used here; -v says why)"]);
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
fn pipes_files_and_words_are_used_together() {
    let folder = Folder::new();
    let model = folder.model();
    let base = words!["run", "-m", &model, "--temp", "0", "-n", "4", "--json", "--raw"].to_vec();
    let with = |extra: &[&str], input: &[u8]| {
        let extra: Vec<std::ffi::OsString> = extra.iter().map(Into::into).collect();
        let run = folder.pianola_with([base.clone(), extra].concat(), input, &[]);
        run.json()["prompt_tokens"].as_u64().unwrap() as usize
    };
    let file = display(&folder.file("text.txt", "in a file\n"));
    // A token is a byte here.
    assert_eq!(with(&["two", "words"], b"piped\n"), "piped\n\ntwo words".len());
    assert_eq!(with(&["-p", "two words"], b"piped\r\n"), "piped\n\ntwo words".len());
    assert_eq!(with(&["-f", &file], b""), "in a file".len());
    assert_eq!(with(&["--prompt-file", &file, "why"], b""), "in a file\n\nwhy".len());
    assert_eq!(with(&["-f", "-"], b"piped"), "piped".len());
    assert_eq!(with(&["words"], b""), "words".len());
    // The notice does not come while there is something to read.
    let mut child = std::process::Command::new(env!("CARGO_BIN_EXE_pianola"))
        .args(words!["run", "-m", &model, "--device", "cpu", "-n", "1", "words"])
        .env("PIANOLA_HOME", &folder.path)
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let input = child.stdin.take();
    std::thread::sleep(std::time::Duration::from_millis(1500));
    drop(input);
    let output = child.wait_with_output().unwrap();
    let err = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success() && err.contains("waiting for standard input"), "{err}");
}

#[test]
fn json_comes_in_lines() {
    let folder = Folder::new();
    let model = folder.model();
    let arguments = [greedy(&model), words!["--json=lines"].to_vec()].concat();
    let run = folder.pianola(arguments);
    // One measurement serves the line and the object.
    let shares: Vec<&str> = run.err.matches("% of the ceiling").collect();
    assert_eq!(shares.len(), 2, "{run:#?}");
    let lines: Vec<Value> =
        run.output().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let (last, pieces) = lines.split_last().unwrap();
    assert!(pieces.len() > 1);
    let text: String = pieces.iter().map(|piece| piece["text"].as_str().unwrap()).collect();
    assert_eq!(last["text"], text);
    assert_eq!(last["finish"], "max_tokens");
}

#[test]
fn habits_of_other_programs_work() {
    let folder = Folder::new();
    let model = folder.model();
    folder.file("models/mine.gguf", common::tiny().to_bytes().unwrap());
    let run = folder.pianola(["run", "mine", "hello", "-n", "2", "--seed", "-1", "--top-k", "-1"]);
    assert!(run.err.contains("model: mine, the first word"), "{run:#?}");
    assert!(run.err.contains("mine on cpu"), "{run:#?}");
    run.output();
    // Taken as a model with a pipe, too.
    let run = folder.pianola_with(["run", "mine", "-n", "2"], b"hello", &[]);
    assert!(run.err.contains("mine on cpu"), "{run:#?}");
    folder.pianola(words!["run", "llama9:8b", "hello"]).fails(2, &["looks like a model's name"]);
    let quoted = folder.pianola(words!["run", "-m", &model, "-n", "1", "llama9:8b is good"]);
    quoted.output();
    let flags = words!["run", "-m", &model, "-p", "hi", "-n", "2", "-c", "64", "-t", "1"].to_vec();
    let run = folder.pianola(flags.clone());
    assert!(run.err.contains("(avx512, 1 thread") || run.err.contains("1 thread"), "{run:#?}");
    run.output();
    let more = |words: &[&str]| {
        folder.pianola([flags.clone(), words.iter().map(Into::into).collect()].concat())
    };
    more(&["-ngl", "99"]).fails(2, &["--layers-on-gpu needs a GPU"]);
    more(&["-i"]).fails(2, &["pianola chat"]);
    more(&["--temp", "-1"]).fails(2, &["--temp is -1"]);
    more(&["--seed", "-5"]).fails(2, &["--seed", "-1 for a random one"]);
    assert!(folder.pianola(["ls"]).output().contains("mine"));
    assert!(folder.pianola(["show", "mine"]).output().contains("feed_forward"));
    folder.pianola(["ps"]).fails(2, &["/api/ps"]);
    let cores = std::thread::available_parallelism().unwrap().get();
    let many = (cores + 1).to_string();
    let slow = folder.pianola(words!["run", "-m", &model, "-n", "1", "-t", &many, "hi"]);
    assert!(slow.err.contains(&format!("{many} threads on")), "{slow:#?}");
}

#[test]
fn random_seeds_differ_and_can_be_given_again() {
    let folder = Folder::new();
    let model = folder.model();
    let run = |more: &[&str]| {
        let mut words = words!["run", "-m", &model, "--temp", "1.5", "--ignore-eos"].to_vec();
        words.extend(words!["-n", "24", "--json", "hello"]);
        words.extend(more.iter().map(std::ffi::OsString::from));
        folder.pianola(words).json()
    };
    let (first, second) = (run(&[]), run(&[]));
    assert_ne!(first["seed"], second["seed"]);
    assert_ne!(first["tokens"], second["tokens"]);
    let again = run(&["--seed", &first["seed"].to_string()]);
    assert_eq!(again["tokens"], first["tokens"]);
}

#[test]
fn profiles_replace_only_when_they_are_there() {
    let folder = Folder::new();
    let model = folder.model();
    let trace = folder.file("trace.json", "precious");
    let run = |more: &[&str]| {
        let mut words = words!["run", "-m", &model, "-n", "2", "--profile", &trace].to_vec();
        words.extend(more.iter().map(std::ffi::OsString::from));
        folder.pianola(words)
    };
    run(&["--simd", "reference", "hi"]).fails(2, &["keeps no times of single kernels"]);
    assert_eq!(fs::read_to_string(&trace).unwrap(), "precious");
    run(&["--context", "8", "a prompt that does not fit"]).fails(1, &["tokens are needed"]);
    assert_eq!(fs::read_to_string(&trace).unwrap(), "precious");
    run(&["hi"]).output();
    assert!(fs::read_to_string(&trace).unwrap().contains("traceEvents"));
}

#[test]
fn tokens_become_text_again() {
    let folder = Folder::new();
    let model = folder.model();
    let detokenize = |more: &[&str], input: &[u8]| {
        let mut words = words!["detokenize", "-m", &model].to_vec();
        words.extend(more.iter().map(std::ffi::OsString::from));
        folder.pianola_with(words, input, &[])
    };
    let text = "two lines\nand ünïcode";
    let tokens = folder.pianola(words!["tokenize", "-m", &model, "--json", text]).json();
    let ids = tokens["tokens"].to_string();
    assert_eq!(detokenize(&[], ids.as_bytes()).output(), text);
    assert_eq!(detokenize(&["104,105"], b"").output(), "hi");
    assert_eq!(detokenize(&["104", "105", "258"], b"").output(), "hi");
    assert_eq!(detokenize(&["--special", "258"], b"").output(), MARKERS[2]);
    detokenize(&["104,x"], b"").fails(2, &["'x' is no id"]);
    detokenize(&["99999"], b"").fails(2, &["token 99999 is not in the vocabulary"]);
}

#[test]
fn texts_become_vectors() {
    let folder = Folder::new();
    let model = folder.model();
    let embed = |more: &[&str], input: &[u8]| {
        let mut words = words!["embed", "-m", &model].to_vec();
        words.extend(more.iter().map(std::ffi::OsString::from));
        folder.pianola_with(words, input, &[])
    };
    let two = embed(&["a cat", "a dog"], b"").json();
    assert_eq!((&two["dimensions"], &two["prompt_tokens"]), (&64.into(), &10.into()));
    let vectors = two["embeddings"].as_array().unwrap();
    assert_eq!(vectors.len(), 2);
    let length: f64 =
        vectors[0].as_array().unwrap().iter().map(|value| value.as_f64().unwrap().powi(2)).sum();
    assert!((length - 1.0).abs() < 1e-5, "{length}");
    let piped = embed(&["--lines"], b"a cat\na dog\n").json();
    assert_eq!(piped["embeddings"], two["embeddings"]);
    assert_ne!(embed(&["--pooling", "last", "a cat"], b"").json()["embeddings"][0], vectors[0]);
    let file = folder.path.join("vectors.npy");
    embed(&["-o", &display(&file), "a cat", "a dog"], b"").output();
    let (shape, values) = pianola_formats::npy::read_f32(&file).unwrap();
    assert_eq!(shape, [2, 64]);
    assert_eq!(f64::from(values[0]), vectors[0][0].as_f64().unwrap());
    embed(&["--lines"], b"a\n\nb\n").fails(2, &["line 2 is empty"]);
}

#[test]
fn logits_of_a_text_are_those_of_its_tokens() {
    let folder = Folder::new();
    let model = folder.model();
    let logits = |more: &[&str]| {
        let out = folder.path.join("out.npy");
        let mut words = words!["logits", "-m", &model, "-o", &out].to_vec();
        words.extend(more.iter().map(std::ffi::OsString::from));
        folder.pianola(words).output();
        pianola_formats::npy::read_f32(&out).unwrap()
    };
    assert_eq!(logits(&["--text", "hi"]), logits(&["--tokens", "104,105"]));
}

#[test]
fn shells_are_taught() {
    let folder = Folder::new();
    for (shell, word) in
        [("bash", "complete"), ("zsh", "#compdef"), ("fish", "complete -c pianola")]
    {
        let script = folder.pianola(["completions", shell]).output();
        assert!(script.contains(word) && script.contains("detokenize"), "{shell}");
    }
    folder.pianola(["completions", "cmd"]).fails(2, &["bash"]);
}

#[test]
fn names_that_are_no_text_are_files_all_the_same() {
    use std::os::unix::ffi::OsStrExt;
    let folder = Folder::new();
    let name = std::ffi::OsStr::from_bytes(b"m\xffdel.gguf");
    let path = folder.path.join(name);
    fs::write(&path, common::tiny().to_bytes().unwrap()).unwrap();
    folder.pianola(words!["run", "-m", &path, "-n", "2", "hi"]).output();
    assert!(folder.pianola(words!["inspect", &path, "--json"]).json()["parameters"].is_u64());
    let absent = folder.path.join(std::ffi::OsStr::from_bytes(b"n\xffne.gguf"));
    assert_eq!(folder.pianola(words!["run", "-m", &absent, "hi"]).code, Some(1));
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
    // A newline in a file's strings does not begin a line of ours.
    writer.set("general.architecture", "x'\n\nmetadata\n  forged = 1");
    let model = folder.file("odd.gguf", writer.to_bytes().unwrap());
    let text = folder.pianola(words!["inspect", "-m", &model]).output();
    assert!(!text.contains("\n  forged"), "{text}");
}

#[test]
fn inspect_says_what_there_is_of_a_damaged_file() {
    let folder = Folder::new();
    let whole = common::tiny().to_bytes().unwrap();
    let model = folder.file("short.gguf", &whole[..whole.len() - 5000]);
    let text = folder.pianola(words!["inspect", &model, "--tensors"]).output();
    for words in ["truncated", "blk.1.ffn_down.weight", "general.name = \"tiny\"", "tensors listed"]
    {
        assert!(text.contains(words), "no {words} in {text}");
    }
    let mut odd = whole.clone();
    let name = b"blk.0.attn_q.weight";
    let at = odd.windows(name.len()).position(|window| window == name).unwrap();
    odd[at + name.len() + 4 + 2 * 8] = 16;
    let model = folder.file("odd.gguf", &odd);
    let object = folder.pianola(words!["inspect", &model, "--json"]).json();
    assert!(object["problem"].as_str().unwrap().contains("iq2_xxs"), "{object}");
    assert_eq!(object["tensor_types"]["iq2_xxs"]["count"], 1);
    // In the middle of the metadata: what came before is there.
    let model = folder.file("head.gguf", &whole[..300]);
    let text = folder.pianola(words!["inspect", &model]).output();
    assert!(text.contains("general.architecture = \"llama\""), "{text}");
    folder.pianola(words!["inspect", folder.file("no.gguf", "GG")]).fails(1, &["no.gguf"]);
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
    /// It reported the turn that failed, went on, and says so at the end.
    fn fails_softly(&self) {
        assert_eq!(self.code, Some(1), "{self:#?}");
        assert_eq!(self.err.matches("tokens are needed, the context holds 100").count(), 1);
        assert!(self.err.contains("error: 1 of 3 turns failed"), "{self:#?}");
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
        "detokenize",
        "embed",
        "completions",
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
    assert!(overview.contains("PIANOLA_HOME") && overview.contains("PIANOLA_PIP"), "{overview}");
    // The version, and the commit of the build: seven digits, or a word for what is not known.
    let version = folder.pianola(["--version"]).output();
    let build = version.trim().strip_prefix(concat!("pianola ", env!("CARGO_PKG_VERSION"), " ("));
    let commit = build.and_then(|build| build.strip_suffix(')')).expect("a commit");
    let digits = commit.strip_suffix("-dirty").unwrap_or(commit);
    let hexadecimal = digits.len() >= 7 && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    assert!(hexadecimal || commit == "unknown", "{version}");
}
