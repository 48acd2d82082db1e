//! `serve` as the network sees it: the binary, driven over plain sockets on this machine.

use crate::common::Folder;
use crate::common::server::{Answer, PATIENCE, Server, chat, post};
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::time::{Duration, Instant};

#[test]
fn a_taken_port_is_an_error() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let folder = Folder::new();
    let model = folder.model();
    let run = folder.pianola(words!["serve", "-m", model, "--port", &port]);
    run.fails(1, &["cannot listen at 127.0.0.1:", &port, "another program", "--port"]);
}

#[test]
fn pages_elsewhere_cannot_drive_the_server() {
    let server = Server::tiny(&["--cors", "https://chat.example", "--host-name", "models.lan"]);
    let get = |headers: &str| {
        server.send(format!("GET /v1/models HTTP/1.1\r\nConnection: close\r\n{headers}\r\n"))
    };
    // A name that was pointed at this address.
    get("Host: evil.example\r\n").is(403, "evil.example");
    get("Host: localhost.evil.example:80\r\n").is(403, "evil.example");
    for host in ["localhost", "LOCALHOST:1", "127.0.0.1:8080", "[::1]:8080", "models.lan"] {
        get(&format!("Host: {host}\r\n")).is(200, "tiny");
    }
    get("Host: localhost\r\nOrigin: https://evil.example\r\n").is(403, "evil.example");
    get("Host: localhost\r\nOrigin: null\r\n").is(403, "null");
    get("Host: localhost:80\r\nOrigin: http://localhost:80\r\n").is(200, "tiny");
    let allowed = get("Host: localhost\r\nOrigin: https://chat.example\r\n");
    allowed.is(200, "tiny");
    assert_eq!(allowed.header("access-control-allow-origin"), Some("https://chat.example"));
    assert_eq!(allowed.header("vary"), Some("Origin"));
    // What went wrong may be read by the page, too.
    let body = r#"{"model": "other", "prompt": ""}"#;
    let origin = "Origin: https://chat.example\r\n";
    let refused = server.post("/v1/completions", origin, body);
    refused.is(404, "other");
    assert_eq!(refused.header("access-control-allow-origin"), Some("https://chat.example"));

    let preflight = |origin: &str| {
        server.send(format!(
            "OPTIONS /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nOrigin: {origin}\r\n\
             Access-Control-Request-Method: POST\r\nConnection: close\r\n\
             Access-Control-Request-Headers: content-type, x-stainless-os\r\n\r\n"
        ))
    };
    let answer = preflight("https://chat.example");
    answer.is(204, "");
    assert_eq!(answer.header("access-control-allow-origin"), Some("https://chat.example"));
    assert_eq!(answer.header("access-control-allow-headers"), Some("content-type, x-stainless-os"));
    assert!(answer.header("access-control-allow-methods").unwrap().contains("POST"));
    let answer = preflight("https://evil.example");
    answer.is(403, "evil.example");
    assert_eq!(answer.header("access-control-allow-origin"), None);
}

