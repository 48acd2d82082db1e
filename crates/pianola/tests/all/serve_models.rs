//! `serve` with several models: loading, unloading, and models that cannot be loaded.

use crate::common::server::{Answer, PATIENCE, Server, chat, post, test_model};
use crate::common::{Folder, display, tiny};
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::path::PathBuf;
use std::time::Duration;

/// Whether a model is loaded, loading, failed or unloaded.
fn state(server: &Server, id: &str) -> String {
    described(server, id)["state"].as_str().unwrap().to_string()
}

/// What `/status` says of a model.
fn described(server: &Server, id: &str) -> Value {
    let status: Value = serde_json::from_str(&server.get("/status").body).unwrap();
    let models = status["models"].as_array().unwrap();
    models.iter().find(|model| model["id"] == id).unwrap_or_else(|| panic!("{status}")).clone()
}

/// Asks a model for a token.
fn ask(server: &Server, model: &str, headers: &str) -> Answer {
    let body = json!({ "model": model, "prompt": "Once", "max_tokens": 1 }).to_string();
    server.post("/v1/completions", headers, &body)
}

/// Events of a kind about a model.
fn events(server: &Server, kind: &str, model: &str) -> Vec<Value> {
    server.events(kind).into_iter().filter(|event| event["model"] == model).collect()
}

/// The same, once there are so many: lines are written a moment after what they tell of.
fn logged(server: &Server, kind: &str, model: &str, count: usize) -> Vec<Value> {
    server.until("it is logged", || events(server, kind, model).len() >= count);
    events(server, kind, model)
}

/// A server of SmolLM2 that loads Gemma when it is asked for.
fn two_models(arguments: &[&str]) -> Server {
    let gemma = display(&test_model("gemma3.gguf"));
    Server::smollm2(&[&["--log", "json", "-m", &gemma], arguments].concat())
}

/// A model file with a tokeniser of no known kind: only the load finds out.
fn broken(folder: &Folder, name: &str) -> PathBuf {
    let mut writer = tiny();
    writer.set("tokenizer.ggml.model", "no-such-tokeniser");
    folder.file(name, writer.to_bytes().unwrap())
}

#[test]
fn idle_models_are_unloaded_and_others_are_not() {
    let server = two_models(&["--keep-alive", "1"]);
    let mut streamed = server.chat(8000, true);
    streamed.read_exact(&mut [0; 400]).unwrap();
    assert_eq!(state(&server, "gemma3"), "unloaded");
    ask(&server, "gemma3", "").is(200, "gemma3");
    server.until("the idle one is unloaded", || state(&server, "gemma3") == "unloaded");
    assert_eq!(state(&server, "smollm2"), "loaded", "a model in use was unloaded");
    drop(streamed);
    server.until("the other is idle, too", || state(&server, "smollm2") == "unloaded");
    let loaded = logged(&server, "model loaded", "gemma3", 1);
    assert_eq!(loaded.len(), 1, "{loaded:?}");
    assert!(loaded[0]["seconds"].as_f64().unwrap() > 0.0);
    let bytes = |field: &str| loaded[0][field].as_u64().unwrap();
    assert!(bytes("weight_bytes") > 100_000_000, "{}", loaded[0]);
    assert!(bytes("kv_limit_bytes") > 1_000_000, "{}", loaded[0]);
    assert!(loaded[0]["device"].as_str().unwrap().contains("cpu"));
    let unloaded = logged(&server, "model unloaded", "gemma3", 1);
    assert_eq!((unloaded.len(), &unloaded[0]["reason"]), (1, &json!("idle")));
    // It comes back when it is asked for.
    ask(&server, "smollm2", "").is(200, "smollm2");
}

#[test]
fn a_model_makes_room_unless_it_is_in_use() {
    let server = two_models(&["--max-loaded", "1"]);
    let mut streamed = server.chat(8000, true);
    streamed.read_exact(&mut [0; 400]).unwrap();
    let refused = ask(&server, "gemma3", "Prefer: wait=0\r\n");
    refused.is(503, "gemma3 is being loaded");
    assert!(refused.header("retry-after").is_some());
    // Whoever waits is answered once there is room.
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| ask(&server, "gemma3", ""));
        server.until("it is to be loaded", || state(&server, "gemma3") == "loading");
        std::thread::sleep(Duration::from_millis(300));
        assert_eq!(state(&server, "gemma3"), "loading");
        assert_eq!(state(&server, "smollm2"), "loaded");
        drop(streamed);
        waiting.join().unwrap().is(200, "gemma3");
    });
    assert_eq!((state(&server, "smollm2"), state(&server, "gemma3")).0, "unloaded");
    let unloaded = logged(&server, "model unloaded", "smollm2", 1);
    assert_eq!(unloaded[0]["reason"], "room for gemma3");
    // Requests for two models by turns are all answered, whoever unloads whom.
    std::thread::scope(|scope| {
        for model in ["smollm2", "gemma3", "smollm2", "gemma3"] {
            let server = &server;
            scope.spawn(move || {
                server.until("its turn comes", || ask(server, model, "").status == 200);
            });
        }
    });
}

