//! An answer as a sequence of blocks, the form that Anthropic's API and OpenAI's Responses share.
//!
//! ```text
//! UpdateEvent ─► Blocks ─► Start, Delta, … Delta, Stop of block 0, then of block 1, …
//! ```

use crate::error::{ApiError, ErrorKind};
use crate::running::{End, Running, Update, UpdateEvent};
use pianola_text::Message;
use serde_json::{Map, Value, json};

/// A part of an answer.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Block {
    /// Thoughts before the answer.
    Thinking(String),
    Text(String),
    /// The model calls a function; `arguments` is JSON, cut off where the answer was.
    Call {
        id: String,
        name: String,
        arguments: String,
    },
}

/// What an update does to the block of this index.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum BlockEvent {
    Start(usize),
    Delta(usize, String),
    Stop(usize),
}

/// The blocks of an answer as they grow. At most the last one is open.
#[derive(Default)]
pub(crate) struct Blocks {
    list: Vec<Block>,
    open: bool,
    /// The block of each call.
    calls: Vec<usize>,
}

impl Blocks {
    pub fn list(&self) -> &[Block] {
        &self.list
    }

    /// Adds an update. The end of the answer and failures are the caller's: see [`Blocks::close`].
    pub fn push(&mut self, event: UpdateEvent) -> Vec<BlockEvent> {
        match event {
            UpdateEvent::Text { text, .. } if !text.is_empty() => {
                let open = matches!(self.open_block(), Some(Block::Text(_)));
                self.extend(open, Block::Text(String::new()), text)
            }
            UpdateEvent::Reasoning(text) if !text.is_empty() => {
                let open = matches!(self.open_block(), Some(Block::Thinking(_)));
                self.extend(open, Block::Thinking(String::new()), text)
            }
            UpdateEvent::CallStart { id, name, .. } => {
                let events = self.start(Block::Call { id, name, arguments: String::new() });
                self.calls.push(self.list.len() - 1);
                events
            }
            UpdateEvent::CallArguments { index, text } if !text.is_empty() => {
                match self.calls.get(index) {
                    Some(&at) => self.grow(at, text).into_iter().collect(),
                    None => Vec::new(),
                }
            }
            _ => Vec::new(),
        }
    }

    /// Ends the block that is open.
    pub fn close(&mut self) -> Option<BlockEvent> {
        std::mem::replace(&mut self.open, false).then(|| BlockEvent::Stop(self.list.len() - 1))
    }

    fn open_block(&self) -> Option<&Block> {
        self.list.last().filter(|_| self.open)
    }

    /// More text of the block that is open, or of a new one.
    fn extend(&mut self, open: bool, fresh: Block, text: String) -> Vec<BlockEvent> {
        let mut events = if open { Vec::new() } else { self.start(fresh) };
        events.extend(self.grow(self.list.len() - 1, text));
        events
    }

    fn start(&mut self, block: Block) -> Vec<BlockEvent> {
        let mut events: Vec<BlockEvent> = self.close().into_iter().collect();
        self.list.push(block);
        self.open = true;
        events.push(BlockEvent::Start(self.list.len() - 1));
        events
    }

    fn grow(&mut self, index: usize, more: String) -> Option<BlockEvent> {
        let text = match self.list.get_mut(index)? {
            Block::Thinking(text) | Block::Text(text) => text,
            Block::Call { arguments, .. } => arguments,
        };
        text.push_str(&more);
        Some(BlockEvent::Delta(index, more))
    }

    /// The thoughts of the answer.
    pub fn thoughts(&self) -> String {
        let thoughts = |block: &Block| match block {
            Block::Thinking(text) => Some(text.clone()),
            _ => None,
        };
        self.list.iter().filter_map(thoughts).collect()
    }

    /// The answer as a message of the conversation that continues it.
    pub fn message(&self) -> Message {
        let mut parts = AssistantParts { reasoning: self.thoughts(), ..AssistantParts::default() };
        for block in &self.list {
            match block {
                Block::Thinking(_) => {}
                Block::Text(text) => parts.text.push_str(text),
                Block::Call { id, name, arguments } => {
                    parts.calls.push(tool_call(id, name, arguments))
                }
            }
        }
        parts.message()
    }
}