#[test]
fn bad_requests_are_told_what_is_wrong() {
    let server = Server::tiny(&["--max-body", "1"]);
    let body = r#"{"prompt": "a", "max_tokens": 1}"#;
    server.post("/v1/completions", "", body).is(200, "text_completion");
    let form = |kind: &str| {
        server.send(format!(
            "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{kind}\
             Content-Length: {}\r\n\r\n{body}",
            body.len()
        ))
    };
    form("").is(415, "application/json");
    form("Content-Type: text/plain\r\n").is(415, "text/plain");
    form("Content-Type: application/x-www-form-urlencoded\r\n").is(415, "form");
    form("Content-Type: application/json; charset=utf-8\r\n").is(200, "text_completion");
    server.post("/v1/completions", "", "{\"prompt\": ").is(400, "not valid JSON");
    server.post("/v1/completions", "", "[1]").is(400, "must be a JSON object");
    server.post("/v1/completions", "", &"[".repeat(100_000)).is(400, "not valid JSON");
    server.post("/v1/completions", "", r#"{"prompt": 3}"#).is(400, "prompt must be");
    server.post("/v1/completions", "", &" ".repeat(1 << 21)).is(413, "1048576 bytes");
    // Also where no length is said.
    let chunks = format!("{:x}\r\n{}\r\n", 1 << 20, " ".repeat(1 << 20)).repeat(2);
    let chunked = format!(
        "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
         Connection: close\r\nTransfer-Encoding: chunked\r\n\r\n{chunks}0\r\n\r\n"
    );
    server.send(chunked).is(413, "1048576 bytes");
    server.get("/nothing").is(404, "/nothing");
    server.get("/v1/models/nothing").is(404, "model_not_found");
    server.get("/api/nothing").is(404, "\"error\":\"");
    let refused = server.get("/v1/chat/completions");
    refused.is(405, "takes POST, not GET");
    assert_eq!(refused.header("allow"), Some("POST"));
    let refused = server.post("/v1/models", "", "{}");
    refused.is(405, "GET");
    assert_eq!(refused.header("allow"), Some("GET, HEAD"));
    let refused = server.send("BREW / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    refused.is(405, "BREW");
    assert!(refused.header("x-request-id").is_some_and(|id| id.starts_with("req_")));
    assert_eq!(server.send("nonsense\r\n\r\n").status, 400);
}

#[test]
fn headers_are_bounded_in_size_and_time() {
    let server = Server::tiny(&["--idle", "1"]);
    let many: String = (0..200).map(|index| format!("X-{index}: a\r\n")).collect();
    let start = "GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n";
    assert_eq!(server.send(format!("{start}{many}\r\n")).status, 431);
    let long = "a".repeat(1 << 20);
    assert_eq!(server.send(format!("{start}X-Long: {long}\r\n\r\n")).status, 431);
    assert_eq!(server.send(format!("GET /{long} HTTP/1.1\r\n\r\n")).status, 431);

    // A header a while, for ever.
    let mut slow = server.connect();
    let begun = Instant::now();
    slow.write_all(b"GET /health HTTP/1.1\r\nHost: localhost\r\n").unwrap();
    while slow.write_all(b"X-Slow: a\r\n").is_ok() {
        assert!(begun.elapsed() < PATIENCE, "slow headers are waited for");
        std::thread::sleep(Duration::from_millis(100));
    }
    assert!(begun.elapsed() > Duration::from_millis(900));
    // A body that does not come.
    let mut stalled = server.connect();
    stalled
        .write_all(post("/v1/completions", "", "").replace("Length: 0", "Length: 9").as_bytes())
        .unwrap();
    let mut first = [0; 12];
    stalled.read_exact(&mut first).unwrap();
    assert_eq!(&first, b"HTTP/1.1 408");
    // A connection without a request.
    let mut idle = server.connect();
    assert_eq!(idle.read(&mut first).unwrap_or(0), 0, "an idle connection is kept for ever");
    server.get("/health").is(200, "ok");
}

#[test]
fn a_connection_takes_several_requests() {
    let server = Server::tiny(&[]);
    let one = "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n";
    let mut stream = server.connect();
    for _ in 0..3 {
        stream.write_all(one.as_bytes()).unwrap();
        let mut bytes = vec![0; 4096];
        let count = stream.read(&mut bytes).unwrap();
        Answer::of(&String::from_utf8_lossy(&bytes[..count])).is(200, "ok");
    }
    // All at once; the last one closes.
    let body = r#"{"prompt": "a", "max_tokens": 2}"#;
    let last = "GET /version HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    let all = server.send(format!("{one}{}{last}", post("/v1/completions", "", body)));
    let text = format!("{}\r\n\r\n{}", all.head, all.body);
    assert_eq!(text.matches("HTTP/1.1 200 OK").count(), 3, "{text}");
    let places: Vec<Option<usize>> =
        ["\"ok\"", "text_completion", "pianola"].map(|word| text.find(word)).into();
    assert!(places.is_sorted() && places[0].is_some(), "{text}");
}

#[test]
fn older_clients_are_answered() {
    let server = Server::tiny(&[]);
    // HTTP/1.0 knows no chunks and need not say a host: a stream ends with the connection.
    let health = server.send("GET /health HTTP/1.0\r\n\r\n");
    health.is(200, "ok");
    let body = r#"{"prompt": "a", "max_tokens": 3, "stream": true}"#;
    let stream = server.send(post("/v1/completions", "", body).replace("HTTP/1.1", "HTTP/1.0"));
    stream.is(200, "data: [DONE]\n\n");
    assert_eq!(stream.header("transfer-encoding"), None);
    assert!(stream.body.starts_with("data: {"), "{stream:#?}");
    let root = server.send("HEAD / HTTP/1.0\r\n\r\n");
    root.is(200, "");
    assert_eq!(root.body, "");
    server.get("/").is(200, "Ollama is running");
}

#[test]
fn keys_are_wanted_where_there_are_any() {
    let server = Server::start(Folder::model, &[], "first-key, second-key");
    let get = |headers: &str| {
        let start = "GET /v1/models HTTP/1.1\r\nHost: anything.example\r\nConnection: close\r\n";
        server.send(format!("{start}{headers}\r\n"))
    };
    get("").is(401, "invalid_api_key");
    for wrong in ["Bearer first", "Bearer first-key2", "Bearer ", "Basic first-key", "first-key"] {
        get(&format!("Authorization: {wrong}\r\n")).is(401, "invalid_api_key");
    }
    get("x-api-key: third-key\r\n").is(401, "invalid_api_key");
    for right in [
        "Authorization: Bearer first-key",
        "authorization: bearer second-key",
        "x-api-key: second-key",
    ] {
        get(&format!("{right}\r\n")).is(200, "tiny");
    }
    server.post("/v1/completions", "", "{}").is(401, "'Authorization: Bearer KEY'");
    server.post("/api/chat", "", "{}").is(401, "\"error\":\"");
    // What tells nothing of the models needs none.
    for public in
        ["/health", "/ready", "/version", "/metrics", "/openapi.json", "/docs", "/api/version"]
    {
        assert_eq!(server.get(public).status, 200, "{public}");
    }
}

#[test]
fn the_document_is_a_page_without_scripts() {
    let server = Server::tiny(&[]);
    let document = server.get("/openapi.json");
    let value: serde_json::Value = serde_json::from_str(&document.body).unwrap();
    assert_eq!(value["openapi"], "3.1.0");
    let page = server.get("/docs");
    page.is(200, "/v1/chat/completions");
    assert!(page.header("content-security-policy").unwrap().starts_with("default-src 'none'"));
    assert!(!page.body.contains("<script") && !page.body.contains("http://"), "{page:#?}");
    server.get("/docs.css").is(200, "body");
}

#[test]
fn a_pull_ends_with_its_client() {
    let server = Server::tiny(&[]);
    let unknown = server.post("/api/pull", "", r#"{"model": "nothing"}"#);
    unknown.is(200, "{\"error\":\"the catalogue has no model 'nothing'");
    server.post("/api/pull", "", r#"{"name": "nothing", "stream": false}"#).is(404, "catalogue");
    server
        .post("/api/pull", "", r#"{"model": "tiny:latest"}"#)
        .is(200, "{\"status\":\"success\"}\n");

    let file = server.folder.path.join("pip.process");
    for stream in [true, false] {
        let mut pull = server.connect();
        let body = format!(r#"{{"model": "smollm2:135m", "stream": {stream}}}"#);
        pull.write_all(post("/api/pull", "", &body).as_bytes()).unwrap();
        let mut process = String::new();
        server.until("pip runs", || {
            process = std::fs::read_to_string(&file).unwrap_or_default();
            process.ends_with('\n')
        });
        let process = Path::new("/proc").join(process.trim());
        assert!(process.exists());
        drop(pull);
        server.until("pip is ended", || !process.exists());
        std::fs::remove_file(&file).unwrap();
    }
}

#[test]
fn a_client_that_leaves_frees_its_lane() {
    let server = Server::smollm2(&["--lanes", "1", "--queue", "1"]);
    let running = || server.gauge("pianola_requests_running");
    let waiting = || server.gauge("pianola_requests_waiting");

    // A lane and the queue are taken: the next is sent away.
    let mut streamed = server.chat(4000, true);
    streamed.read_exact(&mut [0; 400]).unwrap();
    let queued = server.chat(4000, true);
    server.until("one runs, one waits", || (running(), waiting()) == (1, 1));
    let refused = server.post("/v1/chat/completions", "", &chat(1, false));
    refused.is(429, "queue_full");
    assert!(refused.header("retry-after").unwrap().parse::<u32>().unwrap() > 0);
    let refused =
        server.post("/api/chat", "", r#"{"messages": [{"role": "user", "content": "Hi"}]}"#);
    refused.is(429, "\"error\":\"");
    assert!(refused.header("retry-after").is_some());

    drop(queued);
    server.until("none waits", || waiting() == 0);
    assert_eq!(running(), 1);
    drop(streamed);
    server.until("none runs after a stream", || running() == 0);

    let whole = server.chat(4000, false);
    server.until("one runs", || running() == 1);
    drop(whole);
    server.until("none runs after a whole answer", || running() == 0);

    let mut lines = server.connect();
    let body = r#"{"prompt": "Count from 1 to 1000, one number a line.", "options": {"num_predict": 4000}}"#;
    lines.write_all(post("/api/generate", "", body).as_bytes()).unwrap();
    lines.read_exact(&mut [0; 400]).unwrap();
    drop(lines);
    server.until("none runs after lines", || running() == 0);
    server.post("/v1/chat/completions", "", &chat(2, false)).is(200, "\"length\"");
}

#[test]
fn what_runs_is_finished_before_the_server_ends() {
    let mut server = Server::smollm2(&[]);
    let mut streamed = server.chat(400, true);
    streamed.read_exact(&mut [0; 400]).unwrap();
    let whole = server.chat(400, false);
    server.until("two run", || server.gauge("pianola_requests_running") == 2);
    let idle = server.connect();
    server.terminate();
    let address = server.address;
    server.until("connections are refused", || {
        let error = TcpStream::connect(address).err();
        error.is_some_and(|error| error.kind() == ErrorKind::ConnectionRefused)
    });
    assert!(server.wait(Duration::ZERO).is_none(), "it ended at once");
    let streamed = Answer::read_to_end(streamed);
    let end = format!("{}{}", streamed.head, streamed.body);
    assert!(end.contains("data: [DONE]") && end.contains("\"length\""), "{end}");
    let whole = Answer::read_to_end(whole);
    whole.is(200, "\"length\"");
    drop(idle);
    assert_eq!(server.wait(PATIENCE).and_then(|status| status.code()), Some(0));
}

#[test]
fn a_second_signal_ends_the_server_at_once() {
    let mut server = Server::smollm2(&["--drain", "600"]);
    let mut streamed = server.chat(8000, true);
    streamed.read_exact(&mut [0; 400]).unwrap();
    server.terminate();
    assert!(server.wait(Duration::from_millis(500)).is_none(), "the first signal ended it");
    server.terminate();
    // Neither the answer nor the ten minutes of --drain are waited for.
    assert_eq!(server.wait(PATIENCE).and_then(|status| status.code()), Some(0));
    assert!(!Answer::read_to_end(streamed).body.contains("[DONE]"), "the answer was finished");
}
