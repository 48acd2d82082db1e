//! `run`: one prompt, one answer.

mod subject;

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use pianola_engine::{Answer, Engine, Finish, Request};
use pianola_text::{Conversation, Message, SpecialTokens};
use serde_json::{Value, json};

use super::chat;
use super::generate::{Shown, generate, tell_origin};
use crate::console::{self, Console, count};
use crate::device::DeviceChoice;
use crate::failure::Failure;
use crate::form::FormOptions;
use crate::input::{PromptSources, TokenInput};
use crate::interrupt::{self, Manner, Working};
use crate::model::{self, Located};
use crate::options::{
    ComputeOptions, ModelOption, SpeculationOptions, bound, chosen, context, is_base_model,
    most_tokens,
};
use crate::profile;
use crate::sampling::SamplingOptions;
use crate::statistics::{self, StartStatistics, Statistics};
use subject::Subject;

/// Answer one prompt.
///
/// The model's chat template turns the prompt into a user's message. --raw lets the model continue
/// the text as it is. A file (-f) and piped text come before PROMPT, with a blank line between them.
/// A first word that names a model is taken as -m; in a terminal a model alone opens a chat.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  pianola run \"Why is the sky blue?\"
  pianola run qwen2.5-coder:1.5b \"Write a haiku about recursion.\"
  cat notes.txt | pianola run \"Summarise this.\"
  git diff | pianola run -m qwen2.5-coder:1.5b --system \"You review code.\"
  pianola run -m gemma3:270m --raw \"Once upon a time\" -n 50
  pianola run --temp 0 --json \"Name three colours\"")]
pub struct Arguments {
    #[command(flatten)]
    model: ModelOption,
    /// Prompt; several words are joined by spaces
    #[arg(value_name = "PROMPT", conflicts_with_all = ["tokens", "tokens_file", "words"])]
    prompt: Vec<String>,
    /// Prompt, as an option
    #[arg(short = 'p', long = "prompt", visible_alias = "text", value_name = "PROMPT")]
    #[arg(conflicts_with_all = ["tokens", "tokens_file"])]
    words: Option<String>,
    /// File to put before the prompt, or to use as the prompt; - is standard input
    #[arg(short, long, visible_alias = "prompt-file", value_name = "FILE")]
    #[arg(conflicts_with_all = ["tokens", "tokens_file"])]
    file: Option<PathBuf>,
    /// Most tokens to generate; -1: no bound [default: -1]
    ///
    /// Without a bound the answer ends when the model ends it or the context is full.
    #[arg(short = 'n', long, aliases = ["n-predict", "predict"], value_name = "N")]
    #[arg(value_parser = most_tokens, allow_negative_numbers = true)]
    max_tokens: Option<usize>,
    /// End the answer before this text. May be repeated
    #[arg(long, value_name = "TEXT", hide_short_help = true)]
    stop: Vec<String>,
    /// System message before the prompt
    #[arg(long, alias = "system-prompt", value_name = "TEXT")]
    #[arg(conflicts_with_all = ["raw", "tokens", "tokens_file"])]
    system: Option<String>,
    /// Continue the prompt as it is, without the chat template
    ///
    /// Markers such as <|im_start|> are read as special tokens. The beginning-of-sequence token is
    /// added if the model asks for one.
    #[arg(long)]
    raw: bool,
    /// Go on when the model ends its turn
    #[arg(long, hide_short_help = true)]
    ignore_eos: bool,
    #[command(flatten)]
    tokens: TokenInput,
    /// Tokens of context [default: as many as the model allows]
    #[arg(short, long, alias = "ctx-size", value_name = "N", value_parser = context)]
    #[arg(allow_negative_numbers = true)]
    context: Option<usize>,
    /// Print a JSON object instead of text
    ///
    /// --json=lines prints an object with a "text" for each piece as it comes, then that object.
    #[arg(long, value_name = "FORM", num_args = 0..=1, require_equals = true)]
    #[arg(default_missing_value = "object")]
    json: Option<JsonForm>,
    /// Time every kernel: print a table and write a Chrome trace to this file
    ///
    /// The answer comes more slowly.
    #[arg(long, value_name = "FILE", hide_short_help = true)]
    profile: Option<PathBuf>,
    /// Talk instead, where there is no prompt
    #[arg(short, long, aliases = ["conversation", "interactive-first"], hide = true)]
    interactive: bool,
    #[command(flatten)]
    form: FormOptions,
    #[command(flatten)]
    sampling: SamplingOptions,
    #[command(flatten)]
    speculation: SpeculationOptions,
    #[command(flatten)]
    compute: ComputeOptions,
}

