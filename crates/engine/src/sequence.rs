//! A sequence fed by hand: tokens in, logits out, chunk by chunk. For evaluation and checks; it
//! takes a slot that no request needs.

use crate::draft::Drafter;
use crate::error::EngineError;
use crate::load::Engine;

/// Which rows of a [`Engine::feed`] want logits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LogitRows {
    /// None.
    Nothing,
    /// Only the last.
    Last,
    /// Those at this index of the fed tokens, and all behind it.
    From(usize),
}

impl Engine {
    /// Appends `tokens` to the sequence and calls `visit` with the index (within `tokens`) and
    /// the logits of every wanted row. At most `chunk` rows are played at once. Requests that need
    /// its slot or its pages take them, and the sequence is then empty ([`Engine::fed_slot`]).
    pub fn feed(
        &mut self,
        tokens: &[u32],
        chunk: usize,
        wanted: LogitRows,
        visit: &mut dyn FnMut(usize, &mut [f32]),
    ) -> Result<(), EngineError> {
        self.limits().check_tokens(tokens)?;
        let slot = self.scheduler.fed_slot().ok_or(EngineError::PagesInUse)?;
        let needed = self.cache.len(slot) + tokens.len();
        if needed > self.context() {
            let (context, model) = (self.context(), self.config.context);
            return Err(EngineError::ContextLength { needed, context, model });
        }
        let options = self.plan().options;
        let chunk = chunk.clamp(1, options.max_rows);
        let mut done = 0;
        while done < tokens.len() {
            let mut rows = chunk.min(tokens.len() - done);
            if let LogitRows::From(first) = wanted {
                // Where logits begin, a play takes no more rows than have room for theirs.
                rows = match first.saturating_sub(done) {
                    0 => rows.min(options.max_logit_rows),
                    before => rows.min(before),
                };
            }
            let base = self.cache.len(slot);
            let reserved = self.cache.reserve(slot, base + rows, &mut self.executor);
            reserved.map_err(|_| EngineError::PagesInUse)?;
            self.step.clear();
            for (index, &token) in tokens[done..done + rows].iter().enumerate() {
                let logits = match wanted {
                    LogitRows::Nothing => false,
                    LogitRows::Last => done + index + 1 == tokens.len(),
                    LogitRows::From(first) => done + index >= first,
                };
                self.step.push(token, slot as u32, (base + index) as u32, logits);
            }
            self.executor.play(&self.step)?;
            self.cache.append_unnoted(slot, &tokens[done..done + rows]);
            for (index, &row) in self.step.logits.iter().enumerate() {
                visit(done + row as usize, self.executor.logits(index));
            }
            done += rows;
        }
        Ok(())
    }

    /// Slot of the fed sequence in the page tables; none before anything was fed.
    pub fn fed_slot(&self) -> Option<usize> {
        self.scheduler.fed
    }

    /// Forgets the fed sequence, and all that is kept of earlier ones.
    pub fn reset(&mut self) {
        self.reset_fed();
        self.cache.clear();
        self.scheduler.drafter.iter_mut().for_each(Drafter::reset);
    }

    /// Forgets the fed sequence.
    pub(crate) fn reset_fed(&mut self) {
        if let Some(slot) = self.scheduler.fed {
            self.cache.forget(slot, &mut self.executor);
            self.scheduler.give_fed();
        }
    }
}
