//! What users hand over: texts from arguments, files and standard input, and token ids.

use std::io::{self, IsTerminal, Read};
use std::path::{Path, PathBuf};

use crate::failure::Failure;

/// Text from the words of the command line, or from standard input where there are none or only
/// `-`. The newline that ends piped text is not part of it.
pub fn text(words: &[String], what: &str) -> Result<String, Failure> {
    if !words.is_empty() && words != ["-"] {
        return Ok(words.join(" "));
    }
    if words.is_empty() && io::stdin().is_terminal() {
        return Err(Failure::usage(format!(
            "no {what} was given; write it behind the command, or pipe it in"
        )));
    }
    let mut bytes = Vec::new();
    io::stdin().read_to_end(&mut bytes).map_err(|error| {
        Failure::failed(format!("cannot read {what} from standard input: {error}"))
    })?;
    let mut text = utf8(bytes, "standard input")?;
    if text.ends_with('\n') {
        text.pop();
        if text.ends_with('\r') {
            text.pop();
        }
    }
    Ok(text)
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
            "{whence} is not UTF-8: byte {offset} (counted from 0) begins no character; \
             convert it to UTF-8 first"
        ))
    })
}

/// Token ids, instead of text.
#[derive(clap::Args, Debug)]
pub struct TokenInput {
    /// Token ids, separated by commas: 2,105,9
    #[arg(long, value_name = "IDS", value_delimiter = ',', conflicts_with = "tokens_file")]
    pub tokens: Option<Vec<u32>>,
    /// Token ids from a NumPy file: one dimension of u16, i32, u32, i64 or u64
    #[arg(long, value_name = "NPY")]
    pub tokens_file: Option<PathBuf>,
}

impl TokenInput {
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
        assert_eq!(text(&words, "prompt").unwrap(), "why is it");
    }
}
