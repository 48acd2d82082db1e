//! Tokens that a device samples, against the host's sampler: the same logits, the same random numbers.

use super::kernels::Stand;
use super::report::{CheckIssue, CheckSection};
use super::steps::StepKind;
use super::{CheckEvent, Checker};
use crate::error::EngineError;
use crate::sampler::{Sampler, Sampling, is_at_boundary, uniform};
use pianola_cpu::SampledRows;
use pianola_plan::{LogitsTo, Recording, SampleRow, Step, WAIT_LIMIT, mask_words};
use std::time::Instant;

/// A way to sample, by name.
struct Draw {
    name: &'static str,
    sampling: Sampling,
    /// Tokens of the history.
    history: usize,
    /// Whether only every third token may be sampled.
    masked: bool,
    top_logprobs: Option<usize>,
}

/// Rows that are sampled at once.
const ROWS: usize = 8;
/// Random numbers that each way to sample meets.
const ROUNDS: u64 = 4;

/// Every way to sample that takes other kernels.
fn draws() -> Vec<Draw> {
    let plain = Sampling::default();
    let greedy = Sampling::greedy();
    let draw = |name: &'static str, sampling: &Sampling| Draw {
        name,
        sampling: sampling.clone(),
        history: 0,
        masked: false,
        top_logprobs: None,
    };
    let penalties = Sampling {
        repetition_penalty: 1.2,
        frequency_penalty: 0.3,
        presence_penalty: 0.2,
        ..plain.clone()
    };
    let bias = vec![(3, 4.0), (17, -2.5), (40, f32::NEG_INFINITY)];
    vec![
        draw("greedy", &greedy),
        draw("temperature", &Sampling { temperature: 0.8, ..plain.clone() }),
        draw("top-k", &Sampling { top_k: 40, ..plain.clone() }),
        draw("top-k and top-p", &Sampling { top_k: 64, top_p: 0.9, ..plain.clone() }),
        draw("top-p", &Sampling { top_p: 0.9, ..plain.clone() }),
        draw("min-p", &Sampling { min_p: 0.1, ..plain.clone() }),
        draw(
            "a large top-k with all cuts",
            &Sampling { top_k: 200, top_p: 0.8, min_p: 0.01, temperature: 0.7, ..plain.clone() },
        ),
        draw("biases", &Sampling { logit_bias: bias, top_k: 20, ..plain.clone() }),
        Draw {
            history: 100,
            ..draw("penalties", &Sampling { top_k: 30, penalty_window: 64, ..penalties.clone() })
        },
        Draw {
            history: 600,
            ..draw("penalties of a long window", &Sampling { penalty_window: 500, ..penalties })
        },
        Draw { masked: true, ..draw("a mask, greedy", &greedy) },
        Draw { masked: true, ..draw("a mask", &Sampling { top_p: 0.95, ..plain.clone() }) },
        Draw { top_logprobs: Some(5), ..draw("log probabilities", &plain) },
    ]
}

