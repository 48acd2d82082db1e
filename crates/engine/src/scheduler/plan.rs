//! A step as plain data: the scheduler writes a [`StepPlan`], the engine plays it on whatever
//! device it has, and answers with a [`StepOutcome`].

use crate::cache::PageChange;
use crate::embed::Pooling;
use crate::error::ErrorKind;
use crate::request::Request;
use pianola_plan::{SampleRow, Sampling, Step, TokenLogProbs};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// How the tokens of a request are sampled; the same from its first token to its last.
#[derive(Clone, Debug)]
pub(crate) struct SampleOptions {
    pub sampling: Sampling,
    /// Tokens that end the answer.
    pub stop_tokens: Vec<u32>,
    /// See [`Request::logprobs`].
    pub top_logprobs: Option<usize>,
    /// Whether a mask says which tokens may be sampled.
    pub constrained: bool,
}

impl SampleOptions {
    /// The options of a request to a model whose turns end with `end_tokens`.
    pub fn of(request: &Request, end_tokens: &[u32]) -> SampleOptions {
        let ends = if request.ignore_end { &[][..] } else { end_tokens };
        let mut sampling = request.sampling.clone();
        sampling.seed = request.seed.unwrap_or(sampling.seed);
        SampleOptions {
            sampling,
            stop_tokens: ends.iter().chain(&request.stop_tokens).copied().collect(),
            top_logprobs: request.logprobs,
            constrained: request.constraint.is_some(),
        }
    }

    /// What a device is told of a row, but for its history, random numbers and mask.
    pub fn row(&self) -> SampleRow<'_> {
        SampleRow {
            stop_tokens: &self.stop_tokens,
            top_logprobs: self.top_logprobs,
            ..SampleRow::new(&self.sampling, &[])
        }
    }
}

/// Who samples a row.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum SampledBy {
    Device,
    /// The request's own sampler, from the row's logits.
    Host,
}

/// How one row with logits is sampled.
#[derive(Clone, Debug)]
pub(crate) struct PlannedSample {
    pub by: SampledBy,
    pub options: Arc<SampleOptions>,
    /// Index of the request among those that run.
    pub lane: usize,
    /// Guessed tokens of the same request that stand before the row's token.
    pub guesses_before: usize,
    /// The token that was guessed to come out of this row; the next row of the step holds it.
    pub guess: Option<u32>,
    /// In [`StepPlan::history`]; empty where no penalty looks at it.
    history: Range<usize>,
    /// In [`StepPlan::uniforms`], one for each play; empty where the host samples.
    uniforms: Range<usize>,
    /// In [`StepPlan::masks`], once [`crate::scheduler::Scheduler::fill_masks`] has filled them.
    mask: Option<Range<usize>>,
}

/// Rows of a step that are a part of a text to embed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct EmbedRows {
    /// In [`Step::rows`].
    pub rows: Range<usize>,
    pub pooling: Pooling,
}

/// What is to be played next.
#[derive(Debug, Default)]
pub(crate) struct StepPlan {
    /// Changes of the page tables, to be made before anything is played.
    pub pages: Vec<PageChange>,
    pub step: Step,
    /// One for each of `step.logits`.
    pub samples: Vec<PlannedSample>,
    /// Tokens that the device samples for each row in one submission.
    pub plays: usize,
    /// Rows whose hidden values are read after the step, in rising order.
    pub embeddings: Vec<EmbedRows>,
    history: Vec<u32>,
    uniforms: Vec<f32>,
    masks: Vec<u32>,
}

impl StepPlan {
    /// Empties the plan, keeping its memory.
    pub fn clear(&mut self) {
        self.pages.clear();
        self.step.clear();
        self.samples.clear();
        self.plays = 1;
        self.embeddings.clear();
        self.history.clear();
        self.uniforms.clear();
        self.masks.clear();
    }

    /// Whether any row is sampled under a constraint.
    pub fn is_constrained(&self) -> bool {
        self.samples.iter().any(|sample| sample.options.constrained)
    }

    /// The mask of a row: only tokens whose bit is set may be sampled.
    pub fn mask(&self, sample: &PlannedSample) -> Option<&[u32]> {
        sample.mask.as_ref().map(|range| &self.masks[range.clone()])
    }

    /// Gives a row a mask of `words` words, which `fill` writes. False where no token is allowed;
    /// the row then has none.
    pub fn push_mask(&mut self, index: usize, words: usize, fill: impl FnOnce(&mut [u32])) -> bool {
        let start = self.masks.len();
        self.masks.resize(start + words, 0);
        let mask = &mut self.masks[start..];
        fill(mask);
        let is_filled = mask.iter().any(|&word| word != 0);
        self.samples[index].mask = is_filled.then_some(start..start + words);
        is_filled
    }

    /// Whether a device samples any row.
    pub fn is_sampled_on_device(&self) -> bool {
        self.samples.iter().any(|sample| sample.by == SampledBy::Device)
    }

