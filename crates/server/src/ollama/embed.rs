//! `/api/embed` and `/api/embeddings`.

use super::{keep, options};
use crate::call::Call;
use crate::embedding;
use crate::error::ApiError;
use crate::fields::{Fields, TextOrTokens};
use crate::model::LoadedModel;
use crate::reply::{self, Reply};
use pianola_text::SpecialTokens;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Instant;

/// Embeds a text or several; none loads the model. Ollama cuts texts that are too long unless it is told
/// not to; here they are cut only where the request itself says `truncate: true`, and else refused.
pub(crate) async fn answer(call: &Arc<Call>, body: &Value) -> Result<Reply, ApiError> {
    let fields = Fields::of(body, "")?;
    let started = Instant::now();
    let mut texts = fields.texts("input")?;
    if texts.len() > call.state.options.limits.inputs {
        let most = call.state.options.limits.inputs;
        return Err(fields.wrong("input", &format!("a list of at most {most} texts")));
    }
    if fields.value("input").is_some_and(|input| input.as_str() == Some("")) {
        texts.clear();
    }
    let cut = fields.flag("truncate")?.unwrap_or(false);
    let name = fields.text("model")?.map(str::to_string);
    let model = prepare(call, &fields).await?;
    let load_time = started.elapsed();
    embedding::check_dimensions(&fields, &model)?;
    let inputs = match cut {
        true => {
            let shared = model.clone();
            call.state.prepare(move || encode_and_cut(&shared, texts)).await?
        }
        false => texts.into_iter().map(TextOrTokens::Text).collect(),
    };
    let embedded = embedding::embed(call, &model, inputs).await?;
    let name = name.unwrap_or_else(|| model.id.clone());
    let write = move || {
        Ok(reply::ok(&json!({
            "model": name,
            "embeddings": embedded.vectors,
            "total_duration": started.elapsed().as_nanos() as u64,
            "load_duration": load_time.as_nanos() as u64,
            "prompt_eval_count": embedded.tokens,
        })))
    };
    call.state.prepare(write).await
}

/// Embeds one text, in the older form.
pub(crate) async fn answer_one(call: &Arc<Call>, body: &Value) -> Result<Reply, ApiError> {
    let fields = Fields::of(body, "")?;
    let prompt = fields.text("prompt")?.filter(|prompt| !prompt.is_empty());
    let model = prepare(call, &fields).await?;
    let inputs = prompt.map(|prompt| TextOrTokens::Text(prompt.to_string())).into_iter().collect();
    let embedded = embedding::embed(call, &model, inputs).await?;
    let vector = embedded.vectors.into_iter().next().unwrap_or_default();
    Ok(reply::ok(&json!({ "embedding": vector })))
}

/// The model, loaded and kept as the request says.
async fn prepare(call: &Call, fields: &Fields<'_>) -> Result<Arc<LoadedModel>, ApiError> {
    let keep = keep::read(fields)?;
    let model = call.model(fields.text("model")?).await?;
    options::check_context(fields, &model)?;
    keep::apply(call, &model.id, keep);
    Ok(model)
}

/// The tokens of each text, as many as the context holds.
fn encode_and_cut(model: &LoadedModel, texts: Vec<String>) -> Result<Vec<TextOrTokens>, ApiError> {
    let context = model.service().info().context;
    let encode = |text: String| {
        let mut tokens = model.text()?.tokenizer.encode_prompt(&text, SpecialTokens::Plain)?;
        tokens.truncate(context);
        Ok(TextOrTokens::Tokens(tokens))
    };
    texts.into_iter().map(encode).collect()
}
