//! A line for each request and each change of the models on standard error: never a prompt or an answer.

use crate::error::acts_on_terminal;
use serde_json::{Value, json};
use std::io::Write;
use std::sync::mpsc::{Sender, SyncSender, TrySendError, channel, sync_channel};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// The form of the lines.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum LogFormat {
    /// Words and `key=value` pairs.
    #[default]
    Text,
    /// A JSON object a line.
    Json,
    /// Nothing but what must not be missed.
    Off,
}

/// Writes the log.
pub(crate) struct Log {
    format: LogFormat,
    /// To the thread that writes: standard error may be a pipe that nobody reads.
    lines: SyncSender<Line>,
}

/// What the writing thread is sent.
enum Line {
    Text(String),
    /// All lines before it are written.
    Flush(Sender<()>),
}

/// Lines that wait to be written; further ones are lost.
const WAITING_LINES: usize = 1024;
/// Bytes of a text in a line.
const MAX_TEXT: usize = 1000;

impl Log {
    pub fn new(format: LogFormat) -> Log {
        let (lines, waiting) = sync_channel::<Line>(WAITING_LINES);
        std::thread::spawn(move || {
            for line in waiting {
                // A log that nobody reads is no reason to stop serving.
                let _ = match line {
                    Line::Text(text) => writeln!(std::io::stderr().lock(), "{text}"),
                    Line::Flush(done) => {
                        let _ = done.send(());
                        Ok(())
                    }
                };
            }
        });
        Log { format, lines }
    }

    /// Writes a line: what happened, and facts about it.
    pub fn write(&self, what: &str, facts: &[(&str, Value)]) {
        if self.format != LogFormat::Off {
            self.write_always(what, facts);
        }
    }

    /// The same for what must not be missed: written even where the log is off.
    pub fn write_always(&self, what: &str, facts: &[(&str, Value)]) {
        let facts: Vec<(&str, Value)> =
            facts.iter().map(|(name, value)| (*name, shortened(value))).collect();
        let facts = facts.iter().filter(|(_, value)| !value.is_null());
        let line = match self.format {
            LogFormat::Json => {
                let mut line = json!({ "time": timestamp(), "event": what });
                for (name, value) in facts {
                    line[*name] = value.clone();
                }
                line.to_string()
            }
            LogFormat::Text | LogFormat::Off => {
                facts.fold(format!("{} {what}", timestamp()), |line, (name, value)| {
                    // JSON's spelling, in which control characters are escaped.
                    let text = value.as_str().filter(|text| is_plain(text));
                    match text {
                        Some(text) => format!("{line} {name}={text}"),
                        None => format!("{line} {name}={value}"),
                    }
                })
            }
        };
        let _ = self.lines.try_send(Line::Text(spelled_out(&line)));
    }

    /// Waits until all lines are written, but no longer than `most`.
    pub fn flush(&self, most: Duration) {
        let deadline = Instant::now() + most;
        let (done, written) = channel();
        let mut flush = Line::Flush(done);
        while let Err(TrySendError::Full(back)) = self.lines.try_send(flush) {
            if Instant::now() >= deadline {
                return;
            }
            flush = back;
            std::thread::sleep(Duration::from_millis(5));
        }
        let _ = written.recv_timeout(deadline.saturating_duration_since(Instant::now()));
    }
}

/// A text of a bounded length: messages may quote a request.
fn shortened(value: &Value) -> Value {
    match value.as_str() {
        Some(text) if text.len() > MAX_TEXT => {
            let ends = text.char_indices().map(|(start, c)| start + c.len_utf8());
            let end = ends.take_while(|&end| end <= MAX_TEXT).last().unwrap_or(0);
            format!("{}…", &text[..end]).into()
        }
        _ => value.clone(),
    }
}

/// The line with characters that a terminal acts on as JSON escapes them: messages may quote a file. Outside
/// of JSON strings a line has none.
fn spelled_out(line: &str) -> String {
    line.chars().fold(String::with_capacity(line.len()), |mut safe, c| {
        match acts_on_terminal(c) {
            true => safe.push_str(&format!("\\u{:04x}", c as u32)),
            false => safe.push(c),
        }
        safe
    })
}

fn is_plain(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|c| c.is_ascii_graphic() && c != '"')
}

/// The time in UTC, as in 2026-01-31T12:00:00.123Z.
pub fn timestamp() -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    rfc3339(now.as_secs(), now.subsec_millis())
}

/// Seconds since 1970, and milliseconds, as a date and a time in UTC.
pub(crate) fn rfc3339(seconds: u64, milliseconds: u32) -> String {
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    let (hour, minute, second) = (rest / 3600, rest / 60 % 60, rest % 60);
    // The civil calendar, counted in eras of 400 years from the first of March.
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{milliseconds:03}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_line_acts_on_a_terminal() {
        let text = "\u{1b}[31m\u{9b}2J\u{202e}é";
        let line = spelled_out(&json!({ "error": text }).to_string());
        assert_eq!(line, r#"{"error":"\u001b[31m\u009b2J\u202eé"}"#);
        let read: Value = serde_json::from_str(&line).unwrap();
        assert_eq!(read["error"], text);
    }

    #[test]
    fn long_texts_are_cut_by_bytes() {
        let fits: Value = "é".repeat(MAX_TEXT / 2).into();
        assert_eq!(shortened(&fits), fits);
        let long: Value = format!("a{}", "é".repeat(MAX_TEXT / 2)).into();
        let cut = shortened(&long);
        let cut = cut.as_str().unwrap();
        assert!(cut.ends_with("é…"));
        assert_eq!(cut.len(), MAX_TEXT - 1 + '…'.len_utf8());
    }

    #[test]
    fn dates_are_those_of_the_calendar() {
        assert_eq!(rfc3339(0, 0), "1970-01-01T00:00:00.000Z");
        assert_eq!(rfc3339(951_782_399, 999), "2000-02-28T23:59:59.999Z");
        assert_eq!(rfc3339(951_782_400, 0), "2000-02-29T00:00:00.000Z");
        assert_eq!(rfc3339(1_794_787_200, 5), "2026-11-16T00:00:00.005Z");
    }
}
