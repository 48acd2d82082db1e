//! Tokens that the device chooses itself, several in one submission.

use crate::error::EngineError;
use crate::load::Engine;
use crate::sampler::{Sampling, uniform};
use pianola_plan::Draw;

/// Longest that a submission may keep the next word from the reader, in seconds.
const SMOOTH: f64 = 0.04;
/// Longest that a submission may take, however many tokens were asked for, in seconds.
const LONGEST: f64 = 0.4;
/// Most tokens of a submission unless more are asked for: what is played past an end is wasted.
const USUAL: usize = 8;

/// Lists that are filled anew for every submission, and kept so that none is allocated again.
#[derive(Default)]
pub(crate) struct Scratch {
    uniforms: Vec<f32>,
    chosen: Vec<u32>,
}

/// Decides how many tokens are played at once.
pub(crate) struct Pace {
    /// Asked for by the user.
    asked: Option<usize>,
    /// What the device does at once.
    most: usize,
    /// Seconds of a token, as the last submission showed.
    seconds: Option<f64>,
}

impl Pace {
    pub fn new(asked: Option<usize>, most: usize) -> Pace {
        Pace { asked, most, seconds: None }
    }

    /// Tokens of the next submission, `left` being all that may come.
    pub fn tokens(&self, left: usize) -> usize {
        let smooth = match (self.asked, self.seconds) {
            // The first shows how long one takes.
            (_, None) => 1,
            // Drivers reset a GPU that does not come back for a second or two.
            (Some(asked), Some(seconds)) => asked.min((LONGEST / seconds.max(1e-6)) as usize),
            (None, Some(seconds)) => ((SMOOTH / seconds.max(1e-6)) as usize).min(USUAL),
        };
        smooth.clamp(1, self.most).min(left)
    }

    pub fn took(&mut self, tokens: usize, seconds: f64) {
        self.seconds = Some(seconds / tokens.max(1) as f64);
    }
}

impl Engine {
    /// Why the device cannot choose tokens as asked, and the host has to.
    pub fn cannot_choose(&self, sampling: &Sampling, stop_tokens: &[u32]) -> Option<&'static str> {
        self.recording.cannot_choose(sampling, stop_tokens)
    }

    /// Feeds `token` and lets the device choose up to `count` tokens after it, in one submission.
    /// All but the last of them are fed, too. Penalties look at the sequence so far.
    pub fn feed_choosing(
        &mut self,
        token: u32,
        count: usize,
        sampling: &Sampling,
        stop_tokens: &[u32],
    ) -> Result<&[u32], EngineError> {
        let base = self.tokens.len();
        self.check_room(&[token], count)?;
        self.pages.extend(base, base + count, self.recording.as_mut());
        let Scratch { uniforms, chosen } = &mut self.scratch;
        let most = self.recording.most_plays();
        uniforms.clear();
        uniforms.reserve(most);
        let number = |play| uniform(sampling.seed, (base + 1 + play) as u64) as f32;
        uniforms.extend((0..count).map(number));
        self.step.clear();
        self.step.push(token, 0, base as u32, true);
        // Penalties look at the row's own token, too.
        self.tokens.push(token);
        let draw = Draw { sampling, stop_tokens, history: &self.tokens, uniforms };
        let played = self.recording.play_choosing(&self.step, &[draw]);
        let played = played.map_err(EngineError::from).and_then(|()| {
            self.recording.chosen(0).ok_or(EngineError::NotANumber { position: base + 1 })
        });
        let played = match played {
            Ok(played) => played,
            Err(error) => {
                self.tokens.pop();
                return Err(error);
            }
        };
        chosen.clear();
        chosen.reserve(most);
        chosen.extend_from_slice(played);
        self.tokens.extend_from_slice(&chosen[..chosen.len().saturating_sub(1)]);
        // A stop token ends the plays early: pages for the rest go back.
        self.pages.truncate(self.tokens.len(), self.recording.as_mut());
        Ok(&self.scratch.chosen)
    }

    /// Forgets all but the first `length` tokens of the sequence, which was longer until now.
    pub(crate) fn rewind(&mut self, length: usize) {
        if length < self.tokens.len() {
            self.tokens.truncate(length);
            self.pages.truncate(length, self.recording.as_mut());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pace_follows_the_clock_and_the_user() {
        let mut pace = Pace::new(None, 64);
        assert_eq!(pace.tokens(100), 1);
        pace.took(1, 0.2);
        assert_eq!(pace.tokens(100), 1);
        pace.took(1, 0.01);
        assert_eq!(pace.tokens(100), 4);
        pace.took(4, 0.001);
        assert_eq!(pace.tokens(100), USUAL);
        assert_eq!(pace.tokens(3), 3);
        let mut asked = Pace::new(Some(1000), 64);
        assert_eq!(asked.tokens(1000), 1);
        asked.took(1, 0.001);
        assert_eq!(asked.tokens(1000), 64);
        asked.took(1, 0.1);
        assert_eq!(asked.tokens(1000), 4);
    }
}
