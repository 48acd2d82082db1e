//! What a generation cost, for people and for machines.

use pianola_engine::{Answer, Engine, Finish};
use pianola_plan::DeviceId;
use serde_json::{Value, json};
use std::sync::OnceLock;
use std::time::Instant;

use crate::console::count;
use crate::device::{DeviceChoice, MainDevice};

static STARTED: OnceLock<Instant> = OnceLock::new();

/// Notes when the program was started; called first of all.
pub fn note_start() {
    let _ = STARTED.set(Instant::now());
}

/// Seconds since the program was started.
fn since_start() -> Option<f64> {
    STARTED.get().map(|start| start.elapsed().as_secs_f64())
}

/// What loading cost, and when the first token came.
pub struct StartStatistics {
    before_prompt: Option<f64>,
}

impl StartStatistics {
    /// Called when the model is loaded and the prompt is about to be processed.
    pub fn begin() -> StartStatistics {
        StartStatistics { before_prompt: since_start() }
    }

    /// For machines. Weights are counted as the file has them; seconds of the first token are from the start
    /// of the program.
    pub fn object(&self, engine: &Engine, answer: &Answer) -> Value {
        let timing = engine.timing();
        let bytes = engine.plan().weight_bytes();
        let first = self.before_prompt.map(|before| before + answer.timing.prompt_seconds);
        json!({
            "load_seconds": timing.open + timing.text + timing.weights,
            "load_weights_seconds": timing.weights,
            "load_bytes": bytes,
            "load_bytes_per_second": bytes as f64 / timing.weights,
            "first_token_seconds": first.filter(|_| answer.usage.generated_tokens > 0),
        })
    }
}

/// Name of a reason to stop, for machines.
pub fn finish_name(finish: Finish) -> &'static str {
    match finish {
        Finish::EndOfTurn => "end_of_turn",
        Finish::StopToken => "stop_token",
        Finish::StopText => "stop_text",
        Finish::Complete => "complete",
        Finish::MaxTokens => "max_tokens",
        Finish::ContextFull => "context_full",
        Finish::Cancelled => "cancelled",
    }
}

/// Tokens of the prompt a second, those in the cache left out.
fn prompt_speed(answer: &Answer) -> Option<f64> {
    // Cancelled before the first token: how much of the prompt was processed is unknown.
    if answer.usage.generated_tokens == 0 {
        return None;
    }
    speed(answer.usage.prompt_tokens - answer.usage.cached_tokens, answer.timing.prompt_seconds)
}

/// Tokens generated a second. The first one comes with the prompt.
fn generation_speed(answer: &Answer) -> Option<f64> {
    speed(answer.usage.generated_tokens.saturating_sub(1), answer.timing.generation_seconds)
}

/// The devices of a model in a few words. If the device was not chosen by the user, says why a GPU is
/// not among them.
pub fn devices_in_short(engine: &Engine, choice: &DeviceChoice) -> String {
    let plan = engine.plan();
    let has_gpu = plan.devices.iter().any(|device| device.asynchronous);
    let name = |id: DeviceId| match plan.devices[id.0].asynchronous {
        true => engine.devices()[id.0].description(),
        false => plan.devices[id.0].name.clone(),
    };
    let head = plan.head_device();
    let others = plan.device_ids().filter(|&id| id != head);
    let names: Vec<String> = std::iter::once(head).chain(others).map(name).collect();
    let why = match choice.main == MainDevice::Auto && !has_gpu {
        true => " (no usable GPU)",
        false => "",
    };
    format!("{}{why}", names.join(" and "))
}

/// One line about an answer: where it was computed, how much, how fast.
pub fn short_line(engine: &Engine, answer: &Answer, model: &str, choice: &DeviceChoice) -> String {
    let on = devices_in_short(engine, choice);
    let tokens = count(answer.usage.generated_tokens, "token");
    if engine.emulated_device().is_some() {
        return format!("{model} on {on}: {tokens}");
    }
    let seconds = answer.timing.prompt_seconds + answer.timing.generation_seconds;
    let speed = generation_speed(answer).map(|speed| format!(", {speed:.1} tokens/s"));
    let guesses = match (answer.usage.accepted_tokens, answer.usage.drafted_tokens) {
        (_, 0) => String::new(),
        (right, all) => format!(", {right} of {all} guesses right"),
    };
    let speed = speed.unwrap_or_default();
    format!("{model} on {on}: {tokens} in {seconds:.1} s{speed}{guesses}")
}

