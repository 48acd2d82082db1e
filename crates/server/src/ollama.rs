//! Ollama's API.

use crate::reply::{self, Reply};
use crate::state::State;
use serde_json::{Value, json};

/// Models that are here.
pub(crate) fn tags(state: &State) -> Reply {
    let models: Vec<Value> = state
        .hub
        .states()
        .iter()
        .map(|model| json!({ "name": model.card.id, "model": model.card.id, "size": model.card.bytes }))
        .collect();
    reply::ok(&json!({ "models": models }))
}

/// The version of Ollama's API that is spoken.
pub(crate) fn version(_state: &State) -> Reply {
    reply::ok(&json!({ "version": "0.13.4" }))
}
