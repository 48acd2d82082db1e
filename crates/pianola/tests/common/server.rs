//! A server of its own for a test, and what it answers over plain sockets.
#![allow(dead_code)] // Each test file uses its part.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use crate::common::Folder;

/// Longer than anything here takes.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// A server of its own, ended with its owner.
pub struct Server {
    child: Child,
    pub address: SocketAddr,
    pub folder: Folder,
}

impl Server {
    pub fn start(model: impl FnOnce(&Folder) -> PathBuf, arguments: &[&str], keys: &str) -> Server {
        let folder = Folder::new();
        let model = model(&folder);
        // No test may reach for the network: this pip never gets anything.
        let process = folder.path.join("pip.process");
        let pip =
            format!("[ $1 = --version ] || {{ echo $$ > {}; exec sleep 60; }}", process.display());
        let pip = folder.file("pip.sh", pip);
        let mut command = Command::new(env!("CARGO_BIN_EXE_pianola"));
        // Set and empty is an error.
        match keys {
            "" => command.env_remove("PIANOLA_API_KEYS"),
            keys => command.env("PIANOLA_API_KEYS", keys),
        };
        let mut child = command
            .args(["serve", "--port", "0", "--log", "off", "--device", "cpu", "-m"])
            .arg(model)
            .args(arguments)
            .env("PIANOLA_HOME", &folder.path)
            .env("PIANOLA_PIP", format!("sh {}", pip.display()))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok);
        let address = lines.find_map(|line| line.split("http://").nth(1)?.trim().parse().ok());
        // A pipe that nobody reads would stop the server.
        std::thread::spawn(move || lines.for_each(drop));
        let server = Server { child, address: address.expect("no address"), folder };
        server.until("it is ready", || server.get("/ready").status == 200);
        server
    }

    /// With a model of random weights, which answers at once.
    pub fn tiny(arguments: &[&str]) -> Server {
        Server::start(Folder::model, arguments, "")
    }

    /// With a model that takes a while to answer.
    pub fn smollm2(arguments: &[&str]) -> Server {
        let folder = std::env::var_os("PIANOLA_TEST_MODELS")
            .expect("PIANOLA_TEST_MODELS is not set: run scripts/test, which fetches the models");
        let path = Path::new(&folder).join("smollm2.gguf");
        Server::start(|_| path, arguments, "")
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
