//! A hub of the tests' own, on the loopback interface: a repository with its API and files, a second
//! host that files are redirected to, and faults on request.

#![allow(dead_code)] // Each test file uses its part.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::json;
use sha1::Sha1;
use sha2::{Digest, Sha256};

pub const REPOSITORY: &str = "me/tiny";
pub const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";
/// Files in one page of a listing.
const PAGE: usize = 3;

/// A file of the repository; large ones are redirected to the second host.
#[derive(Clone)]
pub struct HubFile {
    pub path: String,
    pub content: Vec<u8>,
    pub large: bool,
}

impl HubFile {
    pub fn large(path: &str, content: Vec<u8>) -> HubFile {
        HubFile { path: path.into(), content, large: true }
    }

    pub fn small(path: &str, content: &str) -> HubFile {
        HubFile { path: path.into(), content: content.into(), large: false }
    }

    /// The sum that names its blob.
    pub fn sum(&self) -> String {
        let digest = match self.large {
            true => Sha256::digest(&self.content).to_vec(),
            false => {
                let start = format!("blob {}\0", self.content.len());
                Sha1::new_with_prefix(start).chain_update(&self.content).finalize().to_vec()
            }
        };
        digest.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

/// What the server does wrong. Counts are of answers still to be spoilt.
#[derive(Default)]
pub struct Faults {
    /// The token that all requests to the hub must bring.
    pub token: Option<String>,
    /// Whether the files are only for those who accepted terms: the token is then asked for by code.
    pub gated: bool,
    /// Close the connection after so many bytes of a file.
    pub drop_after: Option<u64>,
    pub drops: usize,
    /// Send half of a body, then nothing.
    pub stalls: usize,
    /// Serve bytes from elsewhere, and say so.
    pub other_ranges: usize,
    /// Say that the file has another size.
    pub other_sizes: usize,
    /// Serve whole files only.
    pub no_ranges: bool,
    /// Refuse with 429 and this `Retry-After`.
    pub limits: usize,
    pub retry_after: u64,
    /// Refuse on the second host, as it does when an address has expired.
    pub expired: usize,
    /// Change a byte of the file.
    pub corrupt: bool,
    /// Answers until the file has another tag.
    pub changes_after: Option<usize>,
    /// Wait before every 32 KiB.
    pub pause: Duration,
    /// Once so many bytes of large files were sent, wait until this is raised or taken away.
    pub most: Option<u64>,
    /// Say that files are this much larger in the listing.
    pub exaggerate: u64,
}

/// A request as it came.
#[derive(Clone, Debug)]
pub struct Request {
    pub on_second_host: bool,
    pub target: String,
    pub range: Option<(u64, u64)>,
    pub authorization: Option<String>,
}

struct State {
    /// `owner/name`
    repository: String,
    files: Vec<HubFile>,
    faults: Mutex<Faults>,
    requests: Mutex<Vec<Request>>,
    /// Bytes of large files sent.
    served: AtomicU64,
    /// Files being sent now, and the most at once.
    sending: AtomicUsize,
    most_sending: AtomicUsize,
    endpoint: String,
    second: String,
    closing: AtomicBool,
}

/// The server; it ends with its value.
pub struct HubServer {
    state: Arc<State>,
}

impl HubServer {
    pub fn start(files: Vec<HubFile>) -> HubServer {
        HubServer::start_as(REPOSITORY, files)
    }

    /// With a repository of that name instead of [`REPOSITORY`].
    pub fn start_as(repository: &str, files: Vec<HubFile>) -> HubServer {
        let first = TcpListener::bind("127.0.0.1:0").unwrap();
        let second = TcpListener::bind("127.0.0.2:0").unwrap();
        let address = |listener: &TcpListener| format!("http://{}", listener.local_addr().unwrap());
        let state = Arc::new(State {
            repository: repository.to_string(),
            files,
            faults: Mutex::default(),
            requests: Mutex::default(),
            served: AtomicU64::new(0),
            sending: AtomicUsize::new(0),
            most_sending: AtomicUsize::new(0),
            endpoint: address(&first),
            second: address(&second),
            closing: AtomicBool::new(false),
        });
        for (listener, on_second_host) in [(first, false), (second, true)] {
            let state = state.clone();
            thread::spawn(move || accept(&listener, on_second_host, &state));
        }
        HubServer { state }
    }

    pub fn endpoint(&self) -> &str {
        &self.state.endpoint
    }

    /// The address of a file on the second host, without the hub.
    pub fn address(&self, path: &str) -> String {
        format!("{}/{path}", self.state.second)
    }

    pub fn set(&self, change: impl FnOnce(&mut Faults)) {
        change(&mut self.state.faults.lock().unwrap());
    }

    pub fn requests(&self) -> Vec<Request> {
        self.state.requests.lock().unwrap().clone()
    }

    /// Bytes of large files sent so far.
    pub fn served(&self) -> u64 {
        self.state.served.load(Ordering::Relaxed)
    }

    /// The most files that were being sent at once.
    pub fn most_at_once(&self) -> usize {
        self.state.most_sending.load(Ordering::Relaxed)
    }
}

impl Drop for HubServer {
    fn drop(&mut self) {
        self.state.closing.store(true, Ordering::Relaxed);
        for address in [&self.state.endpoint, &self.state.second] {
            // Wakes the thread that waits for connections.
            let _ = TcpStream::connect(address.trim_start_matches("http://"));
        }
    }
}

impl State {
    /// Waits until more bytes of large files may be sent.
    fn wait_for_room(&self) {
        let full = || {
            let most = self.faults.lock().unwrap().most;
            most.is_some_and(|most| self.served.load(Ordering::Relaxed) >= most)
        };
        while full() && !self.closing.load(Ordering::Relaxed) {
            thread::sleep(Duration::from_millis(2));
        }
    }
}

fn accept(listener: &TcpListener, on_second_host: bool, state: &Arc<State>) {
    for stream in listener.incoming().flatten() {
        if state.closing.load(Ordering::Relaxed) {
            return;
        }
        let state = state.clone();
        thread::spawn(move || {
            let mut connection = Connection { stream, state: &state, on_second_host };
            // A client that goes away is its own affair.
            while connection.answer().is_ok_and(|open| open) {}
        });
    }
}

struct Connection<'a> {
    stream: TcpStream,
    state: &'a State,
    on_second_host: bool,
}

/// Takes one from a count, if any is left.
fn take(count: &mut usize) -> bool {
    let any = *count > 0;
    *count = count.saturating_sub(1);
    any
}

impl Connection<'_> {
    /// Answers one request, and returns whether the connection stays.
    fn answer(&mut self) -> std::io::Result<bool> {
        let Some(request) = self.read()? else { return Ok(false) };
        self.state.requests.lock().unwrap().push(request.clone());
        let path = request.target.split('?').next().unwrap_or_default().to_string();
        if self.on_second_host {
            return self.second_host(&path, &request);
        }
        if let Some(refusal) = self.refusal(&request) {
            return self.send("429 Too Many Requests".into(), &refusal, b"");
        }
        if let Some((status, headers)) = self.denial(&request) {
            return self.send(status, &headers, b"");
        }
        let repository = &self.state.repository;
        let api = format!("/api/models/{repository}");
        if path == format!("{api}/revision/main") {
            let body = json!({"id": repository, "sha": COMMIT, "gated": false}).to_string();
            return self.send("200 OK".into(), "", body.as_bytes());
        }
        if path == format!("{api}/tree/{COMMIT}") {
            return self.listing(&request);
        }
        let prefix = format!("/{repository}/resolve/{COMMIT}/");
        let file = path.strip_prefix(&prefix).and_then(|path| self.file(path));
        match file {
            Some(file) if file.large => {
                let location = format!("{}/{}?signature=secret", self.state.second, file.path);
                let headers =
                    format!("Location: {location}\r\nX-Linked-Etag: \"{}\"\r\n", file.sum());
                self.send("302 Found".into(), &headers, b"")
            }
            Some(file) => self.serve(&file.clone(), &request),
            None => {
                let code = match path.starts_with(&api) || path.starts_with(&prefix) {
                    true => "EntryNotFound",
                    false => "RepoNotFound",
                };
                self.send("404 Not Found".into(), &format!("X-Error-Code: {code}\r\n"), b"")
            }
        }
    }

