//! What `run` and `chat` have in common: an answer that appears as it comes.

use std::io::{self, IsTerminal};
use std::ops::ControlFlow;

use pianola_engine::{Answer, Engine, Finish, Moment, Request};
use pianola_text::TemplateOrigin;
use serde_json::json;

use crate::console::{self, Console};
use crate::failure::Failure;
use crate::interrupt;
use crate::prompt_line::PromptLine;
use crate::terminal;
use crate::visible::visible;
use crate::wrap::Wrap;

/// What appears of an answer before its end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Shown {
    /// Its text.
    Text,
    /// Its text, each piece as a JSON object on a line.
    JsonLines,
    /// Nothing.
    Nothing,
}

/// Prints an answer as it comes.
struct Printer {
    shown: Shown,
    /// Set if the text goes to a terminal.
    wrap: Option<Wrap>,
}

impl Printer {
    fn new(shown: Shown) -> Printer {
        let wraps = shown == Shown::Text && io::stdout().is_terminal();
        Printer { shown, wrap: wraps.then(Wrap::default) }
    }

    fn print(&mut self, piece: &str) -> Result<(), Failure> {
        match (self.shown, &mut self.wrap) {
            _ if piece.is_empty() => Ok(()),
            (Shown::Text, Some(wrap)) => {
                console::print_exactly(&wrap.push(&visible(piece), columns()))
            }
            (Shown::Text, None) => console::print_exactly(piece),
            (Shown::JsonLines, _) => console::print_json_line(&json!({ "text": piece })),
            (Shown::Nothing, _) => Ok(()),
        }
    }

    /// Prints what was held back, and marks an answer that the user has interrupted.
    fn finish(&mut self, interrupted: bool) -> Result<(), Failure> {
        let Some(wrap) = &mut self.wrap else { return Ok(()) };
        let mark = if interrupted { wrap.push(" [interrupted]", columns()) } else { String::new() };
        console::print_exactly(&format!("{mark}{}", wrap.finish(columns())))
    }
}

fn columns() -> usize {
    const USUAL: usize = 80;
    terminal::output_width().unwrap_or(USUAL)
}

/// Generates an answer, and returns it with its whole text. Ctrl-C ends it within a moment.
pub fn generate(
    engine: &mut Engine,
    request: &Request,
    shown: Shown,
    console: Console,
) -> Result<(Answer, String), Failure> {
    let mut text = String::new();
    let mut failure = None;
    let mut printer = Printer::new(shown);
    engine.set_interrupt(interrupt::flag());
    let has_speed = engine.emulated_device().is_none();
    let mut line = Some(PromptLine::begin(request.prompt.len(), has_speed, console));
    let answer = engine.generate_watched(request, &mut |moment| {
        match moment {
            Moment::Prompt(progress) => line.iter().for_each(|line| line.reach(progress)),
            Moment::Text(piece) => {
                // The prompt is done, and its line must be gone before the text begins.
                line = None;
                text.push_str(piece);
                failure = printer.print(piece).err();
            }
        }
        match failure.is_some() || interrupt::asked() {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    });
    drop(line);
    let answer = answer?;
    if let Some(failure) = failure {
        return Err(failure);
    }
    printer.finish(answer.finish == Finish::Cancelled && !text.is_empty() && !console.quiet)?;
    // A shell's prompt, or the next line of statistics, begins on a line of its own. Elsewhere
    // too: a text file ends with a newline.
    let unended = !text.is_empty() && !text.ends_with('\n');
    if shown == Shown::Text && (unended || (text.is_empty() && io::stdout().is_terminal())) {
        console::print("\n")?;
    }
    Ok((answer, text))
}

/// Says where a template comes from if it is not the model's own.
pub fn tell_origin(origin: &TemplateOrigin, console: Console) {
    match origin {
        TemplateOrigin::Gguf | TemplateOrigin::File(_) => {
            console.detail(&format!("chat template: {origin}"));
        }
        _ => console.notice(&format!("chat template: {origin}")),
    }
}
