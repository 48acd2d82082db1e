//! Guessing ahead: tokens that are likely to come are verified as further rows of one step, which
//! reads the weights once for all of them.
//!
//! The token at a position is sampled from the logits there with the
//! random number of the request's seed and that position, whether it was guessed or not; a guess
//! that differs from it ends the verified run, and is forgotten. So answers are the same wherever logits do
//! not depend on the rows of a step: with reproducible kernels, and in the processor's exact mode. With
//! others, rounding decides near ties.

use std::time::Duration;

/// Where guesses come from.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Speculation {
    /// Nowhere.
    #[default]
    Off,
    /// The tokens so far: what followed the last time that the same few tokens came.
    Lookup,
    /// A smaller model; see [`crate::Engine::set_draft`].
    Draft,
}

/// Most tokens guessed for a lane in one step.
pub(crate) const MOST_GUESSES: usize = 7;

/// Appends up to `most` tokens that followed when the last few of `tokens` came before.
pub(crate) fn look_up(tokens: &[u32], most: usize, guesses: &mut Vec<u32>) {
    /// Tokens that have to be alike: of the longer, fewer are found and more are right.
    const ALIKE: [usize; 2] = [4, 2];
    for length in ALIKE {
        let Some(end) = tokens.len().checked_sub(length) else { continue };
        let last = &tokens[end..];
        // The latest comes first: what is said now is more like what was said just before.
        let found = (0..end).rev().find(|&at| &tokens[at..at + length] == last);
        if let Some(at) = found {
            let from = at + length;
            guesses.extend_from_slice(&tokens[from..(from + most).min(tokens.len())]);
            return;
        }
    }
}

/// How many tokens to guess for one lane: more while guesses are right, fewer when they are not.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Boldness(usize);

impl Default for Boldness {
    fn default() -> Boldness {
        Boldness(3)
    }
}

impl Boldness {
    pub fn guesses(self) -> usize {
        self.0
    }

    /// Of `guessed` tokens `right` were right.
    pub fn learn(&mut self, guessed: usize, right: usize) {
        self.0 = match guessed {
            0 => self.0,
            _ if right == guessed => (self.0 + 2).min(MOST_GUESSES),
            _ => (right + 1).min(self.0),
        };
    }
}

/// Tokens and seconds of some steps.
#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    steps: usize,
    tokens: usize,
    seconds: f64,
}

impl Tally {
    fn add(&mut self, tokens: usize, time: Duration) {
        self.steps += 1;
        self.tokens += tokens;
        self.seconds += time.as_secs_f64();
    }

    fn rate(&self) -> f64 {
        self.tokens as f64 / self.seconds.max(1e-9)
    }
}

/// Decides by the clock whether guessing pays: some steps with, some without, then the faster for a
/// while, and again.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Gauge {
    phase: Phase,
    with: Tally,
    without: Tally,
    /// Steps for which the next verdict stands.
    stands: usize,
    verdict: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    With,
    Without,
    Settled { left: usize },
}

impl Default for Gauge {
    fn default() -> Gauge {
        let (with, without) = (Tally::default(), Tally::default());
        Gauge { phase: Phase::With, with, without, stands: Gauge::FIRST, verdict: true }
    }
}

impl Gauge {
    /// Steps of a trial: few, because a losing one costs time.
    const TRIAL_WITH: usize = 8;
    const TRIAL_WITHOUT: usize = 6;
    /// Steps for which a verdict stands: few at first, more each time that it is confirmed.
    const FIRST: usize = 64;
    const LAST: usize = 1024;

    /// Whether to guess in the next step.
    pub fn guesses(&self) -> bool {
        match self.phase {
            Phase::With => true,
            Phase::Without => false,
            Phase::Settled { .. } => self.verdict,
        }
    }

