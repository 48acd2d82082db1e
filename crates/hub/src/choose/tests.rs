use super::*;

const GB: u64 = 1_000_000_000;

fn file(path: &str, size: u64) -> SizedFile {
    SizedFile { path: path.into(), size }
}

fn repository(choice: Option<&str>) -> Repository {
    Repository {
        owner: "me".into(),
        name: "tiny".into(),
        revision: "main".into(),
        choice: choice.map(str::to_string),
    }
}

fn usual() -> Vec<SizedFile> {
    [
        ("README.md", 0),
        ("config.json", 0),
        ("mmproj-tiny-f16.gguf", GB),
        ("tiny-BF16.gguf", 16 * GB),
        ("tiny-Q8_0.gguf", 8 * GB),
        ("tiny-Q6_K.gguf", 6 * GB),
        ("tiny-Q4_K_M.gguf", 5 * GB),
        ("tiny-IQ4_XS.gguf", 4 * GB),
        ("tiny-Q3_K_L.gguf", 3 * GB),
        ("tiny-IQ2_M.gguf", 2 * GB),
    ]
    .map(|(name, size)| file(name, size))
    .to_vec()
}

fn chosen(files: &[SizedFile], choice: Option<&str>, memory: Option<u64>) -> Selection {
    choose(&repository(choice), files, memory).unwrap()
}

fn refusal(files: &[SizedFile], choice: Option<&str>) -> HubError {
    choose(&repository(choice), files, None).unwrap_err()
}

#[test]
fn memory_decides() {
    let of = |memory| chosen(&usual(), None, memory).gguf.unwrap();
    assert_eq!(of(None), "tiny-Q8_0.gguf");
    assert_eq!(of(Some(64 * GB)), "tiny-Q8_0.gguf");
    assert_eq!(of(Some(8 * GB)), "tiny-Q6_K.gguf");
    assert_eq!(of(Some(7 * GB)), "tiny-Q4_K_M.gguf");
    // Q3_K and IQ2 are smaller, but not read.
    assert_eq!(of(Some(GB)), "tiny-IQ4_XS.gguf");
    let reason = chosen(&usual(), None, Some(8 * GB)).reason;
    assert_eq!(
        reason,
        "Q6_K (6000.0 MB), the largest for 8000.0 MB of memory; me/tiny:QUANT chooses another"
    );
    let reason = chosen(&usual(), None, Some(GB)).reason;
    assert!(reason.contains("the smallest, and yet more than 1000.0 MB"), "{reason}");
}

#[test]
fn a_choice_is_a_quantisation_or_a_file() {
    let of = |choice| chosen(&usual(), Some(choice), Some(GB)).gguf.unwrap();
    assert_eq!(of("q4_k_m"), "tiny-Q4_K_M.gguf");
    assert_eq!(of("bf16"), "tiny-BF16.gguf");
    assert_eq!(of("tiny-q8_0.GGUF"), "tiny-Q8_0.gguf");
    // What is not read is fetched when asked for by name: loading says why it does not run.
    assert_eq!(of("iq2_m"), "tiny-IQ2_M.gguf");
    let words = refusal(&usual(), Some("q5_k_m")).to_string();
    assert!(words.contains("'q5_k_m'; it has tiny-BF16.gguf, tiny-Q8_0.gguf"), "{words}");
    assert!(!words.contains("mmproj"), "{words}");
}

#[test]
fn unquantised_files_are_the_last_resort() {
    let files = [file("x-f16.gguf", GB), file("x-f32.gguf", 2 * GB)];
    assert_eq!(chosen(&files, None, None).gguf.unwrap(), "x-f32.gguf");
    assert_eq!(chosen(&files, None, Some(2 * GB)).gguf.unwrap(), "x-f16.gguf");
    let files = [file("model.gguf", GB)];
    assert_eq!(chosen(&files, None, Some(GB)).gguf.unwrap(), "model.gguf");
}

#[test]
fn what_cannot_be_chosen_is_explained() {
    let two = [file("a-q4_0.gguf", GB), file("b-q4_0.gguf", GB)];
    assert!(matches!(refusal(&two, None), HubError::Ambiguous { .. }));
    assert!(matches!(refusal(&two, Some("q4_0")), HubError::Ambiguous { .. }));
    let small = [file("a-q2_k.gguf", GB), file("notes.txt", 1)];
    assert!(refusal(&small, None).to_string().contains("it has a-q2_k.gguf"));
    assert!(refusal(&[file("weights.bin", 1)], None).to_string().contains("it has weights.bin"));
    let split = [
        file("big-q8_0-00001-of-00002.gguf", GB),
        file("big-q8_0-00002-of-00002.gguf", GB),
        file("big-q4_0.gguf", GB),
    ];
    assert_eq!(chosen(&split, None, None).gguf.unwrap(), "big-q4_0.gguf");
    let words = refusal(&split, Some("q8_0")).to_string();
    assert!(words.contains("one of several parts") && words.contains("big-q4_0.gguf"), "{words}");
    let only = [file("big-q8_0-00001-of-00002.gguf", GB)];
    assert!(matches!(refusal(&only, None), HubError::NothingRuns { .. }));
}

#[test]
fn safetensors_are_a_folder() {
    let mut files = vec![
        file("config.json", 1),
        file("model-00001-of-00002.safetensors", GB),
        file("model-00002-of-00002.safetensors", GB),
        file("model.safetensors.index.json", 1),
        file("tokenizer.json", 1),
        file("pytorch_model.bin", GB),
        file("original/consolidated.safetensors", GB),
    ];
    let selection = chosen(&files, None, None);
    assert_eq!(selection.gguf, None);
    let expected = [
        "config.json",
        "tokenizer.json",
        "model.safetensors.index.json",
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
    ];
    assert_eq!(selection.files, expected);
    files.push(file("x-q4_0.gguf", GB));
    assert_eq!(chosen(&files, None, None).gguf.unwrap(), "x-q4_0.gguf");
    assert_eq!(chosen(&files, Some("safetensors"), None).files, expected);
    files.remove(0);
    assert!(matches!(refusal(&files, Some("safetensors")), HubError::NothingRuns { .. }));
}

#[test]
fn quantisations_are_found_in_names() {
    let of = |name: &str| quantisation(&file(name, 1));
    let cases = [
        ("gemma-3-1b-it-Q4_K_M.gguf", Some("Q4_K_M")),
        ("qwen2.5-coder-1.5b-instruct-q4_k_m.gguf", Some("Q4_K_M")),
        ("Meta-Llama-3-8B.Q8_0.gguf", Some("Q8_0")),
        ("ggml-model-f16.gguf", Some("F16")),
        ("tiny_q5_1.gguf", Some("Q5_1")),
        ("sub/x-UD-Q4_K_XL.gguf", Some("Q4_K_XL")),
        ("x-IQ4_XS-00001-of-00003.gguf", Some("IQ4_XS")),
        ("gpt-oss-20b-mxfp4.gguf", Some("MXFP4")),
        ("qwen3.gguf", None),
        ("x.gguf", None),
    ];
    for (name, expected) in cases {
        assert_eq!(of(name).as_deref(), expected, "{name}");
    }
    assert_eq!(type_of("Q4_K_XL"), Some(TensorType::Q4K));
    assert_eq!(type_of("IQ4_XS").map(TensorType::name), Some("iq4_xs"));
    for other in ["Q3_K_M", "Q2_K", "IQ2_M", "MXFP4", "Q9_9"] {
        assert_eq!(type_of(other), None, "{other}");
    }
}
