//! What operators and pages ask: health, readiness, version, metrics, status; tokens of a text.

use crate::call::Call;
use crate::error::{ApiError, ErrorKind};
use crate::fields::Fields;
use crate::hub::ModelState;
use crate::metrics::Page;
use crate::reply::{self, Reply};
use crate::state::State;
use hyper::StatusCode;
use pianola_engine::{Report, Request};
use pianola_text::SpecialTokens;
use serde_json::{Value, json};
use std::sync::Arc;

/// `/`: the page for a browser, Ollama's words for its clients.
pub(crate) fn root(_html: bool) -> Reply {
    reply::whole(StatusCode::OK, "text/plain; charset=utf-8", "Ollama is running")
}

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
        return unready("the server is going down".to_string());
    }
    let models = state.hub.states();
    if let Some(reason) = models.iter().find_map(|model| model.reason.clone()) {
        return unready(reason);
    }
    match state.is_warm() {
        true => Ok(reply::ok(&json!({ "status": "ready" }))),
        false => unready("the model is being loaded".to_string()),
    }
}

/// Loads the first model and lets it generate a token.
pub(crate) async fn warm_up(state: &Arc<State>) -> Result<(), ApiError> {
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

/// Asks the engine of a loaded model how it is doing, without holding up this thread.
async fn report(model: &ModelState) -> Option<Report> {
    let loaded = model.loaded.clone()?;
    tokio::task::spawn_blocking(move || loaded.service().report().ok()).await.ok()?
}

/// Counts in Prometheus' form.
pub(crate) async fn metrics(state: &State) -> Result<Reply, ApiError> {
    let mut page = Page::default();
    state.metrics.render(&mut page);
    let mut reports = Vec::new();
    for model in state.hub.states() {
        let report = report(&model).await;
        reports.push((model, report));
    }
    page.family("pianola_model_loaded", "gauge", "Whether a model is loaded.");
    for (model, _) in &reports {
        let loaded = u8::from(model.loaded.is_some());
        page.sample("pianola_model_loaded", &[("model_name", &model.card.id)], loaded);
    }
    type Value = fn(&Report) -> f64;
    let families: &[(&[&str], &str, &str, Value)] = &[
        (
            &["pianola_requests_running", "vllm:num_requests_running"],
            "gauge",
            "Requests that run.",
            |r| r.running as f64,
        ),
        (
            &["pianola_requests_waiting", "vllm:num_requests_waiting"],
            "gauge",
            "Requests that wait.",
            |r| r.waiting as f64,
        ),
        (
            &["pianola_prompt_tokens_total", "vllm:prompt_tokens_total"],
            "counter",
            "Tokens of prompts.",
            |r| r.counters.prompt_tokens as f64,
        ),
        (
            &["pianola_cached_tokens_total", "vllm:prefix_cache_hits_total"],
            "counter",
            "Tokens of prompts that were computed before.",
            |r| r.counters.cached_tokens as f64,
        ),
        (&["vllm:prefix_cache_queries_total"], "counter", "Tokens of prompts.", |r| {
            r.counters.prompt_tokens as f64
        }),
        (
            &["pianola_generated_tokens_total", "vllm:generation_tokens_total"],
            "counter",
            "Tokens generated.",
            |r| r.counters.generated_tokens as f64,
        ),
        (
            &["pianola_preemptions_total", "vllm:num_preemptions_total"],
            "counter",
            "Requests that made room for others.",
            |r| r.counters.preemptions as f64,
        ),
        (&["pianola_drafted_tokens_total"], "counter", "Tokens that were guessed.", |r| {
            r.counters.drafted_tokens as f64
        }),
        (&["pianola_accepted_tokens_total"], "counter", "Guesses that were right.", |r| {
            r.counters.accepted_tokens as f64
        }),
        (&["pianola_steps_total"], "counter", "Steps played.", |r| r.counters.steps as f64),
    ];
    for (names, kind, help, value) in families {
        for name in *names {
            page.family(name, kind, help);
            for (model, report) in &reports {
                if let Some(report) = report {
                    page.sample(name, &[("model_name", &model.card.id)], value(report));
                }
            }
        }
    }
    let text = page.into_text();
    Ok(reply::whole(StatusCode::OK, "text/plain; version=0.0.4; charset=utf-8", text))
}

/// What the page's panel shows.
pub(crate) async fn status(state: &State) -> Result<Reply, ApiError> {
    let mut models = Vec::new();
    for model in state.hub.states() {
        let report = report(&model).await;
        models.push(json!({
            "id": model.card.id, "state": model.state, "reason": model.reason,
            "running": report.map(|report| report.running),
            "waiting": report.map(|report| report.waiting),
        }));
    }
    Ok(reply::ok(&json!({
        "version": state.options.version,
        "uptime_seconds": state.started.elapsed().as_secs_f64(),
        "models": models,
    })))
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
    let tokenizer = &model.text()?.tokenizer;
    let tokens = match fields.flag("add_special")?.unwrap_or(false) {
        true => tokenizer.encode_prompt(content, special)?,
        false => tokenizer.encode(content, special)?,
    };
    let pieces = fields.flag("with_pieces")?.unwrap_or(false);
    let count = tokens.len();
    let tokens: Value = match pieces {
        true => tokens
            .iter()
            .map(
                |&id| json!({ "id": id, "piece": String::from_utf8_lossy(&model.token_bytes(id)) }),
            )
            .collect(),
        false => tokens.into(),
    };
    let context = model.service().info().context;
    Ok(reply::ok(&json!({ "tokens": tokens, "count": count, "max_model_len": context })))
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
    let text = model.text()?.tokenizer.decode(&tokens, true);
    Ok(reply::ok(&json!({ "content": text, "prompt": text })))
}
