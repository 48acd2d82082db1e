//! Models by name from a hub of the tests' own, through the binary.

use crate::common;
use std::ffi::OsStr;
use std::fs;
use std::process::Stdio;
use std::time::Duration;

use crate::common::{Folder, Run};
use crate::support::hub::{HubFile, HubServer, content};
use pianola_formats::{Tensor, TensorType};

fn tiny() -> HubFile {
    HubFile::large("tiny-Q8_0.gguf", common::tiny().to_bytes().unwrap())
}

/// The binary with this hub.
fn pianola(folder: &Folder, server: &HubServer, arguments: &[&str]) -> Run {
    let variables: [(&str, &OsStr); 2] =
        [("HF_ENDPOINT", server.endpoint().as_ref()), ("HF_HUB_OFFLINE", "0".as_ref())];
    folder.pianola_with(arguments, b"", &variables)
}

#[test]
fn a_model_of_the_hub_runs_by_its_name() {
    let folder = Folder::new();
    let server = HubServer::start(vec![HubFile::small("README.md", "hello"), tiny()]);
    let ran = pianola(&folder, &server, &["run", "-m", "me/tiny", "-n", "2", "hello"]);
    assert!(ran.err.contains("me/tiny: Q8_0 (0.1 MB), the only one that runs here"), "{ran:#?}");
    ran.output();
    // Later runs need no hub.
    let asked = server.requests().len();
    for name in ["me/tiny", "hf:me/tiny", "me/tiny:q8_0", "me/tiny:tiny-Q8_0.gguf"] {
        pianola(&folder, &server, &["run", "-m", name, "-n", "2", "hello"]).output();
    }
    assert_eq!(server.requests().len(), asked);
    let listed = folder.pianola(["list", "--json"]).json();
    assert_eq!(listed[0]["name"], "me/tiny:tiny-Q8_0.gguf");
    assert_eq!(listed[0]["source"], "hub");
    // A pull asks what is newest, and fetches nothing twice.
    let served = server.served();
    let pulled = pianola(&folder, &server, &["pull", "me/tiny"]).output();
    assert_eq!(pulled.trim_end(), listed[0]["path"].as_str().unwrap());
    assert!(server.requests().len() > asked && server.served() == served);
    let address = format!("{}/me/tiny/blob/main/tiny-Q8_0.gguf", server.endpoint());
    assert_eq!(pianola(&folder, &server, &["pull", &address]).output(), pulled);
}

/// The catalogue's name stands for a file of the hub: pulled, run and listed by it.
#[test]
fn a_catalogue_name_comes_from_the_hub() {
    const FILE: &str = "Qwen3-0.6B-Q8_0.gguf";
    let folder = Folder::new();
    let files = vec![
        HubFile::small("README.md", "hello"),
        HubFile::large(FILE, common::tiny().to_bytes().unwrap()),
        HubFile::large("Qwen3-0.6B-Q4_K_M.gguf", content(1000, 3)),
    ];
    let server = HubServer::start_as("Qwen/Qwen3-0.6B-GGUF", files);
    let planned = pianola(&folder, &server, &["pull", "qwen3:0.6b", "--plan"]);
    assert!(planned.out.contains("to fetch     639.4 MB"), "{planned:#?}");
    assert!(server.requests().is_empty(), "the catalogue knows enough");
    // Another file of the repository is none of the catalogue's: the hub is asked, and nothing fetched.
    let other = ["pull", "Qwen/Qwen3-0.6B-GGUF:q4_k_m", "--plan", "--json"];
    let offered = pianola(&folder, &server, &other).json();
    assert_eq!(offered["bytes_to_fetch"], 1000);
    assert_eq!(offered["files"][0], "Qwen3-0.6B-Q4_K_M.gguf");
    assert!(offered["answer"].is_null() && offered["no_answer_because"].is_string());
    assert_eq!(server.served(), 0);

    let pulled = pianola(&folder, &server, &["pull", "qwen3:0.6b"]);
    assert!(pulled.err.contains("licensed under Apache-2.0"), "{pulled:#?}");
    let path = pulled.output();
    assert!(path.trim_end().ends_with(FILE), "{path}");
    let asked = server.requests().len();
    pianola(&folder, &server, &["run", "-m", "Qwen3:0.6B", "-n", "2", "hello"]).output();
    assert_eq!(server.requests().len(), asked, "it is here");
    let listed = folder.pianola(["list", "--all", "--json"]).json();
    let found = listed.as_array().unwrap().iter().find(|model| model["name"] == "qwen3:0.6b");
    let found = found.unwrap();
    assert_eq!(found["state"], "present");
    assert_eq!(found["path"].as_str(), Some(path.trim_end()));
    folder.pianola(["rm", "qwen3:0.6b"]).fails(1, &["it is in the hub's cache"]);
    let again = pianola(&folder, &server, &["pull", "qwen3:0.6b", "--plan", "--json"]).json();
    assert_eq!(again["bytes_to_fetch"], 0);
}

