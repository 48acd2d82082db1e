//! What a `run` is about: a model and words to answer, or a model alone, which opens a chat as with Ollama.

use std::ffi::OsStr;
use std::io::IsTerminal;

use pianola_hub::{LocalModels, Settings, catalogue};

use super::Arguments;
use crate::commands::chat;
use crate::console::Console;
use crate::failure::Failure;
use crate::input::{FirstWord, first_word};
use crate::options::{ModelOption, NamedModel};

/// What was asked for.
pub enum Subject<'a> {
    /// To talk with a model.
    Chat(&'a OsStr),
    /// That a model answers these words, or what a file or a pipe holds.
    Answer(&'a OsStr, &'a [String]),
}

/// The model and the words of the prompt: a first word that names a model is one, unless -m was given.
pub fn subject(arguments: &Arguments, console: Console) -> Result<Subject<'_>, Failure> {
    let words = match &arguments.words {
        Some(words) => std::slice::from_ref(words),
        None => &arguments.prompt[..],
    };
    let given = arguments.model.model.as_deref();
    let first = match given {
        None => arguments.prompt.first().map(|word| is_model(word)).transpose()?.flatten(),
        Some(_) => None,
    };
    let rest = if first.is_some() { &words[1..] } else { words };
    let named = given.or(first.map(OsStr::new));
    let name = named.unwrap_or(arguments.model.name());
    let empty = rest.is_empty() && arguments.file.is_none() && !arguments.tokens.is_given();
    let terminal = std::io::stdin().is_terminal() && std::io::stdout().is_terminal();
    if empty && (arguments.interactive || (named.is_some() && terminal)) {
        return Ok(Subject::Chat(name));
    }
    if arguments.interactive {
        let message = "`run` answers once; to talk, use `pianola chat -m MODEL`";
        return Err(Failure::usage(message));
    }
    if let Some(first) = first {
        console.notice(&format!(
            "model: {first} (the first word; quote the whole prompt if the word is part of it)"
        ));
    }
    Ok(Subject::Answer(name, rest))
}

/// The first word, if it names a model that is known here or that another program has.
fn is_model(word: &str) -> Result<Option<&str>, Failure> {
    match first_word(word) {
        FirstWord::Model => Ok(Some(word)),
        FirstWord::Prompt => Ok(None),
        FirstWord::LikeModel => {
            let found = LocalModels::find(Settings::from_environment().ok().as_ref());
            // Several of a name are an error of whoever loads it, which says which there are.
            if !matches!(found.resolve(word), Ok(None)) {
                return Ok(Some(word));
            }
            let near = match &catalogue::nearest(word)[..] {
                [] => String::new(),
                near => format!(" (did you mean {}?)", near.join(" or ")),
            };
            Err(Failure::usage(format!(
                "'{word}' looks like a model's name, and there is no such model{near}; name a model \
                 with -m, or put the whole prompt in quotes (`pianola list` shows what there is)"
            )))
        }
    }
}

/// A chat with a model, as `run` was asked to compute.
pub fn chat_with(name: &OsStr, arguments: &Arguments) -> Result<chat::Arguments, Failure> {
    let only_here = [
        ("--raw", arguments.raw),
        ("--ignore-eos", arguments.ignore_eos),
        ("--json", arguments.json.is_some()),
        ("--profile", arguments.profile.is_some()),
    ];
    if let Some((option, _)) = only_here.iter().find(|(_, given)| *given) {
        return Err(Failure::usage(format!(
            "there is no prompt, and {option} is for one answer; write a prompt behind the model, or leave \
             {option} out to talk with the model"
        )));
    }
    let model = ModelOption { model: Some(name.to_os_string()) };
    Ok(chat::Arguments {
        model: NamedModel { named: None, model },
        max_tokens: arguments.max_tokens,
        stop: arguments.stop.clone(),
        system: arguments.system.clone(),
        context: arguments.context,
        form: arguments.form.clone(),
        sampling: arguments.sampling.clone(),
        speculation: arguments.speculation.clone(),
        compute: arguments.compute.clone(),
    })
}
