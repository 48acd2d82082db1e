//! Ollama's API.
//!
//! Where it differs from Ollama's own server, it is because nothing is lost silently here: a context
//! above the served one, an image, a template or the token `context` of an earlier answer is refused by
//! name, and a text is cut only where the request itself says `truncate: true`.

mod answer;
pub(crate) mod chat;
pub(crate) mod embed;
pub(crate) mod generate;
mod keep;
pub(crate) mod models;
mod options;
pub(crate) mod pull;

use crate::error::{ApiError, ErrorKind};
use crate::reply::{self, Reply};
use serde_json::json;

/// The version of Ollama's API that is spoken. Clients refuse servers that are too old for them: Codex
/// wants at least 0.13.4, the first whose `/v1/responses` it can use.
const VERSION: &str = "0.13.4";

pub(crate) fn version() -> Reply {
    reply::ok(&json!({ "version": VERSION }))
}

/// What changes the models on the disk: done with the program's own commands, not over HTTP.
pub(crate) fn unsupported(path: &str) -> ApiError {
    let instead = match path.trim_end_matches('/').rsplit('/').next() {
        Some("delete") => "'pianola rm NAME' removes a fetched model",
        Some("copy") => "'pianola serve --alias NAME' gives a model a further name",
        Some("push") => "models are not published from here; copy the GGUF file",
        _ => "'pianola serve -m FILE.gguf' serves a model of yours",
    };
    ApiError::new(ErrorKind::InvalidRequest, format!("{path} is not supported: {instead}"))
}