    /// A step of generating lanes alone brought `tokens` tokens; `guessed` says whether there was a
    /// guess among its rows. Steps where none was found show nothing.
    pub fn took(&mut self, guessed: bool, tokens: usize, time: Duration) {
        match &mut self.phase {
            Phase::With if guessed => {
                self.with.add(tokens, time);
                if self.with.steps == Gauge::TRIAL_WITH {
                    self.phase = Phase::Without;
                }
            }
            Phase::With => {}
            Phase::Without => {
                self.without.add(tokens, time);
                if self.without.steps == Gauge::TRIAL_WITHOUT {
                    let verdict = self.with.rate() > self.without.rate();
                    let confirmed = verdict == self.verdict;
                    self.stands =
                        if confirmed { (2 * self.stands).min(Gauge::LAST) } else { Gauge::FIRST };
                    self.verdict = verdict;
                    self.phase = Phase::Settled { left: self.stands };
                }
            }
            Phase::Settled { left: 0 } => {
                (self.with, self.without) = (Tally::default(), Tally::default());
                self.phase = Phase::With;
            }
            Phase::Settled { left } => *left -= 1,
        }
    }

    /// Whether guessing was found to lose.
    pub fn is_off(&self) -> bool {
        self.phase != Phase::With && self.phase != Phase::Without && !self.verdict
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guessed(tokens: &[u32], most: usize) -> Vec<u32> {
        let mut guesses = Vec::new();
        look_up(tokens, most, &mut guesses);
        guesses
    }

    #[test]
    fn what_followed_before_is_guessed() {
        assert_eq!(guessed(&[1, 2, 3, 4, 9, 1, 2], 2), [3, 4]);
        assert_eq!(guessed(&[1, 2, 3, 1, 2, 5, 1, 2], 3), [5, 1, 2]);
        // Four alike count more than the latest two.
        assert_eq!(guessed(&[7, 8, 1, 2, 3, 1, 2, 5, 7, 8, 1, 2], 1), [3]);
        assert!(guessed(&[1, 2, 3], 4).is_empty());
        assert_eq!(guessed(&[5, 5, 5, 5], 4), [5]);
        assert!(guessed(&[], 4).is_empty());
        assert!(guessed(&[1, 1], 4).is_empty());
    }

    #[test]
    fn boldness_follows_success() {
        let mut boldness = Boldness::default();
        boldness.learn(3, 3);
        boldness.learn(5, 5);
        assert_eq!(boldness.guesses(), MOST_GUESSES);
        boldness.learn(7, 1);
        assert_eq!(boldness.guesses(), 2);
        boldness.learn(2, 0);
        boldness.learn(0, 0);
        assert_eq!(boldness.guesses(), 1);
    }

    /// Steps until the gauge has settled, a step with guesses taking `milliseconds` for `tokens` tokens.
    fn settle(gauge: &mut Gauge, tokens: usize, milliseconds: u64) {
        for _ in 0..Gauge::TRIAL_WITH + Gauge::TRIAL_WITHOUT {
            match gauge.guesses() {
                true => gauge.took(true, tokens, Duration::from_millis(milliseconds)),
                false => gauge.took(false, 1, Duration::from_millis(10)),
            }
        }
    }

    #[test]
    fn what_loses_is_switched_off_and_tried_again_later() {
        let mut gauge = Gauge::default();
        settle(&mut gauge, 2, 15);
        assert!(gauge.guesses() && !gauge.is_off());
        let mut gauge = Gauge::default();
        settle(&mut gauge, 2, 25);
        assert!(!gauge.guesses() && gauge.is_off());
        let mut waited = 0;
        while !gauge.guesses() {
            gauge.took(false, 1, Duration::from_millis(10));
            waited += 1;
        }
        assert_eq!(waited, Gauge::FIRST + 1);
        settle(&mut gauge, 2, 25);
        assert!(gauge.is_off());
        // Steps without a guess are no trial.
        let mut idle = Gauge::default();
        (0..1000).for_each(|_| idle.took(false, 1, Duration::from_millis(10)));
        assert!(idle.guesses());
    }
}
