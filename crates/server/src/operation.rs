//! For operators: health, readiness, version; and the tokens of a text.

use crate::call::Call;
use crate::error::{ApiError, ErrorKind};
use crate::fields::Fields;
use crate::hub::ModelState;
use crate::reply::{self, Reply};
use crate::source::{LoadFailure, LoadFailureKind};
use crate::state::State;
use pianola_engine::Request;
use pianola_text::SpecialTokens;
use serde_json::{Value, json};
use std::sync::Arc;

/// The process is alive.
pub(crate) fn health() -> Reply {
    reply::ok(&json!({ "status": "ok" }))
}

pub(crate) fn version(state: &State) -> Reply {
    reply::ok(&json!({ "name": "pianola", "version": state.options.version }))
}

/// The first model is loaded and has generated a token.
pub(crate) fn ready(state: &State) -> Result<Reply, ApiError> {
    let unready =
        |message: String| Err(ApiError::new(ErrorKind::Unavailable, message).retry_after(2));
    if state.is_draining() {
        return unready("the server is shutting down".to_string());
    }
    let first = state.hub.states().into_iter().next();
    if let Some(ModelState { card, reason: Some(reason), .. }) = first {
        return unready(format!("{} cannot be used: {reason}", card.id));
    }
    match (state.is_warm(), state.start_failure()) {
        (true, _) => Ok(reply::ok(&json!({ "status": "ready" }))),
        (false, Some(reason)) => unready(reason.to_string()),
        (false, None) => unready("the model is being loaded".to_string()),
    }
}

/// Loads the first model and lets it generate a token, so that the server is ready before it is asked.
pub(crate) async fn load_first(state: &Arc<State>) -> Result<(), LoadFailure> {
    let result = warm_up(state).await.map_err(|error| {
        let failed = LoadFailure::new(LoadFailureKind::Temporary, error.message);
        state.hub.first_failure().unwrap_or(failed)
    });
    match &result {
        Ok(()) => state.log.write("ready", &[]),
        Err(failure) => state.set_start_failure(failure.message.clone()),
    }
    result
}

/// Loads the first model and lets it generate a token.
async fn warm_up(state: &Arc<State>) -> Result<(), ApiError> {
    let model = state.hub.get(None, true).await?;
    let warmed = tokio::task::spawn_blocking(move || {
        let request = Request { max_tokens: Some(1), ..Request::new(vec![0]) };
        model.service().submit(request)?.finish().map(|_| ())
    });
    let failed = |_| ApiError::new(ErrorKind::Internal, "the first token was not generated");
    warmed.await.map_err(failed)??;
    state.set_warm();
    Ok(())
}

/// The tokens of a text.
pub(crate) async fn tokenize(call: &Arc<Call>, body: &Value) -> Result<Reply, ApiError> {
    let fields = Fields::of(body, "")?;
    let content = match fields.text("content")? {
        Some(content) => content,
        None => fields.required_text("prompt")?,
    };
    let special = match fields.flag("parse_special")?.unwrap_or(true) {
        true => SpecialTokens::Parse,
        false => SpecialTokens::Plain,
    };
    let model = call.model(fields.text("model")?).await?;
    let content = content.to_string();
    let whole = fields.flag("add_special")?.unwrap_or(false);
    let pieces = fields.flag("with_pieces")?.unwrap_or(false);
    let tokenize = move || {
        let tokenizer = &model.text()?.tokenizer;
        let tokens = match whole {
            true => tokenizer.encode_prompt(&content, special)?,
            false => tokenizer.encode(&content, special)?,
        };
        let count = tokens.len();
        let text = |id| String::from_utf8_lossy(&model.token_bytes(id)).into_owned();
        let tokens: Value = match pieces {
            true => tokens.iter().map(|&id| json!({ "id": id, "piece": text(id) })).collect(),
            false => tokens.into(),
        };
        let context = model.service().info().context;
        Ok(reply::ok(&json!({ "tokens": tokens, "count": count, "max_model_len": context })))
    };
    call.state.prepare(tokenize).await
}

/// The text of some tokens.
pub(crate) async fn detokenize(call: &Arc<Call>, body: &Value) -> Result<Reply, ApiError> {
    let fields = Fields::of(body, "")?;
    let tokens = fields.list("tokens")?.ok_or_else(|| fields.missing("tokens"))?;
    let model = call.model(fields.text("model")?).await?;
    let vocabulary = model.service().info().vocabulary;
    let id =
        |value: &Value| value.as_u64().filter(|&id| id < vocabulary as u64).map(|id| id as u32);
    let tokens: Option<Vec<u32>> = tokens.iter().map(id).collect();
    let must = format!("a list of token ids from 0 to {}", vocabulary.saturating_sub(1));
    let tokens = tokens.ok_or_else(|| fields.wrong("tokens", &must))?;
    let detokenize = move || {
        let text = model.text()?.tokenizer.decode(&tokens, true);
        Ok(reply::ok(&json!({ "content": text, "prompt": text })))
    };
    call.state.prepare(detokenize).await
}
