//! `logits`: what the model predicts at every position, for tests and tools.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use clap::Args;
use pianola_engine::{EngineError, LogitRows};
use pianola_formats::npy::F32Writer;
use pianola_text::SpecialTokens;
use serde_json::json;

use crate::console::{self, Console, count};
use crate::failure::Failure;
use crate::input::{TextInput, TokenInput};
use crate::model;
use crate::options::{ComputeOptions, ModelOption, chosen, context};

/// Most rows of one play.
const MOST_ROWS: usize = 512;

/// Write the logits of every position of a sequence of tokens.
///
/// The file is a NumPy array of float32 with one row per token; row i predicts token i + 1. Folders
/// of unquantised weights are computed in exact mode by default, quantised files in fast mode. Markers
/// such as <|im_start|> are read as special tokens.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  pianola logits -m model-folder --tokens-file tokens.npy -o logits.npy
  pianola logits \"The sky is\" -o logits.npy
  pianola logits -m gemma3:270m --tokens 2,9259 -o logits.npy --exact --greedy 8")]
pub struct Arguments {
    #[command(flatten)]
    model: ModelOption,
    #[command(flatten)]
    tokens: TokenInput,
    #[command(flatten)]
    text: TextInput,
    /// File to write
    #[arg(short, long, value_name = "NPY")]
    output: PathBuf,
    /// Tokens per step; other values change the logits by rounding only
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = chunk)]
    #[arg(hide_short_help = true)]
    chunk: usize,
    /// Also print the next N tokens of greedy generation, as JSON
    #[arg(long, value_name = "N", default_value_t = 0)]
    greedy: usize,
    /// Tokens of context [default: as many as the model allows]
    #[arg(short, long, alias = "ctx-size", value_name = "N", value_parser = context)]
    context: Option<usize>,
    #[command(flatten)]
    compute: ComputeOptions,
}

fn chunk(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(rows) if (1..=MOST_ROWS).contains(&rows) => Ok(rows),
        _ => Err(format!("it must be a whole number between 1 and {MOST_ROWS}")),
    }
}

pub fn run(arguments: &Arguments, console: Console) -> Result<(), Failure> {
    let given = arguments.tokens.read()?;
    let text = match &given {
        Some(_) if arguments.text.is_given() => {
            return Err(Failure::usage("give a text or tokens, not both"));
        }
        Some(_) => None,
        None => Some(arguments.text.read("text", console)?),
    };
    check_folder(&arguments.output)?;
    let located = model::locate(arguments.model.name(), console)?;
    let mut options = arguments.compute.load_announced(console)?;
    options.max_logit_rows = arguments.chunk;
    options.context = chosen(arguments.context);
    let mut engine = model::load(&located, options, console)?;
    let tokens = match text {
        Some(text) => engine.text()?.tokenizer.encode_prompt(&text, SpecialTokens::Parse)?,
        None => given.unwrap_or_default(),
    };
    if tokens.is_empty() {
        return Err(EngineError::EmptyPrompt.into());
    }
    let needed = tokens.len() + arguments.greedy.saturating_sub(1);
    if needed > engine.context() {
        let (context, model) = (engine.context(), engine.config().context);
        return Err(EngineError::ContextLength { needed, context, model }.into());
    }
    let columns = engine.config().vocabulary;
    // Before the output is opened: a wrong id must not cost the file that was there.
    if let Some(&token) = tokens.iter().find(|&&token| token as usize >= columns) {
        let field = "tokens";
        return Err(EngineError::UnknownToken { field, token, vocabulary: columns }.into());
    }
    let mut output = Output::create(&arguments.output, tokens.len(), columns)?;
    let mut bar = console.bar("computing [{bar:24}] {pos} of {len} positions, {eta} left");
    let mut failure = None;
    let mut next = 0;
    // A chunk a call, so that a full disk ends the work soon.
    for (index, part) in tokens.chunks(arguments.chunk).enumerate() {
        engine.feed(part, arguments.chunk, LogitRows::From(0), &mut |row, logits| {
            next = likeliest(logits);
            if failure.is_none() {
                failure = output.push(logits).err();
            }
            bar.reach((index * arguments.chunk + row + 1) as u64, tokens.len() as u64);
        })?;
        if let Some(failure) = failure.take() {
            return Err(failure);
        }
    }
    drop(bar);
    output.finish()?;
    let path = arguments.output.display();
    let rows = count(tokens.len(), "row");
    console.notice(&format!("{path} has {rows} of {columns} logits"));
    if arguments.greedy > 0 {
        let mut greedy = vec![next];
        while greedy.len() < arguments.greedy {
            engine.feed(&[next], 1, LogitRows::Last, &mut |_, logits| next = likeliest(logits))?;
            greedy.push(next);
        }
        console::print_json_line(&json!({ "greedy": greedy }))?;
    }
    Ok(())
}

