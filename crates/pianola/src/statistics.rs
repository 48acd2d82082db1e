//! What a generation cost, for people and for machines.

use pianola_engine::{Answer, Engine, Finish};
use serde_json::{Value, json};

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

/// What the device could reach at best for the prompt and for the generation, measured here and
/// now. None where there was nothing to do, or nothing could be measured.
fn ceilings(engine: &Engine, answer: &Answer) -> (Option<f64>, Option<f64>) {
    let options = engine.plan().options;
    let Some(measured) = engine.measure() else {
        return (None, None);
    };
    let ceiling = |tokens: std::ops::Range<usize>, chunk: usize| {
        (!tokens.is_empty()).then(|| engine.ceiling(tokens, chunk, &measured))
    };
    let end = answer.usage.prompt_tokens + answer.usage.generated_tokens.saturating_sub(1);
    (
        ceiling(answer.usage.cached_tokens..answer.usage.prompt_tokens, options.max_rows),
        ceiling(answer.usage.prompt_tokens..end, 1),
    )
}

fn speed(tokens: usize, seconds: f64) -> Option<f64> {
    (tokens > 0 && seconds > 0.0).then(|| tokens as f64 / seconds)
}

/// One line: what ran where, how fast, and why it ended.
pub fn line(model: &str, engine: &Engine, answer: &Answer) -> String {
    let at = |speed: Option<f64>, ceiling: Option<f64>| match (speed, ceiling) {
        (Some(speed), Some(ceiling)) => {
            format!(" at {speed:.1} tokens/s, {:.0} % of the ceiling", 100.0 * speed / ceiling)
        }
        _ => String::new(),
    };
    let (prompt_ceiling, generation_ceiling) = ceilings(engine, answer);
    let ended = match answer.finish {
        Finish::EndOfTurn => "end of turn",
        Finish::StopToken => "stop token",
        Finish::StopText => "stop text",
        Finish::Complete => "complete",
        Finish::MaxTokens => "as many tokens as asked for",
        Finish::ContextFull => "context full",
        Finish::Cancelled => "interrupted",
    };
    let guessed = match answer.usage.drafted_tokens {
        0 => String::new(),
        drafted => {
            format!(
                " without guesses ({} of {drafted} guesses right)",
                answer.usage.accepted_tokens
            )
        }
    };
    format!(
        "{model} on {}: prompt {} tokens{} ({} cached), generated {} tokens{}{guessed}, ended by: {ended}, seed {}",
        engine.runs_on(),
        answer.usage.prompt_tokens,
        at(prompt_speed(answer), prompt_ceiling),
        answer.usage.cached_tokens,
        answer.usage.generated_tokens,
        at(generation_speed(answer), generation_ceiling),
        answer.seed,
    )
}

/// The same as an object.
pub fn object(engine: &Engine, answer: &Answer) -> Value {
    let (prompt_ceiling, generation_ceiling) = ceilings(engine, answer);
    json!({
        "prompt_tokens": answer.usage.prompt_tokens,
        "cached_tokens": answer.usage.cached_tokens,
        "prompt_seconds": answer.timing.prompt_seconds,
        "prompt_tokens_per_second": prompt_speed(answer),
        "prompt_ceiling_tokens_per_second": prompt_ceiling,
        "generated_tokens": answer.usage.generated_tokens,
        "generation_seconds": answer.timing.generation_seconds,
        "generation_tokens_per_second": generation_speed(answer),
        "generation_ceiling_tokens_per_second": generation_ceiling,
        "drafted_tokens": answer.usage.drafted_tokens,
        "accepted_tokens": answer.usage.accepted_tokens,
        "seed": answer.seed,
    })
}
