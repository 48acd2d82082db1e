//! The binary in front of a terminal of its own, driven as a person would drive it.

#![cfg(target_os = "linux")]

use std::ffi::OsStr;
use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus};
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcgetattr, tcsetwinsize};

/// A terminal with the binary at its other end.
pub struct Terminal {
    keyboard: File,
    child: Child,
    output: Receiver<Vec<u8>>,
    /// All that was shown so far, and how much of it was waited for.
    shown: String,
    seen: usize,
}

/// Longer than anything here takes, also on a machine that does other things.
const PATIENCE: Duration = Duration::from_secs(120);

impl Terminal {
    /// Starts the binary with `home` as its store and a terminal of 80 columns.
    pub fn start<S: AsRef<OsStr>>(
        home: &std::path::Path,
        arguments: impl IntoIterator<Item = S>,
    ) -> Terminal {
        let terminal = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&terminal).unwrap();
        unlockpt(&terminal).unwrap();
        let size = Winsize { ws_row: 24, ws_col: 80, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&terminal, size).unwrap();
        let name = ptsname(&terminal, Vec::new()).unwrap().into_string().unwrap();
        let end = || File::options().read(true).write(true).open(&name).unwrap();
        let mut command = Command::new("setsid");
        super::isolate(&mut command, home);
        super::without_gpu(&mut command);
        command
            .args(["--ctty", "--wait", env!("CARGO_BIN_EXE_pianola")])
            .args(arguments)
            .env("TERM", "xterm")
            .stdin(end())
            .stdout(end())
            .stderr(end())
            .process_group(0);
        let child = command.spawn().unwrap();
        // It holds our copies of the child's end: while they are open, reading never ends.
        drop(command);
        let terminal = File::from(terminal);
        let mut screen = terminal.try_clone().unwrap();
        let (sender, output) = mpsc::channel();
        std::thread::spawn(move || {
            let mut block = [0; 4096];
            while let Ok(count @ 1..) = screen.read(&mut block) {
                if sender.send(block[..count].to_vec()).is_err() {
                    return;
                }
            }
        });
        Terminal { keyboard: terminal, child, output, shown: String::new(), seen: 0 }
    }

    /// Presses keys: `\r` is Enter, `\u{3}` Ctrl-C, `\u{4}` Ctrl-D.
    pub fn press(&mut self, keys: &str) {
        // A terminal that is full waits for its reader.
        self.keyboard.write_all(keys.as_bytes()).unwrap();
    }

    /// Types a line and ends it, not as fast as a paste would.
    pub fn say(&mut self, line: &str) {
        self.press(line);
        std::thread::sleep(Duration::from_millis(80));
        self.press("\r");
    }

    /// Waits until `words` are shown behind what was waited for before; returns what came before
    /// them.
    #[track_caller]
    pub fn expect(&mut self, words: &str) -> String {
        let start = Instant::now();
        loop {
            if let Some(at) = self.shown[self.seen..].find(words) {
                let before = self.shown[self.seen..self.seen + at].to_string();
                self.seen += at + words.len();
                return before;
            }
            match self.output.recv_timeout(PATIENCE.saturating_sub(start.elapsed())) {
                Ok(block) => self.shown.push_str(&String::from_utf8_lossy(&block)),
                Err(_) => panic!("no {words:?} at the end of {:?}", tail(&self.shown[self.seen..])),
            }
        }
    }

    /// All that was shown.
    pub fn shown(&self) -> &str {
        &self.shown
    }

    /// Changes the size of the terminal, which the binary is told.
    pub fn resize(&mut self, columns: u16) {
        let size = Winsize { ws_row: 24, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&self.keyboard, size).unwrap();
    }

    /// Whether the terminal shows what is typed by itself, as it does outside of the binary.
    pub fn echoes(&self) -> bool {
        let mode = tcgetattr(&self.keyboard).unwrap();
        mode.local_modes.contains(rustix::termios::LocalModes::ECHO)
    }

    /// Waits for the binary to end.
    pub fn wait(&mut self) -> ExitStatus {
        let start = Instant::now();
        while start.elapsed() < PATIENCE {
            if let Some(status) = self.child.try_wait().unwrap() {
                while let Ok(block) = self.output.recv_timeout(Duration::from_millis(200)) {
                    self.shown.push_str(&String::from_utf8_lossy(&block));
                }
                return status;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        panic!("it does not end: {:?}", self.shown);
    }
}

/// The end of a text.
fn tail(text: &str) -> String {
    const SHOWN: usize = 2000;
    let before = text.chars().count().saturating_sub(SHOWN);
    text.chars().skip(before).collect()
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
