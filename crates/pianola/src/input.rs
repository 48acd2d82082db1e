//! What users hand over: texts from arguments, files and standard input, and token ids.

use std::ffi::{OsStr, OsString};
use std::io::{self, IsTerminal, Read};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use pianola_hub::{Store, catalogue};

use crate::console::Console;
use crate::failure::Failure;

/// Where a prompt comes from: a file, standard input and words, as far as they are there.
#[derive(Debug, Default)]
pub struct PromptSources<'a> {
    /// Words of the command line; `-` alone stands for standard input.
    pub words: &'a [String],
    /// A file to read.
    pub file: Option<&'a Path>,
}

impl PromptSources<'_> {
    /// The prompt: what the file and the pipe hold, a blank line, then the words. The newline that
    /// ends a file or a pipe is not part of it.
    pub fn read(&self, console: Console) -> Result<String, Failure> {
        let stdin_alone = self.words == ["-"];
        let words = if stdin_alone { String::new() } else { self.words.join(" ") };
        let file = match self.file {
            Some(path) if path != OsStr::new("-") => text_file(path)?,
            _ => String::new(),
        };
        let named = stdin_alone || self.file.is_some_and(|path| path == OsStr::new("-"));
        let piped = match named || !io::stdin().is_terminal() {
            true => stdin_text("prompt", console)?,
            false => String::new(),
        };
        if self.words.is_empty() && self.file.is_none() && io::stdin().is_terminal() {
            return Err(nothing("prompt"));
        }
        let parts = [without_newline(file), without_newline(piped), words];
        let parts: Vec<String> = parts.into_iter().filter(|part| !part.is_empty()).collect();
        Ok(parts.join("\n\n"))
    }
}

fn nothing(what: &str) -> Failure {
    Failure::usage(format!("no {what} was given; write it after the command, or pipe it in"))
}

/// A text: words of the command line, an option, a file or standard input.
#[derive(clap::Args, Debug)]
pub struct TextInput {
    /// Text; several words are joined by spaces. Without it standard input is read
    #[arg(value_name = "TEXT")]
    words: Vec<String>,
    /// Text, as an option
    #[arg(short = 'p', long = "prompt", visible_alias = "text", value_name = "TEXT")]
    #[arg(conflicts_with = "words")]
    prompt: Option<String>,
    /// File with the text; - is standard input
    #[arg(short, long, value_name = "FILE", conflicts_with_all = ["words", "prompt"])]
    file: Option<PathBuf>,
}

impl TextInput {
    /// The text. The newline that ends a file or standard input is not part of it.
    pub fn read(&self, what: &str, console: Console) -> Result<String, Failure> {
        match (&self.file, &self.prompt) {
            (Some(path), _) if path != OsStr::new("-") => text_file(path).map(without_newline),
            (Some(_), _) => stdin_text(what, console).map(without_newline),
            (None, Some(prompt)) => text(std::slice::from_ref(prompt), what, console),
            (None, None) => text(&self.words, what, console),
        }
    }

    /// Whether there is a text besides standard input.
    pub fn is_given(&self) -> bool {
        self.file.is_some() || self.prompt.is_some() || !self.words.is_empty()
    }
}

/// A long text, which is used byte for byte.
#[derive(clap::Args, Debug)]
pub struct LongTextInput {
    /// File with the text; - is standard input, which is also read if no text is given
    #[arg(short, long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Text, or the name of a file with it
    #[arg(short = 'p', long, visible_alias = "prompt", value_name = "TEXT")]
    #[arg(conflicts_with = "file")]
    text: Option<OsString>,
}

impl LongTextInput {
    /// The text. `named` are words of the command line: a file, or the text itself.
    pub fn read(&self, named: &[OsString], console: Console) -> Result<String, Failure> {
        let words = self.text.as_ref().map_or(named, std::slice::from_ref);
        match (&self.file, words) {
            (Some(path), _) if path != OsStr::new("-") => text_file(path),
            (None, [word]) if word != "-" && is_file_name(word) => text_file(Path::new(word)),
            (None, [word, ..]) if word != "-" => {
                utf8(words.join(OsStr::new(" ")).into_encoded_bytes(), "the text")
            }
            _ if words.is_empty() && self.file.is_none() && io::stdin().is_terminal() => {
                Err(nothing("text"))
            }
            _ => stdin_text("text", console),
        }
    }
}

