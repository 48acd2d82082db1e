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
    /// Whether a call is reported only once it is complete, because a stop text may cut it.
    hold_calls: bool,
    /// The events of a call that is not complete.
    held: Vec<UpdateEvent>,
}

impl Output {
    pub fn new(parser: OutputParser, id: impl Fn() -> String + Send + 'static) -> Output {
        let (hold_calls, held) = (false, Vec::new());
        Output { parser: Some(parser), id: Box::new(id), calls: 0, hold_calls, held }
    }

    /// The same; with `stops` the answer may end at a stop text, so that calls are held back until they
    /// are complete.
    pub fn with_stops(self, stops: bool) -> Output {
        Output { hold_calls: stops, ..self }
    }

    /// More text, and the log probabilities of tokens that begin in it or before it.
    pub fn push(&mut self, text: &str, infos: Vec<TokenInfo>) -> Vec<UpdateEvent> {
        let pieces = self.parser.as_mut().map(|parser| parser.push(text)).unwrap_or_default();
        let mut events = self.events(pieces);
        if !infos.is_empty() {
            let text = events.iter_mut().find_map(|event| match event {
                UpdateEvent::Text { logprobs, .. } => Some(logprobs),
                _ => None,
            });
            match text {
                Some(logprobs) => logprobs.extend(infos),
                // Its text is held back, or is markup.
                None => {
                    events.push(UpdateEvent::Text { text: String::new(), logprobs: infos });
                }
            }
        }
        events
    }

    /// What was held back, and whether the answer calls a function. A call that a stop text cut
    /// (`stopped`) is none.
    pub fn finish(&mut self, stopped: bool) -> (Vec<UpdateEvent>, bool) {
        let pieces = self.parser.take().map(OutputParser::finish).unwrap_or_default();
        if stopped && !self.held.is_empty() {
            self.held.clear();
            self.calls -= 1;
        }
        (self.events(pieces), self.calls > 0)
    }

    fn events(&mut self, pieces: Vec<Piece>) -> Vec<UpdateEvent> {
        let mut events = Vec::with_capacity(pieces.len());
        for piece in pieces {
            let ends_call = piece == Piece::CallEnd;
            match self.event(piece) {
                Some(
                    event @ (UpdateEvent::CallStart { .. } | UpdateEvent::CallArguments { .. }),
                ) if self.hold_calls => self.held.push(event),
                event => events.extend(event),
            }
            if ends_call {
                events.append(&mut self.held);
            }
        }
        events
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

#[cfg(test)]
mod tests {
    use super::*;
    use pianola_text::{ParserOptions, ToolFormat};

    /// Calls with their arguments, texts as they are, and whether a function is called.
    fn read(stops: bool, parts: &[&str], stopped: bool) -> (String, bool) {
        let options =
            ParserOptions { tools: vec!["f".into()], parallel_calls: true, ..Default::default() };
        let parser = OutputParser::new(ToolFormat::Hermes, options);
        let mut output = Output::new(parser, || "id".into()).with_stops(stops);
        let mut events: Vec<UpdateEvent> =
            parts.iter().flat_map(|part| output.push(part, Vec::new())).collect();
        let (last, called) = output.finish(stopped);
        events.extend(last);
        let text = |event| match event {
            UpdateEvent::Text { text, .. } | UpdateEvent::CallArguments { text, .. } => text,
            UpdateEvent::CallStart { index, name, .. } => format!("@{index}{name}"),
            _ => String::new(),
        };
        (events.into_iter().map(text).collect(), called)
    }

    #[test]
    fn a_call_that_a_stop_text_cut_is_none() {
        let begun = "a <tool_call>{\"name\": \"f\", \"arguments\": {\"x\": 1";
        assert_eq!(read(true, &[begun], true), ("a ".into(), false));
        // The limit of tokens is told by the reason of the end.
        assert_eq!(read(true, &[begun], false), ("a @0f{\"x\": 1".into(), true));
        let whole = format!("{begun}}}}}</tool_call>");
        for stops in [false, true] {
            let found = read(stops, &[&whole], stops);
            assert_eq!(found, ("a @0f{\"x\": 1}".into(), true));
        }
        let second = begun.trim_start_matches("a ");
        assert_eq!(read(true, &[&whole, second], true), ("a @0f{\"x\": 1}".into(), true));
    }
}
