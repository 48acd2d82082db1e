//! Fields that chat and completions share.

use crate::call::Call;
use crate::error::ApiError;
use crate::fields::Fields;
use crate::generation::Generation;
use pianola_engine::Usage;
use serde_json::{Map, Value, json};

/// Most stop texts.
const MOST_STOPS: usize = 64;

/// Reads how tokens are sampled and when an answer ends.
pub(crate) fn read(
    call: &Call,
    fields: &Fields<'_>,
    generation: &mut Generation,
) -> Result<(), ApiError> {
    read_sampler(fields, generation)?;
    generation.max_tokens = match fields.count("max_completion_tokens")? {
        Some(most) => Some(most),
        None => fields.integer("max_tokens")?.and_then(|most| usize::try_from(most).ok()),
    };
    if generation.max_tokens == Some(0) {
        return Err(fields.wrong("max_tokens", "at least 1"));
    }
    generation.stop = read_stops(fields, "stop")?;
    generation.choices = fields.count("n")?.unwrap_or(1);
    let most = call.state.options.limits.choices;
    if !(1..=most).contains(&generation.choices) {
        return Err(fields.wrong("n", &format!("between 1 and {most}")));
    }
    Ok(())
}

/// Most log probabilities of a token, beside its own.
pub(crate) const MAX_LOGPROBS: usize = 20;

/// Reads temperature, cuts, penalties and seed, which have the same names in every API.
pub(crate) fn read_numbers(
    fields: &Fields<'_>,
    generation: &mut Generation,
) -> Result<(), ApiError> {
    let sampling = &mut generation.sampling;
    let number = |field: &str, to: &mut f32| -> Result<(), ApiError> {
        *to = fields.number(field)?.unwrap_or(*to);
        Ok(())
    };
    number("temperature", &mut sampling.temperature)?;
    number("top_p", &mut sampling.top_p)?;
    number("min_p", &mut sampling.min_p)?;
    number("presence_penalty", &mut sampling.presence_penalty)?;
    number("frequency_penalty", &mut sampling.frequency_penalty)?;
    number("repeat_penalty", &mut sampling.repetition_penalty)?;
    // 0 and below stand for all.
    if let Some(top_k) = fields.integer("top_k")? {
        sampling.top_k = usize::try_from(top_k).unwrap_or(0);
    }
    // -1 stands for a random one.
    generation.seed = fields.integer("seed")?.filter(|&seed| seed != -1).map(|seed| seed as u64);
    Ok(())
}

/// Reads how tokens are sampled.
pub(crate) fn read_sampler(
    fields: &Fields<'_>,
    generation: &mut Generation,
) -> Result<(), ApiError> {
    // Another name of what the next call reads.
    if let Some(penalty) = fields.number("repetition_penalty")? {
        generation.sampling.repetition_penalty = penalty;
    }
    read_numbers(fields, generation)?;
    let sampling = &mut generation.sampling;
    if let Some(biases) = fields.object("logit_bias")? {
        sampling.logit_bias = biases
            .entries()
            .map(|(token, bias)| {
                let must = "an object of token ids and numbers from -100 to 100";
                let token = token.parse().map_err(|_| fields.wrong("logit_bias", must))?;
                let bias = bias.as_f64().filter(|bias| bias.abs() <= 100.0);
                let bias = bias.ok_or_else(|| fields.wrong("logit_bias", must))? as f32;
                // OpenAI's -100 is meant as a ban.
                Ok((token, if bias <= -100.0 { f32::NEG_INFINITY } else { bias }))
            })
            .collect::<Result<_, ApiError>>()?;
    }
    sampling.validate().map_err(|error| {
        ApiError::new(crate::error::ErrorKind::InvalidRequest, error.to_string())
    })?;
    Ok(())
}

/// Texts that end an answer.
pub(crate) fn read_stops(fields: &Fields<'_>, field: &str) -> Result<Vec<String>, ApiError> {
    let mut stops = fields.texts(field)?;
    if stops.len() > MOST_STOPS {
        return Err(fields.wrong(field, &format!("a list of at most {MOST_STOPS} strings")));
    }
    stops.retain(|stop| !stop.is_empty());
    Ok(stops)
}

/// Further variables of the chat template.
pub(crate) fn read_template_variables(fields: &Fields<'_>) -> Result<Map<String, Value>, ApiError> {
    let variables = fields.object("chat_template_kwargs")?;
    let entries = variables.iter().flat_map(Fields::entries);
    Ok(entries.map(|(name, value)| (name.clone(), value.clone())).collect())
}

/// `usage` of an answer.
pub(crate) fn usage(usage: &Usage) -> Value {
    json!({
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.generated_tokens,
        "total_tokens": usage.prompt_tokens + usage.generated_tokens,
        "prompt_tokens_details": { "cached_tokens": usage.cached_tokens },
        "completion_tokens_details": {
            "accepted_prediction_tokens": usage.accepted_tokens,
            "rejected_prediction_tokens": usage.drafted_tokens - usage.accepted_tokens,
        },
    })
}

/// Adds what one answer took. The prompt, which the answers of a request share, counts with the first.
pub(crate) fn add_usage(all: &mut Usage, one: &Usage, first: bool) {
    if first {
        all.prompt_tokens += one.prompt_tokens;
        all.cached_tokens += one.cached_tokens;
    }
    all.generated_tokens += one.generated_tokens;
    all.drafted_tokens += one.drafted_tokens;
    all.accepted_tokens += one.accepted_tokens;
}
