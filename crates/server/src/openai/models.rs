//! `/v1/models`. An answer has the fields of OpenAI's and of Anthropic's, whose clients ask at the same path.

use crate::error::ApiError;
use crate::hub::ModelState;
use crate::log::rfc3339;
use crate::reply::{self, Reply};
use crate::state::State;
use serde_json::{Value, json};

/// All models.
pub(crate) fn list(state: &State) -> Reply {
    let data: Vec<Value> = state.hub.states().iter().map(describe).collect();
    let id = |model: Option<&Value>| model.map_or(Value::Null, |model| model["id"].clone());
    let (first, last) = (id(data.first()), id(data.last()));
    reply::ok(&json!({
        "object": "list", "data": data, "first_id": first, "last_id": last, "has_more": false,
    }))
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
        "type": "model", "display_name": model.card.id, "created_at": rfc3339(model.card.modified, 0),
        "aliases": model.card.aliases, "state": model.state, "bytes": model.card.bytes,
        "max_model_len": info.map(|info| info.context),
    })
}
