//! The response object and its items.

use super::tools::Namespaces;
use crate::blocks::Block;
use crate::error::ApiError;
use crate::running::FinishReason;
use crate::state::now;
use pianola_engine::Usage;
use serde_json::{Map, Value, json};

/// What is known of an answer before it comes.
pub(super) struct ResponseHead {
    pub id: String,
    pub created: u64,
    pub model: String,
    /// Fields of the request that the answer repeats.
    pub echo: Map<String, Value>,
    pub namespaces: Namespaces,
}

/// How an answer ended.
pub(super) struct ResponseEnd {
    pub reason: FinishReason,
    pub usage: Usage,
    pub reasoning_tokens: usize,
}

impl ResponseEnd {
    /// Of the response, and of its last item.
    pub fn status(&self) -> &'static str {
        match self.reason {
            FinishReason::Length => "incomplete",
            FinishReason::Stop | FinishReason::ToolCalls => "completed",
        }
    }

    fn usage(&self) -> Value {
        let usage = &self.usage;
        json!({
            "input_tokens": usage.prompt_tokens,
            "input_tokens_details": { "cached_tokens": usage.cached_tokens, "cache_write_tokens": 0 },
            "output_tokens": usage.generated_tokens,
            "output_tokens_details": { "reasoning_tokens": self.reasoning_tokens },
            "total_tokens": usage.prompt_tokens + usage.generated_tokens,
        })
    }
}

impl ResponseHead {
    /// The response in a state, without output.
    fn response(&self, status: &str) -> Value {
        let mut response = json!({
            "id": self.id, "object": "response", "created_at": self.created, "status": status,
            "background": false, "completed_at": null, "error": null, "incomplete_details": null,
            "model": self.model, "output": [], "service_tier": "default", "usage": null,
        });
        if let Some(fields) = response.as_object_mut() {
            fields.extend(self.echo.clone());
        }
        response
    }

    /// Before anything of the answer came.
    pub fn begun(&self) -> Value {
        self.response("in_progress")
    }

    /// The whole answer.
    pub fn finished(&self, blocks: &[Block], end: &ResponseEnd) -> Value {
        let mut response = self.response(end.status());
        response["output"] = self.output(blocks, end.status());
        response["usage"] = end.usage();
        match end.reason {
            FinishReason::Length => {
                response["incomplete_details"] = json!({ "reason": "max_output_tokens" });
            }
            FinishReason::Stop | FinishReason::ToolCalls => response["completed_at"] = now().into(),
        }
        response
    }

    /// The answer as far as it came before something went wrong.
    pub fn failed(&self, blocks: &[Block], error: &ApiError) -> Value {
        let mut response = self.response("failed");
        response["output"] = self.output(blocks, "incomplete");
        let code = error.kind.openai().1.unwrap_or("server_error");
        response["error"] = json!({ "code": code, "message": error.message });
        response
    }

    fn output(&self, blocks: &[Block], last_status: &str) -> Value {
        let status = |index| if index + 1 == blocks.len() { last_status } else { "completed" };
        let items = blocks.iter().enumerate();
        items.map(|(index, block)| self.item(index, block, status(index))).collect()
    }

    /// The id of the item of a block.
    pub fn item_id(&self, index: usize, block: &Block) -> String {
        let kind = match block {
            Block::Thinking(_) => "rs",
            Block::Text(_) => "msg",
            Block::Call { .. } => "fc",
        };
        let response = self.id.strip_prefix("resp_").unwrap_or(&self.id);
        format!("{kind}_{response}_{index}")
    }

    /// A whole item.
    pub fn item(&self, index: usize, block: &Block, status: &str) -> Value {
        let id = self.item_id(index, block);
        match block {
            Block::Thinking(text) => json!({
                "id": id, "type": "reasoning", "summary": [summary(text)],
                "encrypted_content": null, "status": status,
            }),
            Block::Text(text) => json!({
                "id": id, "type": "message", "role": "assistant", "content": [output_text(text)],
                "status": status,
            }),
            Block::Call { id: call, name, arguments } => {
                let mut item = json!({
                    "id": id, "type": "function_call", "call_id": call, "name": name,
                    "arguments": arguments, "status": status,
                });
                if let Some((namespace, name)) = self.namespaces.get(name) {
                    item["namespace"] = namespace.as_str().into();
                    item["name"] = name.as_str().into();
                }
                item
            }
        }
    }

    /// An item of which nothing has come.
    pub fn empty_item(&self, index: usize, block: &Block) -> Value {
        let mut item = self.item(index, block, "in_progress");
        match block {
            Block::Thinking(_) => item["summary"] = json!([]),
            Block::Text(_) => item["content"] = json!([]),
            Block::Call { .. } => item["arguments"] = "".into(),
        }
        item
    }
}

/// The id of the answer that an item belongs to, and the item's index there: [`ResponseHead::item_id`] read
/// backwards.
pub(super) fn item_position(id: &str) -> Option<(String, usize)> {
    let (_, rest) = id.split_once('_')?;
    let (response, index) = rest.rsplit_once('_')?;
    Some((format!("resp_{response}"), index.parse().ok()?))
}

/// The part of a message.
pub(super) fn output_text(text: &str) -> Value {
    json!({ "type": "output_text", "text": text, "annotations": [], "logprobs": [] })
}

/// The part of an item of thoughts. They are not summed up: all of them are given.
pub(super) fn summary(text: &str) -> Value {
    json!({ "type": "summary_text", "text": text })
}