    fn read(&mut self) -> std::io::Result<Option<Request>> {
        self.stream.set_read_timeout(Some(Duration::from_secs(20)))?;
        let mut reader = BufReader::new((&self.stream).take(64 << 10));
        let mut line = String::new();
        reader.read_line(&mut line)?;
        let Some(target) = line.split(' ').nth(1).map(str::to_string) else { return Ok(None) };
        let mut request = Request {
            on_second_host: self.on_second_host,
            target,
            range: None,
            authorization: None,
        };
        loop {
            let mut line = String::new();
            reader.read_line(&mut line)?;
            let Some((name, value)) = line.trim_end().split_once(':') else {
                return Ok(line.starts_with("\r\n").then_some(request));
            };
            match name.to_ascii_lowercase().as_str() {
                "authorization" => request.authorization = Some(value.trim().to_string()),
                "range" => {
                    let range = value.trim().strip_prefix("bytes=").and_then(|r| r.split_once('-'));
                    request.range = range
                        .and_then(|(a, b)| Some((a.parse().ok()?, b.parse::<u64>().ok()? + 1)));
                }
                _ => {}
            }
        }
    }

    fn file(&self, path: &str) -> Option<&HubFile> {
        self.state.files.iter().find(|file| file.path == path)
    }

    fn refusal(&self, _: &Request) -> Option<String> {
        let mut faults = self.state.faults.lock().unwrap();
        take(&mut faults.limits).then(|| format!("Retry-After: {}\r\n", faults.retry_after))
    }

