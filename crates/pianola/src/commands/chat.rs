//! `chat`: a conversation, line by line.

mod commands;
mod lines;
mod paste;
mod transcript;
mod turn;
mod window;

use clap::Args;
use pianola_engine::{Answer, Constraint, Engine, Request};

use super::generate::tell_origin;
use crate::console::{Console, count};
use crate::failure::Failure;
use crate::form::{Form, FormOptions};
use crate::interrupt::{self, Manner};
use crate::model::{self, Located};
use crate::options::{
    ComputeOptions, NamedModel, SpeculationOptions, bound, chosen, context, is_base_model,
    most_tokens,
};
use crate::sampling::SamplingOptions;
use crate::statistics;
use commands::Next;
use lines::Lines;
use transcript::Transcript;
use window::Window;

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
    pub(super) form: FormOptions,
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
    let form = arguments.form.read()?;
    // From now on what is typed is kept.
    let mut lines = Lines::open()?;
    // After the line editor, which takes Ctrl-C for itself when it is made.
    interrupt::install(Manner::Stays)?;
    let name = arguments.model.name();
    let located = model::locate(name, console)?;
    // Fetching may have changed what Ctrl-C does.
    interrupt::install(Manner::Stays)?;
    let constraint = form.as_ref().map(|form| form.compile(&located)).transpose()?;
    let context = chosen(arguments.context);
    let engine = open(arguments, context, &located, console)?;
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
        context,
        form,
        constraint,
        transcript: Transcript::new(system),
        window: Window::default(),
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

fn open(
    arguments: &Arguments,
    context: Option<usize>,
    located: &Located,
    console: Console,
) -> Result<Engine, Failure> {
    let mut options = arguments.compute.load(console)?;
    options.context = context;
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
    /// Tokens of context, if they were chosen.
    context: Option<usize>,
    form: Option<Form>,
    /// The form over the tokens of this model.
    constraint: Option<Box<dyn Constraint>>,
    transcript: Transcript,
    /// What of the transcript the model is given.
    window: Window,
    /// The last answer, for what it cost.
    last: Option<Answer>,
    /// Turns that were tried, and those that failed.
    asked: usize,
    failed: usize,
}
