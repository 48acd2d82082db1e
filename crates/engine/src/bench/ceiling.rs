//! The most tokens a second that the devices' bandwidth and arithmetic allow.

use super::{BenchOptions, Test};
use crate::load::Engine;
use pianola_plan::{Ceilings, Cost, Work};
use std::ops::Range;

/// Tokens a second if every play took exactly the time its bytes or operations need.
pub(super) fn ceiling(
    engine: &Engine,
    test: Test,
    options: &BenchOptions,
    ceilings: &[Ceilings],
) -> f64 {
    let lengths = |lanes: usize| (0..lanes).map(|lane| options.prompt_of(lane));
    match test {
        Test::Prompt(count) => engine.ceiling(0..count, engine.plan().options.max_rows, ceilings),
        Test::Generate(count) => engine.ceiling(0..count, 1, ceilings),
        Test::Prompts { lanes, .. } => {
            // As full plays of whole prompts: the fewest reads of the weights that are possible.
            let all: usize = lengths(lanes).sum();
            let plays = all.div_ceil(engine.plan().options.max_rows);
            let sequences: Vec<(usize, usize)> = lengths(lanes).map(|rows| (rows, rows)).collect();
            let work = |cost: &Cost| {
                let once = cost.work_of(&sequences, lanes);
                Work { bytes: once.bytes + cost.weight_bytes * (plays as u64 - 1), ..once }
            };
            all as f64 / engine.plan().best_seconds(ceilings, &work)
        }
        Test::Lanes { lanes, tokens } => {
            let seconds = |at: usize| -> f64 {
                let sequences: Vec<(usize, usize)> =
                    lengths(lanes).map(|prompt| (1, prompt + at + 1)).collect();
                engine.plan().best_seconds(ceilings, &|cost| cost.work_of(&sequences, lanes))
            };
            (lanes * tokens) as f64 / (0..tokens).map(seconds).sum::<f64>()
        }
    }
}

impl Engine {
    /// Tokens a second for positions `tokens` of a sequence, `chunk` at a time, if every play took
    /// exactly the time that its bytes or operations need.
    pub fn ceiling(&self, tokens: Range<usize>, chunk: usize, ceilings: &[Ceilings]) -> f64 {
        let count = tokens.len();
        let end = tokens.end;
        let seconds = |start: usize| -> f64 {
            let rows = chunk.min(end - start);
            self.plan().best_seconds(ceilings, &|cost| cost.work(rows, 1, start + rows))
        };
        count as f64 / tokens.step_by(chunk).map(seconds).sum::<f64>()
    }
}
