//! What `serve` refuses, what it says of it, and how it ends what it has begun: over plain sockets.

use crate::common::Folder;
use crate::common::server::{Answer, PATIENCE, Server, chat, post};
use serde_json::Value;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

/// The head of a request with a body of which nothing is sent.
fn announced(bytes: usize, headers: &str) -> String {
    post("/v1/completions", headers, "").replace("Length: 0", &format!("Length: {bytes}"))
}

#[test]
fn bodies_are_refused_before_they_come() {
    // Who waits for the body waits longer than the test does.
    let server = Server::tiny(&["--max-body", "1", "--idle", "600"]);
    for headers in ["", "Expect: 100-continue\r\n"] {
        let refused = server.send(announced((1 << 20) + 1, headers));
        refused.is(413, "--max-body");
        refused.is(413, "1048576 bytes");
    }
    // A client that sends first and reads then learns it, too: its connection is not reset.
    let mut stubborn = server.connect();
    let body = " ".repeat(16 << 20);
    stubborn.write_all(post("/v1/completions", "", &body).as_bytes()).unwrap();
    let mut answer = String::new();
    stubborn.read_to_string(&mut answer).unwrap();
    Answer::of(&answer).is(413, "--max-body");
    // A limit that is kept to.
    let exact = format!(r#"{{"prompt": "a", "max_tokens": 1, "user": "{}"}}"#, "u".repeat(1 << 20));
    let exact = exact.replace(&"u".repeat(100), "");
    assert!(exact.len() < 1 << 20);
    server.post("/v1/completions", "", &exact).is(200, "text_completion");
}

#[test]
fn compressed_bodies_and_doubtful_hosts_are_refused() {
    let server = Server::tiny(&[]);
    let body = r#"{"prompt": "a", "max_tokens": 1}"#;
    let post = |headers: &str| server.post("/v1/completions", headers, body);
    post("Content-Encoding: gzip\r\n").is(415, "'gzip' is not supported; send the body unc");
    post("Content-Encoding: identity, br\r\n").is(415, "br");
    post("Content-Encoding: identity\r\n").is(200, "text_completion");
    let get = |headers: &str| {
        server.send(format!("GET /health HTTP/1.1\r\nConnection: close\r\n{headers}\r\n"))
    };
    get("").is(400, "one Host header, this one has 0");
    get("Host: localhost\r\nHost: localhost\r\n").is(400, "this one has 2");
    get("Host: localhost\r\n").is(200, "ok");
}

#[test]
fn large_bodies_share_a_budget_and_small_ones_need_none() {
    let server = Server::tiny(&["--max-body", "1", "--idle", "600"]);
    let body = r#"{"prompt": "a", "max_tokens": 1}"#;
    let large = format!("{body}{}", " ".repeat(100_000));
    // All but a byte each of four bodies, which take the whole budget once the server has read them.
    let part = " ".repeat((1 << 20) - 1);
    let stalled: Vec<TcpStream> = (0..4)
        .map(|_| {
            let mut stream = server.connect();
            stream.write_all((announced(1 << 20, "") + &part).as_bytes()).unwrap();
            stream
        })
        .collect();
    let mut waiting = None;
    server.until("a large body waits", || {
        let mut stream = server.connect();
        let close = "Connection: close\r\n";
        stream.write_all(post("/v1/completions", close, &large).as_bytes()).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
        let waits = stream.peek(&mut [0]).is_err();
        waiting = Some(stream);
        waits
    });
    server.post("/v1/completions", "", body).is(200, "text_completion");
    drop(stalled);
    let waiting = waiting.unwrap();
    waiting.set_read_timeout(Some(PATIENCE)).unwrap();
    Answer::read_to_end(waiting).is(200, "text_completion");
}

#[test]
fn answers_say_what_they_depend_on() {
    let server = Server::start(Folder::model, &[], "key");
    let refused = server.get("/v1/models");
    refused.is(401, "invalid_api_key");
    assert_eq!(refused.header("www-authenticate"), Some("Bearer"));
    for path in ["/v1/models", "/nothing", "/health"] {
        assert_eq!(server.get(path).header("vary"), Some("Origin"), "{path}");
    }
    assert_eq!(server.get("/health").header("www-authenticate"), None);
    let root = server.get("/");
    let vary: Vec<&str> =
        root.head.lines().filter_map(|line| line.strip_prefix("vary: ")).collect();
    assert_eq!(vary, ["Accept", "Origin"]);
}

#[test]
fn errors_name_the_field_and_show_little_of_it() {
    let server = Server::tiny(&[]);
    let completion = "/v1/completions";
    let cases = [
        (completion, r#"{"prompt": "a", "temperature": -1}"#, "temperature"),
        (completion, r#"{"prompt": "a", "temperature": 1e308}"#, "temperature"),
        (completion, r#"{"prompt": "a", "repeat_penalty": 0}"#, "repeat_penalty"),
        (completion, r#"{"prompt": "a", "max_completion_tokens": 0}"#, "max_completion_tokens"),
        (completion, r#"{"prompt": [99999]}"#, "prompt"),
        ("/v1/embeddings", r#"{"input": [99999]}"#, "input"),
        ("/v1/embeddings", r#"{"input": []}"#, "input"),
        ("/v1/embeddings", r#"{"input": "a", "dimensions": 7}"#, "dimensions"),
        ("/v1/responses", r#"{"input": []}"#, "input"),
        (
            "/v1/responses",
            r#"{"input": "a", "text": {"format": {"type": "json_schema", "schema": {"type": "x"}}}}"#,
            "text.format",
        ),
    ];
    for (path, body, field) in cases {
        let answer = server.post(path, "", body);
        answer.is(400, "invalid_request_error");
        let value: Value = serde_json::from_str(&answer.body).unwrap();
        assert_eq!(value["error"]["param"], field, "{body}: {answer:#?}");
        let message = value["error"]["message"].as_str().unwrap();
        assert!(!message.contains("inf") && !message.contains("missing"), "{message}");
    }
    let name = format!("\\u001b[2J{}", "a".repeat(100_000));
    let unknown = server.post(completion, "", &format!(r#"{{"prompt": "a", "model": "{name}"}}"#));
    unknown.is(404, "\\\\u{1b}[2Jaaa");
    assert!(unknown.body.len() < 600 && unknown.body.contains('…'), "{}", unknown.body.len());
    server.get(&format!("/{}", "a".repeat(5000))).is(404, "aaa…;");
}

/// The prompt's log probabilities are not computed, so that a request for them is refused.
#[test]
fn an_echo_has_no_log_probabilities() {
    let server = Server::tiny(&[]);
    let ask = |more: Value| {
        let mut body = serde_json::json!({ "prompt": "hé", "max_tokens": 3, "temperature": 0 });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        server.post("/v1/completions", "", &body.to_string())
    };
    ask(serde_json::json!({ "echo": true })).is(200, "\"text\":\"hé");
    ask(serde_json::json!({ "echo": false, "logprobs": 0 })).is(200, "\"text_offset\":[0,");
    ask(serde_json::json!({ "stream": true, "logprobs": 0 })).is(200, "\"text_offset\":[0]");
    for logprobs in [0, 3] {
        ask(serde_json::json!({ "echo": true, "logprobs": logprobs })).is(400, "logprobs");
    }
}

/// Path, end and body of a stream of every API that goes on for long: SmolLM2's end tokens are banned or
/// ignored, or the text is one that has no end.
fn long_streams() -> [(&'static str, &'static str, String); 5] {
    let text = chat(8000, true);
    let responses = text.replace("messages", "input").replace("max_tokens", "max_output_tokens");
    let completion =
        r#"{"prompt": "1, 2, 3,", "max_tokens": 8000, "stream": true, "ignore_eos": true}"#;
    let generate = r#"{"prompt": "1, 2, 3, 4, 5, 6,", "raw": true,
        "options": {"num_predict": 8000, "temperature": 0, "repeat_penalty": 1}}"#;
    [
        ("/v1/chat/completions", "data: {\"error\":{", text.clone()),
        ("/v1/completions", "data: {\"error\":{", completion.into()),
        ("/v1/responses", "event: response.failed\n", responses),
        ("/v1/messages", "event: error\n", text),
        ("/api/generate", "{\"error\":\"the server is shutting down", generate.into()),
    ]
}

#[test]
fn what_is_cut_off_ends_in_an_error() {
    let mut server = Server::smollm2(&["--drain", "1", "--lanes", "6"]);
    let begin = |(path, event, body): (&'static str, &'static str, String)| {
        let mut stream = server.connect();
        stream.write_all(post(path, "", &body).as_bytes()).unwrap();
        stream.read_exact(&mut [0; 300]).unwrap();
        (path, event, stream)
    };
    let streams = long_streams().map(begin);
    let whole = server.chat(8000, false);
    server.until("all run", || server.gauge("pianola_requests_running") == 6);
    server.terminate();
    for (path, event, stream) in streams {
        let rest = Answer::read_to_end(stream);
        let text = format!("{}\r\n\r\n{}", rest.head, rest.body);
        assert!(text.contains(event), "no '{event}' from {path}: {text}");
        assert!(text.contains("the server is shutting down"), "{path}: {text}");
        assert!(!text.contains("[DONE]"), "{path} pretends to be complete: {text}");
    }
    let whole = Answer::read_to_end(whole);
    whole.is(503, "the server is shutting down");
    assert_eq!(server.wait(PATIENCE).and_then(|status| status.code()), Some(0));
}

#[test]
fn a_client_that_leaves_with_a_request_pending_frees_its_lane() {
    let server = Server::smollm2(&["--lanes", "1"]);
    let running = || server.gauge("pianola_requests_running");
    let next = "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n";
    let one = post("/v1/chat/completions", "", &chat(8000, false));
    for pending in ["", next, &one, &next.repeat(100)] {
        let before = server.gauge("pianola_generated_tokens_total");
        let mut stream = server.connect();
        stream.write_all(format!("{one}{pending}").as_bytes()).unwrap();
        server.until("one runs", || running() == 1);
        drop(stream);
        server.until("none runs", || running() == 0);
        let generated = server.gauge("pianola_generated_tokens_total") - before;
        assert!(generated < 4000, "{} bytes pending: it was generated to its end", pending.len());
    }
    server.post("/v1/chat/completions", "", &chat(2, false)).is(200, "\"length\"");
}
