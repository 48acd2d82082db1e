//! Makes the plan of the next step: who gets rows, which guesses are verified, who samples.

use super::plan::SampledRows;
use super::shares::{Room, RowDemand, Share, share};
use super::{EmbedRows, PlannedSample, Running, SampledBy, Scheduler, StepOutcome, StepPlan};
use crate::constraint::apply_mask;
use crate::draft::Guess;
use crate::lane::Lane;
use crate::sampler::uniform;
use crate::speculate::{Speculation, look_up};
use pianola_plan::bucket;

impl Running {
    /// Tokens that are known and not computed yet.
    fn pending(&self, scheduler: &Scheduler) -> usize {
        self.lane.tokens.len() - scheduler.cache.len(self.slot)
    }
}

impl Scheduler {
    /// Plans the next step. `draft` fills in guesses where a model makes them. False if there is
    /// nothing to play; changes of the page tables are in the plan all the same.
    pub fn plan_step(
        &mut self,
        plan: &mut StepPlan,
        draft: &mut dyn FnMut(&mut [Guess<'_>]),
    ) -> bool {
        self.admit();
        self.guess(draft);
        self.check_guesses();
        self.divide();
        let plays = self.plays();
        let plays = self.reserve(plays);
        plan.clear();
        plan.pages.extend(self.cache.drain_changes());
        plan.plays = plays;
        self.write_rows(plan);
        !self.running.is_empty()
    }

    /// Guesses what comes next, for requests that generate.
    fn guess(&mut self, draft: &mut dyn FnMut(&mut [Guess<'_>])) {
        let context = self.options.limits.context;
        self.running.iter_mut().for_each(|running| running.guesses.clear());
        if self.speculation == Speculation::Off || !self.gauge.guesses() {
            return;
        }
        let mut asked = Vec::new();
        for Running { lane, slot, guesses, boldness, .. } in &mut self.running {
            // The last token that may come need not be guessed.
            let most = boldness.guesses().min(lane.left(context).saturating_sub(1));
            if lane.tokens.len() - self.cache.len(*slot) != 1 || most == 0 {
                continue;
            }
            match self.speculation {
                Speculation::Off => {}
                Speculation::Lookup => look_up(&lane.tokens, most, guesses),
                Speculation::Draft => {
                    lane.update_sampler(&[]);
                    let Lane { tokens, sampler, request, .. } = lane;
                    let (slot, tenant) = (*slot, request.tenant);
                    asked.push(Guess { slot, tenant, tokens, sampler, most, guesses });
                }
            }
        }
        if !asked.is_empty() {
            draft(&mut asked);
        }
    }

    /// Decides how many rows each request gets.
    fn divide(&mut self) {
        let options = &self.options;
        let mut demands = std::mem::take(&mut self.demands);
        demands.clear();
        demands.extend(self.running.iter().map(|running| RowDemand {
            pending: running.pending(self),
            drafts: running.guesses.len(),
        }));
        let mut chunk = self.chunks.rows(options.max_rows);
        if options.rounds_rows {
            let generating = demands.iter().filter(|demand| demand.pending == 1).count();
            let rounded = bucket(chunk + generating).unwrap_or(options.max_rows);
            chunk = rounded.saturating_sub(generating);
        }
        let room = Room { rows: options.max_rows, logits: options.max_logit_rows, chunk };
        share(&demands, room, &mut self.shares, &mut self.prompts);
        self.demands = demands;
        for (running, &share) in self.running.iter_mut().zip(&self.shares) {
            running.share = share;
        }
    }

    /// Whether a request comes to the end of its tokens in this step and needs another.
    pub(super) fn wants_token(&self, running: &Running) -> bool {
        running.share.pending == running.pending(self)
            && running.lane.left(self.options.limits.context) > 0
    }

    /// Rows with logits of this step.
    fn logit_rows(&self) -> usize {
        let wanting = self.running.iter().filter(|running| self.wants_token(running));
        wanting.map(|running| 1 + running.share.drafts).sum()
    }

    /// Plays of the next submission: several where the device samples all rows and every request
    /// generates one token at a time. Nobody waits for further tokens with the first.
    fn plays(&self) -> usize {
        let options = &self.options;
        let generates = |running: &Running| {
            running.share == Share { pending: 1, drafts: 0 }
                && running.lane.by == SampledBy::Device
                && running.lane.constraint.is_none()
                && !running.lane.generated().is_empty()
                && self.wants_token(running)
        };
        let most = options.max_tokens_per_submit;
        if most == 1
            || self.logit_rows() > options.max_sample_rows
            || !self.running.iter().all(generates)
        {
            return 1;
        }
        let left = self.running.iter().map(|running| running.lane.left(options.limits.context));
        self.plays.plays(left.min().unwrap_or(1), most)
    }

    fn write_rows(&self, plan: &mut StepPlan) {
        let on_device = self.logit_rows() <= self.options.max_sample_rows;
        for (index, running) in self.running.iter().enumerate() {
            let Running { lane, slot, share, guesses, .. } = running;
            let wants_token = self.wants_token(running);
            let start = self.cache.len(*slot);
            let end = start + share.pending;
            let first_row = plan.step.rows.len();
            if let Some(pooling) = lane.pooling().filter(|_| share.pending > 0) {
                let rows = first_row..first_row + share.pending;
                plan.embeddings.push(EmbedRows { rows, pooling });
            }
            for (position, &token) in lane.tokens.iter().enumerate().take(end).skip(start) {
                let logits = wants_token && position + 1 == end;
                plan.step.push(token, *slot as u32, position as u32, logits);
            }
            let guesses = &guesses[..share.drafts];
            for (guess, &token) in guesses.iter().enumerate() {
                plan.step.push(token, *slot as u32, (end + guess) as u32, true);
            }
            if wants_token {
                let (seed, first) = (lane.sampler.sampling().seed, lane.tokens.len());
                plan.push_samples(SampledRows {
                    by: if on_device { lane.by } else { SampledBy::Host },
                    options: &lane.options,
                    lane: index,
                    guesses,
                    history: lane.penalised(),
                    uniform: &|token| uniform(seed, (first + token) as u64) as f32,
                });
            }
        }
    }

    /// Samples a row that the plan leaves to the host, and adds the token to `outcome`. The rows of
    /// a request come in order, and only as far as its guesses are right.
    pub fn sample(
        &mut self,
        planned: &PlannedSample,
        mask: Option<&[u32]>,
        logits: &mut [f32],
        outcome: &mut StepOutcome,
    ) -> u32 {
        let Scheduler { running, raw_logits, .. } = self;
        let Running { lane, guesses, .. } = &mut running[planned.lane];
        let before = planned.guesses_before;
        lane.update_sampler(&guesses[..before]);
        let top_logprobs = lane.options.top_logprobs;
        if top_logprobs.is_some() {
            raw_logits.clear();
            raw_logits.extend_from_slice(logits);
        }
        if let Some(mask) = mask {
            apply_mask(logits, mask);
        }
        let token = lane.sampler.sample(logits, (lane.tokens.len() + before) as u64);
        outcome.push(&[token]);
        if let Some(count) = top_logprobs {
            outcome.push_logprobs(0, |top| lane.sampler.logprobs(raw_logits, token, count, top));
        }
        token
    }
}
