//! The events of a streamed answer.
//!
//! ```text
//! response.created, response.in_progress,
//! (output_item.added, the parts and deltas of its kind, output_item.done) …,
//! response.completed, response.incomplete or response.failed
//! ```

use super::object::{self, ResponseEnd, ResponseHead};
use crate::blocks::{Block, BlockEvent, Blocks};
use crate::error::ApiError;
use crate::reply;
use crate::running::UpdateEvent;
use serde_json::{Value, json};

/// Writes the events of a streamed answer.
pub(super) struct ResponseEvents {
    head: ResponseHead,
    blocks: Blocks,
    /// Events written so far: the `sequence_number` of the next.
    written: u64,
}

impl ResponseEvents {
    pub fn new(head: ResponseHead) -> ResponseEvents {
        ResponseEvents { head, blocks: Blocks::default(), written: 0 }
    }

    pub fn id(&self) -> &str {
        &self.head.id
    }

    /// The blocks of the answer so far.
    pub fn blocks(&self) -> &Blocks {
        &self.blocks
    }

    /// What comes before anything is known of the answer.
    pub fn start(&mut self) -> String {
        let response = self.head.begun();
        self.event("response.created", json!({ "response": response })) + &self.progress()
    }

    /// What keeps a client waiting. Codex counts events only: with comments it gives up after 300 s,
    /// in which a slow machine has not processed its prompt.
    pub fn progress(&mut self) -> String {
        let response = self.head.begun();
        self.event("response.in_progress", json!({ "response": response }))
    }

    pub fn push(&mut self, update: UpdateEvent) -> String {
        let changes = self.blocks.push(update);
        changes.into_iter().map(|change| self.change(change, "completed")).collect()
    }

    /// The last events, and the whole answer.
    pub fn end(&mut self, end: &ResponseEnd) -> (String, Value) {
        let status = end.status();
        let closed = self.blocks.close();
        let closed = closed.map(|change| self.change(change, status)).unwrap_or_default();
        let response = self.head.finished(self.blocks.list(), end);
        let last = self.event(&format!("response.{status}"), json!({ "response": response }));
        (closed + &last, response)
    }

    /// The last events where something went wrong.
    pub fn fail(&mut self, error: &ApiError) -> String {
        let closed = self.blocks.close();
        let closed = closed.map(|change| self.change(change, "incomplete")).unwrap_or_default();
        let response = self.head.failed(self.blocks.list(), error);
        closed + &self.event("response.failed", json!({ "response": response }))
    }

    /// The events of a change; `status` is that of an item that ends.
    fn change(&mut self, change: BlockEvent, status: &str) -> String {
        match change {
            BlockEvent::Start(index) => self.start_item(index),
            BlockEvent::Delta(index, text) => {
                let name = match self.blocks.list()[index] {
                    Block::Thinking(_) => "response.reasoning_summary_text.delta",
                    Block::Text(_) => "response.output_text.delta",
                    Block::Call { .. } => "response.function_call_arguments.delta",
                };
                self.part_event(name, index, json!({ "delta": text }))
            }
            BlockEvent::Stop(index) => self.stop_item(index, status),
        }
    }

    fn start_item(&mut self, index: usize) -> String {
        let block = &self.blocks.list()[index];
        let part = match block {
            Block::Thinking(_) => {
                Some(("response.reasoning_summary_part.added", object::summary("")))
            }
            Block::Text(_) => Some(("response.content_part.added", object::output_text(""))),
            Block::Call { .. } => None,
        };
        let item = self.head.empty_item(index, block);
        let added = json!({ "output_index": index, "item": item });
        let mut text = self.event("response.output_item.added", added);
        if let Some((name, part)) = part {
            text += &self.part_event(name, index, json!({ "part": part }));
        }
        text
    }

    fn stop_item(&mut self, index: usize, status: &str) -> String {
        let block = &self.blocks.list()[index];
        let item = self.head.item(index, block, status);
        let ends = match block {
            Block::Thinking(text) => vec![
                ("response.reasoning_summary_text.done", json!({ "text": text })),
                ("response.reasoning_summary_part.done", json!({ "part": object::summary(text) })),
            ],
            Block::Text(text) => vec![
                ("response.output_text.done", json!({ "text": text })),
                ("response.content_part.done", json!({ "part": object::output_text(text) })),
            ],
            Block::Call { arguments, .. } => {
                let done = json!({ "name": item["name"], "arguments": arguments });
                vec![("response.function_call_arguments.done", done)]
            }
        };
        let mut text = String::new();
        for (name, fields) in ends {
            text += &self.part_event(name, index, fields);
        }
        let done = json!({ "output_index": index, "item": item });
        text + &self.event("response.output_item.done", done)
    }

    /// An event about the only part of an item.
    fn part_event(&mut self, name: &str, index: usize, fields: Value) -> String {
        let block = &self.blocks.list()[index];
        let mut data = json!({ "item_id": self.head.item_id(index, block), "output_index": index });
        match block {
            Block::Thinking(_) => data["summary_index"] = 0.into(),
            Block::Text(_) => data["content_index"] = 0.into(),
            Block::Call { .. } => {}
        }
        if name.starts_with("response.output_text.") {
            data["logprobs"] = json!([]);
        }
        extend(&mut data, fields);
        self.event(name, data)
    }

    /// An event whose data begins with its type and number.
    fn event(&mut self, name: &str, fields: Value) -> String {
        let mut data = json!({ "type": name, "sequence_number": self.written });
        self.written += 1;
        extend(&mut data, fields);
        reply::named_event(name, &data)
    }
}

fn extend(data: &mut Value, fields: Value) {
    if let (Some(data), Value::Object(fields)) = (data.as_object_mut(), fields) {
        data.extend(fields);
    }
}

#[cfg(test)]
mod tests;
