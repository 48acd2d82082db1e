//! `/v1/responses`.
//!
//! ```text
//! body ─► request: input, tools ─► Generation ─► Running ─► Blocks ─► object / events ─► store
//! ```

mod events;
mod input;
mod object;
mod request;
mod store;
mod tools;

use crate::block_stream::{BlockEvents, stream_blocks};
use crate::blocks::{self, Blocks};
use crate::call::Call;
use crate::error::{ApiError, ErrorKind};
use crate::fields::Fields;
use crate::model::LoadedModel;
use crate::reply::{self, Reply};
use crate::running::{End, Running, UpdateEvent};
use crate::state::now;
use events::ResponseEvents;
use input::InputBudget;
use object::{Outcome, ResponseHead};
use pianola_text::{Message, SpecialTokens};
use serde_json::{Value, json};
use std::sync::Arc;
use store::KeptResponse;
pub(crate) use store::ResponseStore;

/// Answers an input.
pub(crate) async fn answer(call: &Arc<Call>, body: &Value) -> Result<Reply, ApiError> {
    let fields = Fields::of(body, "")?;
    let request = request::read(
        &fields,
        InputBudget::new(call.state.options.limits.body_bytes),
        |id| call.state.responses.get(call.tenant, id),
        |id| call.state.responses.item(call.tenant, id),
    )?;
    let running = call.generate(fields.text("model")?, request.generation).await?;
    let head = ResponseHead {
        id: call.state.fresh_id("resp_"),
        created: now(),
        model: running.model().id.clone(),
        echo: request.echo,
        namespaces: request.namespaces,
    };
    let keeper = Keeper {
        call: call.clone(),
        model: running.model().clone(),
        history: request.store.then_some(request.history),
    };
    match request.stream {
        true => {
            let events = KeptEvents { events: ResponseEvents::new(head), keeper };
            Ok(stream_blocks(call.clone(), running, events))
        }
        false => whole_answer(running, &head, keeper).await,
    }
}

/// An answer that is kept.
pub(crate) fn get(call: &Call, id: &str) -> Result<Reply, ApiError> {
    let kept = call.state.responses.get(call.tenant, id).ok_or_else(|| not_found(id))?;
    Ok(reply::ok(&kept.response))
}

/// Forgets an answer.
pub(crate) fn delete(call: &Call, id: &str) -> Result<Reply, ApiError> {
    match call.state.responses.remove(call.tenant, id) {
        true => Ok(reply::ok(&json!({ "id": id, "object": "response", "deleted": true }))),
        false => Err(not_found(id)),
    }
}

fn not_found(id: &str) -> ApiError {
    ApiError::new(ErrorKind::NotFound, format!("the response '{id}' is not kept here"))
}

/// Finishes an answer, and keeps it where the request did not say otherwise.
struct Keeper {
    call: Arc<Call>,
    model: Arc<LoadedModel>,
    /// The conversation up to the answer.
    history: Option<Vec<Message>>,
}

impl Keeper {
    /// How the answer ended.
    async fn outcome(&self, blocks: &Blocks, end: &End) -> Outcome {
        let reasoning_tokens = count_tokens(&self.model, blocks.thoughts()).await;
        Outcome { reason: end.reason, usage: end.usage, reasoning_tokens }
    }

    fn keep(&mut self, id: &str, response: &Value, blocks: &Blocks) {
        if let Some(mut history) = self.history.take() {
            history.push(blocks.message());
            let kept = KeptResponse { response: response.clone(), history };
            self.call.state.responses.keep(self.call.tenant, id, kept);
        }
    }
}

/// The tokens of a text. Long ones take milliseconds and would block other connections.
async fn count_tokens(model: &Arc<LoadedModel>, text: String) -> usize {
    if text.is_empty() {
        return 0;
    }
    let model = model.clone();
    let counting = tokio::task::spawn_blocking(move || {
        let tokens = model.text().ok()?.tokenizer.encode(&text, SpecialTokens::Plain).ok()?;
        Some(tokens.len())
    });
    counting.await.ok().flatten().unwrap_or(0)
}

async fn whole_answer(
    mut running: Running,
    head: &ResponseHead,
    mut keeper: Keeper,
) -> Result<Reply, ApiError> {
    let (blocks, end) = blocks::collect(&mut running).await?;
    let outcome = keeper.outcome(&blocks, &end).await;
    let response = head.finished(blocks.list(), &outcome);
    keeper.keep(&head.id, &response, &blocks);
    Ok(reply::ok(&response))
}

/// The events of an answer that is kept once it is whole.
struct KeptEvents {
    events: ResponseEvents,
    keeper: Keeper,
}

impl BlockEvents for KeptEvents {
    fn start(&mut self) -> String {
        self.events.start()
    }

    fn idle(&mut self) -> String {
        self.events.progress()
    }

    fn push(&mut self, update: UpdateEvent) -> String {
        self.events.push(update)
    }

    async fn end(&mut self, end: &End) -> String {
        let outcome = self.keeper.outcome(self.events.blocks(), end).await;
        let (text, response) = self.events.end(&outcome);
        // Before the client can ask for it.
        self.keeper.keep(self.events.id(), &response, self.events.blocks());
        text
    }

    fn fail(&mut self, error: &ApiError) -> String {
        self.events.fail(error)
    }
}
