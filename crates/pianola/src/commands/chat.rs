//! `chat`: a conversation, line by line.

use std::io::{BufRead, IsTerminal};
use std::path::PathBuf;

use clap::Args;
use pianola_engine::{Engine, Finish, Request};
use pianola_text::{Conversation, Message};
use rustyline::error::ReadlineError;
use rustyline::history::FileHistory;

use super::run::{generate, tell_origin};
use crate::catalogue;
use crate::console::{self, Console};
use crate::failure::Failure;
use crate::interrupt::{self, Second, Working};
use crate::model::{self, Located};
use crate::options::{ComputeOptions, ModelOption, SamplingOptions, SpeculationOptions, positive};
use crate::statistics;
use crate::store::Store;

const HELP: &str = "\
/reset         begin a new conversation
/system TEXT   set the system message; without TEXT, remove it
/stats         what the last answer cost
/help          this list
/exit          end (as Ctrl-D does)
Ctrl-C stops an answer. What does not begin with / is for the model.";

/// Talk with a model.
///
/// Lines are messages; lines that begin with / are commands (/help lists them). What has been
/// said stays in the model's memory, so each turn processes only what is new. Without a terminal,
/// lines are read from standard input and answers written to standard output. Control characters
/// in an answer are spelled out on a terminal, as \u{1b}; in a pipe or a file they stay as they are.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  pianola chat
  pianola chat -m qwen2.5-coder:1.5b --system \"Answer in one sentence.\"
  printf 'Hello!\\nAnd now in French.\\n' | pianola chat --quiet")]
pub struct Arguments {
    #[command(flatten)]
    model: ModelOption,
    /// Most tokens in an answer [default: until the model ends or the context is full]
    #[arg(short = 'n', long, value_name = "N", value_parser = positive, allow_negative_numbers = true)]
    max_tokens: Option<usize>,
    /// End an answer before this text. May be repeated
    #[arg(long, value_name = "TEXT")]
    stop: Vec<String>,
    /// A system message to begin with
    #[arg(long, value_name = "TEXT")]
    system: Option<String>,
    /// Tokens of context [default: all that the model allows]
    #[arg(long, value_name = "N", value_parser = positive, allow_negative_numbers = true)]
    context: Option<usize>,
    #[command(flatten)]
    sampling: SamplingOptions,
    #[command(flatten)]
    speculation: SpeculationOptions,
    #[command(flatten)]
    compute: ComputeOptions,
}

pub fn run(arguments: &Arguments, console: Console) -> Result<(), Failure> {
    // Checked before the model is loaded, or fetched.
    arguments.sampling.sampling()?;
    let located = model::locate(&arguments.model.model, console)?;
    let engine = open(arguments, &located, console)?;
    if catalogue::find(&arguments.model.model).is_some_and(|entry| entry.base) {
        console.notice(&format!(
            "{} is a base model, not made to chat: its answers will be odd; `pianola run` lets it \
             continue a text",
            located.label
        ));
    }
    match &engine.text()?.template {
        Some((_, origin)) => tell_origin(origin, console),
        None => {
            return Err(Failure::failed(format!(
                "{} has no chat template, so it cannot chat; let it continue a text with \
                 `pianola run --raw`",
                located.label
            )));
        }
    }
    let sampling = arguments.sampling.sampling()?;
    let request = Request { sampling, ..Request::new(Vec::new()) };
    model::tell_sampling(&engine, &request, &arguments.compute, console);
    let mut lines = Lines::open(console)?;
    // After the line editor, which takes Ctrl-C for itself when it is made.
    interrupt::install(Second::Waits)?;
    let system = arguments.system.clone().filter(|text| !text.is_empty());
    let mut chat = Chat {
        engine: Some(engine),
        located,
        arguments,
        console,
        system,
        turns: Vec::new(),
        last: None,
    };
    while let Some(line) = lines.next()? {
        if chat.hear(line.trim())? == Next::End {
            break;
        }
    }
    lines.close();
    Ok(())
}

fn open(arguments: &Arguments, located: &Located, console: Console) -> Result<Engine, Failure> {
    let mut options = arguments.compute.load(console)?;
    options.context = arguments.context;
    model::load_with_draft(located, options, &arguments.speculation, console)
}

/// Whether the conversation continues.
#[derive(PartialEq, Eq)]
enum Next {
    Line,
    End,
}

struct Chat<'a> {
    /// None only while a lost device is opened again.
    engine: Option<Engine>,
    located: Located,
    arguments: &'a Arguments,
    console: Console,
    system: Option<String>,
    /// What was said, user and assistant in turn.
    turns: Vec<Message>,
    /// Statistics of the last answer.
    last: Option<String>,
}