/// What a message of the assistant consists of.
#[derive(Default)]
pub(crate) struct AssistantParts {
    pub reasoning: String,
    pub text: String,
    pub calls: Vec<Value>,
}

impl AssistantParts {
    /// In the form that chat templates expect.
    pub fn message(self) -> Message {
        let mut other = Map::new();
        if !self.reasoning.is_empty() {
            other.insert("reasoning_content".into(), self.reasoning.into());
        }
        let no_text = self.text.is_empty() && !self.calls.is_empty();
        Message {
            role: "assistant".into(),
            content: if no_text { Value::Null } else { self.text.into() },
            tool_calls: (!self.calls.is_empty()).then(|| self.calls.into()),
            other,
            ..Message::default()
        }
    }
}

/// A call in the form that chat templates expect.
pub(crate) fn tool_call(id: &str, name: &str, arguments: &str) -> Value {
    json!({ "id": id, "type": "function", "function": { "name": name, "arguments": arguments } })
}

/// Collects an answer that is not streamed.
pub(crate) async fn collect(running: &mut Running) -> Result<(Blocks, Box<End>), ApiError> {
    let mut blocks = Blocks::default();
    while let Some(Update { event, .. }) = running.next().await {
        match event {
            UpdateEvent::Failed(error) => return Err(error),
            UpdateEvent::End(end) => {
                blocks.close();
                return Ok((blocks, end));
            }
            event => {
                blocks.push(event);
            }
        }
    }
    let message = "the answer ended without a reason";
    Err(ApiError::new(ErrorKind::Internal, message))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> UpdateEvent {
        UpdateEvent::Text { text: text.into(), logprobs: Vec::new() }
    }

    fn arguments(index: usize, text: &str) -> UpdateEvent {
        UpdateEvent::CallArguments { index, text: text.into() }
    }

    #[test]
    fn a_block_ends_where_another_begins() {
        let mut blocks = Blocks::default();
        assert_eq!(blocks.push(text("")), []);
        let first = [BlockEvent::Start(0), BlockEvent::Delta(0, "a".into())];
        assert_eq!(blocks.push(text("a")), first);
        assert_eq!(blocks.push(text("b")), [BlockEvent::Delta(0, "b".into())]);
        let call = UpdateEvent::CallStart { index: 0, id: "c".into(), name: "f".into() };
        assert_eq!(blocks.push(call), [BlockEvent::Stop(0), BlockEvent::Start(1)]);
        assert_eq!(blocks.push(arguments(0, "{}")), [BlockEvent::Delta(1, "{}".into())]);
        assert_eq!(blocks.push(arguments(7, "{}")), []);
        let last = [BlockEvent::Stop(1), BlockEvent::Start(2), BlockEvent::Delta(2, "c".into())];
        assert_eq!(blocks.push(text("c")), last);
        assert_eq!(blocks.close(), Some(BlockEvent::Stop(2)));
        assert_eq!(blocks.close(), None);
    }

    #[test]
    fn an_answer_becomes_a_message() {
        let mut blocks = Blocks::default();
        blocks.push(UpdateEvent::Reasoning("Hm.".into()));
        blocks.push(text("Well."));
        let plain = blocks.message();
        assert_eq!((plain.role.as_str(), &plain.content), ("assistant", &json!("Well.")));
        assert_eq!(plain.other["reasoning_content"], "Hm.");
        assert_eq!(plain.tool_calls, None);

        let mut blocks = Blocks::default();
        blocks.push(UpdateEvent::CallStart { index: 0, id: "c".into(), name: "f".into() });
        blocks.push(arguments(0, "{\"a\":1}"));
        let calling = blocks.message();
        assert_eq!(calling.content, Value::Null);
        assert_eq!(calling.tool_calls, Some(json!([tool_call("c", "f", "{\"a\":1}")])));
    }
}
