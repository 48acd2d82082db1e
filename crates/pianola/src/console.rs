//! Where words go: results to standard output, everything about them to standard error. Both show
//! control characters instead of passing them on, since words may quote a file or a model.

use std::borrow::Cow;
use std::ffi::OsString;
use std::io::{self, IsTerminal, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use clap::builder::StyledStr;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use pianola_server::timestamp;

use crate::failure::Failure;
use crate::terminal;
use crate::visible::{json, visible};

/// Whether every line to standard error is a JSON object.
static JSON_LINES: AtomicBool = AtomicBool::new(false);

/// From now on every line to standard error is a JSON object: it is a log that a program reads.
pub fn write_json_lines() {
    JSON_LINES.store(true, Ordering::Relaxed);
    std::panic::set_hook(Box::new(|panic| write_event("panic", &panic.to_string())));
}

/// Whether bars and plain lines to standard error are out of place.
pub fn writes_json_lines() -> bool {
    JSON_LINES.load(Ordering::Relaxed)
}

fn write_event(event: &str, message: &str) {
    let line = serde_json::json!({ "time": timestamp(), "event": event, "message": message });
    let _ = writeln!(io::stderr(), "{}", json(&line, false));
}

/// How much to say beside the results.
#[derive(Clone, Copy, Debug, Default)]
pub struct Console {
    /// Explain what was chosen and how long it took.
    pub verbose: bool,
    /// Say nothing but errors.
    pub quiet: bool,
}

impl Console {
    /// A line that most users want to see.
    pub fn notice(&self, line: &str) {
        if !self.quiet {
            to_stderr(line);
        }
    }

    /// A line for those who asked for more.
    pub fn detail(&self, line: &str) {
        if self.verbose {
            to_stderr(line);
        }
    }

    /// A bar for work that is counted; it shows itself only on a terminal, and only once the work
    /// has lasted a while.
    pub fn bar(&self, template: &'static str) -> LateBar {
        let shown = !self.quiet && !writes_json_lines() && io::stderr().is_terminal();
        LateBar { shown, template, since: Instant::now(), bar: None }
    }

    /// A line that says what is being done, on a terminal; drawn only when it changes, so that it does
    /// not disturb what is measured.
    pub fn status_line(&self, template: &'static str) -> StatusLine {
        let shown = !self.quiet && !self.verbose && io::stderr().is_terminal();
        StatusLine { bar: shown.then(|| progress_bar(0, template)) }
    }
}

/// A line that is replaced by the next, and gone at the end.
pub struct StatusLine {
    bar: Option<ProgressBar>,
}

impl StatusLine {
    pub fn show(&mut self, text: &str) {
        if let Some(bar) = &self.bar {
            bar.set_message(visible(text).into_owned());
            bar.tick();
        }
    }
}

impl Drop for StatusLine {
    fn drop(&mut self) {
        self.bar.iter().for_each(ProgressBar::finish_and_clear);
    }
}

/// A progress bar that short work never shows.
pub struct LateBar {
    shown: bool,
    template: &'static str,
    since: Instant,
    bar: Option<ProgressBar>,
}

impl LateBar {
    /// So much of so much is done.
    pub fn reach(&mut self, done: u64, total: u64) {
        const SHORT: Duration = Duration::from_millis(500);
        if self.bar.is_none() && self.shown && self.since.elapsed() > SHORT {
            self.bar = Some(progress_bar(total, self.template));
        }
        if let Some(bar) = &self.bar {
            bar.set_position(done);
        }
    }

    /// Words beside the bar, where the template has a place for them.
    pub fn say(&self, message: String) {
        if let Some(bar) = &self.bar {
            bar.set_message(visible(&message).into_owned());
        }
    }
}

impl Drop for LateBar {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

/// A bar on standard error, in the form that fits the width of the terminal: one that is wrapped
/// leaves a line behind each time it is drawn.
pub fn progress_bar(total: u64, template: &str) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::stderr());
    let template = fitting(template, terminal::width().unwrap_or(80));
    let style = ProgressStyle::with_template(&template).unwrap_or(ProgressStyle::default_bar());
    bar.set_style(style.progress_chars("=> "));
    bar
}

/// The template, without its bar if it would be too wide, or with the percentage alone.
fn fitting(template: &str, columns: usize) -> String {
    if drawn_width(template) < columns {
        return template.to_string();
    }
    let without_bar = template.replace("[{bar:24}] ", "");
    if drawn_width(&without_bar) < columns {
        return without_bar;
    }
    let words = template.split('[').next().unwrap_or_default().trim();
    format!("{words} {{percent}} %, {{eta}} left")
}

/// Columns that a template takes at most.
fn drawn_width(template: &str) -> usize {
    let mut width = 0;
    for part in template.split_inclusive('}') {
        let (words, placeholder) = part.split_once('{').unwrap_or((part, ""));
        width += words.chars().count();
        width += match placeholder.trim_end_matches('}') {
            "" => 0,
            "bar:24" => 24,
            "wide_msg" => 30,
            "msg" => 20,
            "decimal_bytes_per_sec" => "999.99 MB/s".len(),
            "eta" => "59m".len(),
            // Sizes and counts.
            _ => "999.99 MB".len(),
        };
    }
    width
}