impl Chat<'_> {
    fn hear(&mut self, line: &str) -> Result<Next, Failure> {
        let (command, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
        match command {
            "" => {}
            "/exit" | "/quit" => return Ok(Next::End),
            "/help" => console::to_stderr(HELP),
            "/reset" => {
                self.turns.clear();
                self.last = None;
                self.console.notice("a new conversation begins");
            }
            "/system" => {
                let text = rest.trim();
                self.system = (!text.is_empty()).then(|| text.to_string());
                self.console.notice(match self.system {
                    Some(_) => "the system message is set",
                    None => "there is no system message now",
                });
            }
            "/stats" => {
                console::to_stderr(self.last.as_deref().unwrap_or("there is no answer yet"));
            }
            _ if command.starts_with('/') => {
                console::to_stderr(&format!("there is no command {command}; /help lists them"));
            }
            _ => self.turn(line)?,
        }
        Ok(Next::Line)
    }

    /// One message and its answer. What goes wrong with it costs this turn, not the conversation.
    fn turn(&mut self, line: &str) -> Result<(), Failure> {
        self.turns.push(Message::new("user", line));
        match self.answer() {
            Ok(text) => {
                self.turns.push(Message::new("assistant", text));
                Ok(())
            }
            Err(failure @ (Failure::ReaderGone | Failure::Interrupted | Failure::Output(_))) => {
                Err(failure)
            }
            Err(failure) => {
                self.turns.pop();
                let message = failure.message().unwrap_or_default();
                console::print_error(&format!(
                    "{message}; this turn is forgotten, /reset begins a new conversation"
                ));
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
        }
    }

    fn answer(&mut self) -> Result<String, Failure> {
        let mut messages = Vec::with_capacity(self.turns.len() + 1);
        messages.extend(self.system.as_ref().map(|system| Message::new("system", system)));
        messages.extend(self.turns.iter().cloned());
        let Some(engine) = &mut self.engine else {
            return Err(Failure::failed("the model is not loaded"));
        };
        let side = engine.text()?;
        let Some((template, _)) = &side.template else {
            return Err(Failure::failed("the model has no chat template"));
        };
        let prompt = template.render_tokens(&Conversation::new(messages), &side.tokenizer)?;
        let request = Request {
            sampling: self.arguments.sampling.sampling()?,
            seed: self.arguments.sampling.seed,
            max_tokens: self.arguments.max_tokens,
            stop: self.arguments.stop.clone(),
            ..Request::new(prompt)
        };
        let _working = Working::begin();
        let (answer, text) = generate(engine, &request, true)?;
        let line = statistics::line(&self.located.label, engine, &answer);
        self.console.detail(&line);
        self.last = Some(line);
        match answer.finish {
            Finish::ContextFull => Err(Failure::failed(format!(
                "the context of {} tokens is full, so the answer is cut short",
                engine.context()
            ))),
            _ => Ok(text),
        }
    }
}

/// Where the user's lines come from.
enum Lines {
    Terminal { editor: Box<rustyline::Editor<(), FileHistory>>, history: Option<PathBuf> },
    Plain(std::io::Lines<std::io::StdinLock<'static>>),
}

impl Lines {
    fn open(console: Console) -> Result<Lines, Failure> {
        if !std::io::stdin().is_terminal() {
            return Ok(Lines::Plain(std::io::stdin().lock().lines()));
        }
        let broken = |error| Failure::failed(format!("cannot edit lines here: {error}"));
        let mut editor = rustyline::Editor::new().map_err(broken)?;
        // Beside the models, where a user's own files of pianola are.
        let history = Store::open()
            .ok()
            .and_then(|store| store.models().parent().map(|home| home.join("history")));
        if let Some(path) = &history {
            // The first chat has none yet.
            let _ = editor.load_history(path);
        }
        console.notice("/help lists the commands, Ctrl-C stops an answer, Ctrl-D ends");
        Ok(Lines::Terminal { editor: Box::new(editor), history })
    }

    fn next(&mut self) -> Result<Option<String>, Failure> {
        match self {
            Lines::Plain(lines) => lines.next().transpose().map_err(|error| {
                Failure::failed(format!("cannot read standard input as UTF-8 lines: {error}"))
            }),
            Lines::Terminal { editor, .. } => loop {
                match editor.readline("> ") {
                    Ok(line) => {
                        if !line.trim().is_empty() {
                            // A history that cannot grow is no reason to stop talking.
                            let _ = editor.add_history_entry(&line);
                        }
                        return Ok(Some(line));
                    }
                    Err(ReadlineError::Interrupted) => {
                        console::to_stderr("(Ctrl-D or /exit ends the chat)");
                    }
                    Err(ReadlineError::Eof) => return Ok(None),
                    Err(error) => {
                        return Err(Failure::failed(format!("cannot read the terminal: {error}")));
                    }
                }
            },
        }
    }

    fn close(self) {
        if let Lines::Terminal { mut editor, history: Some(path) } = self {
            let saved = path.parent().map_or(Ok(()), std::fs::create_dir_all);
            // The conversation is over; a lost history is not worth an error.
            let _ = saved.is_ok().then(|| editor.save_history(&path));
        }
    }
}
