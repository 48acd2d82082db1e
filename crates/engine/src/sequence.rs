//! The one sequence: tokens in, logits out, chunk by chunk.

use crate::error::EngineError;
use crate::load::Engine;

/// Which rows of a [`Engine::feed`] want logits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wanted {
    /// None.
    Nothing,
    /// Only the last.
    Last,
    /// Those at this index of the fed tokens, and all behind it.
    From(usize),
}

impl Engine {
    /// Appends `tokens` to the sequence and calls `visit` with the index (within `tokens`) and
    /// the logits of every wanted row. At most `chunk` rows are played at once.
    pub fn feed(
        &mut self,
        tokens: &[u32],
        chunk: usize,
        wanted: Wanted,
        visit: &mut dyn FnMut(usize, &mut [f32]),
    ) -> Result<(), EngineError> {
        self.check_room(tokens, tokens.len())?;
        let options = self.plan().options;
        let chunk = chunk.clamp(1, options.max_rows);
        let mut done = 0;
        while done < tokens.len() {
            let mut rows = chunk.min(tokens.len() - done);
            if let Wanted::From(first) = wanted {
                // Where logits begin, a play takes no more rows than have room for theirs.
                rows = match first.saturating_sub(done) {
                    0 => rows.min(options.max_logit_rows),
                    before => rows.min(before),
                };
            }
            let base = self.tokens.len();
            self.pages.extend(base, base + rows, self.recording.as_mut());
            self.step.clear();
            for (index, &token) in tokens[done..done + rows].iter().enumerate() {
                let logits = match wanted {
                    Wanted::Nothing => false,
                    Wanted::Last => done + index + 1 == tokens.len(),
                    Wanted::From(first) => done + index >= first,
                };
                self.step.push(token, 0, (base + index) as u32, logits);
            }
            self.recording.play(&self.step)?;
            self.tokens.extend_from_slice(&tokens[done..done + rows]);
            for (index, &row) in self.step.logits.iter().enumerate() {
                visit(done + row as usize, self.recording.logits(index));
            }
            done += rows;
        }
        Ok(())
    }

    /// Whether `tokens` are tokens, and `count` more of them fit the context.
    pub(crate) fn check_room(&self, tokens: &[u32], count: usize) -> Result<(), EngineError> {
        let vocabulary = self.config.vocabulary;
        if let Some(&token) = tokens.iter().find(|&&token| token as usize >= vocabulary) {
            return Err(EngineError::UnknownToken { token, vocabulary });
        }
        let needed = self.tokens.len() + count;
        if needed > self.context() {
            let (context, model) = (self.context(), self.config.context);
            return Err(EngineError::ContextLength { needed, context, model });
        }
        Ok(())
    }

    /// Forgets the sequence.
    pub fn reset(&mut self) {
        self.tokens.clear();
        self.pages.clear(self.recording.as_mut());
    }

    /// Keeps the longest part of the sequence that `tokens` begins with, but leaves at least one
    /// token to be fed, whose logits are wanted. Returns its length.
    pub fn keep_prefix(&mut self, tokens: &[u32]) -> usize {
        let common = self.tokens.iter().zip(tokens).take_while(|(a, b)| a == b).count();
        let common = common.min(tokens.len().saturating_sub(1));
        if common == 0 || !self.pages.truncate(common, self.recording.as_mut()) {
            self.reset();
            return 0;
        }
        self.tokens.truncate(common);
        common
    }
}
