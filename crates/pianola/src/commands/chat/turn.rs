//! A turn of a conversation: what the model is given, and what becomes of its answer.

use pianola_engine::{Engine, EngineError, Finish, Request, Text};
use pianola_text::{ChatTemplate, Conversation, Message, SpecialTokens};

use super::window::{Render, Room, Window};
use super::{Chat, open};
use crate::commands::generate::{Shown, generate};
use crate::console;
use crate::failure::Failure;
use crate::interrupt::Working;
use crate::statistics::Statistics;

/// What became of a message.
enum Outcome {
    Answered(String),
    /// The context ended before the answer did.
    CutShort(String),
    /// Interrupted before the answer began.
    Interrupted,
}

impl Chat<'_> {
    pub fn regenerate(&mut self) -> Result<(), Failure> {
        if !self.transcript.take_answer() {
            self.console.notice("there is no answer to give again");
            return Ok(());
        }
        // A seed that was given would give the same answer.
        let again = self.last.as_ref().map(|answer| answer.seed.wrapping_add(1));
        self.turn(self.sampling.seed().and(again))
    }

    pub fn ask(&mut self, text: &str) -> Result<(), Failure> {
        self.transcript.ask(text);
        self.turn(self.sampling.seed())
    }

    /// An answer to what was said. What goes wrong with it costs this turn, not the conversation.
    fn turn(&mut self, seed: Option<u64>) -> Result<(), Failure> {
        self.asked += 1;
        match self.answer(seed) {
            Ok(Outcome::Answered(text)) => {
                self.transcript.answer(text);
                Ok(())
            }
            Ok(Outcome::CutShort(text)) => {
                self.transcript.answer(text);
                self.failed += 1;
                self.tell_full();
                Ok(())
            }
            Ok(Outcome::Interrupted) => {
                self.transcript.undo();
                self.console.notice("interrupted before the answer; your message was removed");
                Ok(())
            }
            Err(failure @ (Failure::ReaderGone | Failure::Interrupted | Failure::Output(_))) => {
                Err(failure)
            }
            Err(failure) => {
                self.failed += 1;
                self.transcript.undo();
                let message = failure.message().unwrap_or_default();
                console::print_error(&format!(
                    "{message}; this turn was removed, /reset begins a new conversation"
                ));
                self.reopen_if_lost()
            }
        }
    }

    /// Says what can be done about an answer that the context cut short.
    fn tell_full(&self) {
        let Some(engine) = &self.engine else { return };
        console::print_error(&format!(
            "the context of {} tokens is full: the answer is cut short, and kept; the next message leaves \
             out what came first; /undo takes this turn back, {}/reset begins a new conversation",
            engine.context(),
            larger_context(engine),
        ));
    }

    fn reopen_if_lost(&mut self) -> Result<(), Failure> {
        if self.engine.as_ref().is_some_and(Engine::is_lost) {
            // What it still holds of the device goes first.
            self.engine = None;
            let engine = open(self.arguments, self.context, &self.located, self.console)?;
            self.console.notice(&format!(
                "the model was loaded again on {}; the conversation goes on",
                engine.runs_on()
            ));
            self.engine = Some(engine);
        }
        Ok(())
    }

    fn answer(&mut self, seed: Option<u64>) -> Result<Outcome, Failure> {
        let prompt = self.prompt()?;
        let Some(engine) = &mut self.engine else {
            return Err(Failure::failed("the model is not loaded"));
        };
        let request = Request {
            sampling: self.sampling.sampling()?,
            seed,
            max_tokens: self.max_tokens,
            stop: self.arguments.stop.clone(),
            constraint: self.constraint.clone(),
            ..Request::new(prompt)
        };
        let _working = Working::begin();
        let (answer, text) = generate(engine, &request, Shown::Text, self.console)?;
        if self.console.verbose {
            let statistics = Statistics::measure(engine, &answer);
            self.console.detail(&statistics.line(&self.located.label));
        }
        let finish = answer.finish;
        self.last = Some(answer);
        Ok(match finish {
            Finish::ContextFull => Outcome::CutShort(text),
            Finish::Cancelled if text.is_empty() => Outcome::Interrupted,
            _ => Outcome::Answered(text),
        })
    }

    /// The tokens of the conversation, as far as the context holds it.
    fn prompt(&mut self) -> Result<Vec<u32>, Failure> {
        let Some(engine) = &self.engine else {
            return Err(Failure::failed("the model is not loaded"));
        };
        let words = Words::of(engine.text()?)?;
        let room = Room { context: engine.context(), answer: self.max_tokens };
        let Some((tokens, window)) = self.window.fit(&self.transcript, room, &words)? else {
            let all = words.render(self.transcript.messages_after(0, None))?;
            let (context, model) = (engine.context(), engine.config().context);
            let error = EngineError::ContextLength { needed: all.len() + 1, context, model };
            let advice = larger_context(engine);
            return Err(Failure::failed(format!(
                "{error}; {advice}/undo takes the last turn back"
            )));
        };
        if let Some(news) = window.news(self.window) {
            self.console.notice(&news);
        }
        self.window = window;
        Ok(tokens)
    }

    /// From now on all that was said is given to the model again, as far as it fits.
    pub fn widen(&mut self) {
        self.window = Window::default();
    }
}

/// How the context becomes larger, where the model allows it.
fn larger_context(engine: &Engine) -> String {
    match engine.config().context {
        most if engine.context() < most => {
            format!("/set context N gives more room (the model allows {most}), ")
        }
        _ => String::new(),
    }
}

/// A model's template and tokeniser.
struct Words<'a> {
    template: &'a ChatTemplate,
    text: &'a Text,
}

impl Words<'_> {
    fn of(text: &Text) -> Result<Words<'_>, Failure> {
        match &text.template {
            Some((template, _)) => Ok(Words { template, text }),
            None => Err(Failure::failed("the model has no chat template")),
        }
    }

    fn encode(&self, text: &str) -> Result<Vec<u32>, Failure> {
        Ok(self.text.tokenizer.encode(text, SpecialTokens::Plain)?)
    }
}

impl Render for Words<'_> {
    fn render(&self, messages: Vec<Message>) -> Result<Vec<u32>, Failure> {
        let conversation = Conversation::new(messages);
        Ok(self.template.render_tokens(&conversation, &self.text.tokenizer)?)
    }

    fn count(&self, text: &str) -> Result<usize, Failure> {
        Ok(self.encode(text)?.len())
    }

    fn end(&self, text: &str, tokens: usize) -> Result<String, Failure> {
        let all = self.encode(text)?;
        let end = &all[all.len().saturating_sub(tokens)..];
        // The first token may begin within a character.
        let text = self.text.tokenizer.decode(end, true);
        Ok(text.trim_start_matches('\u{fffd}').to_string())
    }
}
