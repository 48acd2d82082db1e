//! `/v1/models`.

use crate::error::ApiError;
use crate::hub::ModelState;
use crate::reply::{self, Reply};
use crate::state::State;
use serde_json::{Value, json};

/// All models.
pub(crate) fn list(state: &State) -> Reply {
    let data: Vec<Value> = state.hub.states().iter().map(describe).collect();
    reply::ok(&json!({ "object": "list", "data": data }))
}

/// One of them.
pub(crate) fn one(state: &State, name: &str) -> Result<Reply, ApiError> {
    let name = percent_decoded(name);
    let card = state.hub.find(Some(&name))?;
    let states = state.hub.states();
    let found = states.iter().find(|state| state.card.id == card.id);
    Ok(reply::ok(&found.map_or(Value::Null, describe)))
}

fn describe(model: &ModelState) -> Value {
    let info = model.loaded.as_ref().map(|loaded| loaded.info());
    json!({
        "id": model.card.id, "object": "model", "created": model.card.modified, "owned_by": "pianola",
        "aliases": model.card.aliases, "state": model.state, "bytes": model.card.bytes,
        "max_model_len": info.map(|info| info.context),
    })
}

/// A part of a path as it was meant: `%3A` is a colon.
pub(crate) fn percent_decoded(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut decoded = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let hex = bytes.get(at + 1..at + 3).and_then(|hex| std::str::from_utf8(hex).ok());
        match hex.filter(|_| bytes[at] == b'%').and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
            Some(byte) => {
                decoded.push(byte);
                at += 3;
            }
            None => {
                decoded.push(bytes[at]);
                at += 1;
            }
        }
    }
    String::from_utf8_lossy(&decoded).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_in_paths_are_decoded() {
        assert_eq!(percent_decoded("smollm2%3A135m"), "smollm2:135m");
        assert_eq!(percent_decoded("a%2fb%"), "a/b%");
        assert_eq!(percent_decoded("%zz%4"), "%zz%4");
    }
}
