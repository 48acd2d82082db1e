//! `run`: one prompt, one answer.

use std::io::IsTerminal;
use std::ops::ControlFlow;
use std::path::PathBuf;

use clap::Args;
use pianola_engine::{Answer, Engine, Finish, Request};
use pianola_text::{Conversation, Message, SpecialTokens, TemplateOrigin};
use serde_json::json;

use crate::catalogue;
use crate::console::{self, Console};
use crate::failure::Failure;
use crate::input::{self, TokenInput};
use crate::interrupt::{self, Second, Working};
use crate::model::{self, Located};
use crate::options::{ComputeOptions, ModelOption, SamplingOptions, SpeculationOptions, positive};
use crate::profile;
use crate::statistics;

/// Answer one prompt.
///
/// The prompt is a user's message, put into the form the model was trained on by its chat
/// template; --raw lets the model continue the text as it is. Without PROMPT, or with -, the
/// prompt is read from standard input (a newline at its end is left out). Control characters in an
/// answer are spelled out on a terminal, as \u{1b}; in a pipe or a file they stay as they are.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  pianola run \"Why is the sky blue?\"
  pianola run -m gemma3:270m --raw \"Once upon a time\" -n 50
  git diff | pianola run -m qwen2.5-coder:1.5b --system \"You review code.\"
  pianola run --temp 0 --json \"Name three colours\"")]
pub struct Arguments {
    #[command(flatten)]
    model: ModelOption,
    /// The prompt; several words are joined by spaces
    #[arg(value_name = "PROMPT", conflicts_with_all = ["tokens", "tokens_file"])]
    prompt: Vec<String>,
    /// Most tokens to generate [default: until the model ends or the context is full]
    #[arg(short = 'n', long, value_name = "N", value_parser = positive, allow_negative_numbers = true)]
    max_tokens: Option<usize>,
    /// End the answer before this text. May be repeated
    #[arg(long, value_name = "TEXT")]
    stop: Vec<String>,
    /// A system message before the prompt
    #[arg(long, value_name = "TEXT", conflicts_with_all = ["raw", "tokens", "tokens_file"])]
    system: Option<String>,
    /// Continue the prompt as it is, without the chat template. Markers such as <|im_start|> are
    /// recognised, and the model's beginning-of-sequence token is added where it wants one
    #[arg(long)]
    raw: bool,
    /// Go on when the model ends its turn
    #[arg(long)]
    ignore_eos: bool,
    #[command(flatten)]
    tokens: TokenInput,
    /// Tokens of context [default: all that the model allows]
    #[arg(long, value_name = "N", value_parser = positive, allow_negative_numbers = true)]
    context: Option<usize>,
    /// Print one JSON object at the end instead of text as it comes
    #[arg(long)]
    json: bool,
    /// Time every kernel on the device: print a table, write a Chrome trace to this file. Slower
    #[arg(long, value_name = "FILE")]
    profile: Option<PathBuf>,
    #[command(flatten)]
    sampling: SamplingOptions,
    #[command(flatten)]
    speculation: SpeculationOptions,
    #[command(flatten)]
    compute: ComputeOptions,
}

/// What the model is given.
enum Prompt {
    Text(String),
    Tokens(Vec<u32>),
}