/// How `--json` prints.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum JsonForm {
    Object,
    Lines,
}

/// What the model is given.
enum Prompt {
    Text(String),
    Tokens(Vec<u32>),
}

pub fn run(arguments: &Arguments, console: Console) -> Result<(), Failure> {
    let (name, words) = match subject::subject(arguments, console)? {
        Subject::Chat(name) => return chat::run(&subject::chat_with(name, arguments)?, console),
        Subject::Answer(name, words) => (name, words),
    };
    let sampling = arguments.sampling.sampling()?;
    let form = arguments.form.read()?;
    let prompt = prompt(arguments, words, console)?;
    let located = model::locate(name, console)?;
    let constraint = form.map(|form| form.compile(&located)).transpose()?;
    let mut options = arguments.compute.load(console)?;
    options.context = chosen(arguments.context);
    let mut engine = model::load_with_draft(&located, options, &arguments.speculation, console)?;
    let prompt = match prompt {
        Prompt::Tokens(tokens) => tokens,
        Prompt::Text(text) => {
            let base = is_base_model(name);
            encode(&engine, &text, Template { located: &located, base, arguments }, console)?
        }
    };
    let request = Request {
        sampling,
        seed: arguments.sampling.seed(),
        max_tokens: bound(arguments.max_tokens),
        stop: arguments.stop.clone(),
        ignore_end: arguments.ignore_eos,
        constraint,
        ..Request::new(prompt)
    };
    if let Some(path) = &arguments.profile {
        profile::start(&mut engine, arguments.compute.overlap != "off", path)?;
    }
    model::tell_sampling(&engine, &request, &arguments.compute, console);
    interrupt::install(Manner::Soon)?;
    let _working = Working::begin();
    let shown = match arguments.json {
        None => Shown::Text,
        Some(JsonForm::Object) => Shown::Nothing,
        Some(JsonForm::Lines) => Shown::JsonLines,
    };
    let start = StartStatistics::begin();
    let (answer, text) = generate(&mut engine, &request, shown, console)?;
    if answer.finish == Finish::Cancelled {
        return Err(interrupted(&answer, arguments, console));
    }
    let json = arguments.json.map(|_| {
        let mut all = object(&located, &answer, &text);
        extend(&mut all, start.object(&engine, &answer));
        all
    });
    report(&engine, &located.label, &arguments.compute.device, &answer, json, console)?;
    if let Some(path) = &arguments.profile {
        profile::finish(&mut engine, path, console)?;
    }
    match answer.finish {
        Finish::ContextFull => Err(context_full(&engine, arguments)),
        _ => Ok(()),
    }
}

/// The answer for machines, without what it cost.
fn object(located: &Located, answer: &Answer, text: &str) -> Value {
    json!({
        "model": located.label,
        "text": text,
        "tokens": answer.tokens,
        "finish": statistics::finish_name(answer.finish),
        "stop_text": answer.stop_text,
    })
}

/// Puts the entries of one object into another.
fn extend(all: &mut Value, more: Value) {
    if let (Value::Object(all), Value::Object(more)) = (all, more) {
        all.extend(more);
    }
}