/// Whether a word stands for a file: a text has blanks.
fn is_file_name(word: &OsStr) -> bool {
    Path::new(word).is_file() || !word.to_string_lossy().contains(char::is_whitespace)
}

/// Text from the words of the command line, or from standard input where there are none or only
/// `-`. The newline that ends piped text is not part of it.
pub fn text(words: &[String], what: &str, console: Console) -> Result<String, Failure> {
    if !words.is_empty() && words != ["-"] {
        return Ok(words.join(" "));
    }
    if words.is_empty() && io::stdin().is_terminal() {
        return Err(nothing(what));
    }
    stdin_text(what, console).map(without_newline)
}

/// All of standard input. Where nothing comes for a second, says what is waited for.
fn stdin_text(what: &str, console: Console) -> Result<String, Failure> {
    const PATIENCE: Duration = Duration::from_secs(1);
    let (sender, blocks) = mpsc::channel::<io::Result<Vec<u8>>>();
    // It ends with standard input, or with the process.
    std::thread::spawn(move || {
        let mut block = [0; 1 << 16];
        loop {
            let read = io::stdin().read(&mut block).map(|count| block[..count].to_vec());
            let last = !matches!(&read, Ok(bytes) if !bytes.is_empty());
            if sender.send(read).is_err() || last {
                return;
            }
        }
    });
    let refused =
        |error| Failure::failed(format!("cannot read {what} from standard input: {error}"));
    let mut bytes = Vec::new();
    let mut told = io::stdin().is_terminal();
    loop {
        let block = match blocks.recv_timeout(PATIENCE) {
            Err(RecvTimeoutError::Timeout) => {
                if !told && bytes.is_empty() {
                    console.notice("waiting for standard input (`</dev/null` skips it)");
                }
                told = true;
                continue;
            }
            Err(RecvTimeoutError::Disconnected) => break,
            Ok(block) => block.map_err(refused)?,
        };
        if block.is_empty() {
            break;
        }
        bytes.extend(block);
    }
    utf8(bytes, "standard input")
}

fn without_newline(mut text: String) -> String {
    if text.ends_with('\n') {
        text.pop();
        if text.ends_with('\r') {
            text.pop();
        }
    }
    text
}

/// What the first word of a command may be, besides a part of the prompt.
#[derive(Debug, PartialEq, Eq)]
pub enum FirstWord {
    /// A model that is known.
    Model,
    /// It has the form of a model's name, and none is known by it.
    LikeModel,
    /// Neither.
    Prompt,
}

/// Whether a word that stands before others names a model, as people write it who know Ollama.
pub fn first_word(word: &str) -> FirstWord {
    let file = word.ends_with(".gguf") && Path::new(word).is_file();
    let plain = |text: &str| {
        !text.is_empty()
            && text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_' | '/'))
    };
    // Of the form owner/name or owner/name:tag: a prompt that speaks of files has blanks.
    let on_hub = word.contains('/')
        && word.split(':').all(plain)
        && word.to_ascii_lowercase().contains("gguf");
    let stored = || {
        let path = Store::open().ok().map(|store| store.models().join(format!("{word}.gguf")));
        !word.contains('/') && path.is_some_and(|path| path.is_file())
    };
    // A word without a slash is rather one of a prompt than a folder.
    let folder = || word.contains('/') && pianola_hub::holds_models(Path::new(word));
    if catalogue::find(word).is_some() || file || on_hub || stored() || folder() {
        return FirstWord::Model;
    }
    let tagged = word.split_once(':').is_some_and(|(name, tag)| {
        let letter = name.starts_with(|c: char| c.is_ascii_alphabetic());
        letter && plain(name) && plain(tag) && !tag.contains('/')
    });
    if tagged || word.ends_with(".gguf") { FirstWord::LikeModel } else { FirstWord::Prompt }
}

