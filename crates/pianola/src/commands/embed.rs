//! `embed`: texts as vectors.

use std::ffi::OsStr;
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use pianola_engine::{Engine, Pooling};
use pianola_text::SpecialTokens;
use serde_json::json;

use super::logits::{Output, check_folder};
use crate::console::{self, Console, count};
use crate::failure::Failure;
use crate::input;
use crate::interrupt::{self, Manner, Working};
use crate::model;
use crate::options::{ComputeOptions, ModelOption, chosen, context};

/// Turn texts into vectors of length one.
///
/// Each TEXT becomes a vector: the pooled, normalised output of the last layer for its tokens. Prints
/// a JSON object, or writes a NumPy array of float32 with one row per text.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  pianola embed \"a cat\" \"a dog\"
  pianola embed --lines -o vectors.npy < sentences.txt
  pianola embed -f page.txt --pooling last | jq '.embeddings[0] | length'")]
pub struct Arguments {
    #[command(flatten)]
    model: ModelOption,
    /// Texts, each of which becomes a vector
    #[arg(value_name = "TEXT")]
    texts: Vec<String>,
    /// Text, as an option. May be repeated
    #[arg(short = 'p', long = "prompt", visible_alias = "text", value_name = "TEXT")]
    #[arg(conflicts_with = "texts")]
    prompts: Vec<String>,
    /// File to embed; - is standard input, which is also read if no text is given
    #[arg(short, long, value_name = "FILE", conflicts_with_all = ["texts", "prompts"])]
    file: Option<PathBuf>,
    /// Embed each line of the file or of standard input by itself
    #[arg(long, conflicts_with_all = ["texts", "prompts"])]
    lines: bool,
    /// Pooling of a text's tokens: their mean, or the last one
    #[arg(long, value_name = "HOW", default_value = "mean")]
    pooling: PoolingChoice,
    /// Write a NumPy array to this file instead of JSON
    #[arg(short, long, value_name = "NPY")]
    output: Option<PathBuf>,
    /// Tokens of context [default: as many as the model allows]
    #[arg(short, long, value_name = "N", value_parser = context)]
    context: Option<usize>,
    #[command(flatten)]
    compute: ComputeOptions,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum PoolingChoice {
    Mean,
    Last,
}

pub fn run(arguments: &Arguments, console: Console) -> Result<(), Failure> {
    let texts = texts(arguments, console)?;
    arguments.output.as_deref().map_or(Ok(()), check_folder)?;
    let located = model::locate(arguments.model.name(), console)?;
    let mut options = arguments.compute.load_announced(console)?;
    options.context = chosen(arguments.context);
    let mut engine = model::load(&located, options, console)?;
    interrupt::install(Manner::Soon)?;
    let _working = Working::begin();
    let (vectors, tokens) = embed(&mut engine, &texts, arguments, console)?;
    let columns = vectors[0].len();
    if let Some(path) = &arguments.output {
        let mut output = Output::create(path, vectors.len(), columns)?;
        vectors.iter().try_for_each(|vector| output.push(vector))?;
        output.finish()?;
        let rows = count(vectors.len(), "row");
        console.notice(&format!("{} has {rows} of {columns} values", path.display()));
        return Ok(());
    }
    console::print_json_line(&json!({
        "model": located.label,
        "prompt_tokens": tokens,
        "dimensions": columns,
        "embeddings": vectors,
    }))
}

fn texts(arguments: &Arguments, console: Console) -> Result<Vec<String>, Failure> {
    let given = [&arguments.texts[..], &arguments.prompts].concat();
    let whole = match &arguments.file {
        Some(path) if path != OsStr::new("-") => input::text_file(path)?,
        Some(_) => input::text(&["-".to_string()], "text", console)?,
        None if given.is_empty() => input::text(&[], "text", console)?,
        None => return Ok(given),
    };
    let texts: Vec<String> = match arguments.lines {
        true => whole.lines().map(String::from).collect(),
        false => vec![whole],
    };
    match texts.iter().position(|text| text.is_empty()) {
        Some(index) if arguments.lines => {
            Err(Failure::usage(format!("line {} is empty; give it a text", index + 1)))
        }
        Some(_) => Err(Failure::usage("the text is empty; give at least one character")),
        None if texts.is_empty() => Err(Failure::usage("there is no text; give at least one")),
        None => Ok(texts),
    }
}

/// The vectors of some texts, and how many tokens they have.
fn embed(
    engine: &mut Engine,
    texts: &[String],
    arguments: &Arguments,
    console: Console,
) -> Result<(Vec<Vec<f32>>, usize), Failure> {
    let pooling = match arguments.pooling {
        PoolingChoice::Mean => Pooling::Mean,
        PoolingChoice::Last => Pooling::Last,
    };
    let mut bar = console.bar("embedding [{bar:24}] {pos} of {len} texts, {eta} left");
    let mut vectors = Vec::with_capacity(texts.len());
    let mut all = 0;
    for text in texts {
        let tokens = engine.text()?.tokenizer.encode_prompt(text, SpecialTokens::Plain)?;
        all += tokens.len();
        vectors.push(engine.embed(&tokens, pooling)?);
        bar.reach(vectors.len() as u64, texts.len() as u64);
    }
    Ok((vectors, all))
}