pub fn run(arguments: &Arguments, console: Console) -> Result<(), Failure> {
    let sampling = arguments.sampling.sampling()?;
    let prompt = prompt(arguments)?;
    let located = model::locate(&arguments.model.model, console)?;
    let mut options = arguments.compute.load(console)?;
    options.context = arguments.context;
    let mut engine = model::load_with_draft(&located, options, &arguments.speculation, console)?;
    let prompt = match prompt {
        Prompt::Tokens(tokens) => tokens,
        Prompt::Text(text) => encode(&engine, &located, &text, arguments, console)?,
    };
    let request = Request {
        sampling,
        seed: arguments.sampling.seed,
        max_tokens: arguments.max_tokens,
        stop: arguments.stop.clone(),
        ignore_end: arguments.ignore_eos,
        ..Request::new(prompt)
    };
    if let Some(path) = &arguments.profile {
        profile::start(&mut engine, path)?;
    }
    model::tell_sampling(&engine, &request, &arguments.compute, console);
    interrupt::install(Second::Ends)?;
    let (answer, text) = {
        let _working = Working::begin();
        generate(&mut engine, &request, !arguments.json)?
    };
    if arguments.json {
        let mut object = json!({
            "model": located.label,
            "text": text,
            "tokens": answer.tokens,
            "finish": statistics::finish_name(answer.finish),
            "stop_text": answer.stop_text,
        });
        if let (Some(all), Some(times)) =
            (object.as_object_mut(), statistics::object(&engine, &answer).as_object())
        {
            all.extend(times.clone());
        }
        console::print_json_line(&object)?;
    }
    if !console.quiet {
        let line = statistics::line(&located.label, &engine, &answer);
        console.notice(&line);
    }
    if let Some(path) = &arguments.profile {
        profile::finish(&mut engine, path, console)?;
    }
    match answer.finish {
        Finish::ContextFull => Err(Failure::failed(format!(
            "the context of {} tokens is full, so the answer is cut short; {}",
            engine.context(),
            match engine.context() < engine.config().context {
                true =>
                    format!("raise --context (the model allows up to {})", engine.config().context),
                false => "use a shorter prompt, or bound the answer with -n".to_string(),
            }
        ))),
        Finish::Cancelled => Err(Failure::Interrupted),
        Finish::EndOfTurn
        | Finish::StopToken
        | Finish::StopText
        | Finish::Complete
        | Finish::MaxTokens => Ok(()),
    }
}

fn prompt(arguments: &Arguments) -> Result<Prompt, Failure> {
    if let Some(tokens) = arguments.tokens.read()? {
        return Ok(Prompt::Tokens(tokens));
    }
    let text = input::text(&arguments.prompt, "prompt")?;
    let empty = if arguments.raw { text.is_empty() } else { text.trim().is_empty() };
    if empty {
        return Err(Failure::usage(
            "the prompt is empty; write some text behind the command, or pipe it in",
        ));
    }
    Ok(Prompt::Text(text))
}

fn encode(
    engine: &Engine,
    model: &Located,
    text: &str,
    arguments: &Arguments,
    console: Console,
) -> Result<Vec<u32>, Failure> {
    let side = engine.text()?;
    let raw = || Ok(side.tokenizer.encode_prompt(text, SpecialTokens::Parse)?);
    if arguments.raw {
        return raw();
    }
    let base = catalogue::find(&arguments.model.model).is_some_and(|entry| entry.base);
    if base && arguments.system.is_none() {
        console.notice(&format!(
            "{} is a base model, not made to chat: the prompt is continued as it is (as with --raw)",
            model.label
        ));
        return raw();
    }
    let Some((template, origin)) = &side.template else {
        if arguments.system.is_some() {
            return Err(Failure::failed(format!(
                "{} has no chat template, so a system message has no place; leave --system out",
                model.label
            )));
        }
        console.notice(&format!(
            "{} has no chat template: the prompt is continued as it is (as with --raw)",
            model.label
        ));
        return raw();
    };
    tell_origin(origin, console);
    let mut messages = Vec::new();
    messages.extend(arguments.system.as_ref().map(|system| Message::new("system", system)));
    messages.push(Message::new("user", text));
    Ok(template.render_tokens(&Conversation::new(messages), &side.tokenizer)?)
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

/// Generates, writing the text as it comes if `stream`; returns it whole too.
pub fn generate(
    engine: &mut Engine,
    request: &Request,
    stream: bool,
) -> Result<(Answer, String), Failure> {
    let mut text = String::new();
    let mut failure = None;
    let terminal = std::io::stdout().is_terminal();
    let answer = engine.generate(request, &mut |piece| {
        text.push_str(piece);
        if stream
            && !piece.is_empty()
            && let Err(error) = console::print_answer(piece)
        {
            failure = Some(error);
            return ControlFlow::Break(());
        }
        if interrupt::asked() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })?;
    if let Some(failure) = failure {
        return Err(failure);
    }
    // A shell's prompt, or the next line of statistics, begins on a line of its own. Elsewhere
    // too: a text file ends with a newline.
    let unended = !text.is_empty() && !text.ends_with('\n');
    if stream && (unended || (text.is_empty() && terminal)) {
        console::print("\n")?;
    }
    Ok((answer, text))
}
