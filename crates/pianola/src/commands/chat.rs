//! `chat`: a conversation, line by line.

mod commands;
mod lines;
mod paste;
mod transcript;

use clap::Args;
use pianola_engine::{Answer, Engine, Finish, Request};
use pianola_text::Conversation;

use super::generate::{Shown, generate, tell_origin};
use crate::console::{self, Console, count};
use crate::failure::Failure;
use crate::interrupt::{self, Manner, Working};
use crate::model::{self, Located};
use crate::options::{
    ComputeOptions, NamedModel, SpeculationOptions, bound, chosen, context, is_base_model,
    most_tokens,
};
use crate::sampling::SamplingOptions;
use crate::statistics::{self, Statistics};
use commands::Next;
use lines::Lines;
use transcript::Transcript;

/// Talk with a model.
///
/// Each line is a message. Lines that begin with / are commands; /help lists them. A backslash at
/// the end of a line continues it on the next. Text between """ and """ is one message, and so is a
/// paste. Without a terminal, messages are read from standard input and answers are written to
/// standard output; if a turn fails, the exit code is 1.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  pianola chat
  pianola chat -m qwen2.5-coder:1.5b --system \"Answer in one sentence.\"
  printf 'Hello!\\nAnd now in French.\\n' | pianola chat --quiet")]
pub struct Arguments {
    #[command(flatten)]
    pub(super) model: NamedModel,
    /// Most tokens in an answer; -1: no bound [default: -1]
    ///
    /// Without a bound an answer ends when the model ends it or the context is full.
    #[arg(short = 'n', long, aliases = ["n-predict", "predict"], value_name = "N")]
    #[arg(value_parser = most_tokens, allow_negative_numbers = true)]
    pub(super) max_tokens: Option<usize>,
    /// End an answer before this text. May be repeated
    #[arg(long, value_name = "TEXT", hide_short_help = true)]
    pub(super) stop: Vec<String>,
    /// System message to begin with
    #[arg(long, alias = "system-prompt", value_name = "TEXT")]
    pub(super) system: Option<String>,
    /// Tokens of context [default: as many as the model allows]
    #[arg(short, long, alias = "ctx-size", value_name = "N", value_parser = context)]
    #[arg(allow_negative_numbers = true)]
    pub(super) context: Option<usize>,
    #[command(flatten)]
    pub(super) sampling: SamplingOptions,
    #[command(flatten)]
    pub(super) speculation: SpeculationOptions,
    #[command(flatten)]
    pub(super) compute: ComputeOptions,
}

pub fn run(arguments: &Arguments, console: Console) -> Result<(), Failure> {
    // Checked before the model is loaded, or fetched.
    let sampling = arguments.sampling.sampling()?;
    // From now on what is typed is kept.
    let mut lines = Lines::open()?;
    // After the line editor, which takes Ctrl-C for itself when it is made.
    interrupt::install(Manner::Stays)?;
    let name = arguments.model.name();
    let located = model::locate(name, console)?;
    // Fetching may have changed what Ctrl-C does.
    interrupt::install(Manner::Stays)?;
    let engine = open(arguments, &located, console)?;
    if is_base_model(name) {
        console.notice(&format!(
            "{} is a base model, not made to chat; expect odd answers. `pianola run` lets it \
             continue a text",
            located.label
        ));
    }
    check_template(&engine, &located, console)?;
    let request = Request { sampling, ..Request::new(Vec::new()) };
    model::tell_sampling(&engine, &request, &arguments.compute, console);
    let on = statistics::devices_in_short(&engine, &arguments.compute.device);
    console.notice(&format!("model: {} on {on}", located.label));
    if lines.is_terminal() {
        console.notice("/help lists the commands, Ctrl-C stops an answer, Ctrl-D ends");
    }
    let system = arguments.system.clone().filter(|text| !text.is_empty());
    let mut chat = Chat {
        engine: Some(engine),
        located,
        arguments,
        console,
        sampling: arguments.sampling.clone(),
        max_tokens: bound(arguments.max_tokens),
        transcript: Transcript::new(system),
        last: None,
        asked: 0,
        failed: 0,
    };
    while let Some(input) = lines.next()? {
        if chat.hear(&input)? == Next::End {
            break;
        }
    }
    let unattended = !lines.is_terminal();
    lines.close();
    match chat.failed {
        failed if failed > 0 && unattended => {
            Err(Failure::failed(format!("{failed} of {} failed", count(chat.asked, "turn"))))
        }
        _ => Ok(()),
    }
}

