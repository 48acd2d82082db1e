//! What restricts the tokens of an answer: a grammar, a schema, a list of choices.

use std::fmt;

/// Decides which token may come next. It follows an answer token by token; guesses are tried and
/// taken back.
///
/// An end-of-turn token ends the answer wherever the mask allows it: the constraint is not advanced
/// by it.
pub trait Constraint: Send {
    /// Sets the bit of every token that may come next. `mask` has one bit for each token of the
    /// vocabulary, the lowest bit of the first word being token 0's; all are zero before.
    fn fill_mask(&mut self, mask: &mut [u32]);

    /// Follows the answer by a token. False, and nothing changes, where it may not come next.
    fn advance(&mut self, token: u32) -> bool;

    /// Takes back the last `count` tokens.
    fn rollback(&mut self, count: usize);

    /// Whether nothing may follow: the answer then ends.
    fn is_complete(&self) -> bool;

    /// Why the constraint cannot go on, where it allows nothing because it failed and not because of
    /// what it was asked to allow. The request then ends in an error that says so.
    fn failure(&self) -> Option<String> {
        None
    }

    /// A copy in the same state.
    fn clone_box(&self) -> Box<dyn Constraint>;
}

impl Clone for Box<dyn Constraint> {
    fn clone(&self) -> Self {
        self.clone_box()
    }
}

impl fmt::Debug for dyn Constraint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Constraint")
    }
}

/// How many of `guesses` may come next, one behind the other. `is_end` tells tokens that end the
/// answer, which are not guessed.
pub(crate) fn allowed_guesses(
    constraint: &mut dyn Constraint,
    guesses: &[u32],
    is_end: &dyn Fn(u32) -> bool,
) -> usize {
    let mut allowed = |guess: u32| !is_end(guess) && constraint.advance(guess);
    let count = guesses.iter().take_while(|&&guess| allowed(guess)).count();
    constraint.rollback(count);
    count
}

/// Leaves only tokens whose bit is set.
pub(crate) fn apply_mask(logits: &mut [f32], mask: &[u32]) {
    for (logits, &word) in logits.chunks_mut(u32::BITS as usize).zip(mask) {
        for (bit, logit) in logits.iter_mut().enumerate() {
            *logit = if word >> bit & 1 == 1 { *logit } else { f32::NEG_INFINITY };
        }
    }
}
