//! `tokenize`: text to tokens.

use clap::Args;
use pianola_text::SpecialTokens;
use serde_json::json;

use crate::console::{self, Console, count};
use crate::failure::Failure;
use crate::input::TextInput;
use crate::model;
use crate::options::ModelOption;

/// Show the tokens of a text.
///
/// Prints one line per token: its id and its text in quotes. Markers such as <|im_start|> are plain
/// text unless --special is given.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  pianola tokenize \"Hello, world\"
  pianola tokenize -m gemma3:270m --bos --json -f README.md
  pianola tokenize --special \"<|im_start|>user\"")]
pub struct Arguments {
    #[command(flatten)]
    model: ModelOption,
    #[command(flatten)]
    text: TextInput,
    /// Read markers such as <|im_start|> as special tokens
    #[arg(long)]
    special: bool,
    /// Begin with the beginning-of-sequence token, if the model has one
    #[arg(long, conflicts_with = "no_bos")]
    bos: bool,
    /// Add no beginning-of-sequence token (the default)
    #[arg(long)]
    no_bos: bool,
    /// Print a JSON object with "tokens" and "pieces"
    #[arg(long)]
    json: bool,
}

pub fn run(arguments: &Arguments, console: Console) -> Result<(), Failure> {
    let text = arguments.text.read("text", console)?;
    let located = model::locate(arguments.model.name(), console)?;
    let tokenizer = model::text(&located)?.tokenizer;
    let special = if arguments.special { SpecialTokens::Parse } else { SpecialTokens::Plain };
    let mut tokens = tokenizer.encode(&text, special)?;
    if arguments.bos
        && let Some(bos) = tokenizer.bos()
        && tokens.first() != Some(&bos)
    {
        tokens.insert(0, bos);
    }
    let piece = |&token: &u32| {
        let bytes = tokenizer.token_bytes(token).unwrap_or_default();
        String::from_utf8_lossy(bytes).into_owned()
    };
    let pieces: Vec<String> = tokens.iter().map(piece).collect();
    if arguments.json {
        let object = json!({ "tokens": tokens, "pieces": pieces });
        return console::print_json_line(&object);
    }
    let lines = tokens.iter().zip(&pieces).map(|(token, piece)| format!("{token:>8}  {piece:?}\n"));
    console::print(&lines.collect::<String>())?;
    let (tokens, bytes) = (count(tokens.len(), "token"), count(text.len(), "byte"));
    console.notice(&format!("{tokens} for {bytes}"));
    Ok(())
}