/// An answer beside what the device could reach at best for its prompt and its generation. None
/// where there was nothing to do, or nothing could be measured.
pub struct Statistics<'a> {
    answer: &'a Answer,
    runs_on: String,
    prompt_ceiling: Option<f64>,
    generation_ceiling: Option<f64>,
    /// Whether a speed says anything: not that of a device that is emulated.
    has_speed: bool,
}

impl<'a> Statistics<'a> {
    /// Measures the device here and now, once for all that is said of the answer.
    pub fn measure(engine: &Engine, answer: &'a Answer) -> Statistics<'a> {
        let chunk = engine.plan().options.max_rows;
        let measured = engine.measure();
        let ceiling = |tokens: std::ops::Range<usize>, chunk: usize| {
            let measured = measured.as_ref().filter(|_| !tokens.is_empty());
            measured.map(|measured| engine.ceiling(tokens, chunk, measured))
        };
        let usage = &answer.usage;
        let end = usage.prompt_tokens + usage.generated_tokens.saturating_sub(1);
        Statistics {
            answer,
            runs_on: engine.runs_on(),
            has_speed: engine.emulated_device().is_none(),
            prompt_ceiling: ceiling(usage.cached_tokens..usage.prompt_tokens, chunk),
            generation_ceiling: ceiling(usage.prompt_tokens..end, 1),
        }
    }
}

fn speed(tokens: usize, seconds: f64) -> Option<f64> {
    (tokens > 0 && seconds > 0.0).then(|| tokens as f64 / seconds)
}

impl Statistics<'_> {
    /// One line: what ran where, how fast, and why it ended.
    pub fn line(&self, model: &str) -> String {
        let Statistics { answer, runs_on, .. } = self;
        let at = |speed: Option<f64>, ceiling: Option<f64>| match (speed, ceiling) {
            (Some(speed), Some(ceiling)) => {
                format!(" at {speed:.1} tokens/s, {:.0} % of the ceiling", 100.0 * speed / ceiling)
            }
            _ => String::new(),
        };
        let guessed = match answer.usage.drafted_tokens {
            0 => String::new(),
            drafted => {
                let right = answer.usage.accepted_tokens;
                format!(" without guesses ({right} of {drafted} guesses right)")
            }
        };
        format!(
            "{model} on {runs_on}: prompt {}{} ({} cached), generated {}{}{guessed}, \
             ended by: {}, seed {}",
            count(answer.usage.prompt_tokens, "token"),
            at(prompt_speed(answer), self.prompt_ceiling),
            answer.usage.cached_tokens,
            count(answer.usage.generated_tokens, "token"),
            at(generation_speed(answer), self.generation_ceiling),
            finish_text(answer.finish),
            answer.seed,
        )
    }

    /// The same as an object.
    pub fn object(&self) -> Value {
        let answer = self.answer;
        json!({
            "prompt_tokens": answer.usage.prompt_tokens,
            "cached_tokens": answer.usage.cached_tokens,
            "prompt_seconds": answer.timing.prompt_seconds,
            "prompt_tokens_per_second": prompt_speed(answer).filter(|_| self.has_speed),
            "prompt_ceiling_tokens_per_second": self.prompt_ceiling,
            "generated_tokens": answer.usage.generated_tokens,
            "generation_seconds": answer.timing.generation_seconds,
            "generation_tokens_per_second": generation_speed(answer).filter(|_| self.has_speed),
            "generation_ceiling_tokens_per_second": self.generation_ceiling,
            "drafted_tokens": answer.usage.drafted_tokens,
            "accepted_tokens": answer.usage.accepted_tokens,
            "seed": answer.seed,
        })
    }
}

fn finish_text(finish: Finish) -> &'static str {
    match finish {
        Finish::EndOfTurn => "end of turn",
        Finish::StopToken => "stop token",
        Finish::StopText => "stop text",
        Finish::Complete => "complete",
        Finish::MaxTokens => "token limit",
        Finish::ContextFull => "context full",
        Finish::Cancelled => "interrupted",
    }
}