    /// What a device is told of a row; none where the host samples it.
    pub fn sample_row(&self, index: usize) -> Option<SampleRow<'_>> {
        let sample = &self.samples[index];
        let PlannedSample { by, options, history, uniforms, .. } = sample;
        (*by == SampledBy::Device).then(|| SampleRow {
            mask: self.mask(sample),
            history: &self.history[history.clone()],
            uniforms: &self.uniforms[uniforms.clone()],
            ..options.row()
        })
    }

    /// Adds the rows of one request that want logits: the row of its last token and those of its
    /// guesses. `history` is what penalties look at, without the guesses.
    pub fn push_samples(&mut self, rows: SampledRows<'_>) {
        let SampledRows { by, options, lane, guesses, history, .. } = rows;
        let start = self.history.len();
        let first_uniform = self.uniforms.len();
        if by == SampledBy::Device {
            if options.sampling.penalises() {
                self.history.extend_from_slice(history);
                self.history.extend_from_slice(guesses);
            }
            let numbers = guesses.len().max(self.plays - 1) + 1;
            self.uniforms.extend((0..numbers).map(rows.uniform));
        }
        for row in 0..=guesses.len() {
            let end = self.history.len() - (guesses.len() - row).min(self.history.len() - start);
            let first = first_uniform + row;
            let uniforms = match by {
                SampledBy::Device => first..first + self.plays,
                SampledBy::Host => 0..0,
            };
            self.samples.push(PlannedSample {
                by,
                options: options.clone(),
                lane,
                guesses_before: row,
                guess: guesses.get(row).copied(),
                history: start..end,
                uniforms,
                mask: None,
            });
        }
    }
}

/// Rows of one request for [`StepPlan::push_samples`].
pub(crate) struct SampledRows<'a> {
    pub by: SampledBy,
    pub options: &'a Arc<SampleOptions>,
    pub lane: usize,
    pub guesses: &'a [u32],
    pub history: &'a [u32],
    /// The random number of the n-th token from here on.
    pub uniform: &'a dyn Fn(usize) -> f32,
}

/// What was sampled for one row.
#[derive(Clone, PartialEq, Eq, Debug)]
enum RowOutcome {
    /// In [`StepOutcome::tokens`]. None where a guess before the row was wrong.
    Tokens(Range<usize>),
    NotANumber,
}

/// Log probabilities of a token, the best of its row in [`StepOutcome::top`].
#[derive(Clone, PartialEq, Debug)]
struct LogProbs {
    sampled: f32,
    top: Range<usize>,
}

/// The device failed, and with it the step.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct StepFailure {
    pub reason: String,
    pub kind: ErrorKind,
    /// Nothing can be played on the device any more; the requests may go on elsewhere.
    pub lost: bool,
}

/// The result of a played step.
#[derive(Debug, Default)]
pub(crate) struct StepOutcome {
    rows: Vec<RowOutcome>,
    tokens: Vec<u32>,
    /// As many as tokens, as far as any row has them.
    logprobs: Vec<Option<LogProbs>>,
    top: Vec<(u32, f32)>,
    /// For each of [`StepPlan::embeddings`] its pooled rows.
    embeddings: Vec<f32>,
    width: usize,
    pub failure: Option<StepFailure>,
    /// From the start of planning to the last sampled token.
    pub time: Duration,
}

impl StepOutcome {
    /// Empties the outcome, keeping its memory.
    pub fn clear(&mut self) {
        self.rows.clear();
        self.tokens.clear();
        self.logprobs.clear();
        self.top.clear();
        self.embeddings.clear();
        self.failure = None;
        self.time = Duration::ZERO;
    }

    /// Adds the tokens of the next row; none where it was not sampled because an earlier guess was
    /// wrong.
    pub fn push(&mut self, tokens: &[u32]) {
        let start = self.tokens.len();
        self.tokens.extend_from_slice(tokens);
        self.rows.push(RowOutcome::Tokens(start..self.tokens.len()));
    }

    /// Adds log probabilities to the `play`-th token of the row that was pushed last; `top` appends
    /// those of the most probable tokens and returns that of the token itself.
    pub fn push_logprobs(&mut self, play: usize, top: impl FnOnce(&mut Vec<(u32, f32)>) -> f32) {
        if let Some(RowOutcome::Tokens(tokens)) = self.rows.last() {
            self.logprobs.resize(tokens.start + play, None);
            let start = self.top.len();
            let sampled = top(&mut self.top);
            self.logprobs.push(Some(LogProbs { sampled, top: start..self.top.len() }));
        }
    }

    /// The next row's logits are not numbers.
    pub fn push_not_a_number(&mut self) {
        self.rows.push(RowOutcome::NotANumber);
    }

    /// Adds a text's pooled rows, zero at first.
    pub fn push_embedding(&mut self, width: usize) -> &mut [f32] {
        let start = self.embeddings.len();
        self.width = width;
        self.embeddings.resize(start + width, 0.0);
        &mut self.embeddings[start..]
    }

    /// The tokens of a row; none where its logits are not numbers.
    pub fn tokens(&self, row: usize) -> Option<&[u32]> {
        match &self.rows[row] {
            RowOutcome::Tokens(range) => Some(&self.tokens[range.clone()]),
            RowOutcome::NotANumber => None,
        }
    }

    /// Log probabilities of the `play`-th token of a row, if they were asked for.
    pub fn logprobs(&self, row: usize, play: usize) -> Option<TokenLogProbs<'_>> {
        let RowOutcome::Tokens(tokens) = &self.rows[row] else { return None };
        let LogProbs { sampled, top } = self.logprobs.get(tokens.start + play)?.as_ref()?;
        Some(TokenLogProbs { sampled: *sampled, top: &self.top[top.clone()] })
    }

    /// The pooled rows of the `index`-th of [`StepPlan::embeddings`].
    pub fn embedding(&self, index: usize) -> &[f32] {
        &self.embeddings[index * self.width..(index + 1) * self.width]
    }
}