/// The text of a file.
pub fn text_file(path: &Path) -> Result<String, Failure> {
    let bytes = std::fs::read(path).map_err(|error| {
        Failure::failed(format!("cannot read {}: {error}; check the path", path.display()))
    })?;
    utf8(bytes, &path.display().to_string())
}

fn utf8(bytes: Vec<u8>, whence: &str) -> Result<String, Failure> {
    String::from_utf8(bytes).map_err(|error| {
        let offset = error.utf8_error().valid_up_to();
        Failure::failed(format!(
            "{whence} is not UTF-8: byte {offset} (counted from 0) is invalid; \
             convert it to UTF-8 first"
        ))
    })
}

/// Token ids, instead of text.
#[derive(clap::Args, Debug)]
pub struct TokenInput {
    /// Token ids instead of text, separated by commas: 2,105,9
    #[arg(
        long,
        hide_short_help = true,
        value_name = "IDS",
        value_delimiter = ',',
        conflicts_with = "tokens_file"
    )]
    pub tokens: Option<Vec<u32>>,
    /// Token ids from a NumPy file: one dimension of u16, i32, u32, i64 or u64
    #[arg(long, hide_short_help = true, value_name = "NPY")]
    pub tokens_file: Option<PathBuf>,
}

impl TokenInput {
    /// Whether there are any.
    pub fn is_given(&self) -> bool {
        self.tokens.is_some() || self.tokens_file.is_some()
    }

    /// The ids, if any were given.
    pub fn read(&self) -> Result<Option<Vec<u32>>, Failure> {
        let tokens = match (&self.tokens, &self.tokens_file) {
            (Some(tokens), _) => tokens.clone(),
            (None, Some(path)) => pianola_formats::npy::read_tokens(path)?,
            (None, None) => return Ok(None),
        };
        if tokens.is_empty() {
            return Err(Failure::usage("there are no tokens; give at least one id"));
        }
        Ok(Some(tokens))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_text_is_located() {
        let failure = utf8(b"ab\xffc".to_vec(), "standard input").unwrap_err();
        assert!(failure.message().unwrap().contains("byte 2 "));
    }

    #[test]
    fn words_become_one_text() {
        let words = ["why", "is", "it"].map(String::from);
        assert_eq!(text(&words, "prompt", Console::default()).unwrap(), "why is it");
    }

    #[test]
    fn a_word_is_a_file_and_a_sentence_a_text() {
        let input = LongTextInput { file: None, text: None };
        let read = |words: &[&str]| {
            let words: Vec<OsString> = words.iter().map(OsString::from).collect();
            input.read(&words, Console::default())
        };
        assert_eq!(read(&["It was", "dark."]).unwrap(), "It was dark.");
        assert_eq!(read(&["It was dark."]).unwrap(), "It was dark.");
        assert!(read(&["absent.txt"]).unwrap_err().message().unwrap().contains("absent.txt"));
    }

    #[test]
    fn names_of_models_are_told_from_words() {
        let hub = ["hf.co/owner/name-GGUF", "owner/name-gguf:q4_k_m", "hf:owner/name-GGUF"];
        for model in ["qwen2.5-coder:1.5b", "gemma3", "SmolLM2"].into_iter().chain(hub) {
            assert_eq!(first_word(model), FirstWord::Model, "{model}");
        }
        for alike in ["llama3:8b", "mistral:latest", "absent.gguf"] {
            assert_eq!(first_word(alike), FirstWord::LikeModel, "{alike}");
        }
        let quoted = ["What do GGUF and/or safetensors hold?", "Why use GGUF/GGML?"];
        let words = ["why", "Note:", "10:30", "and/or", "a:b?", "https://x.org/"];
        for word in words.into_iter().chain(quoted) {
            assert_eq!(first_word(word), FirstWord::Prompt, "{word}");
        }
    }

    #[test]
    fn one_newline_at_the_end_is_no_part_of_a_text() {
        assert_eq!(without_newline("a\r\n".into()), "a");
        assert_eq!(without_newline("a\n\n".into()), "a\n");
    }
}
