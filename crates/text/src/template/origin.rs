//! Where a template comes from: the model's files, or one of those built in.

use std::fmt;
use std::path::{Path, PathBuf};

use pianola_formats::Gguf;
use serde_json::Value;

use super::ChatTemplate;
use crate::error::Error;
use crate::tokenizer::Tokenizer;

/// Where a template was found, for the command line to state.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TemplateOrigin {
    /// The model file's own `tokenizer.chat_template`.
    Gguf,
    /// A file beside the weights.
    File(PathBuf),
    /// Built in, because the architecture is a Gemma.
    Gemma,
    /// Built in, because the vocabulary has `<|im_start|>` and `<|im_end|>`.
    ChatMl,
}

impl fmt::Display for TemplateOrigin {
    fn fmt(&self, out: &mut fmt::Formatter) -> fmt::Result {
        match self {
            TemplateOrigin::Gguf => out.write_str("the model file's own"),
            TemplateOrigin::File(path) => write!(out, "from {}", path.display()),
            TemplateOrigin::Gemma => out.write_str("built in for Gemma, the model file has none"),
            TemplateOrigin::ChatMl => out.write_str(
                "built-in ChatML, the model file has none but its vocabulary has <|im_start|>",
            ),
        }
    }
}

type Found = Option<(ChatTemplate, TemplateOrigin)>;

impl ChatTemplate {
    /// The turns of Gemma 1 to 3, for files that came without a template. A
    /// system message is put before the first user's words.
    pub fn gemma(bos: &str, eos: &str) -> ChatTemplate {
        built_in(include_str!("gemma.jinja"), bos, eos)
    }

    /// `<|im_start|>role … <|im_end|>`, for files that came without a template.
    pub fn chatml(bos: &str, eos: &str) -> ChatTemplate {
        built_in(include_str!("chatml.jinja"), bos, eos)
    }

    /// The template of a GGUF file: its own, else the one built in for its
    /// architecture or its markers, else none.
    pub fn from_gguf(file: &Gguf, tokenizer: &Tokenizer) -> Result<Found, Error> {
        if let Some(source) = file.string("tokenizer.chat_template") {
            let (bos, eos) = ends(tokenizer);
            return Ok(Some((ChatTemplate::of_file(source, &bos, &eos), TemplateOrigin::Gguf)));
        }
        Ok(fallback(file.string("general.architecture"), tokenizer))
    }

    /// The template of a folder of Hugging Face files: `chat_template.jinja`,
    /// else `chat_template.json`, else in `tokenizer_config.json`, which is
    /// their order there; else one built in, else none.
    pub fn from_folder(folder: &Path, tokenizer: &Tokenizer) -> Result<Found, Error> {
        let (bos, eos) = ends(tokenizer);
        let path = folder.join("chat_template.jinja");
        if let Some(source) = read(&path)? {
            let source = String::from_utf8_lossy(&source);
            let template = ChatTemplate::of_file(&source, &bos, &eos);
            return Ok(Some((template, TemplateOrigin::File(path))));
        }
        for name in ["chat_template.json", "tokenizer_config.json"] {
            let path = folder.join(name);
            let source = read_json(&path, name)?["chat_template"].take();
            if let Some(source) = default_template(&source) {
                let template = ChatTemplate::of_file(source, &bos, &eos);
                return Ok(Some((template, TemplateOrigin::File(path))));
            }
        }
        let config = read_json(&folder.join("config.json"), "config.json")?;
        Ok(fallback(config["model_type"].as_str(), tokenizer))
    }
}

fn built_in(source: &str, bos: &str, eos: &str) -> ChatTemplate {
    ChatTemplate::new(source, bos, eos).expect("a template of this crate, compiled in its tests")
}

/// A string, or the one called "default" of a list of named templates.
fn default_template(value: &Value) -> Option<&str> {
    let named = value.as_array().into_iter().flatten();
    let default =
        named.filter(|one| one["name"] == "default").find_map(|one| one["template"].as_str());
    value.as_str().or(default)
}

fn fallback(architecture: Option<&str>, tokenizer: &Tokenizer) -> Found {
    let has = |marker| tokenizer.id_of(marker).is_some();
    let (bos, eos) = ends(tokenizer);
    let gemma = architecture.is_some_and(|name| name.starts_with("gemma"));
    if gemma && has("<start_of_turn>") && has("<end_of_turn>") {
        Some((ChatTemplate::gemma(&bos, &eos), TemplateOrigin::Gemma))
    } else if has("<|im_start|>") && has("<|im_end|>") {
        Some((ChatTemplate::chatml(&bos, &eos), TemplateOrigin::ChatMl))
    } else {
        None
    }
}

fn ends(tokenizer: &Tokenizer) -> (String, String) {
    let text = |id: Option<u32>| id.and_then(|id| tokenizer.token_text(id)).unwrap_or_default();
    (text(tokenizer.bos()), text(tokenizer.eos()))
}

fn read(path: &Path) -> Result<Option<Vec<u8>>, Error> {
    match std::fs::read(path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(Error::Io { path: path.into(), source }),
    }
}

fn read_json(path: &Path, file: &'static str) -> Result<Value, Error> {
    match read(path)? {
        Some(json) => serde_json::from_slice(&json).map_err(|source| Error::Json { file, source }),
        None => Ok(Value::Null),
    }
}
