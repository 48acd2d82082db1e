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
use object::{ResponseEnd, ResponseHead};
use pianola_text::{Message, SpecialTokens};
use request::Request;
use serde_json::{Value, json};
use std::sync::Arc;
use store::KeptResponse;
pub(crate) use store::ResponseStore;

/// Answers an input.
pub(crate) async fn answer(call: &Arc<Call>, body: &Arc<Value>) -> Result<Reply, ApiError> {
    let fields = Fields::of(body, "")?;
    let (reader, shared) = (call.clone(), body.clone());
    // The conversation that the input continues may have megabytes.
    let request = call.state.prepare(move || read_request(&reader, &shared)).await?;
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

fn read_request(call: &Call, body: &Value) -> Result<Request, ApiError> {
    let responses = &call.state.responses;
    request::read(
        &Fields::of(body, "")?,
        InputBudget::new(call.state.options.limits.body_bytes),
        |id| responses.get(call.tenant, id),
        |id| responses.item(call.tenant, id),
    )
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
    async fn read_end(&self, blocks: &Blocks, end: &End) -> Result<ResponseEnd, ApiError> {
        let reasoning_tokens = self.count_tokens(blocks.thoughts()).await?;
        Ok(ResponseEnd { reason: end.reason, usage: end.usage, reasoning_tokens })
    }

    async fn count_tokens(&self, text: String) -> Result<usize, ApiError> {
        if text.is_empty() {
            return Ok(0);
        }
        let model = self.model.clone();
        let count = move || Ok(model.text()?.tokenizer.encode(&text, SpecialTokens::Plain)?.len());
        self.call.state.prepare(count).await
    }

    async fn keep(&mut self, id: &str, response: &Value, message: Message) {
        let Some(mut history) = self.history.take() else { return };
        history.push(message);
        let kept = KeptResponse { response: response.clone(), history };
        let (call, id) = (self.call.clone(), id.to_string());
        let keep = move || {
            call.state.responses.keep(call.tenant, &id, kept);
            Ok(())
        };
        // The answer is whole even if it could not be kept.
        if let Err(error) = self.call.state.prepare(keep).await {
            self.call.set_error(&error);
        }
    }
}

async fn whole_answer(
    mut running: Running,
    head: &ResponseHead,
    mut keeper: Keeper,
) -> Result<Reply, ApiError> {
    let (blocks, end) = blocks::collect(&mut running).await?;
    let end = keeper.read_end(&blocks, &end).await?;
    let response = head.finished(blocks.list(), &end);
    keeper.keep(&head.id, &response, blocks.message()).await;
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
        let end = match self.keeper.read_end(self.events.blocks(), end).await {
            Ok(end) => end,
            Err(error) => {
                self.keeper.call.set_error(&error);
                return self.fail(&error);
            }
        };
        let (text, response) = self.events.end(&end);
        let message = self.events.blocks().message();
        // Before the client can ask for it.
        self.keeper.keep(self.events.id(), &response, message).await;
        text
    }

    fn fail(&mut self, error: &ApiError) -> String {
        self.events.fail(error)
    }
}