#[test]
fn a_model_is_loaded_once_however_many_ask() {
    let server = two_models(&[]);
    std::thread::scope(|scope| {
        let one = || ask(&server, "gemma3", "").is(200, "gemma3");
        (0..8).for_each(|_| drop(scope.spawn(one)));
    });
    assert_eq!(logged(&server, "model loaded", "gemma3", 1).len(), 1);
    let body = r#"{"model": "gemma3", "keep_alive": 0}"#;
    server.post("/api/generate", "", body).is(200, "unload");
    server.until("it is unloaded", || state(&server, "gemma3") == "unloaded");
    // At once, or as soon as the requests before have let go of it.
    let reason = logged(&server, "model unloaded", "gemma3", 1)[0]["reason"].clone();
    assert!(reason == "requested" || reason == "idle", "{reason}");
    // Who does not wait is told to come again, and the load goes on.
    let refused = ask(&server, "gemma3", "Prefer: wait=0\r\n");
    refused.is(503, "gemma3 is being loaded");
    assert!(refused.header("retry-after").unwrap().parse::<u32>().unwrap() > 0);
    server.until("it is loaded", || ask(&server, "gemma3", "Prefer: wait=0\r\n").status == 200);
    assert_eq!(logged(&server, "model loaded", "gemma3", 2).len(), 2);
    // Every line so far was JSON, the notices included.
    let notices = server.events("notice");
    assert!(notices.iter().any(|notice| {
        notice["message"].as_str().is_some_and(|text| text.starts_with("listening at http://127"))
    }));
    server.terminate();
    server.until("it drains", || !server.events("draining").is_empty());
}

#[test]
fn a_broken_model_unloads_no_other() {
    let files = Folder::new();
    let path = broken(&files, "broken.gguf");
    let half = &tiny().to_bytes().unwrap()[..2000];
    files.file("half.gguf", half);
    let folder = display(&files.path);
    let server = Server::start(
        Folder::model,
        &["--models-dir", &folder, "--max-loaded", "1", "--log", "json"],
        "",
    );
    for _ in 0..2 {
        let refused = ask(&server, "broken", "");
        refused.is(503, "no-such-tokeniser");
        assert_eq!(refused.header("retry-after"), None, "it fails again until the file changes");
        ask(&server, "half", "").is(404, "half");
    }
    assert_eq!(logged(&server, "load failed", "broken", 1).len(), 1, "it was tried again");
    assert_eq!(state(&server, "tiny"), "loaded");
    assert!(server.events("model unloaded").is_empty(), "a good model made room");
    let failed = described(&server, "broken");
    assert_eq!(failed["state"], "failed");
    assert!(failed["reason"].as_str().unwrap().contains("no-such-tokeniser"));
    // Only the first model decides whether the server is ready.
    server.get("/ready").is(200, "ready");
    // A file that was mended is tried at once.
    std::fs::write(&path, tiny().to_bytes().unwrap()).unwrap();
    ask(&server, "broken", "").is(200, "broken");
    assert_eq!(state(&server, "tiny"), "unloaded");
}

