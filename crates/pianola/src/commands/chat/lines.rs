//! Where the user's messages come from: lines of a terminal or of a pipe.

use std::io::{BufRead, IsTerminal};
use std::path::PathBuf;

use pianola_hub::Store;
use rustyline::error::ReadlineError;
use rustyline::history::FileHistory;

use super::paste::PasteWatch;
use crate::console;
use crate::failure::Failure;
use crate::terminal::{self, Silence};

/// What the user wrote.
#[derive(Debug, PartialEq, Eq)]
pub enum Input {
    /// A line, which may be a command, or several that a backslash or a paste joined.
    Line(String),
    /// What stood between triple quotes, which is for the model whatever it begins with.
    Quoted(String),
}

/// Reads messages.
pub struct Lines {
    source: Source,
}

enum Source {
    Terminal {
        editor: Box<rustyline::Editor<PasteWatch, FileHistory>>,
        history: Option<PathBuf>,
        /// While the model answers, what is typed is kept and not shown.
        _silence: Option<Silence>,
    },
    Plain(std::io::Lines<std::io::StdinLock<'static>>),
}

/// Terminals that the line editor does not know; they show what is typed by themselves.
const PLAIN_TERMINALS: [&str; 3] = ["dumb", "cons25", "emacs"];

/// A line, or why there is none.
enum Read {
    Line(String),
    Interrupted,
    End,
}

impl Lines {
    /// Until it is closed, what is typed is kept for the next line.
    pub fn open() -> Result<Lines, Failure> {
        if !std::io::stdin().is_terminal() {
            return Ok(Lines { source: Source::Plain(std::io::stdin().lock().lines()) });
        }
        let broken = |error| Failure::failed(format!("cannot edit lines here: {error}"));
        let mut editor = rustyline::Editor::new().map_err(broken)?;
        editor.set_helper(Some(PasteWatch::new()));
        // Beside the models, where a user's own files of pianola are.
        let history = Store::open()
            .ok()
            .and_then(|store| store.models().parent().map(|home| home.join("history")));
        if let Some(path) = &history {
            // The first chat has none yet.
            let _ = editor.load_history(path);
        }
        let kind = std::env::var("TERM").unwrap_or_default();
        let silence = match PLAIN_TERMINALS.contains(&kind.to_ascii_lowercase().as_str()) {
            true => None,
            false => Silence::begin(),
        };
        Ok(Lines {
            source: Source::Terminal { editor: Box::new(editor), history, _silence: silence },
        })
    }

    /// Whether somebody sits in front of it.
    pub fn is_terminal(&self) -> bool {
        matches!(self.source, Source::Terminal { .. })
    }

    /// The next message; none at the end.
    pub fn next(&mut self) -> Result<Option<Input>, Failure> {
        'message: loop {
            let mut text = match self.read("> ")? {
                Read::Line(line) => line,
                Read::Interrupted => {
                    console::to_stderr("(Ctrl-D or /exit ends the chat)");
                    continue;
                }
                Read::End => return Ok(None),
            };
            if let Some(begun) = text.trim_start().strip_prefix(QUOTES) {
                let mut quoted = begun.to_string();
                while !quoted.trim_end().ends_with(QUOTES) {
                    match self.read(CONTINUED)? {
                        Read::Line(line) => quoted = format!("{quoted}\n{line}"),
                        // Whoever interrupts gives the message up.
                        Read::Interrupted => continue 'message,
                        Read::End => return Ok(Some(Input::Quoted(unquoted(&quoted)))),
                    }
                }
                return Ok(Some(Input::Quoted(unquoted(&quoted))));
            }
            while let Some(line) = text.strip_suffix('\\') {
                match self.read(CONTINUED)? {
                    Read::Line(next) => text = format!("{line}\n{next}"),
                    Read::Interrupted => continue 'message,
                    Read::End => text = line.to_string(),
                }
            }
            return Ok(Some(Input::Line(text)));
        }
    }

    fn read(&mut self, prompt: &str) -> Result<Read, Failure> {
        match &mut self.source {
            Source::Plain(lines) => match lines.next() {
                Some(Ok(line)) => Ok(Read::Line(line)),
                None => Ok(Read::End),
                Some(Err(error)) => Err(Failure::failed(format!(
                    "cannot read standard input as UTF-8 lines: {error}"
                ))),
            },
            Source::Terminal { editor, .. } => edited(editor, prompt),
        }
    }

    pub fn close(self) {
        if let Source::Terminal { mut editor, history: Some(path), .. } = self.source {
            let saved = path.parent().map_or(Ok(()), std::fs::create_dir_all);
            // The conversation is over; a lost history is not worth an error.
            let _ = saved.is_ok().then(|| editor.save_history(&path));
        }
    }
}

/// A line from somebody in front of a terminal.
fn edited(
    editor: &mut rustyline::Editor<PasteWatch, FileHistory>,
    prompt: &str,
) -> Result<Read, Failure> {
    editor.helper().into_iter().for_each(PasteWatch::begin);
    let read = editor.readline(prompt);
    let ended = editor.helper().and_then(PasteWatch::ended);
    let line = match (read, ended) {
        (Ok(line), _) => line,
        (Err(ReadlineError::Eof), Some(line)) => {
            terminal::up();
            line
        }
        (Err(ReadlineError::Eof), None) => return Ok(Read::End),
        (Err(ReadlineError::Interrupted), _) => return Ok(Read::Interrupted),
        (Err(error), _) => {
            return Err(Failure::failed(format!("cannot read the terminal: {error}")));
        }
    };
    terminal::mark_pastes();
    if !line.trim().is_empty() {
        // A history that cannot grow is no reason to stop talking.
        let _ = editor.add_history_entry(&line);
    }
    Ok(Read::Line(line))
}

const QUOTES: &str = "\"\"\"";
/// Before a line that continues the one before.
const CONTINUED: &str = "… ";

/// What stands before the closing quotes, without the newlines beside the quotes.
fn unquoted(text: &str) -> String {
    let text = text.trim_end();
    let text = text.strip_suffix(QUOTES).unwrap_or(text);
    let text = text.strip_prefix('\n').unwrap_or(text);
    text.strip_suffix('\n').unwrap_or(text).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotes_are_taken_off() {
        assert_eq!(unquoted("\nfirst\n\nsecond\n\"\"\""), "first\n\nsecond");
        assert_eq!(unquoted("one line\"\"\" "), "one line");
        assert_eq!(unquoted("never closed\nbut ended"), "never closed\nbut ended");
    }
}
