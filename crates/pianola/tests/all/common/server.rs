//! A server of its own for a test, and what it answers over plain sockets.
#![allow(dead_code)] // Each test file uses its part.

use std::ffi::OsString;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::common::{Folder, isolate};

/// Longer than anything here takes, also on a machine that does other things.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// A server of its own, ended with its owner.
pub struct Server {
    child: Child,
    pub address: SocketAddr,
    pub folder: Folder,
    /// What it has written to standard error, line by line.
    written: Arc<Mutex<Vec<String>>>,
}

impl Server {
    pub fn start(model: impl FnOnce(&Folder) -> PathBuf, arguments: &[&str], keys: &str) -> Server {
        let server = Server::launch(model, arguments, keys);
        server.until("it is ready", || server.get("/ready").status == 200);
        server
    }

    /// A server that listens; its model may not be loaded yet. An empty path stands for none.
    pub fn launch(
        model: impl FnOnce(&Folder) -> PathBuf,
        arguments: &[&str],
        keys: &str,
    ) -> Server {
        Server::launch_with(model, arguments, keys, &[])
    }

    /// The same with variables in the environment.
    pub fn launch_with(
        model: impl FnOnce(&Folder) -> PathBuf,
        arguments: &[&str],
        keys: &str,
        variables: &[(&str, OsString)],
    ) -> Server {
        let folder = Folder::new();
        let model = model(&folder);
        // No test may reach for the network: this pip never gets anything.
        let process = folder.path.join("pip.process");
        let pip =
            format!("[ $1 = --version ] || {{ echo $$ > {}; exec sleep 60; }}", process.display());
        let pip = folder.file("pip.sh", pip);
        let mut command = Command::new(env!("CARGO_BIN_EXE_pianola"));
        isolate(&mut command, &folder.path);
        // Set and empty is an error.
        if !keys.is_empty() {
            command.env("PIANOLA_API_KEYS", keys);
        }
        let unless_given = |option: &'static str, value: &'static str| {
            [option, value].into_iter().filter(move |_| !arguments.contains(&option))
        };
        let mut child = command
            .args(["serve", "--port", "0"])
            .args(unless_given("--log", "off"))
            .args(unless_given("--device", "cpu"))
            .args((!model.as_os_str().is_empty()).then_some("-m"))
            .args((!model.as_os_str().is_empty()).then_some(model))
            .args(arguments)
            .env("PIANOLA_PIP", format!("sh {}", pip.display()))
            .envs(variables.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let written = Arc::new(Mutex::new(Vec::new()));
        let shared = written.clone();
        let lines = BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok);
        let mut lines = lines.inspect(move |line| shared.lock().unwrap().push(line.clone()));
        let address = lines.find_map(|line| {
            let (_, rest) = line.split_once("listening at http://")?;
            rest.split('"').next()?.trim().parse().ok()
        });
        // A pipe that nobody reads would stop the server.
        std::thread::spawn(move || lines.for_each(drop));
        Server { child, address: address.expect("no address"), folder, written }
    }

    /// The lines that it has written to standard error.
    pub fn written(&self) -> Vec<String> {
        self.written.lock().unwrap().clone()
    }

    /// The events of one kind in its log, which must be JSON.
    pub fn events(&self, kind: &str) -> Vec<serde_json::Value> {
        let parse = |line: &String| -> serde_json::Value {
            serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"))
        };
        let lines = self.written();
        lines.iter().map(parse).filter(|event| event["event"] == kind).collect()
    }

    /// With a model of random weights, which answers at once.
    pub fn tiny(arguments: &[&str]) -> Server {
        Server::start(Folder::model, arguments, "")
    }

    /// With a model that takes a while to answer.
    pub fn smollm2(arguments: &[&str]) -> Server {
        Server::start(|_| test_model("smollm2.gguf"), arguments, "")
    }

