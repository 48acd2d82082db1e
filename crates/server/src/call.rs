//! One request to the server: what it may use, and what is logged and counted of it.

use crate::error::{ApiError, Dialect};
use crate::generation::Generation;
use crate::model::LoadedModel;
use crate::reply::Reply;
use crate::running::{End, Running};
use crate::state::{Active, State};
use serde_json::Value;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// One request to the server. Dropped after its answer, which is when it is logged and counted.
pub(crate) struct Call {
    pub state: Arc<State>,
    /// Its `x-request-id`.
    pub id: String,
    /// Owner of the cached prompts that it may reuse.
    pub tenant: u64,
    pub dialect: Dialect,
    /// Whether it waits for a model that is not loaded yet.
    pub wait: bool,
    pub method: String,
    /// The pattern of its path.
    pub route: &'static str,
    started: Instant,
    facts: Mutex<Facts>,
    _active: Active,
}

/// The fields of a request's log line that are known only later.
#[derive(Default)]
struct Facts {
    status: u16,
    model: Option<String>,
    error: Option<String>,
    prompt_tokens: u64,
    cached_tokens: u64,
    generated_tokens: u64,
    first_token: Option<Duration>,
    /// Whether the answer went out to its end.
    complete: bool,
}

/// What a call is known by before its body is read.
pub(crate) struct CallOrigin {
    pub method: String,
    pub route: &'static str,
    pub dialect: Dialect,
    pub tenant: u64,
    pub wait: bool,
}

impl Call {
    pub fn new(state: &Arc<State>, origin: CallOrigin) -> Arc<Call> {
        let CallOrigin { method, route, dialect, tenant, wait } = origin;
        Arc::new(Call {
            id: state.fresh_id("req_"),
            _active: state.begin(),
            state: state.clone(),
            tenant,
            dialect,
            wait,
            method,
            route,
            started: Instant::now(),
            facts: Mutex::default(),
        })
    }

    fn facts(&self) -> MutexGuard<'_, Facts> {
        self.facts.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn set_model(&self, model: &str) {
        self.facts().model = Some(model.to_string());
    }

    /// The model of a name, loaded if need be.
    pub async fn model(&self, name: Option<&str>) -> Result<Arc<LoadedModel>, ApiError> {
        let model = self.state.hub.get(name, self.wait).await?;
        self.set_model(&model.id);
        Ok(model)
    }

    /// Starts a generation.
    pub async fn generate(
        self: &Arc<Call>,
        model: Option<&str>,
        generation: Generation,
    ) -> Result<Running, ApiError> {
        let model = self.model(model).await?;
        Running::start(self.clone(), model, generation).await
    }

    /// A token of an answer has come, `gap` after the one before it in the same answer.
    pub fn count_token(&self, gap: Option<Duration>) {
        let mut facts = self.facts();
        let model = facts.model.clone().unwrap_or_default();
        match gap {
            Some(gap) => self.state.metrics.observe_gap(&model, gap),
            None if facts.first_token.is_some() => {}
            None => {
                let time = self.started.elapsed();
                facts.first_token = Some(time);
                self.state.metrics.observe_first(&model, time);
            }
        }
    }

    /// An answer has ended.
    pub fn count_end(&self, end: &End) {
        let mut facts = self.facts();
        facts.prompt_tokens += end.usage.prompt_tokens as u64;
        facts.cached_tokens += end.usage.cached_tokens as u64;
        facts.generated_tokens += end.usage.generated_tokens as u64;
    }

    /// Something went wrong after the answer had begun.
    pub fn set_error(&self, error: &ApiError) {
        self.facts().error = Some(error.message.clone());
    }

    /// The status of the answer is known.
    pub fn set_reply(&self, reply: &Reply) {
        let mut facts = self.facts();
        facts.status = reply.status().as_u16();
    }

    /// The whole answer is with its connection.
    pub fn set_complete(&self) {
        self.facts().complete = true;
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        let facts = std::mem::take(&mut *self.facts());
        // A client that goes away before there is a status gets 499, as in nginx's logs.
        let status = if facts.status == 0 { 499 } else { facts.status };
        let took = self.started.elapsed();
        let model = facts.model.clone().unwrap_or_default();
        self.state.metrics.count_request(self.route, status, &model, took);
        let milliseconds = |time: Duration| Value::from((time.as_secs_f64() * 1e4).round() / 10.0);
        let count = |tokens: u64| if tokens > 0 { Value::from(tokens) } else { Value::Null };
        self.state.log.write(
            "request",
            &[
                ("id", self.id.as_str().into()),
                ("method", self.method.as_str().into()),
                ("route", self.route.into()),
                ("status", status.into()),
                ("ms", milliseconds(took)),
                ("model", facts.model.into()),
                ("prompt_tokens", count(facts.prompt_tokens)),
                ("cached_tokens", count(facts.cached_tokens)),
                ("generated_tokens", count(facts.generated_tokens)),
                ("first_token_ms", facts.first_token.map_or(Value::Null, milliseconds)),
                ("cut_off", if facts.complete { Value::Null } else { true.into() }),
                ("error", facts.error.into()),
            ],
        );
    }
}