/// Shows what an answer cost, and prints it if it is for a machine.
fn report(
    engine: &Engine,
    label: &str,
    choice: &DeviceChoice,
    answer: &Answer,
    json: Option<Value>,
    console: Console,
) -> Result<(), Failure> {
    if json.is_none() && console.quiet {
        return Ok(());
    }
    if json.is_some() || console.verbose {
        let statistics = Statistics::measure(engine, answer);
        if let Some(mut all) = json {
            extend(&mut all, statistics.object());
            console::print_json_line(&all)?;
        }
        console.detail(&statistics.line(label));
    }
    if !console.verbose {
        console.notice(&statistics::short_line(engine, answer, label, choice));
    }
    Ok(())
}

/// Short, because whoever presses Ctrl-C does not wait for measurements.
fn interrupted(answer: &Answer, arguments: &Arguments, console: Console) -> Failure {
    let after = match answer.usage.generated_tokens {
        0 => "interrupted before the first token".to_string(),
        tokens => format!("interrupted after {}, seed {}", count(tokens, "token"), answer.seed),
    };
    if console.quiet {
        return Failure::Interrupted;
    }
    Failure::Stopped(match bound(arguments.max_tokens) {
        None if answer.usage.generated_tokens > 0 => format!("{after} (-n bounds an answer)"),
        _ => after,
    })
}

fn context_full(engine: &Engine, arguments: &Arguments) -> Failure {
    let (context, model) = (engine.context(), engine.config().context);
    let greedy = arguments.sampling.temp == 0.0;
    Failure::failed(format!(
        "the context of {context} tokens is full, so the answer is cut short; {}{}",
        match context < model {
            true => format!(
                "raise --context (the model allows up to {model}), or bound the answer with -n"
            ),
            false => "use a shorter prompt, or bound the answer with -n".to_string(),
        },
        // The likeliest token may lead back to itself for ever.
        if greedy { "; --temp above 0 keeps a model from repeating itself" } else { "" },
    ))
}

fn prompt(arguments: &Arguments, words: &[String], console: Console) -> Result<Prompt, Failure> {
    if let Some(tokens) = arguments.tokens.read()? {
        return Ok(Prompt::Tokens(tokens));
    }
    let sources = PromptSources { words, file: arguments.file.as_deref() };
    let text = sources.read(console)?;
    let empty = if arguments.raw { text.is_empty() } else { text.trim().is_empty() };
    if empty {
        return Err(Failure::usage(
            "the prompt is empty; write it after the command, or pipe it in",
        ));
    }
    Ok(Prompt::Text(text))
}

/// What decides on the form of a prompt.
struct Template<'a> {
    located: &'a Located,
    /// Not made to chat.
    base: bool,
    arguments: &'a Arguments,
}

fn encode(
    engine: &Engine,
    text: &str,
    Template { located, base, arguments }: Template<'_>,
    console: Console,
) -> Result<Vec<u32>, Failure> {
    let side = engine.text()?;
    let raw = || Ok(side.tokenizer.encode_prompt(text, SpecialTokens::Parse)?);
    if arguments.raw {
        return raw();
    }
    if base && arguments.system.is_none() {
        console.notice(&format!(
            "{} is a base model, not made to chat: it continues the prompt, as with --raw",
            located.label
        ));
        return raw();
    }
    let Some((template, origin)) = &side.template else {
        if arguments.system.is_some() {
            return Err(Failure::failed(format!(
                "{} has no chat template, so --system cannot be used",
                located.label
            )));
        }
        console.notice(&format!(
            "{} has no chat template: it continues the prompt, as with --raw",
            located.label
        ));
        return raw();
    };
    tell_origin(origin, console);
    let mut messages = Vec::new();
    messages.extend(arguments.system.as_ref().map(|system| Message::new("system", system)));
    messages.push(Message::new("user", text));
    Ok(template.render_tokens(&Conversation::new(messages), &side.tokenizer)?)
}
