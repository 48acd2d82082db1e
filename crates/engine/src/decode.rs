//! Tokens that the device chooses itself, several in one submission.

use crate::error::EngineError;
use crate::load::Engine;
use crate::sampler::{Sampling, uniform};
use pianola_plan::{DeviceError, Row};
use pianola_vulkan::{GpuSampling, VulkanRecording};

/// Longest that a submission may keep the next word from the reader, in seconds.
const SMOOTH: f64 = 0.04;
/// Longest that a submission may take, however many tokens were asked for, in seconds.
const LONGEST: f64 = 0.4;
/// Most tokens of a submission unless more are asked for: what is played past an end is wasted.
const USUAL: usize = 8;

/// Lists that are filled anew for every submission, and kept so that none is allocated again.
pub(crate) struct Scratch {
    uniforms: Vec<f32>,
    chosen: Vec<u32>,
}

impl Default for Scratch {
    fn default() -> Scratch {
        let most = VulkanRecording::MOST_TOKENS;
        Scratch { uniforms: Vec::with_capacity(most), chosen: Vec::with_capacity(most) }
    }
}

/// Decides how many tokens are played at once.
pub(crate) struct Pace {
    /// Asked for by the user.
    asked: Option<usize>,
    /// Seconds of a token, as the last submission showed.
    seconds: Option<f64>,
}

impl Pace {
    pub fn new(asked: Option<usize>) -> Pace {
        Pace { asked, seconds: None }
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
        smooth.clamp(1, VulkanRecording::MOST_TOKENS).min(left)
    }

    pub fn took(&mut self, tokens: usize, seconds: f64) {
        self.seconds = Some(seconds / tokens.max(1) as f64);
    }
}

impl Sampling {
    /// The same for a GPU, which also has to know where to stop.
    pub fn on_gpu(&self, stop_tokens: &[u32]) -> GpuSampling {
        GpuSampling {
            temperature: self.temperature,
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            repetition_penalty: self.repetition_penalty,
            presence_penalty: self.presence_penalty,
            frequency_penalty: self.frequency_penalty,
            penalty_window: self.penalty_window,
            logit_bias: self.logit_bias.clone(),
            stop_tokens: stop_tokens.to_vec(),
        }
    }
}

impl Engine {
    /// How the device would choose tokens as asked, or why the host has to.
    pub fn device_sampling(
        &self,
        sampling: &Sampling,
        stop_tokens: &[u32],
    ) -> Result<GpuSampling, &'static str> {
        match self.recording.as_any().downcast_ref::<VulkanRecording>() {
            None => return Err("the model is not wholly on a GPU"),
            Some(vulkan) if !vulkan.samples() => return Err("its kernels are being timed"),
            Some(_) => {}
        }
        let wanted = sampling.on_gpu(stop_tokens);
        wanted.unsupported().map_or(Ok(wanted), Err)
    }

    /// Feeds `token` and lets the device choose up to `count` tokens after it, in one submission.
    /// All but the last of them are fed, too. Penalties look at the sequence so far.
    pub fn feed_sampled(
        &mut self,
        token: u32,
        count: usize,
        sampling: &GpuSampling,
        seed: u64,
    ) -> Result<&[u32], EngineError> {
        let base = self.tokens.len();
        self.check_room(&[token], count)?;
        self.pages.extend(base, base + count, self.recording.as_mut());
        let Scratch { uniforms, chosen } = &mut self.scratch;
        uniforms.clear();
        uniforms.extend((0..count).map(|play| uniform(seed, (base + 1 + play) as u64) as f32));
        let row = Row { token, sequence: 0, position: base as u32, reserved: 0 };
        let vulkan = self.recording.as_any_mut().downcast_mut::<VulkanRecording>();
        let vulkan = vulkan.ok_or_else(|| {
            EngineError::Option("only a model wholly on a GPU samples there".to_string())
        })?;
        // Penalties look at the row's own token, too.
        self.tokens.push(token);
        let played = vulkan.play_sampled(row, sampling, &self.tokens, uniforms);
        let played = played.map_err(|error| {
            self.tokens.pop();
            match error {
                DeviceError::NotANumber => EngineError::NotANumber { position: base + 1 },
                other => other.into(),
            }
        })?;
        chosen.clear();
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
        let mut pace = Pace::new(None);
        assert_eq!(pace.tokens(100), 1);
        pace.took(1, 0.2);
        assert_eq!(pace.tokens(100), 1);
        pace.took(1, 0.01);
        assert_eq!(pace.tokens(100), 4);
        pace.took(4, 0.001);
        assert_eq!(pace.tokens(100), USUAL);
        assert_eq!(pace.tokens(3), 3);
        let mut asked = Pace::new(Some(1000));
        assert_eq!(asked.tokens(1000), 1);
        asked.took(1, 0.001);
        assert_eq!(asked.tokens(1000), VulkanRecording::MOST_TOKENS);
        asked.took(1, 0.1);
        assert_eq!(asked.tokens(1000), 4);
    }
}