    /// What a request without the right token gets.
    fn denial(&self, request: &Request) -> Option<(String, String)> {
        let faults = self.state.faults.lock().unwrap();
        let token = faults.token.as_ref()?;
        if request.authorization.as_deref() == Some(&format!("Bearer {token}")) {
            return None;
        }
        let code = match (faults.gated, &request.authorization) {
            (true, _) => "X-Error-Code: GatedRepo\r\n",
            (false, None) => "X-Error-Code: RepoNotFound\r\n",
            (false, Some(_)) => "X-Error-Message: Invalid credentials\r\n",
        };
        Some(("401 Unauthorized".into(), code.into()))
    }

    fn listing(&mut self, request: &Request) -> std::io::Result<bool> {
        let page: usize =
            request.target.split("cursor=").nth(1).and_then(|page| page.parse().ok()).unwrap_or(0);
        let more = self.state.faults.lock().unwrap().exaggerate;
        let entry = |file: &HubFile| {
            let size = file.content.len() as u64 + more;
            match file.large {
                true => {
                    json!({"type": "file", "path": file.path, "oid": "f".repeat(40), "size": size,
                    "lfs": {"oid": file.sum(), "size": size, "pointerSize": 134}})
                }
                false => {
                    json!({"type": "file", "path": file.path, "oid": file.sum(), "size": size})
                }
            }
        };
        let files = self.state.files.iter().skip(page * PAGE).take(PAGE).map(entry);
        let mut entries =
            vec![json!({"type": "directory", "path": "sub", "oid": "e".repeat(40), "size": 0})];
        entries.extend(files);
        let link = match (page + 1) * PAGE < self.state.files.len() {
            true => format!(
                "Link: <{}/api/models/{}/tree/{COMMIT}?recursive=true&cursor={}>; rel=\"next\"\r\n",
                self.state.endpoint,
                self.state.repository,
                page + 1
            ),
            false => String::new(),
        };
        let body = json!(entries).to_string();
        self.send("200 OK".into(), &link, body.as_bytes())
    }