/// A number of things: `1 token`, `2 tokens`.
pub fn count(number: usize, thing: &str) -> String {
    match number {
        1 => format!("1 {thing}"),
        _ => format!("{number} {thing}s"),
    }
}

/// A line to standard error; a failure to write it is ignored.
pub fn to_stderr(line: &str) {
    if writes_json_lines() {
        return write_event("notice", line);
    }
    let _ = writeln!(io::stderr(), "{}", visible(line));
}

/// The error's sentence, marked red on a terminal that has not asked for plain text.
pub fn print_error(message: &str) {
    if writes_json_lines() {
        return write_event("error", message);
    }
    let coloured = io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    let mark = if coloured { "\u{1b}[1;31merror:\u{1b}[0m" } else { "error:" };
    let _ = writeln!(io::stderr(), "pianola: {mark} {}", one_line(message));
}

/// Text on one line: a newline that a file's strings bring along could forge a line of ours.
pub fn one_line(text: &str) -> String {
    visible(text).replace('\n', "\\n")
}

/// Results.
pub fn print(text: &str) -> Result<(), Failure> {
    print_exactly(&visible(text))
}

/// Text that is a result itself, such as a model's answer: shown on a terminal, byte for byte what
/// it is elsewhere.
pub fn print_answer(text: &str) -> Result<(), Failure> {
    match io::stdout().is_terminal() {
        true => print(text),
        false => print_exactly(text),
    }
}

/// Byte for byte, also on a terminal.
pub fn print_exactly(text: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    let written = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    written.map_err(|error| Failure::of_output(&error))
}

/// Help, from the parser of arguments.
pub fn print_help(text: &StyledStr) -> Result<(), Failure> {
    print_exactly(&coloured(text, io::stdout().is_terminal()))
}

/// An error of the parser of arguments, behind `name`.
pub fn print_usage(name: &str, text: &StyledStr) {
    let text = coloured(text, io::stderr().is_terminal());
    let _ = writeln!(io::stderr(), "{name}{}", text.trim_end());
}

/// The parser's colours are for a terminal, unless its text may quote an argument that a terminal
/// would act on, which cannot be told from them.
fn coloured(text: &StyledStr, terminal: bool) -> String {
    let acts = |argument: OsString| matches!(visible(&argument.to_string_lossy()), Cow::Owned(_));
    match terminal && !std::env::args_os().any(acts) {
        true => text.ansi().to_string(),
        false => visible(&text.to_string()).into_owned(),
    }
}

/// A line of results.
pub fn print_line(text: &str) -> Result<(), Failure> {
    print(&format!("{text}\n"))
}

/// A result for machines: indented, because people look at it too.
pub fn print_json(value: &serde_json::Value) -> Result<(), Failure> {
    print_line(&json(value, true))
}

/// The same on one line.
pub fn print_json_line(value: &serde_json::Value) -> Result<(), Failure> {
    print_line(&json(value, false))
}

/// Columns of a table, each as wide as its widest cell; numbers to the right.
pub fn table(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max()
    };
    let widths: Vec<usize> = (0..columns).map(|column| width(column).unwrap_or(0)).collect();
    let numeric = |column: usize| {
        rows.iter()
            .skip(1)
            .filter_map(|row| row.get(column))
            .all(|cell| cell.is_empty() || cell.starts_with(|first: char| first.is_ascii_digit()))
    };
    let right: Vec<bool> = (0..columns).map(numeric).collect();
    let mut text = String::new();
    for row in rows {
        let cell = |(column, cell): (usize, &String)| match right[column] {
            true => format!("{cell:>width$}", width = widths[column]),
            false => format!("{cell:<width$}", width = widths[column]),
        };
        let line: Vec<String> = row.iter().enumerate().map(cell).collect();
        text.push_str(line.join("  ").trim_end());
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_fit_the_terminal() {
        let template = "loading [{bar:24}] {bytes} of {total_bytes}, {eta} left";
        assert_eq!(fitting(template, 120), template);
        assert_eq!(fitting(template, 45), "loading {bytes} of {total_bytes}, {eta} left");
        assert_eq!(fitting(template, 30), "loading {percent} %, {eta} left");
        let template = "{wide_msg} [{bar:24}] {bytes}, {eta} left";
        assert_eq!(fitting(template, 70), "{wide_msg} {bytes}, {eta} left");
        assert_eq!(fitting(template, 50), "{wide_msg} {percent} %, {eta} left");
        for template in [fitting(template, 20), fitting("[{bar}] {pos}", 5)] {
            assert!(ProgressStyle::with_template(&template).is_ok(), "{template}");
        }
    }

    #[test]
    fn numbers_agree_with_their_nouns() {
        assert_eq!(count(1, "token"), "1 token");
        assert_eq!((count(0, "layer"), count(2, "layer")), ("0 layers".into(), "2 layers".into()));
    }

    #[test]
    fn a_file_cannot_forge_a_line() {
        assert_eq!(one_line("a\nb\u{1b}"), "a\\nb\\u{1b}");
    }

    #[test]
    fn tables_align() {
        let row = |cells: [&str; 2]| cells.map(String::from).to_vec();
        let text = table(&[row(["name", "MB"]), row(["a", "7.5"]), row(["long", "10.0"])]);
        assert_eq!(text, "name    MB\na      7.5\nlong  10.0\n");
    }
}