#[test]
fn what_cannot_be_fetched_is_explained() {
    let folder = Folder::new();
    let server = HubServer::start(vec![tiny()]);
    let pull = |name: &str| pianola(&folder, &server, &["pull", name]);
    pull("me/other").fails(1, &["the hub has no repository me/other", "HF_TOKEN"]);
    pull("me/tiny:q4_0").fails(1, &["for 'q4_0'; it has tiny-Q8_0.gguf"]);
    pull("hf:tiny").fails(2, &["'hf:tiny' is not a model of the hub"]);
    pull("http://example.org/x.gguf").fails(2, &["over https only"]);
    pull("nothing").fails(2, &["no model is called 'nothing'", "owner/name"]);
    pull("ollama:nothing").fails(2, &["ollama:nothing is not here"]);
    server.set(|faults| (faults.token, faults.gated) = (Some("secret".into()), true));
    pull("me/tiny").fails(1, &["is gated: accept its terms at", "set HF_TOKEN"]);
    folder.pianola(["run", "-m", "me/tiny", "hello"]).fails(1, &["HF_HUB_OFFLINE forbids"]);
}

#[test]
fn models_of_other_programs_run_where_they_are() {
    let folder = Folder::new();
    let digest = "a".repeat(64);
    let blob = format!("ollama/blobs/sha256-{digest}");
    let blob = folder.file(&blob, common::tiny().to_bytes().unwrap());
    let manifest = format!(
        r#"{{"layers": [{{"mediaType": "application/vnd.ollama.image.model", "digest": "sha256:{digest}"}}]}}"#
    );
    folder.file("ollama/manifests/host.example/library/tiny/1b", manifest);
    folder.file("llama.cpp/small.gguf", common::tiny().to_bytes().unwrap());
    folder.file(".lmstudio/models/them/Tiny/other.gguf", common::tiny().to_bytes().unwrap());
    let listed = folder.pianola(["list", "--json"]).json();
    let names: Vec<&str> =
        listed.as_array().unwrap().iter().map(|model| model["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["llama.cpp:small", "lmstudio:them/Tiny/other", "ollama:tiny:1b"]);
    for name in ["ollama:tiny:1b", "tiny:1b", "small", "them/tiny", "other"] {
        let ran = folder.pianola(["run", "-m", name, "-n", "2", "hello"]);
        assert!(ran.err.contains("run where it is"), "{ran:#?}");
        ran.output();
    }
    assert!(blob.exists() && !folder.path.join("models").exists());
    fs::remove_file(blob).unwrap();
    let listed = folder.pianola(["list"]);
    assert!(listed.err.contains("it is listed but gone"), "{listed:#?}");
}

#[test]
fn tensors_that_read_pictures_are_left_out() {
    let folder = Folder::new();
    let mut writer = common::tiny();
    for name in ["v.blk.0.attn_q.weight", "mm.input_projection.weight"] {
        let bytes = vec![0; 128].into();
        writer.add(Tensor { name: name.into(), ty: TensorType::F32, shape: vec![32], bytes });
    }
    let model = folder.file("seeing.gguf", writer.to_bytes().unwrap());
    let ran = folder.pianola(["run", "-m", model.to_str().unwrap(), "-n", "2", "hello"]);
    assert!(ran.err.contains("2 vision tensors"), "{ran:#?}");
    ran.output();
    let plain = folder.pianola(["run", "-m", folder.model().to_str().unwrap(), "-n", "2", "hello"]);
    assert!(!plain.err.contains("pictures"), "{plain:#?}");
}

/// At most a block a time may come twice; it is far less, but for what a busy machine leaves in the
/// buffers of a connection.
#[test]
fn a_pull_that_is_killed_ten_times_goes_on() {
    const BLOCK: u64 = 16 << 20;
    const SIZE: usize = (40 << 20) + 4321;
    const KILLS: u64 = 10;
    let folder = Folder::new();
    let file = HubFile::large("big-Q8_0.gguf", content(SIZE, 11));
    let server = HubServer::start(vec![file.clone()]);
    // About 20 MB a second in all.
    server.set(|faults| faults.pause = Duration::from_millis(6));
    let start = || {
        folder
            .command()
            .args(["pull", "-q", "me/tiny"])
            .env("HF_ENDPOINT", server.endpoint())
            .env_remove("HF_HUB_OFFLINE")
            .stdout(Stdio::piped())
            .spawn()
            .unwrap()
    };
    let mut random = u64::from(std::process::id());
    for kill in 0..KILLS {
        // It gets a few megabytes, and can never end by itself.
        let before = server.served();
        server.set(|faults| faults.most = Some(before + (3 << 20)));
        let mut child = start();
        // Not before the first bytes have come, then at any time.
        while server.served() == before && child.try_wait().unwrap().is_none() {
            std::thread::sleep(Duration::from_millis(1));
        }
        random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        std::thread::sleep(Duration::from_millis((random >> 33) % 150));
        assert!(child.try_wait().unwrap().is_none(), "pull {kill} ended by itself");
        child.kill().unwrap();
        child.wait().unwrap();
    }
    server.set(|faults| faults.most = None);
    let finished = start().wait_with_output().unwrap();
    assert!(finished.status.success(), "{finished:?}");
    let path = String::from_utf8(finished.stdout).unwrap();
    assert!(fs::read(path.trim_end()).unwrap() == file.content, "the bytes are others");
    let twice = server.served() - SIZE as u64;
    println!("{twice} bytes came twice in {KILLS} kills");
    assert!(twice <= KILLS * BLOCK, "{twice} bytes came twice");
    let blobs = folder.path.join("huggingface/hub/models--me--tiny/blobs");
    assert_eq!(fs::read_dir(blobs).unwrap().count(), 1);
}
