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
    let card = state.hub.find(Some(name))?;
    let states = state.hub.states();
    let found = states.iter().find(|state| state.card.id == card.id);
    Ok(reply::ok(&found.map_or(Value::Null, describe)))
}

fn describe(model: &ModelState) -> Value {
    let info = model.loaded.as_ref().map(|loaded| &loaded.info);
    json!({
        "id": model.card.id, "object": "model", "created": model.card.modified, "owned_by": "pianola",
        "aliases": model.card.aliases, "state": model.state, "bytes": model.card.bytes,
        "max_model_len": info.map(|info| info.context),
    })
}