    fn second_host(&mut self, path: &str, request: &Request) -> std::io::Result<bool> {
        if take(&mut self.state.faults.lock().unwrap().expired) {
            return self.send("403 Forbidden".into(), "", b"expired");
        }
        match self.file(path.trim_start_matches('/')).cloned() {
            Some(file) => self.serve(&file, request),
            None => self.send("404 Not Found".into(), "", b""),
        }
    }

    /// Sends a file or a part of it, with whatever faults are due.
    fn serve(&mut self, file: &HubFile, request: &Request) -> std::io::Result<bool> {
        let size = file.content.len() as u64;
        let mut faults = self.state.faults.lock().unwrap();
        let range = request.range.filter(|_| !faults.no_ranges);
        let (mut first, end) = range.map_or((0, size), |(first, end)| (first, end.min(size)));
        if range.is_some() && take(&mut faults.other_ranges) {
            first = first.saturating_sub(1).max(1) - 1;
        }
        let said = if take(&mut faults.other_sizes) { size + 7 } else { size };
        let stalls = take(&mut faults.stalls);
        let limit = faults.drop_after.filter(|_| take(&mut faults.drops));
        let tag = match &mut faults.changes_after {
            Some(0) => "\"second\"",
            Some(left) => {
                *left -= 1;
                "\"first\""
            }
            None => "\"first\"",
        };
        let (pause, corrupt) = (faults.pause, faults.corrupt);
        drop(faults);
        let (status, range) = match range {
            Some(_) => (
                "206 Partial Content",
                format!("Content-Range: bytes {first}-{}/{said}\r\n", end - 1),
            ),
            None => ("200 OK", String::new()),
        };
        let head = format!(
            "HTTP/1.1 {status}\r\nContent-Length: {}\r\n{range}ETag: {tag}\r\n\r\n",
            end - first
        );
        self.stream.write_all(head.as_bytes())?;
        let mut body = file.content[first as usize..end as usize].to_vec();
        if let (true, Some(byte)) = (corrupt, body.last_mut()) {
            *byte ^= 1;
        }
        if let Some(limit) = limit {
            body.truncate(limit as usize);
        } else if stalls {
            body.truncate(body.len() / 2);
        }
        let _sending = Sending::begin(self.state);
        for chunk in body.chunks(32 << 10) {
            thread::sleep(pause);
            if file.large {
                self.state.wait_for_room();
            }
            self.stream.write_all(chunk)?;
            if file.large {
                self.state.served.fetch_add(chunk.len() as u64, Ordering::Relaxed);
            }
        }
        if stalls {
            self.wait_for_end();
        }
        Ok(limit.is_none() && !stalls)
    }

    /// Sends nothing until the client is gone.
    fn wait_for_end(&mut self) {
        let start = Instant::now();
        let _ = self.stream.set_read_timeout(Some(Duration::from_millis(50)));
        while start.elapsed() < Duration::from_secs(10) {
            if matches!(self.stream.read(&mut [0]), Ok(0)) {
                return;
            }
        }
    }

    fn send(&mut self, status: String, headers: &str, body: &[u8]) -> std::io::Result<bool> {
        let head = format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\n{headers}\r\n", body.len());
        self.stream.write_all(head.as_bytes())?;
        self.stream.write_all(body)?;
        Ok(true)
    }
}

/// Counts the files being sent.
struct Sending<'a>(&'a State);

impl<'a> Sending<'a> {
    fn begin(state: &'a State) -> Sending<'a> {
        let now = state.sending.fetch_add(1, Ordering::Relaxed) + 1;
        state.most_sending.fetch_max(now, Ordering::Relaxed);
        Sending(state)
    }
}

impl Drop for Sending<'_> {
    fn drop(&mut self) {
        self.0.sending.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Bytes that are nowhere alike, and begin as a GGUF file does.
pub fn content(size: usize, seed: u64) -> Vec<u8> {
    let mut state = seed | 1;
    let mut bytes: Vec<u8> = (0..size)
        .map(|_| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 56) as u8
        })
        .collect();
    let start = size.min(4);
    bytes[..start].copy_from_slice(&b"GGUF"[..start]);
    bytes
}
