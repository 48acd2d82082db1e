//! What `run` and `chat` have in common: an answer that appears as it comes.

use std::io::IsTerminal;
use std::ops::ControlFlow;

use pianola_engine::{Answer, Engine, Moment, Request};
use pianola_text::TemplateOrigin;
use serde_json::json;

use crate::console::{self, Console};
use crate::failure::Failure;
use crate::interrupt;
use crate::prompt_line::PromptLine;

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

impl Shown {
    fn print(self, piece: &str) -> Result<(), Failure> {
        match self {
            _ if piece.is_empty() => Ok(()),
            Shown::Text => console::print_answer(piece),
            Shown::JsonLines => console::print_json_line(&json!({ "text": piece })),
            Shown::Nothing => Ok(()),
        }
    }
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
                failure = shown.print(piece).err();
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
    // A shell's prompt, or the next line of statistics, begins on a line of its own. Elsewhere
    // too: a text file ends with a newline.
    let unended = !text.is_empty() && !text.ends_with('\n');
    if shown == Shown::Text && (unended || (text.is_empty() && std::io::stdout().is_terminal())) {
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
