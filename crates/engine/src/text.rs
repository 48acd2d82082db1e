//! The text side of a model: tokeniser and chat template.

use crate::error::EngineError;
use pianola_model::ModelFile;
use pianola_text::{ChatTemplate, TemplateOrigin, Tokenizer};

/// The text side of a model.
pub struct Text {
    /// Tokeniser.
    pub tokenizer: Tokenizer,
    /// Chat template and where it came from, if the model has one.
    pub template: Option<(ChatTemplate, TemplateOrigin)>,
}

impl Text {
    /// The text side of a file; none where it carries no vocabulary.
    pub fn of(file: &ModelFile) -> Result<Option<Text>, EngineError> {
        match file {
            ModelFile::Gguf(gguf) => {
                if gguf.strings("tokenizer.ggml.tokens").is_none() {
                    return Ok(None);
                }
                let tokenizer = Tokenizer::from_gguf(gguf)?;
                let template = ChatTemplate::from_gguf(gguf, &tokenizer)?;
                Ok(Some(Text { tokenizer, template }))
            }
            ModelFile::Folder(folder) => {
                let read = |name: &str| match folder.file(name) {
                    None => Ok(None),
                    Some(path) => std::fs::read(&path).map(Some).map_err(|error| {
                        let (path, reason) = (path.display().to_string(), error.to_string());
                        EngineError::Unreadable { path, reason }
                    }),
                };
                let Some(json) = read("tokenizer.json")? else { return Ok(None) };
                let settings = read("tokenizer_config.json")?;
                let mut tokenizer = Tokenizer::from_tokenizer_json(&json, settings.as_deref())?;
                for id in end_tokens(folder.generation_config()) {
                    tokenizer.add_stop_token(id);
                }
                let template = ChatTemplate::from_folder(folder.path(), &tokenizer)?;
                Ok(Some(Text { tokenizer, template }))
            }
        }
    }
}

/// `eos_token_id` of a generation configuration: one id or several.
fn end_tokens(config: Option<&serde_json::Value>) -> Vec<u32> {
    let Some(value) = config.and_then(|config| config.get("eos_token_id")) else { return vec![] };
    let id = |value: &serde_json::Value| value.as_u64().and_then(|id| u32::try_from(id).ok());
    match value.as_array() {
        Some(list) => list.iter().filter_map(id).collect(),
        None => id(value).into_iter().collect(),
    }
}