impl Checker<'_> {
    /// Samples with a recording whose head has the whole vocabulary.
    pub(super) fn check_draws(&mut self, stand: &mut Stand) -> Result<(), EngineError> {
        stand.branch();
        let Stand { recording, reference, sequences, .. } = stand;
        if recording.sampler().is_none() {
            let note = "tokens are sampled by the host: no kernel of the device samples";
            self.result.notes.push(note.to_string());
            return Ok(());
        }
        let start = Instant::now();
        let name = "tokens sampled by the device against the host's sampler".to_string();
        let mut section = CheckSection { name, ..CheckSection::default() };
        let step = sequences.step(StepKind::Lanes(ROWS), ROWS);
        recording.play(&step)?;
        let logits: Vec<Vec<f32>> =
            (0..ROWS).map(|row| recording.logits(0, row).to_vec()).collect();
        let draws = draws();
        let all: Vec<(&Draw, u64)> =
            (0..ROUNDS).flat_map(|seed| draws.iter().map(move |draw| (draw, seed))).collect();
        let batches = all.chunks(ROWS);
        let count = batches.len();
        for (index, batch) in batches.enumerate() {
            let step = if batch.len() == ROWS { step.clone() } else { cut(&step, batch.len()) };
            self.check_batch(recording.as_mut(), &step, batch, &logits, &mut section)?;
            let done = index + 1;
            (self.events)(CheckEvent::Progress { section: &section.name, done, all: count });
        }
        // The reference takes over the keys and values of these rows, too; last, because fewer rows are computed by other kernels,
        // which round otherwise.
        reference.check_rows(recording.as_mut(), &step, &SampledRows::all(&step), &|_| false)?;
        section.seconds = start.elapsed().as_secs_f64();
        self.finish(section);
        Ok(())
    }

    fn check_batch(
        &mut self,
        recording: &mut dyn Recording,
        step: &Step,
        batch: &[(&Draw, u64)],
        logits: &[Vec<f32>],
        section: &mut CheckSection,
    ) -> Result<(), EngineError> {
        let vocabulary = recording.plan().graph.vocabulary;
        let mut mask = vec![0; mask_words(vocabulary)];
        (0..vocabulary).filter(|&id| allowed(id)).for_each(|id| mask[id / 32] |= 1 << (id % 32));
        let history = history(vocabulary);
        let numbers: Vec<[f32; 1]> =
            batch.iter().map(|&(_, seed)| [uniform(seed, 0) as f32]).collect();
        let rows: Vec<Option<SampleRow<'_>>> = batch
            .iter()
            .zip(&numbers)
            .map(|(&(draw, _), number)| {
                Some(SampleRow {
                    history: &history[..draw.history],
                    mask: draw.masked.then_some(&mask[..]),
                    top_logprobs: draw.top_logprobs,
                    ..SampleRow::new(&draw.sampling, number)
                })
            })
            .collect();
        recording.submit(0, 0, step, LogitsTo::Sampler)?;
        let Some(sampler) = recording.sampler_mut() else { return Ok(()) };
        sampler.sample(0, &rows)?;
        self.result.coverage[0].compared.extend(sampler.sampling_variants(&rows));
        for (index, &(draw, seed)) in batch.iter().enumerate() {
            let found = sampler.sampled(0, index).and_then(|tokens| tokens.first().copied());
            let logprob = sampler.logprobs(0, index, 0).map(|logprobs| logprobs.sampled);
            let drawn = Drawn { draw, seed, logits: &logits[index], history: &history };
            if let Err(reason) = drawn.compare(found, logprob) {
                self.result.fail(CheckIssue {
                    section: section.name.clone(),
                    step: format!("{} lanes", step.rows.len()),
                    kernel: format!("sampling, {}", draw.name),
                    reason,
                });
            }
            section.compared += 1;
            section.values += logits[index].len();
        }
        section.steps += 1;
        recording.wait(0, WAIT_LIMIT)?;
        Ok(())
    }
}

/// The first rows of a step of lanes.
fn cut(step: &Step, rows: usize) -> Step {
    Step { rows: step.rows[..rows].to_vec(), logits: step.logits[..rows].to_vec() }
}

fn allowed(id: usize) -> bool {
    id % 3 == 1
}

fn history(vocabulary: usize) -> Vec<u32> {
    (0..1000u32).map(|n| n.wrapping_mul(n).wrapping_mul(7) % vocabulary as u32).collect()
}

/// A sampled token with what the host needs to sample it, too.
struct Drawn<'a> {
    draw: &'a Draw,
    seed: u64,
    logits: &'a [f32],
    history: &'a [u32],
}

impl Drawn<'_> {
    /// Whether the device's token, and its log probability, are the host's.
    fn compare(&self, found: Option<u32>, logprob: Option<f32>) -> Result<(), String> {
        /// A GPU may divide with an error of 2.5 units in the last place.
        const NEAR: f32 = 4e-7;
        const NEAR_LOG: f32 = 4e-6;
        let Draw { sampling, masked, top_logprobs, .. } = self.draw;
        let sampling = Sampling { seed: self.seed, ..sampling.clone() };
        let vocabulary = self.logits.len();
        let mut host = Sampler::new(sampling.clone(), vocabulary)
            .map_err(|error| format!("the host cannot sample so: {error}"))?;
        self.history[..self.draw.history].iter().for_each(|&token| host.accept(token));
        let mut shaped = self.logits.to_vec();
        if *masked {
            let banned = |id: usize| !allowed(id);
            (0..vocabulary).filter(|&id| banned(id)).for_each(|id| shaped[id] = f32::NEG_INFINITY);
        }
        let expected = host.sample(&mut shaped, 0);
        let Some(found) = found else {
            return Err("no token: a logit was not a number for the device".to_string());
        };
        let number = uniform(self.seed, 0);
        let best = shaped[expected as usize];
        let same = found == expected
            || match sampling.temperature == 0.0 {
                true => (best - shaped[found as usize]).abs() <= NEAR * (1.0 + best.abs()),
                false => is_at_boundary(&sampling, &shaped, number, found),
            };
        if !same {
            return Err(format!("token {found}, the host samples {expected} with {number}"));
        }
        if top_logprobs.is_some() {
            let expected = host.logprobs(self.logits, found, 0, &mut Vec::new());
            let near = |found: f32| (found - expected).abs() <= NEAR_LOG * (1.0 + expected.abs());
            if !logprob.is_some_and(near) {
                return Err(format!("log probability {logprob:?} of {found}, expected {expected}"));
            }
        }
        Ok(())
    }
}
