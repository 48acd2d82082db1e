//! A smaller model that guesses for a larger one.
//!
//! Its lanes are those of the larger one, slot for slot, with KV pages of its own. What it guessed
//! and the larger one confirmed is in its pages already; only what it did not guess is played anew.

use crate::engine::apply_pages;
use crate::error::EngineError;
use crate::load::Engine;
use crate::sampler::Sampler;
use crate::text::Text;

/// One lane to guess for.
pub(crate) struct Guess<'a> {
    pub slot: usize,
    /// Whose kept pages its guesses may be computed from.
    pub tenant: u64,
    /// What is certain.
    pub tokens: &'a [u32],
    /// Samples as the larger model's lane will, with the same random numbers.
    pub sampler: &'a mut Sampler,
    pub most: usize,
    /// What is guessed.
    pub guesses: &'a mut Vec<u32>,
}

/// The tokens of a model.
#[derive(Clone, Copy)]
pub struct Vocabulary<'a> {
    /// Name of the model.
    pub model: &'a str,
    /// Number of tokens.
    pub tokens: usize,
    /// Tokeniser, if the model has one.
    pub text: Option<&'a Text>,
}

impl Vocabulary<'_> {
    fn of(engine: &Engine) -> Vocabulary<'_> {
        let Engine { name, config, text, .. } = engine;
        Vocabulary { model: name, tokens: config.vocabulary, text: text.as_deref() }
    }
}

/// Checks that a draft model can guess for another: each token must mean the same in both.
pub fn check_draft(draft: Vocabulary<'_>, main: Vocabulary<'_>) -> Result<(), EngineError> {
    let unfit = |reason: String| Err(EngineError::Draft { draft: draft.model.into(), reason });
    if draft.tokens != main.tokens {
        let Vocabulary { model, tokens, .. } = main;
        return unfit(format!("it has {} tokens, and {model} has {tokens}", draft.tokens));
    }
    if let (Some(own), Some(others)) = (draft.text, main.text) {
        let differs =
            |&token: &u32| own.tokenizer.token_bytes(token) != others.tokenizer.token_bytes(token);
        if let Some(token) = (0..draft.tokens as u32).find(differs) {
            return unfit(format!("token {token} is another than in {}", main.model));
        }
    }
    Ok(())
}

/// The smaller model.
pub(crate) struct Drafter {
    engine: Box<Engine>,
    /// For each slot what was played of it: certain once, or guessed.
    played: Vec<Vec<u32>>,
}

impl Drafter {
    /// Whether `draft` can guess for `main`: they must mean the same by every token.
    pub fn new(draft: Engine, main: &Engine) -> Result<Drafter, EngineError> {
        check_draft(Vocabulary::of(&draft), Vocabulary::of(main))?;
        let (lanes, wanted) = (draft.plan().options.sequences, main.plan().options.sequences);
        if lanes != wanted {
            let reason = format!("it has {lanes} lanes, and {} has {wanted}", main.name);
            return Err(EngineError::Draft { draft: draft.name.clone(), reason });
        }
        Ok(Drafter { engine: Box::new(draft), played: vec![Vec::new(); lanes] })
    }

    /// Guesses for all lanes, each as far as it may. Lanes whose prompt is not played yet, and
    /// those without pages, get nothing this time.
    pub fn guess(&mut self, lanes: &mut [Guess<'_>]) -> Result<(), EngineError> {
        lanes.iter().for_each(|lane| self.align(lane));
        let longest = lanes.iter().map(|lane| lane.most).max().unwrap_or(0);
        for _ in 0..longest {
            // A play without a guess was a prompt's part; the next comes with the next step.
            if !self.play(lanes)? {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Seconds that its plays have taken.
    pub fn play_seconds(&self) -> f64 {
        self.engine.play_seconds()
    }

    /// The lane of a slot is over; what was played of it is kept while there is room.
    pub fn release(&mut self, slot: usize) {
        self.played[slot].clear();
        self.engine.scheduler.cache.release(slot);
    }

    /// Forgets all that is kept.
    pub fn reset(&mut self) {
        let cache = &mut self.engine.scheduler.cache;
        for (slot, played) in self.played.iter_mut().enumerate() {
            played.clear();
            cache.forget(slot);
        }
        cache.clear();
    }

    /// Makes the pages of a slot those of its lane's tokens, keeping what they begin with.
    fn align(&mut self, lane: &Guess<'_>) {
        let cache = &mut self.engine.scheduler.cache;
        let played = &mut self.played[lane.slot];
        let certain = cache.len(lane.slot);
        let known = lane.tokens.len().saturating_sub(1);
        let common = played.iter().zip(&lane.tokens[..known]).take_while(|(a, b)| a == b).count();
        if common < certain || certain == 0 {
            // Another sequence than before, or none yet.
            cache.release(lane.slot);
            let cached = cache.attach(lane.slot, lane.tenant, &lane.tokens[..=known]);
            *played = lane.tokens[..cached].to_vec();
        } else {
            cache.append(lane.slot, &lane.tokens[certain..common]);
            played.truncate(common);
        }
    }

    /// Plays what lanes lack, and adds a guess to each that then has all its tokens. False if none
    /// was added.
    fn play(&mut self, lanes: &mut [Guess<'_>]) -> Result<bool, EngineError> {
        let Engine { scheduler, executor, buffers, .. } = self.engine.as_mut();
        let (cache, step) = (&mut scheduler.cache, &mut buffers.plan.step);
        let options = executor.plan().options;
        let mut left = options.max_rows;
        let mut owners = Vec::new();
        step.clear();
        for (index, lane) in lanes.iter().enumerate() {
            let known = lane.tokens.len() + lane.guesses.len();
            let start = self.played[lane.slot].len();
            let end = known.min(start + left).min(options.context);
            let done = lane.guesses.len() >= lane.most || known >= options.context;
            if done || start >= end || cache.reserve(lane.slot, end).is_err() {
                continue;
            }
            for position in start..end {
                let token = match position.checked_sub(lane.tokens.len()) {
                    None => lane.tokens[position],
                    Some(guess) => lane.guesses[guess],
                };
                let wanted = position + 1 == known && owners.len() < options.max_logit_rows;
                step.push(token, lane.slot as u32, position as u32, wanted);
                self.played[lane.slot].push(token);
                if wanted {
                    owners.push(index);
                }
            }
            left -= end - start;
        }
        if step.rows.is_empty() {
            return Ok(false);
        }
        apply_pages(executor, cache.drain_changes());
        executor.play(step)?;
        for (row, &owner) in owners.iter().enumerate() {
            let lane = &mut lanes[owner];
            let position = lane.tokens.len() + lane.guesses.len();
            let guess = lane.sampler.sample(executor.logits(row), position as u64);
            lane.guesses.push(guess);
        }
        for lane in lanes.iter() {
            // Certain tokens are the sequence's own from now on; guesses may be taken back.
            let certain = cache.len(lane.slot);
            let played = self.played[lane.slot].len().min(lane.tokens.len());
            cache.append(lane.slot, &lane.tokens[certain..played]);
        }
        Ok(!owners.is_empty())
    }
}
