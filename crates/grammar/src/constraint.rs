//! A grammar as the engine's constraint.

use crate::vocabulary::first_line;
use llguidance::{Matcher, api::StopReason};
use pianola_engine::Constraint;
use std::sync::Arc;

/// Follows an answer with llguidance's parser.
///
/// A parser may exceed its limits in the middle of an answer. It then allows nothing: the mask stays
/// empty, tokens are refused, and [`Constraint::failure`] says why, so that the engine ends the request
/// in an error. To end the answer as complete would pass off half a JSON text as a whole one. If the
/// failure came with guessed tokens, taking them back mends it.
pub(crate) struct GrammarConstraint {
    /// The parser before the first token. Copies share what the lexer has learnt.
    start: Matcher,
    parser: Matcher,
    tokens: Vec<u32>,
    /// After how many tokens the parser failed last, and why. The engine asks only after it has taken
    /// its guesses back and followed those that were right.
    failed: Option<(usize, String)>,
    ends: Arc<[u32]>,
}

impl GrammarConstraint {
    pub(crate) fn new(parser: Matcher, ends: Arc<[u32]>) -> GrammarConstraint {
        let start = parser.clone();
        GrammarConstraint { start, parser, tokens: Vec::new(), failed: None, ends }
    }

    fn note_failure(&mut self) {
        self.failed = Some((self.tokens.len(), failure(&self.parser)));
    }
}

/// Why a parser cannot go on.
pub(crate) fn failure(parser: &Matcher) -> String {
    let reason = first_line(&parser.get_error().unwrap_or_default());
    match reason.as_str() {
        "NoExtensionBias" => "no token of the vocabulary can go on with the text".into(),
        reason => format!("{reason}; simplify the schema or the grammar"),
    }
}

impl Constraint for GrammarConstraint {
    fn fill_mask(&mut self, mask: &mut [u32]) {
        match self.parser.compute_mask_or_eos() {
            Ok(allowed) => {
                let words = allowed.as_slice();
                let count = words.len().min(mask.len());
                mask[..count].copy_from_slice(&words[..count]);
            }
            Err(_) => self.note_failure(),
        }
    }

    fn advance(&mut self, token: u32) -> bool {
        if self.ends.contains(&token) || self.parser.is_error() {
            return false;
        }
        match self.parser.try_consume_tokens(&[token]) {
            Ok(1) => self.tokens.push(token),
            Ok(_) => return false,
            Err(_) => {
                self.note_failure();
                return false;
            }
        }
        true
    }

    fn rollback(&mut self, count: usize) {
        if count == 0 {
            return;
        }
        self.tokens.truncate(self.tokens.len().saturating_sub(count));
        if !self.parser.is_error() && self.parser.rollback(count).is_ok() {
            return;
        }
        // After a failure the parser cannot go back: it starts again.
        self.parser = self.start.clone();
        // If this fails, the parser keeps the reason.
        drop(self.parser.consume_tokens(&self.tokens));
    }

    fn is_complete(&self) -> bool {
        self.parser.stop_reason() != StopReason::NotStopped && !self.parser.is_error()
    }

    fn failure(&self) -> Option<String> {
        let (after, reason) = self.failed.as_ref()?;
        (*after == self.tokens.len()).then(|| reason.clone())
    }

    fn clone_box(&self) -> Box<dyn Constraint> {
        Box::new(GrammarConstraint {
            start: self.start.clone(),
            parser: self.parser.clone(),
            tokens: self.tokens.clone(),
            failed: self.failed.clone(),
            ends: Arc::clone(&self.ends),
        })
    }
}
