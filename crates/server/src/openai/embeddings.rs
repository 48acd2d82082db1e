//! `/v1/embeddings`.

use crate::call::Call;
use crate::embedding::{self, Embedded};
use crate::error::ApiError;
use crate::fields::{Fields, TextOrTokens};
use crate::reply::{self, Reply};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use std::sync::Arc;

/// Embeds a text, or several.
pub(crate) async fn answer(call: &Arc<Call>, body: &Value) -> Result<Reply, ApiError> {
    let fields = Fields::of(body, "")?;
    let base64 = match fields.text("encoding_format")? {
        None | Some("float") => false,
        Some("base64") => true,
        Some(_) => return Err(fields.wrong("encoding_format", "float or base64")),
    };
    let inputs = read_inputs(&fields, call.state.options.limits.inputs)?;
    let model = call.model(fields.text("model")?).await?;
    embedding::check_dimensions(&fields, &model)?;
    let embedded = embedding::embed(call, &model, inputs).await;
    // The engine calls all tokens that it is given a prompt.
    let embedded = embedded.map_err(|error| error.renamed("prompt", "input"))?;
    let id = model.id.clone();
    call.state.prepare(move || Ok(reply::ok(&describe(&id, &embedded, base64)))).await
}

fn describe(model: &str, embedded: &Embedded, base64: bool) -> Value {
    let data = embedded.vectors.iter().enumerate().map(|(index, vector)| {
        let embedding = match base64 {
            true => {
                let bytes: Vec<u8> = vector.iter().flat_map(|x| x.to_le_bytes()).collect();
                Value::String(STANDARD.encode(bytes))
            }
            false => vector.iter().copied().collect(),
        };
        json!({ "object": "embedding", "index": index, "embedding": embedding })
    });
    let tokens = embedded.tokens;
    json!({
        "object": "list", "data": data.collect::<Vec<_>>(), "model": model,
        "usage": { "prompt_tokens": tokens, "total_tokens": tokens },
    })
}

fn read_inputs(fields: &Fields<'_>, most: usize) -> Result<Vec<TextOrTokens>, ApiError> {
    let inputs = fields.texts_or_tokens("input")?;
    match inputs.len() {
        0 => Err(fields.wrong("input", "a list of at least one text")),
        count if count > most => {
            Err(fields.wrong("input", &format!("a list of at most {most} texts")))
        }
        _ => Ok(inputs),
    }
}
