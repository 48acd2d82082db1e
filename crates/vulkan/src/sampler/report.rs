//! Log probabilities of sampled tokens, as the host reads them.

use crate::memory::{Memory, Purpose, Region};
use crate::sample::whole::{MOST_LOGPROBS, RawLogits};
use crate::sample::{MOST_PLAYS, MOST_ROWS};
use pianola_plan::{DeviceError, SampleRow, TokenLogProbs};

/// Log probabilities of each play of each row, in lists that are as long as they ever get, so that
/// none is allocated again.
pub(super) struct LogProbReport {
    /// What the device left, [`RawLogits`] by row and play.
    pub readback: Region,
    start: *const RawLogits,
    /// Of the rows last written, which asked for log probabilities.
    asked: [bool; MOST_ROWS],
    /// By row and play: the token's, how many of the best there are, and those.
    sampled: Vec<f32>,
    counts: Vec<usize>,
    top: Vec<(u32, f32)>,
}

impl LogProbReport {
    pub fn new(memory: &mut Memory, rows: usize) -> Result<LogProbReport, DeviceError> {
        let count = rows * MOST_PLAYS;
        let bytes = (count * size_of::<RawLogits>()) as u64;
        let readback = memory.allocate(Purpose::Readback, bytes, "log probabilities")?;
        Ok(LogProbReport {
            readback,
            start: memory.mapped(readback).expect("visible to the host").cast(),
            asked: [false; MOST_ROWS],
            sampled: vec![0.0; count],
            counts: vec![0; count],
            top: vec![(0, 0.0); count * MOST_LOGPROBS],
        })
    }

    /// Notes which rows ask for log probabilities.
    pub fn begin(&mut self, rows: &[Option<SampleRow<'_>>]) {
        for (asked, row) in self.asked.iter_mut().zip(rows) {
            *asked = row.is_some_and(|row| row.top_logprobs.is_some());
        }
    }

    /// Takes over what `plays` plays of a row left, which must have been waited for.
    pub fn read(&mut self, row: usize, plays: usize) {
        if !self.asked[row] {
            return;
        }
        for index in row * MOST_PLAYS..row * MOST_PLAYS + plays {
            // SAFETY: inside the mapped region; any bits are raw logits.
            let raw = unsafe { &*self.start.add(index) };
            self.sampled[index] = raw.sampled();
            let top = &mut self.top[index * MOST_LOGPROBS..(index + 1) * MOST_LOGPROBS];
            let found = top.iter_mut().zip(raw.top()).map(|(slot, found)| *slot = found);
            self.counts[index] = found.count();
        }
    }

    /// Those of a play of a row, where it asked for them.
    pub fn get(&self, row: usize, play: usize) -> Option<TokenLogProbs<'_>> {
        if !self.asked[row] {
            return None;
        }
        let index = row * MOST_PLAYS + play;
        let top = &self.top[index * MOST_LOGPROBS..][..self.counts[index]];
        Some(TokenLogProbs { sampled: self.sampled[index], top })
    }
}
