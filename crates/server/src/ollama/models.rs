//! `/api/tags`, `/api/ps` and `/api/show`.

use super::keep::FOREVER;
use crate::error::ApiError;
use crate::fields::Fields;
use crate::hub::ModelState;
use crate::log::rfc3339;
use crate::reply::{self, Reply};
use crate::source::{ModelCard, ModelFacts};
use crate::state::{State, now};
use serde_json::{Map, Value, json};

/// Models that are here.
pub(crate) fn tags(state: &State) -> Reply {
    let models: Vec<Value> = state.hub.states().iter().map(|model| listed(&model.card)).collect();
    reply::ok(&json!({ "models": models }))
}

/// Models that are loaded.
pub(crate) fn ps(state: &State) -> Reply {
    let states = state.hub.states();
    let models: Vec<Value> = states.iter().filter_map(running).collect();
    reply::ok(&json!({ "models": models }))
}

/// All about a model, without loading it.
pub(crate) fn show(state: &State, body: &Value) -> Result<Reply, ApiError> {
    let fields = Fields::of(body, "")?;
    let card = state.hub.find(Some(fields.model_or_name()?))?;
    let facts = card.facts.as_deref().cloned().unwrap_or_default();
    let template = facts.chat_template.as_deref().unwrap_or_default();
    let states = state.hub.states();
    let loaded =
        states.iter().find(|state| state.card.id == card.id).and_then(|s| s.loaded.as_ref());
    let context = loaded.map_or(facts.context, |loaded| loaded.info.context);
    Ok(reply::ok(&json!({
        "modelfile": format!("FROM {}\n", card.id),
        // What the server runs it with; the model itself may have been made for more.
        "parameters": format!("num_ctx {context}"),
        "template": template,
        "details": details(&card),
        "model_info": model_info(&card.id, &facts),
        "capabilities": capabilities(template),
        "modified_at": rfc3339(card.modified, 0),
    })))
}

fn listed(card: &ModelCard) -> Value {
    json!({
        "name": card.id, "model": card.id, "modified_at": rfc3339(card.modified, 0),
        "size": card.bytes.unwrap_or(0), "digest": digest(card), "details": details(card),
    })
}

/// The sum of the file. Where it is not known, one of what tells the file from others: clients only
/// compare it.
fn digest(card: &ModelCard) -> String {
    use sha2::{Digest, Sha256};
    card.sha256.clone().unwrap_or_else(|| {
        let facts = format!("{} {:?} {}", card.id, card.bytes, card.modified);
        Sha256::digest(facts).iter().map(|byte| format!("{byte:02x}")).collect()
    })
}

fn running(model: &ModelState) -> Option<Value> {
    let info = &model.loaded.as_ref()?.info;
    let expires = now() + model.expires_in.unwrap_or(FOREVER).as_secs();
    // Vulkan devices have heaps, the CPU has none.
    let on_gpu = info.placement.parts.iter().filter(|part| part.heaps.is_some());
    let mut value = listed(&model.card);
    value["size"] = info.weight_bytes.into();
    value["size_vram"] = on_gpu.map(|part| part.weight_bytes).sum::<u64>().into();
    value["expires_at"] = rfc3339(expires, 0).into();
    value["context_length"] = info.context.into();
    Some(value)
}

fn details(card: &ModelCard) -> Value {
    let facts = card.facts.as_deref().cloned().unwrap_or_default();
    let families =
        if facts.architecture.is_empty() { json!([]) } else { json!([facts.architecture]) };
    json!({
        "parent_model": "", "format": facts.format, "family": facts.architecture,
        "families": families, "parameter_size": rounded(facts.parameters),
        "quantization_level": facts.quantization.to_uppercase(),
    })
}

/// A number of weights as models are named by: 134.52M, 1.54B.
fn rounded(parameters: u64) -> String {
    match parameters {
        0 => String::new(),
        1_000_000_000.. => format!("{:.1}B", parameters as f64 / 1e9),
        1_000_000.. => format!("{:.2}M", parameters as f64 / 1e6),
        _ => format!("{:.2}K", parameters as f64 / 1e3),
    }
}

fn model_info(id: &str, facts: &ModelFacts) -> Value {
    let architecture = facts.architecture.as_str();
    let mut info = Map::new();
    info.insert("general.architecture".into(), architecture.into());
    info.insert("general.basename".into(), id.into());
    info.insert("general.parameter_count".into(), facts.parameters.into());
    let counts = [
        ("context_length", facts.context),
        ("embedding_length", facts.embedding_width),
        ("block_count", facts.layers),
        ("vocab_size", facts.vocabulary),
    ];
    for (name, count) in counts {
        info.insert(format!("{architecture}.{name}"), count.into());
    }
    info.into()
}

/// What clients may ask of a model. Where a template has no place for functions, they are described to
/// the model in words.
fn capabilities(template: &str) -> Vec<&'static str> {
    let mut capabilities = vec!["completion", "embedding"];
    if !template.is_empty() {
        capabilities.push("tools");
    }
    if template.contains("enable_thinking") || template.contains("<think>") {
        capabilities.push("thinking");
    }
    capabilities
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_read_like_names_of_models() {
        assert_eq!(rounded(134_515_008), "134.52M");
        assert_eq!(rounded(1_543_714_304), "1.5B");
        assert_eq!(rounded(12_345), "12.35K");
        assert_eq!(rounded(0), "");
    }

    #[test]
    fn a_file_without_a_known_sum_still_has_a_digest() {
        let card = ModelCard { id: "a".into(), bytes: Some(3), ..ModelCard::default() };
        let other = ModelCard { bytes: Some(4), ..card.clone() };
        assert_eq!(digest(&card).len(), 64);
        assert_ne!(digest(&card), digest(&other));
    }
}