    pub fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect_timeout(&self.address, PATIENCE).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    /// Sends bytes and reads the answer to the end of the connection.
    pub fn send(&self, bytes: impl AsRef<[u8]>) -> Answer {
        let mut stream = self.connect();
        // The server may refuse, and close, before all is sent.
        let _ = stream.write_all(bytes.as_ref());
        Answer::read_to_end(stream)
    }

    pub fn get(&self, path: &str) -> Answer {
        self.send(format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"))
    }

    /// Posts JSON with further headers.
    pub fn post(&self, path: &str, headers: &str, body: &str) -> Answer {
        self.send(post(path, &format!("Connection: close\r\n{headers}"), body))
    }

    /// A chat under way: what was asked for and has not been read.
    pub fn chat(&self, tokens: usize, stream: bool) -> TcpStream {
        let mut connection = self.connect();
        connection
            .write_all(post("/v1/chat/completions", "", &chat(tokens, stream)).as_bytes())
            .unwrap();
        connection
    }

    /// Requests that run or wait, by the server's own count.
    pub fn gauge(&self, name: &str) -> usize {
        let text = self.get("/metrics").body;
        let line = text.lines().find(|line| line.starts_with(&format!("{name}{{")));
        line.and_then(|line| line.rsplit(' ').next()?.parse().ok())
            .unwrap_or_else(|| panic!("{text}"))
    }

    pub fn until(&self, what: &str, mut holds: impl FnMut() -> bool) {
        let start = Instant::now();
        while !holds() {
            assert!(start.elapsed() < PATIENCE, "waited in vain: {what}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    pub fn terminate(&self) {
        let kill = format!("kill -TERM {}", self.child.id());
        assert!(Command::new("sh").args(["-c", &kill]).status().unwrap().success());
    }

    pub fn wait(&mut self, within: Duration) -> Option<ExitStatus> {
        let start = Instant::now();
        loop {
            match self.child.try_wait().unwrap() {
                None if start.elapsed() < within => std::thread::sleep(Duration::from_millis(10)),
                status => return status,
            }
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A file of the models that tests use.
pub fn test_model(name: &str) -> PathBuf {
    let folder = std::env::var_os("PIANOLA_TEST_MODELS")
        .expect("PIANOLA_TEST_MODELS is not set: run scripts/test, which fetches the models");
    Path::new(&folder).join(name)
}

pub fn post(path: &str, headers: &str, body: &str) -> String {
    format!(
        "POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\n{headers}\r\n{body}",
        body.len()
    )
}

/// A chat that ends by its length only: SmolLM2's two end tokens are banned.
pub fn chat(tokens: usize, stream: bool) -> String {
    format!(
        r#"{{"messages": [{{"role": "user", "content": "Tell me a story."}}], "stream": {stream},
            "max_tokens": {tokens}, "logit_bias": {{"0": -100, "2": -100}}}}"#
    )
}

/// What came back.
#[derive(Debug)]
pub struct Answer {
    /// 0 where nothing came.
    pub status: u16,
    pub head: String,
    pub body: String,
}

impl Answer {
    pub fn read_to_end(mut stream: TcpStream) -> Answer {
        let mut bytes = Vec::new();
        // A reset after the answer is no loss.
        let result = stream.read_to_end(&mut bytes);
        let timed_out = |kind| matches!(kind, ErrorKind::WouldBlock | ErrorKind::TimedOut);
        assert!(!result.is_err_and(|error| timed_out(error.kind())), "the connection stays open");
        Answer::of(&String::from_utf8_lossy(&bytes))
    }

    pub fn of(text: &str) -> Answer {
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or((text, ""));
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
        Answer { status, head: head.to_string(), body: body.to_string() }
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        let fields = self.head.lines().skip(1).filter_map(|line| line.split_once(':'));
        fields
            .into_iter()
            .find(|(field, _)| field.eq_ignore_ascii_case(name))
            .map(|(_, v)| v.trim())
    }

    #[track_caller]
    pub fn is(&self, status: u16, words: &str) {
        assert_eq!(self.status, status, "{self:#?}");
        assert!(self.body.contains(words), "no '{words}' in {self:#?}");
    }
}
