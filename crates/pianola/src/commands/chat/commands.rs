//! What a line of a chat asks for: an answer, or one of the commands that begin with `/`.

use std::path::Path;

use pianola_engine::Engine;
use pianola_model::ModelFile;

use super::lines::Input;
use super::transcript::Transcript;
use super::{Chat, check_template, open};
use crate::console::{self, count};
use crate::failure::Failure;
use crate::interrupt::{self, Manner};
use crate::model;
use crate::options::{bound, chosen, context, most_tokens};
use crate::statistics::Statistics;

const HELP: &str = "\
/regenerate    answer the last message again
/undo          take the last message and its answer back
/reset         begin a new conversation
/system TEXT   set the system message; without TEXT, remove it
/set NAME X    set temp, top_k, top_p, min_p, seed, max_tokens, …; without NAME, show them
/save FILE     write the conversation to a file
/load FILE     go on with a conversation that /save wrote
/model NAME    go on with another model
/stats         what the last answer cost
/help          this list
/exit          end (as Ctrl-D does)
Ctrl-C stops an answer. A backslash at the end of a line continues it on the next; so does
everything between \"\"\" and \"\"\". What does not begin with / is for the model.";

/// Other words for some of them.
const ALIASES: [&str; 5] = ["/quit", "/bye", "/?", "/clear", "/retry"];

fn is_command(word: &str) -> bool {
    let listed = HELP.lines().filter(|line| line.starts_with('/'));
    ALIASES.contains(&word) || listed.filter_map(|line| line.split(' ').next()).any(|it| it == word)
}

/// Whether the conversation continues.
#[derive(PartialEq, Eq)]
pub enum Next {
    Line,
    End,
}

