//! Splits a model's text into the events that clients get: text, reasoning, tool calls.

use crate::running::{TokenInfo, UpdateEvent};
use pianola_text::{OutputParser, Piece};

/// The text of one answer as it comes.
pub(crate) struct Output {
    /// None once the answer has ended.
    parser: Option<OutputParser>,
    /// Makes an id for each call.
    id: Box<dyn Fn() -> String + Send>,
    calls: usize,
}

impl Output {
    pub fn new(parser: OutputParser, id: impl Fn() -> String + Send + 'static) -> Output {
        Output { parser: Some(parser), id: Box::new(id), calls: 0 }
    }

    /// More text, and the log probabilities of the token it came with.
    pub fn push(&mut self, text: &str, info: Option<TokenInfo>) -> Vec<UpdateEvent> {
        let pieces = self.parser.as_mut().map(|parser| parser.push(text)).unwrap_or_default();
        let mut events: Vec<UpdateEvent> =
            pieces.into_iter().filter_map(|piece| self.event(piece)).collect();
        if let Some(info) = info {
            let text = events.iter_mut().find_map(|event| match event {
                UpdateEvent::Text { logprobs, .. } => Some(logprobs),
                _ => None,
            });
            match text {
                Some(logprobs) => logprobs.push(info),
                // Its text is held back, or is markup.
                None => {
                    let (text, logprobs) = (String::new(), vec![info]);
                    events.push(UpdateEvent::Text { text, logprobs });
                }
            }
        }
        events
    }

    /// What was held back, and whether the answer calls a function.
    pub fn finish(&mut self) -> (Vec<UpdateEvent>, bool) {
        let pieces = self.parser.take().map(OutputParser::finish).unwrap_or_default();
        let events = pieces.into_iter().filter_map(|piece| self.event(piece)).collect();
        (events, self.calls > 0)
    }

    fn event(&mut self, piece: Piece) -> Option<UpdateEvent> {
        Some(match piece {
            Piece::Text(text) => UpdateEvent::Text { text, logprobs: Vec::new() },
            Piece::Reasoning(text) => UpdateEvent::Reasoning(text),
            Piece::CallStart { name } => {
                self.calls += 1;
                UpdateEvent::CallStart { index: self.calls - 1, id: (self.id)(), name }
            }
            Piece::CallArguments(text) => {
                UpdateEvent::CallArguments { index: self.calls.saturating_sub(1), text }
            }
            Piece::CallEnd => return None,
        })
    }
}