/// A file that sorts first and is no model is not the default, and does not keep the server from being
/// ready.
#[test]
fn what_cannot_be_read_in_a_folder_is_left_out() {
    let files = Folder::new();
    let whole = tiny().to_bytes().unwrap();
    files.file("aaa.gguf", &whole[..2000]);
    files.file("zzz.gguf", &whole);
    let server = Server::start(|_| PathBuf::new(), &["--models-dir", &display(&files.path)], "");
    let answer = server.post("/v1/completions", "", r#"{"prompt": "Once", "max_tokens": 1}"#);
    answer.is(200, "zzz");
    ask(&server, "aaa", "").is(404, "aaa");
    let list: Value = serde_json::from_str(&server.get("/v1/models").body).unwrap();
    assert_eq!(list["data"].as_array().unwrap().len(), 1, "{list}");
    let warned = |line: &String| line.contains("aaa cannot be served");
    assert!(server.written().iter().any(warned), "{:?}", server.written());
    std::fs::remove_file(files.path.join("zzz.gguf")).unwrap();
    let folder = Folder::new();
    let refused = folder.pianola(words!["serve", "--port", "0", "--models-dir", &files.path]);
    refused.fails(1, &["aaa.gguf"]);
}

/// Names of the models that `/v1/models` lists.
fn listed(server: &Server) -> Vec<String> {
    let list: Value = serde_json::from_str(&server.get("/v1/models").body).unwrap();
    let models = list["data"].as_array().unwrap().iter();
    models.map(|model| model["id"].as_str().unwrap().to_string()).collect()
}

#[test]
fn without_a_name_all_that_is_here_is_served() {
    let whole = tiny().to_bytes().unwrap();
    let here = |folder: &Folder| {
        for name in ["second", "first"] {
            folder.file(&format!("models/{name}.gguf"), &whole);
        }
        folder.file("models/half.gguf", &whole[..2000]);
        PathBuf::new()
    };
    let server = Server::start(here, &[], "");
    let written = server.written().join("\n");
    assert!(
        written.contains("here: first, which is loaded first; second, loaded when"),
        "{written}"
    );
    assert!(written.contains("half cannot be served: "), "{written}");
    assert_eq!(listed(&server), ["first", "second"]);
    let states = || (state(&server, "first"), state(&server, "second"));
    assert_eq!(states(), ("loaded".to_string(), "unloaded".to_string()));
    ask(&server, "second", "").is(200, "\"model\":\"second\"");
    assert_eq!(states().1, "loaded");
    ask(&server, "gemma3:4b", "").is(404, "`pianola pull gemma3:4b` fetches it");
    ask(&server, "third", "").is(404, "served: first, second; `pianola pull NAME`");
    // What comes is served, and what goes is not.
    server.folder.file("models/third.gguf", &whole);
    server.until("it is found", || ask(&server, "third", "").status == 200);
    std::fs::remove_file(server.folder.path.join("models/second.gguf")).unwrap();
    server.until("it is gone", || listed(&server) == ["first", "third"]);
    ask(&server, "second", "").is(404, "does not exist here");
}

#[test]
fn a_named_model_is_served_alone() {
    let named = |folder: &Folder| {
        let path = folder.file("models/first.gguf", tiny().to_bytes().unwrap());
        folder.file("models/second.gguf", tiny().to_bytes().unwrap());
        path
    };
    let server = Server::start(named, &[], "");
    assert_eq!(listed(&server), ["first"]);
    ask(&server, "second", "").is(404, "start it with -m");
    let server = Server::start(
        |folder| {
            named(folder);
            PathBuf::new()
        },
        &["second"],
        "",
    );
    assert_eq!(listed(&server), ["second"]);
}

#[test]
fn a_server_whose_only_model_cannot_be_loaded_ends() {
    let folder = Folder::new();
    let path = broken(&folder, "broken.gguf");
    let serve = |arguments: &[&str]| {
        let mut all = words!["serve", "-m", &path, "--port", "0", "--device", "cpu"].to_vec();
        all.extend(arguments.iter().map(std::ffi::OsString::from));
        folder.pianola(all)
    };
    serve(&["-q", "--log", "off"]).fails(1, &["broken.gguf", "no-such-tokeniser"]);
    let run = serve(&["--log", "json"]);
    assert_eq!(run.code, Some(1), "{run:#?}");
    let last: Vec<Value> =
        run.err.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let last = last.last().unwrap();
    assert_eq!(last["event"], "error");
    assert!(last["message"].as_str().unwrap().contains("no-such-tokeniser"), "{last}");
    let good = folder.model();
    let lanes = words!["serve", "-m", good, "--port", "0", "--device", "cpu", "--lanes", "9999"];
    folder.pianola(lanes).fails(2, &["lanes", "between 1 and 512"]);
}

#[test]
fn other_models_stay_usable_where_the_first_cannot_be_loaded() {
    let files = Folder::new();
    let other = display(&files.model());
    let server = Server::launch(|folder| broken(folder, "broken.gguf"), &["-m", &other], "");
    server.until("it says why", || server.get("/ready").body.contains("no-such-tokeniser"));
    server.get("/ready").is(503, "broken cannot be used");
    let reason = described(&server, "broken")["reason"].clone();
    assert!(reason.as_str().unwrap().contains("no-such-tokeniser"), "{reason}");
    ask(&server, "tiny", "").is(200, "tiny");
    // Also without a log.
    let lines = server.written();
    let told = lines.iter().filter(|line| line.contains("not ready")).collect::<Vec<_>>();
    assert!(told.len() == 1 && told[0].contains("no-such-tokeniser"), "{lines:?}");
}

#[test]
fn a_file_with_two_names_is_one_model() {
    let files = Folder::new();
    let model = files.model();
    std::os::unix::fs::symlink(&model, files.path.join("other.gguf")).unwrap();
    let folder = display(&files.path);
    let server = Server::start(|_| model.clone(), &["--models-dir", &folder], "");
    let list: Value = serde_json::from_str(&server.get("/v1/models").body).unwrap();
    assert_eq!(list["data"].as_array().unwrap().len(), 1, "{list}");
    for name in ["tiny", "tiny.gguf", "other", "other.gguf"] {
        ask(&server, name, "").is(200, "\"model\":\"tiny\"");
    }
}

#[test]
fn the_address_is_the_one_that_is_listened_at() {
    let server = Server::tiny(&["--host", "0.0.0.0"]);
    let port = server.address.port();
    let has = |line: String| server.written().iter().any(|written| written.ends_with(&line));
    assert!(has(format!("listening at http://0.0.0.0:{port}")));
    assert!(has(format!(" http://127.0.0.1:{port}")));
}

#[test]
fn options_that_make_no_sense_are_refused() {
    let folder = Folder::new();
    let model = folder.model();
    let fails = |words: &[&str], parts: &[&str]| {
        let mut all = words!["serve", "-m", &model, "--port", "0"].to_vec();
        all.extend(words.iter().map(std::ffi::OsString::from));
        folder.pianola(all).fails(2, parts);
    };
    fails(&["--cors", "nonsense"], &["--cors", "https://name"]);
    fails(&["--cors", "https://chat.example/"], &["--cors", "without a path"]);
    fails(&["--host-name", "http://x"], &["--host-name", "without http://"]);
    fails(&["--host-name", "x:8080"], &["--host-name", "a port"]);
    fails(&["--max-body", "17592186044416"], &["--max-body", "between 1 and 17592186044415"]);
    for option in ["--queue", "--lanes", "--max-loaded", "--keep-alive", "--drain", "--idle"] {
        fails(&[option, "-1"], &[option, "whole number"]);
    }
    fails(&["--tls-cert", "cert.pem"], &["--tls-key"]);
    fails(&["--tls-key", "key.pem"], &["--tls-cert"]);
}

#[test]
fn status_does_not_wait_for_a_long_prompt() {
    let server = Server::smollm2(&[]);
    let body = json!({ "prompt": "word ".repeat(6000), "max_tokens": 1 }).to_string();
    let mut long = server.connect();
    long.write_all(post("/v1/completions", "Connection: close\r\n", &body).as_bytes()).unwrap();
    server.until("it runs", || server.gauge("pianola_requests_running") == 1);
    let steps = || described(&server, "smollm2")["counters"]["steps"].as_u64().unwrap();
    let before = steps();
    (0..20).for_each(|_| drop(described(&server, "smollm2")));
    let taken = steps() - before;
    assert!(taken < 10, "twenty answers took {taken} steps: they waited for them");
    assert_eq!(described(&server, "smollm2")["running"], 1, "the prompt was too short");
    drop(long);
    server.post("/v1/chat/completions", "", &chat(1, false)).is(200, "length");
}

#[test]
fn a_second_signal_does_not_wait_for_a_long_prompt() {
    let mut server = Server::smollm2(&["--drain", "600"]);
    let body = json!({ "prompt": "word ".repeat(7000), "max_tokens": 1 }).to_string();
    let mut long = server.connect();
    long.write_all(post("/v1/completions", "", &body).as_bytes()).unwrap();
    server.until("it runs", || server.gauge("pianola_requests_running") == 1);
    server.terminate();
    assert!(server.wait(Duration::from_millis(100)).is_none(), "the first signal ended it");
    server.terminate();
    let ended = server.wait(PATIENCE);
    assert_eq!(ended.and_then(|status| status.code()), Some(0));
}