fn open(arguments: &Arguments, located: &Located, console: Console) -> Result<Engine, Failure> {
    let mut options = arguments.compute.load(console)?;
    options.context = chosen(arguments.context);
    model::load_with_draft(located, options, &arguments.speculation, console)
}

fn check_template(engine: &Engine, located: &Located, console: Console) -> Result<(), Failure> {
    match &engine.text()?.template {
        Some((_, origin)) => {
            tell_origin(origin, console);
            Ok(())
        }
        None => Err(Failure::failed(format!(
            "{} has no chat template, so it cannot chat; to continue a text use \
             `pianola run --raw`",
            located.label
        ))),
    }
}

struct Chat<'a> {
    /// None only while a model is loaded.
    engine: Option<Engine>,
    located: Located,
    arguments: &'a Arguments,
    console: Console,
    sampling: SamplingOptions,
    max_tokens: Option<usize>,
    transcript: Transcript,
    /// The last answer, for what it cost.
    last: Option<Answer>,
    /// Turns that were tried, and those that failed.
    asked: usize,
    failed: usize,
}

impl Chat<'_> {
    fn regenerate(&mut self) -> Result<(), Failure> {
        if !self.transcript.take_answer() {
            self.console.notice("there is no answer to give again");
            return Ok(());
        }
        // A seed that was given would give the same answer.
        let again = self.last.as_ref().map(|answer| answer.seed.wrapping_add(1));
        self.turn(self.sampling.seed().and(again))
    }

    fn ask(&mut self, text: &str) -> Result<(), Failure> {
        self.transcript.ask(text);
        self.turn(self.sampling.seed())
    }

    /// An answer to what was said. What goes wrong with it costs this turn, not the conversation.
    fn turn(&mut self, seed: Option<u64>) -> Result<(), Failure> {
        self.asked += 1;
        match self.answer(seed) {
            Ok(Some(text)) => {
                self.transcript.answer(text);
                Ok(())
            }
            Ok(None) => {
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

    fn reopen_if_lost(&mut self) -> Result<(), Failure> {
        if self.engine.as_ref().is_some_and(Engine::is_lost) {
            // What it still holds of the device goes first.
            self.engine = None;
            let engine = open(self.arguments, &self.located, self.console)?;
            self.console.notice(&format!(
                "the model was loaded again on {}; the conversation goes on",
                engine.runs_on()
            ));
            self.engine = Some(engine);
        }
        Ok(())
    }

    /// The answer's text; none where it was interrupted before it began.
    fn answer(&mut self, seed: Option<u64>) -> Result<Option<String>, Failure> {
        let Some(engine) = &mut self.engine else {
            return Err(Failure::failed("the model is not loaded"));
        };
        let side = engine.text()?;
        let Some((template, _)) = &side.template else {
            return Err(Failure::failed("the model has no chat template"));
        };
        let conversation = Conversation::new(self.transcript.messages());
        let prompt = template.render_tokens(&conversation, &side.tokenizer)?;
        let request = Request {
            sampling: self.sampling.sampling()?,
            seed,
            max_tokens: self.max_tokens,
            stop: self.arguments.stop.clone(),
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
        match finish {
            Finish::ContextFull => Err(Failure::failed(format!(
                "the context of {} tokens is full, so the answer is cut short",
                engine.context()
            ))),
            Finish::Cancelled if text.is_empty() => Ok(None),
            _ => Ok(Some(text)),
        }
    }
}
