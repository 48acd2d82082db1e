//! `detokenize`: tokens to text.

use std::ffi::OsStr;
use std::io::{IsTerminal, stdout};
use std::path::PathBuf;

use clap::Args;
use pianola_engine::EngineError;

use crate::console::{self, Console};
use crate::failure::Failure;
use crate::input::{self, TokenInput};
use crate::model;
use crate::options::ModelOption;

/// Show the text of some tokens.
///
/// The inverse of `tokenize`. Ids are separated by commas or spaces. Without ids, or with -, they are
/// read from standard input. Bytes that are not UTF-8 are replaced.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  pianola detokenize 19556 28 905
  pianola tokenize --json \"Hello, world\" | jq -c .tokens | pianola detokenize
  pianola detokenize -m gemma3:270m --special 2,105,9259")]
pub struct Arguments {
    #[command(flatten)]
    model: ModelOption,
    /// Token ids
    #[arg(value_name = "IDS", conflicts_with_all = ["tokens", "tokens_file"])]
    ids: Vec<String>,
    /// File with token ids; - is standard input
    #[arg(short, long, value_name = "FILE", conflicts_with_all = ["ids", "tokens", "tokens_file"])]
    file: Option<PathBuf>,
    #[command(flatten)]
    tokens: TokenInput,
    /// Show special tokens
    #[arg(long)]
    special: bool,
}

pub fn run(arguments: &Arguments, console: Console) -> Result<(), Failure> {
    let tokens = match (arguments.tokens.read()?, &arguments.file) {
        (Some(tokens), _) => tokens,
        (None, Some(path)) if path != OsStr::new("-") => parse(&input::text_file(path)?)?,
        (None, _) => parse(&input::text(&arguments.ids, "token ids", console)?)?,
    };
    let located = model::locate(arguments.model.name(), console)?;
    let tokenizer = model::text(&located)?.tokenizer;
    if let Some(&token) = tokens.iter().find(|&&token| tokenizer.token_bytes(token).is_none()) {
        let (field, vocabulary) = ("tokens", tokenizer.len());
        return Err(EngineError::UnknownToken { field, token, vocabulary }.into());
    }
    let text = tokenizer.decode(&tokens, arguments.special);
    console::print_answer(&text)?;
    match stdout().is_terminal() && !text.ends_with('\n') {
        true => console::print("\n"),
        false => Ok(()),
    }
}

/// Ids with commas or spaces between; a JSON array is as good.
fn parse(text: &str) -> Result<Vec<u32>, Failure> {
    let between = |c: char| c == ',' || c.is_whitespace() || matches!(c, '[' | ']');
    let words = text.split(between).filter(|word| !word.is_empty());
    let ids: Result<Vec<u32>, Failure> = words
        .map(|word| word.parse().map_err(|_| Failure::usage(format!("'{word}' is not a token id"))))
        .collect();
    match ids? {
        ids if ids.is_empty() => Err(Failure::usage("there are no tokens; give at least one id")),
        ids => Ok(ids),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_read_however_they_are_written() {
        for text in ["1,2,30", "1 2\n30", "[1, 2, 30]"] {
            assert_eq!(parse(text).unwrap(), [1, 2, 30], "{text}");
        }
        for wrong in ["", " , ", "1,x", "-1", "1.5"] {
            assert_eq!(parse(wrong).unwrap_err().exit_code(), 2, "{wrong}");
        }
    }
}
