//! From a model's text to what clients are told: text, thoughts, calls of functions.

use crate::running::{TokenInfo, UpdateEvent};

/// The text of one answer as it comes.
pub(crate) struct Output {
    calls: usize,
}

impl Output {
    pub fn new() -> Output {
        Output { calls: 0 }
    }

    pub fn push(&mut self, text: &str, info: Option<TokenInfo>) -> Vec<UpdateEvent> {
        let logprobs: Vec<TokenInfo> = info.into_iter().collect();
        if text.is_empty() && logprobs.is_empty() {
            return Vec::new();
        }
        vec![UpdateEvent::Text { text: text.to_string(), logprobs }]
    }

    /// What was held back, and whether the answer calls a function.
    pub fn finish(&mut self) -> (Vec<UpdateEvent>, bool) {
        (Vec::new(), self.calls > 0)
    }
}
