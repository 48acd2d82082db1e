//! Answers in Anthropic's form, whole and as events.
//!
//! ```text
//! message_start, ping, (content_block_start, content_block_delta …, content_block_stop) …,
//! message_delta, message_stop
//! ```

use crate::block_stream::BlockEvents;
use crate::blocks::{Block, BlockEvent, Blocks};
use crate::error::{ApiError, Dialect};
use crate::reply;
use crate::running::{End, FinishReason, UpdateEvent};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

/// What keeps a connection open while a long prompt is processed.
const PING: &str = "event: ping\ndata: {\"type\":\"ping\"}\n\n";

/// What is known of an answer before it comes.
pub(super) struct MessageHead {
    pub id: String,
    pub model: String,
    pub prompt_tokens: usize,
}

impl MessageHead {
    fn message(&self, content: Value, usage: Value) -> Value {
        json!({
            "id": self.id, "type": "message", "role": "assistant", "model": self.model,
            "content": content, "stop_reason": null, "stop_sequence": null, "usage": usage,
        })
    }
}

/// Tokens of the prompt that were cached count apart from the others.
fn usage(prompt: usize, cached: usize, generated: usize) -> Value {
    json!({
        "input_tokens": prompt - cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": generated,
    })
}

fn end_usage(end: &End) -> Value {
    usage(end.usage.prompt_tokens, end.usage.cached_tokens, end.usage.generated_tokens)
}

fn stop_reason(end: &End) -> &'static str {
    match end.reason {
        FinishReason::Length => "max_tokens",
        FinishReason::ToolCalls => "tool_use",
        FinishReason::Stop if end.stop_text.is_some() => "stop_sequence",
        FinishReason::Stop => "end_turn",
    }
}

/// The signature of reasoning, which clients send back with it. It is not verified here.
fn signature(thoughts: &str) -> String {
    STANDARD.encode(Sha256::digest(thoughts.as_bytes()))
}

/// A block that has not begun to come.
fn empty(block: &Block) -> Value {
    match block {
        Block::Thinking(_) => json!({ "type": "thinking", "thinking": "", "signature": "" }),
        Block::Text(_) => json!({ "type": "text", "text": "" }),
        Block::Call { id, name, .. } => {
            json!({ "type": "tool_use", "id": id, "name": name, "input": {} })
        }
    }
}

/// A whole block. A call that was cut off has no valid input and is left out: the reason
/// for the end of the answer says why.
fn whole(block: &Block) -> Option<Value> {
    match block {
        Block::Thinking(text) => {
            Some(json!({ "type": "thinking", "thinking": text, "signature": signature(text) }))
        }
        Block::Text(text) => Some(json!({ "type": "text", "text": text })),
        Block::Call { id, name, arguments } => {
            let arguments = if arguments.trim().is_empty() { "{}" } else { arguments };
            let input: Value = serde_json::from_str(arguments).ok()?;
            Some(json!({ "type": "tool_use", "id": id, "name": name, "input": input }))
        }
    }
}

/// A whole answer.
pub(super) fn message(head: &MessageHead, blocks: &[Block], end: &End) -> Value {
    let content = blocks.iter().filter_map(whole).collect();
    let mut message = head.message(content, end_usage(end));
    message["stop_reason"] = stop_reason(end).into();
    message["stop_sequence"] = end.stop_text.clone().into();
    message
}

/// Writes the events of a streamed answer.
pub(super) struct MessageEvents {
    head: MessageHead,
    /// The `x-request-id`, which errors repeat.
    request_id: String,
    blocks: Blocks,
}

impl BlockEvents for MessageEvents {
    /// How much of the prompt was cached is only known at the end.
    fn start(&mut self) -> String {
        let message = self.head.message(json!([]), usage(self.head.prompt_tokens, 0, 0));
        event("message_start", json!({ "message": message })) + PING
    }

    fn idle(&mut self) -> String {
        PING.into()
    }

    fn push(&mut self, update: UpdateEvent) -> String {
        let events = self.blocks.push(update);
        events.into_iter().map(|event| self.block_event(event)).collect()
    }

    async fn end(&mut self, end: &End) -> String {
        self.last(end)
    }

    fn fail(&mut self, error: &ApiError) -> String {
        reply::named_event("error", &error.body(Dialect::Anthropic, &self.request_id))
    }
}

impl MessageEvents {
    pub fn new(head: MessageHead, request_id: &str) -> MessageEvents {
        MessageEvents { head, request_id: request_id.to_string(), blocks: Blocks::default() }
    }

    fn last(&mut self, end: &End) -> String {
        let closed = self.blocks.close();
        let mut text = closed.map(|closed| self.block_event(closed)).unwrap_or_default();
        let delta = json!({ "stop_reason": stop_reason(end), "stop_sequence": end.stop_text });
        text += &event("message_delta", json!({ "delta": delta, "usage": end_usage(end) }));
        text += &event("message_stop", json!({}));
        text
    }

    fn block_event(&self, change: BlockEvent) -> String {
        let delta = |index: usize, delta: Value| {
            event("content_block_delta", json!({ "index": index, "delta": delta }))
        };
        let block = |index: usize| &self.blocks.list()[index];
        match change {
            BlockEvent::Start(index) => {
                let start = json!({ "index": index, "content_block": empty(block(index)) });
                event("content_block_start", start)
            }
            BlockEvent::Delta(index, text) => match block(index) {
                Block::Thinking(_) => {
                    delta(index, json!({ "type": "thinking_delta", "thinking": text }))
                }
                Block::Text(_) => delta(index, json!({ "type": "text_delta", "text": text })),
                Block::Call { .. } => {
                    delta(index, json!({ "type": "input_json_delta", "partial_json": text }))
                }
            },
            BlockEvent::Stop(index) => {
                let signed = match block(index) {
                    Block::Thinking(text) => {
                        let signature = signature(text);
                        delta(index, json!({ "type": "signature_delta", "signature": signature }))
                    }
                    _ => String::new(),
                };
                signed + &event("content_block_stop", json!({ "index": index }))
            }
        }
    }
}

/// An event whose data begins with its type.
fn event(name: &str, fields: Value) -> String {
    let mut data = json!({ "type": name });
    if let (Some(data), Value::Object(fields)) = (data.as_object_mut(), fields) {
        data.extend(fields);
    }
    reply::named_event(name, &data)
}

#[cfg(test)]
mod tests;
