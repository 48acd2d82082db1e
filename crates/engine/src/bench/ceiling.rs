//! The most tokens a second that the devices' bandwidth and arithmetic allow.

use super::test::{BenchOptions, Test, TestKind, start_of_generation};
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
    let Test { kind, tokens, lanes, depth } = test;
    let Some(lanes) = lanes else {
        return match kind {
            TestKind::Prompt => {
                let most = engine.plan().options.max_rows;
                engine.ceiling(depth..depth + tokens, most, ceilings)
            }
            TestKind::Generate => {
                let start = start_of_generation(depth);
                engine.ceiling(start..start + tokens, 1, ceilings)
            }
            TestKind::Both { .. } => unreachable!("a test of several requests"),
        };
    };
    let lengths = |lanes: usize| (0..lanes).map(|lane| options.prompt_of(lane, depth));
    match kind {
        TestKind::Prompt => {
            // As full plays of whole prompts: the fewest reads of the weights that are possible.
            let sequences: Vec<(usize, usize)> =
                lengths(lanes).map(|length| (length - depth, length)).collect();
            let all: usize = sequences.iter().map(|sequence| sequence.0).sum();
            let plays = all.div_ceil(engine.plan().options.max_rows);
            let work = |cost: &Cost| {
                let once = cost.work_of(&sequences, lanes);
                Work { bytes: once.bytes + cost.weight_bytes * (plays as u64 - 1), ..once }
            };
            all as f64 / engine.plan().busiest_seconds(ceilings, &work)
        }
        TestKind::Generate => {
            let seconds = |at: usize| -> f64 {
                let sequences: Vec<(usize, usize)> =
                    lengths(lanes).map(|prompt| (1, prompt + at + 1)).collect();
                engine.plan().busiest_seconds(ceilings, &|cost| cost.work_of(&sequences, lanes))
            };
            (lanes * tokens) as f64 / (0..tokens).map(seconds).sum::<f64>()
        }
        // One after the other: steps that have both read the weights once, and may be faster than this.
        TestKind::Both { generate } => {
            let speed =
                |kind, tokens| ceiling(engine, Test { kind, tokens, ..test }, options, ceilings);
            let [prompt, generation] =
                [speed(TestKind::Prompt, tokens), speed(TestKind::Generate, generate)];
            let (prompted, generated) = (tokens as f64, generate as f64);
            (prompted + generated) / (prompted / prompt + generated / generation)
        }
    }
}

/// Bytes that the kernels of a token move at least, on average over a test that generates one sequence; none of
/// other tests, whose plays have tokens in common.
pub(super) fn bytes_per_token(engine: &Engine, test: Test) -> Option<f64> {
    let Test { kind: TestKind::Generate, tokens, lanes: None, depth } = test else { return None };
    let start = start_of_generation(depth);
    let bytes = |context: usize| -> u64 {
        engine.plan().ops.iter().map(|op| op.cost.work(1, 1, context + 1).bytes).sum()
    };
    let all: u64 = (start..start + tokens).map(bytes).sum();
    (tokens > 0).then(|| all as f64 / tokens as f64)
}

impl Engine {
    /// Tokens a second at best for the first tokens of one sequence, measured here and now; none
    /// where a device cannot be measured.
    pub(crate) fn generation_ceiling(&self) -> Option<f64> {
        const TOKENS: usize = 128;
        let start = start_of_generation(0);
        let end = (start + TOKENS).min(self.context()).max(start + 1);
        Some(self.ceiling(start..end, 1, &self.measure()?))
    }

    /// Tokens a second for positions `tokens` of a sequence, `chunk` at a time, if every play took
    /// exactly the time that its bytes or operations need. Logits are of the last token, or of each
    /// where they come one by one.
    pub fn ceiling(&self, tokens: Range<usize>, chunk: usize, ceilings: &[Ceilings]) -> f64 {
        let count = tokens.len();
        let end = tokens.end;
        let seconds = |start: usize| -> f64 {
            let rows = chunk.min(end - start);
            let logits = usize::from(chunk == 1 || start + rows == end);
            let work = |cost: &Cost| cost.work(rows, logits, start + rows);
            match chunk {
                // A token waits for the one before: its segments follow one another.
                1 => self.plan().best_seconds(ceilings, &work),
                _ => self.plan().busiest_seconds(ceilings, &work),
            }
        };
        count as f64 / tokens.step_by(chunk).map(seconds).sum::<f64>()
    }
}