impl Chat<'_> {
    /// Does what a line asks for.
    pub fn hear(&mut self, input: &Input) -> Result<Next, Failure> {
        let line = match input {
            Input::Quoted(text) if text.trim().is_empty() => return Ok(Next::Line),
            Input::Quoted(text) => return self.ask(text).map(|()| Next::Line),
            Input::Line(line) => line.trim(),
        };
        if let Some((first, others)) = line.split_once('\n')
            && line.starts_with('/')
        {
            return self.hear_several(line, first, others);
        }
        let (command, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
        let rest = rest.trim();
        match command {
            "" => {}
            "/exit" | "/quit" | "/bye" => return Ok(Next::End),
            "/help" | "/?" => console::to_stderr(HELP),
            "/reset" | "/clear" => {
                self.transcript.clear();
                self.widen();
                self.last = None;
                self.console.notice("a new conversation begins");
            }
            "/system" => self.set_system(rest),
            "/stats" => self.tell_statistics(),
            "/undo" => self.undo(),
            "/regenerate" | "/retry" => self.regenerate()?,
            _ if command.starts_with('/') => {
                if let Err(failure) = self.change(command, rest) {
                    self.complain(&failure)?;
                }
            }
            _ => self.ask(line)?,
        }
        Ok(Next::Line)
    }

    /// Lines that came together, of which the first begins with a slash. A command is one line, and the
    /// others are said after it, but for a system message, which has many; what is no command is a message.
    fn hear_several(&mut self, all: &str, first: &str, others: &str) -> Result<Next, Failure> {
        match first.split_whitespace().next() {
            Some("/system") => self.set_system(all.trim_start_matches("/system").trim()),
            Some(command) if is_command(command) => {
                return match self.hear(&Input::Line(first.to_string()))? {
                    Next::Line => self.hear(&Input::Line(others.to_string())),
                    Next::End => Ok(Next::End),
                };
            }
            _ => self.ask(all)?,
        }
        Ok(Next::Line)
    }

    /// Commands that may go wrong.
    fn change(&mut self, command: &str, rest: &str) -> Result<(), Failure> {
        let file = || match rest {
            "" => Err(Failure::usage(format!("{command} needs the name of a file"))),
            name => Ok(Path::new(name)),
        };
        match command {
            "/set" => self.set(rest),
            "/save" => {
                let path = file()?;
                self.transcript.save(path, &self.located.label)?;
                self.console.notice(&format!("the conversation is in {}", path.display()));
                Ok(())
            }
            "/load" => {
                self.transcript = Transcript::load(file()?)?;
                self.widen();
                self.last = None;
                let answers = count(self.transcript.answered(), "answer");
                self.console.notice(&format!("the conversation goes on after {answers}"));
                Ok(())
            }
            "/model" => self.change_model(rest),
            _ => Err(Failure::usage(format!("there is no command {command}; /help lists them"))),
        }
    }

    /// Reports what went wrong with a command. What makes it pointless to go on is an error.
    fn complain(&self, failure: &Failure) -> Result<(), Failure> {
        match failure {
            Failure::Stopped(message) => console::to_stderr(message),
            _ => console::print_error(failure.message().unwrap_or_default()),
        }
        match self.engine {
            Some(_) => Ok(()),
            None => Err(Failure::failed("there is no model left to talk with")),
        }
    }

    fn set_system(&mut self, text: &str) {
        self.transcript.system = (!text.is_empty()).then(|| text.to_string());
        self.console.notice(match self.transcript.system {
            Some(_) => "the system message is set",
            None => "there is no system message now",
        });
    }

    fn undo(&mut self) {
        self.widen();
        self.console.notice(&match self.transcript.undo() {
            true => {
                format!("taken back; {} before it", count(self.transcript.answered(), "answer"))
            }
            false => "there is nothing to take back".to_string(),
        });
    }

    /// `/set NAME VALUE`; `parameter` before it is Ollama's.
    fn set(&mut self, rest: &str) -> Result<(), Failure> {
        let rest = rest.strip_prefix("parameter ").unwrap_or(rest).trim();
        let (name, value) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
        match (name, value.trim()) {
            ("", _) => {
                let most = self.max_tokens.map_or("none".to_string(), |most| most.to_string());
                let context = self.engine.as_ref().map_or(0, Engine::context);
                console::to_stderr(&format!(
                    "{}, max_tokens {most}, context {context}",
                    self.sampling.describe()
                ));
                return Ok(());
            }
            ("system", text) => self.set_system(text),
            (_, "") => return Err(Failure::usage(format!("/set {name} needs a value"))),
            ("max_tokens" | "max-tokens" | "num_predict", value) => {
                let most = most_tokens(value)
                    .map_err(|why| Failure::usage(format!("{name} cannot be '{value}': {why}")))?;
                self.max_tokens = bound(Some(most));
            }
            ("context" | "ctx_size" | "num_ctx", value) => self.set_context(value)?,
            (name, value) => self.sampling.set(name, value)?,
        }
        self.console.notice(&format!("{name} is set"));
        Ok(())
    }

    /// Loads another model; the one before is given up only for one that can be read.
    fn change_model(&mut self, name: &str) -> Result<(), Failure> {
        if name.is_empty() {
            return Err(Failure::usage("/model needs the name of a model, or its path"));
        }
        let located = model::locate(name, self.console);
        // Fetching may have changed what Ctrl-C does.
        interrupt::install(Manner::Stays)?;
        let located = located?;
        ModelFile::open(&located.path)?.config().map_err(Failure::from)?;
        let constraint = self.form.as_ref().map(|form| form.compile(&located)).transpose()?;
        let before = self.engine.take();
        drop(before);
        let opened =
            open(self.arguments, self.context, &located, self.console).and_then(|engine| {
                check_template(&engine, &located, self.console)?;
                Ok(engine)
            });
        match opened {
            Ok(engine) => {
                self.engine = Some(engine);
                self.located = located;
                self.constraint = constraint;
                self.widen();
                self.last = None;
                self.console.notice(&format!("{} goes on", self.located.label));
                Ok(())
            }
            Err(failure) => {
                self.engine = open(self.arguments, self.context, &self.located, self.console).ok();
                Err(failure)
            }
        }
    }

    /// Loads the model again with another context; the one before stays if that does not fit.
    fn set_context(&mut self, value: &str) -> Result<(), Failure> {
        let wrong = |why| Failure::usage(format!("context cannot be '{value}': {why}"));
        let context = chosen(Some(context(value).map_err(wrong)?));
        let before = self.engine.take();
        drop(before);
        match open(self.arguments, context, &self.located, self.console) {
            Ok(engine) => {
                (self.engine, self.context) = (Some(engine), context);
                self.widen();
                Ok(())
            }
            Err(failure) => {
                self.engine = open(self.arguments, self.context, &self.located, self.console).ok();
                Err(failure)
            }
        }
    }

    fn tell_statistics(&self) {
        console::to_stderr(&match (&self.last, &self.engine) {
            (Some(answer), Some(engine)) => {
                Statistics::measure(engine, answer).line(&self.located.label)
            }
            _ => "there is no answer yet".to_string(),
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_told_from_other_words() {
        assert!(["/set", "/exit", "/bye", "/clear"].into_iter().all(is_command));
        assert!(!["/etc/hosts", "Ctrl-C", "/", ""].into_iter().any(is_command));
    }
}
