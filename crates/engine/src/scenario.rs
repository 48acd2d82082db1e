//! What users of a busy engine see: conversations that begin over time, each of some turns.

use crate::bench::tokens;
use crate::error::EngineError;
use crate::load::Engine;
use crate::request::{Event, Request, RequestId};
use crate::sampler::uniform;
use std::collections::HashMap;
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

/// Conversations that begin at random moments, as people come to a service.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct ChatScenario {
    /// How many.
    pub conversations: usize,
    /// How many begin in a second, on average.
    pub rate: f64,
    /// Tokens of a message, on average; a message has a half to one and a half of it.
    pub prompt: usize,
    /// Tokens of an answer, on average, and likewise.
    pub generate: usize,
    /// Decides everything that is random.
    pub seed: u64,
}

/// What the users saw.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct ScenarioReport {
    /// Requests served.
    pub requests: usize,
    /// Seconds from the first arrival to the last answer.
    pub seconds: f64,
    /// Tokens generated.
    pub generated_tokens: usize,
    /// Tokens of prompts, and those of them that were computed before.
    pub prompt_tokens: usize,
    /// See `prompt_tokens`.
    pub cached_tokens: usize,
    /// Times that a request made room for another.
    pub preemptions: usize,
    /// Seconds from each request to its first token, in rising order.
    pub first_token: Vec<f64>,
    /// Seconds between one token and the next of the same answer, in rising order.
    pub between_tokens: Vec<f64>,
}

/// The value below which a share of the (rising) values lies.
pub fn percentile(values: &[f64], share: f64) -> f64 {
    let last = values.len().saturating_sub(1);
    values.get((share * last as f64).round() as usize).copied().unwrap_or(0.0)
}

impl ChatScenario {
    /// Messages of each conversation.
    pub const TURNS: usize = 3;
    /// Seconds in which a user reads an answer and writes the next message.
    const PAUSE: f64 = 0.5;

    /// Tokens that a conversation may come to.
    pub fn context(&self) -> usize {
        ChatScenario::TURNS * (self.prompt * 3 / 2 + self.generate * 3 / 2 + 4)
    }

    /// A random number in [0, 1).
    fn random(&self, conversation: usize, what: usize) -> f64 {
        uniform(self.seed, (conversation * 64 + what) as u64)
    }

    /// A length of a half to one and a half of the usual.
    fn length(&self, usual: usize, conversation: usize, what: usize) -> usize {
        (usual as f64 * (0.5 + self.random(conversation, what))).round().max(1.0) as usize
    }
}

/// A conversation under way.
struct Conversation {
    index: usize,
    turns: usize,
    tokens: Vec<u32>,
    /// When its next message comes.
    due: Duration,
}

impl Conversation {
    /// The next message, behind what was said.
    fn request(&mut self, scenario: &ChatScenario, vocabulary: usize) -> Request {
        let what = 3 * self.turns;
        let length = scenario.length(scenario.prompt, self.index, what);
        let start = self.tokens.len();
        self.tokens.extend(tokens(vocabulary, self.index, start..start + length));
        self.turns += 1;
        Request {
            max_tokens: Some(scenario.length(scenario.generate, self.index, what + 1)),
            ignore_end: true,
            ..Request::new(self.tokens.clone())
        }
    }
}

/// Runs a scenario to its end.
pub fn run_scenario(
    engine: &mut Engine,
    scenario: &ChatScenario,
) -> Result<ScenarioReport, EngineError> {
    let vocabulary = engine.config().vocabulary;
    let mut report = ScenarioReport::default();
    let mut arrival = 0.0;
    let mut coming: Vec<Conversation> = (0..scenario.conversations)
        .map(|index| {
            // Arrivals that know nothing of one another.
            arrival -= (1.0 - scenario.random(index, 63)).ln() / scenario.rate;
            let due = Duration::from_secs_f64(arrival);
            Conversation { index, turns: 0, tokens: Vec::new(), due }
        })
        .collect();
    let mut open: HashMap<RequestId, (Conversation, Instant, Option<Instant>)> = HashMap::new();
    let begun = Instant::now();
    while !(coming.is_empty() && open.is_empty()) {
        let now = begun.elapsed();
        let (due, later): (Vec<_>, Vec<_>) =
            coming.into_iter().partition(|conversation| conversation.due <= now);
        coming = later;
        for mut conversation in due {
            let id = engine.submit(conversation.request(scenario, vocabulary))?;
            open.insert(id, (conversation, Instant::now(), None));
        }
        if open.is_empty() {
            let next = coming.iter().map(|conversation| conversation.due).min();
            std::thread::sleep(next.unwrap_or_default().saturating_sub(begun.elapsed()));
            continue;
        }
        let mut failure = None;
        engine.step_with(&mut |id, event| {
            let Some((_, asked, last)) = open.get_mut(&id) else {
                return ControlFlow::Continue(());
            };
            match event {
                Event::Prompt | Event::Embedding(_) => {}
                Event::Token(_) => {
                    let now = Instant::now();
                    match last.replace(now) {
                        None => report.first_token.push(now.duration_since(*asked).as_secs_f64()),
                        Some(before) => {
                            report.between_tokens.push(now.duration_since(before).as_secs_f64());
                        }
                    }
                }
                Event::Finished(answer) => {
                    report.requests += 1;
                    report.generated_tokens += answer.tokens.len();
                    report.prompt_tokens += answer.usage.prompt_tokens;
                    report.cached_tokens += answer.usage.cached_tokens;
                    report.preemptions += answer.usage.preemptions;
                    if let Some((mut conversation, ..)) = open.remove(&id)
                        && conversation.turns < ChatScenario::TURNS
                    {
                        conversation.tokens.extend(answer.tokens);
                        let pause = Duration::from_secs_f64(ChatScenario::PAUSE);
                        conversation.due = begun.elapsed() + pause;
                        coming.push(conversation);
                    }
                }
                Event::Failed(error) => failure = Some(error),
            }
            ControlFlow::Continue(())
        })?;
        if let Some(error) = failure {
            return Err(error);
        }
    }
    report.seconds = begun.elapsed().as_secs_f64();
    report.first_token.sort_by(f64::total_cmp);
    report.between_tokens.sort_by(f64::total_cmp);
    Ok(report)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_values_that_occurred() {
        let values: Vec<f64> = (0..=100).map(f64::from).collect();
        assert_eq!([0.5, 0.95, 0.99].map(|share| percentile(&values, share)), [50.0, 95.0, 99.0]);
        assert_eq!(percentile(&[7.0], 0.99), 7.0);
        assert_eq!(percentile(&[], 0.5), 0.0);
    }
}
