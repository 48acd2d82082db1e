//! What a generation cost, for people and for machines.

use pianola_engine::{Engine, Finish, Timing};
use serde_json::{Value, json};

/// Name of a reason to stop, for machines.
pub fn finish_name(finish: Finish) -> &'static str {
    match finish {
        Finish::EndOfTurn => "end_of_turn",
        Finish::StopText => "stop_text",
        Finish::MaxTokens => "max_tokens",
        Finish::ContextFull => "context_full",
        Finish::Cancelled => "cancelled",
    }
}

/// Tokens of the prompt a second, those in the cache left out.
fn prompt_speed(timing: &Timing) -> Option<f64> {
    // Cancelled before the first token: how much of the prompt was processed is unknown.
    if timing.generated_tokens == 0 {
        return None;
    }
    speed(timing.prompt_tokens - timing.cached_tokens, timing.prompt_seconds)
}

/// Tokens generated a second. The first one comes with the prompt.
fn generation_speed(timing: &Timing) -> Option<f64> {
    speed(timing.generated_tokens.saturating_sub(1), timing.generation_seconds)
}

/// What the device could reach at best for the prompt and for the generation, measured here and
/// now. None where there was nothing to do, or nothing could be measured.
fn ceilings(engine: &Engine, timing: &Timing) -> (Option<f64>, Option<f64>) {
    let options = engine.plan().options;
    let Some(measured) = engine.measure() else {
        return (None, None);
    };
    let ceiling = |tokens: std::ops::Range<usize>, chunk: usize| {
        (!tokens.is_empty()).then(|| engine.ceiling(tokens, chunk, &measured))
    };
    let end = timing.prompt_tokens + timing.generated_tokens.saturating_sub(1);
    (
        ceiling(timing.cached_tokens..timing.prompt_tokens, options.max_rows),
        ceiling(timing.prompt_tokens..end, 1),
    )
}

fn speed(tokens: usize, seconds: f64) -> Option<f64> {
    (tokens > 0 && seconds > 0.0).then(|| tokens as f64 / seconds)
}

/// One line: what ran where, how fast, and why it ended.
pub fn line(model: &str, engine: &Engine, timing: &Timing, finish: Finish) -> String {
    let at = |speed: Option<f64>, ceiling: Option<f64>| match (speed, ceiling) {
        (Some(speed), Some(ceiling)) => {
            format!(" at {speed:.1} tokens/s, {:.0} % of the ceiling", 100.0 * speed / ceiling)
        }
        _ => String::new(),
    };
    let (prompt_ceiling, generation_ceiling) = ceilings(engine, timing);
    let ended = match finish {
        Finish::EndOfTurn => "end of turn",
        Finish::StopText => "stop text",
        Finish::MaxTokens => "as many tokens as asked for",
        Finish::ContextFull => "context full",
        Finish::Cancelled => "interrupted",
    };
    let guessed = match timing.drafted_tokens {
        0 => String::new(),
        drafted => {
            format!(" without guesses ({} of {drafted} guesses right)", timing.accepted_tokens)
        }
    };
    format!(
        "{model} on {}: prompt {} tokens{} ({} cached), generated {} tokens{}{guessed}, ended by: {ended}",
        engine.runs_on(),
        timing.prompt_tokens,
        at(prompt_speed(timing), prompt_ceiling),
        timing.cached_tokens,
        timing.generated_tokens,
        at(generation_speed(timing), generation_ceiling),
    )
}

/// The same as an object.
pub fn object(engine: &Engine, timing: &Timing) -> Value {
    let (prompt_ceiling, generation_ceiling) = ceilings(engine, timing);
    json!({
        "prompt_tokens": timing.prompt_tokens,
        "cached_tokens": timing.cached_tokens,
        "prompt_seconds": timing.prompt_seconds,
        "prompt_tokens_per_second": prompt_speed(timing),
        "prompt_ceiling_tokens_per_second": prompt_ceiling,
        "generated_tokens": timing.generated_tokens,
        "generation_seconds": timing.generation_seconds,
        "generation_tokens_per_second": generation_speed(timing),
        "generation_ceiling_tokens_per_second": generation_ceiling,
        "drafted_tokens": timing.drafted_tokens,
        "accepted_tokens": timing.accepted_tokens,
    })
}
