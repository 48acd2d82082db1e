//! Anthropic's API: `/v1/messages` and `/v1/messages/count_tokens`.

mod events;
mod messages;
mod request;

use crate::block_stream::stream_blocks;
use crate::blocks;
use crate::call::Call;
use crate::error::ApiError;
use crate::fields::Fields;
use crate::generation::Generation;
use crate::reply::{self, Reply};
use crate::running::{self, Running};
use events::{MessageEvents, MessageHead};
use serde_json::{Value, json};
use std::sync::Arc;

/// Answers a conversation.
pub(crate) async fn answer(call: &Arc<Call>, body: &Value) -> Result<Reply, ApiError> {
    let fields = Fields::of(body, "")?;
    let mut generation = request::read(&fields)?;
    request::read_sampling(&fields, &mut generation)?;
    let stream = fields.flag("stream")?.unwrap_or(false);
    let running = call.generate(fields.text("model")?, generation).await?;
    let head = MessageHead {
        id: call.state.fresh_id("msg_"),
        model: running.model().id.clone(),
        prompt_tokens: running.prompt_tokens(),
    };
    match stream {
        true => {
            let events = MessageEvents::new(head, &call.id);
            Ok(stream_blocks(call.clone(), running, events))
        }
        false => whole_answer(running, &head).await,
    }
}

/// Counts the tokens that a conversation would have as a prompt.
pub(crate) async fn count_tokens(call: &Arc<Call>, body: &Value) -> Result<Reply, ApiError> {
    let fields = Fields::of(body, "")?;
    let generation = request::read(&fields)?;
    let model = call.model(fields.text("model")?).await?;
    let Generation { prompt, tools, .. } = generation;
    let tokens = call.state.prepare(move || running::encode(&model, &prompt, &tools)).await?;
    Ok(reply::ok(&json!({ "input_tokens": tokens.len() })))
}

async fn whole_answer(mut running: Running, head: &MessageHead) -> Result<Reply, ApiError> {
    let (blocks, end) = blocks::collect(&mut running).await?;
    Ok(reply::ok(&events::message(head, blocks.list(), &end)))
}