/// Fails where a file could not be written, before minutes of work that could not be kept.
pub(super) fn check_folder(output: &Path) -> Result<(), Failure> {
    let folder = output.parent().filter(|folder| !folder.as_os_str().is_empty());
    match folder.filter(|folder| !folder.is_dir()) {
        Some(folder) => Err(Failure::failed(format!(
            "there is no folder {}; create it, or give another file with -o",
            folder.display()
        ))),
        None => Ok(()),
    }
}

/// The token of the largest logit, the first of equals.
fn likeliest(logits: &[f32]) -> u32 {
    let best = |best: usize, index: usize| if logits[index] > logits[best] { index } else { best };
    (0..logits.len()).fold(0, best) as u32
}

/// Where the rows go.
pub(super) enum Output {
    /// A file that appears when it is whole.
    File(F32Writer),
    /// A device or a pipe, which cannot be replaced, only written to.
    Stream { file: BufWriter<File>, path: PathBuf },
}

impl Output {
    pub fn create(path: &Path, rows: usize, columns: usize) -> Result<Output, Failure> {
        if !path.exists() || path.is_file() {
            return Ok(Output::File(F32Writer::create(path, columns)?));
        }
        if path.is_dir() {
            return Err(Failure::failed(format!(
                "{} is a folder; give the name of a file in it with -o",
                path.display()
            )));
        }
        let refused = |error| unwritable(path, &error);
        let mut file = BufWriter::new(File::options().write(true).open(path).map_err(refused)?);
        file.write_all(&header(rows, columns)).map_err(refused)?;
        Ok(Output::Stream { file, path: path.to_path_buf() })
    }

    pub fn push(&mut self, row: &[f32]) -> Result<(), Failure> {
        match self {
            Output::File(writer) => Ok(writer.push_rows(row)?),
            Output::Stream { file, path } => row
                .iter()
                .try_for_each(|value| file.write_all(&value.to_le_bytes()))
                .map_err(|error| unwritable(path, &error)),
        }
    }

    pub fn finish(self) -> Result<(), Failure> {
        match self {
            Output::File(writer) => Ok(writer.finish()?),
            Output::Stream { mut file, path } => {
                file.flush().map_err(|error| unwritable(&path, &error))
            }
        }
    }
}

fn unwritable(path: &Path, error: &std::io::Error) -> Failure {
    match error.kind() {
        std::io::ErrorKind::BrokenPipe => Failure::ReaderGone,
        _ => Failure::failed(format!(
            "cannot write {}: {error}; make room there, or give another file with -o",
            path.display()
        )),
    }
}

/// The head of a version 1 `.npy` file: magic, length, description, padded to 64 bytes.
fn header(rows: usize, columns: usize) -> Vec<u8> {
    let mut text =
        format!("{{'descr': '<f4', 'fortran_order': False, 'shape': ({rows}, {columns}), }}");
    let length = (10 + text.len() + 1).next_multiple_of(64) - 10;
    text.push_str(&" ".repeat(length - 1 - text.len()));
    text.push('\n');
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    bytes.extend((length as u16).to_le_bytes());
    bytes.extend(text.as_bytes());
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_streamed_array_reads_like_a_file() {
        let path = std::env::temp_dir().join(format!("pianola-npy-{}.npy", std::process::id()));
        let mut bytes = header(2, 3);
        assert_eq!(bytes.len() % 64, 0);
        bytes.extend([1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0].iter().flat_map(|v| v.to_le_bytes()));
        std::fs::write(&path, bytes).unwrap();
        let read = pianola_formats::npy::read_f32(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert_eq!(read, (vec![2, 3], vec![1.0, 2.0, 3.0, 4.0, 5.0, 6.0]));
    }

    #[test]
    fn ties_go_to_the_first() {
        assert_eq!(likeliest(&[0.0, 2.0, 2.0, 1.0]), 1);
    }
}
