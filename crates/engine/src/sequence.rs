//! A sequence fed by hand: tokens in, logits out, chunk by chunk. For evaluation and checks; it
//! takes a slot that no request needs, and shares no pages with requests of any tenant.

use crate::draft::Drafter;
use crate::engine::apply_pages;
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
    /// its slot or its pages take them, and the sequence is then empty.
    pub fn feed(
        &mut self,
        tokens: &[u32],
        chunk: usize,
        wanted: LogitRows,
        visit: &mut dyn FnMut(usize, &mut [f32]),
    ) -> Result<(), EngineError> {
        self.scheduler.limits().check_tokens("tokens", tokens)?;
        let slot = self.scheduler.fed_slot().ok_or(EngineError::PagesInUse)?;
        self.scheduler.limits().check_length(self.scheduler.cache.len(slot) + tokens.len())?;
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
            let Engine { scheduler, executor, buffers, .. } = self;
            let (cache, step) = (&mut scheduler.cache, &mut buffers.plan.step);
            let base = cache.len(slot);
            cache.reserve(slot, base + rows).map_err(|_| EngineError::PagesInUse)?;
            apply_pages(executor, cache.drain_changes());
            step.clear();
            for (index, &token) in tokens[done..done + rows].iter().enumerate() {
                let logits = match wanted {
                    LogitRows::Nothing => false,
                    LogitRows::Last => done + index + 1 == tokens.len(),
                    LogitRows::From(first) => done + index >= first,
                };
                step.push(token, slot as u32, (base + index) as u32, logits);
            }
            executor.play(step)?;
            cache.append(slot, &tokens[done..done + rows]);
            for (index, &row) in step.logits.iter().enumerate() {
                visit(done + row as usize, executor.logits(index));
            }
            done += rows;
        }
        Ok(())
    }

    /// Forgets the fed sequence, and all that is kept of earlier ones.
    pub fn reset(&mut self) {
        self.scheduler.reset_fed();
        self.scheduler.cache.clear();
        self.drafter.iter_mut().for_each(Drafter::reset);
    }
}
