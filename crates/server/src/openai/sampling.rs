//! Fields that chat and completions share.

use crate::call::Call;
use crate::error::ApiError;
use crate::fields::Fields;
use crate::generation::Generation;
use pianola_engine::Usage;
use pianola_engine::sampler::{Sampling, SamplingError};
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
    generation.max_tokens = read_max_tokens(fields)?;
    generation.stop = read_stops(fields, "stop")?;
    let most = call.state.options.limits.choices;
    let prompts = 1 + generation.further_prompts.len();
    generation.choices = read_choices(fields, most)?;
    check_answers(fields, prompts, generation.choices, most)
}

/// Refuses more than `most` answers to all prompts together, and none.
fn check_answers(
    fields: &Fields<'_>,
    prompts: usize,
    choices: usize,
    most: usize,
) -> Result<(), ApiError> {
    match prompts {
        _ if prompts > most => {
            Err(fields.wrong("prompt", &format!("a list of at most {most} prompts")))
        }
        1 if !(1..=most).contains(&choices) => {
            Err(fields.wrong("n", &format!("between 1 and {most}")))
        }
        _ if !(1..=most / prompts).contains(&choices) => {
            let most = most / prompts;
            Err(fields.wrong("n", &format!("between 1 and {most} for {prompts} prompts")))
        }
        _ => Ok(()),
    }
}

/// Reads `stream_options.include_usage`.
pub(super) fn read_include_usage(fields: &Fields<'_>) -> Result<bool, ApiError> {
    match fields.object("stream_options")? {
        Some(options) => Ok(options.flag("include_usage")?.unwrap_or(false)),
        None => Ok(false),
    }
}

/// Reads how many log probabilities of each token are asked for, beside its own.
pub(crate) fn read_logprobs(fields: &Fields<'_>, field: &str) -> Result<Option<usize>, ApiError> {
    match fields.count(field)? {
        Some(top) if top > MAX_LOGPROBS => {
            Err(fields.wrong(field, &format!("between 0 and {MAX_LOGPROBS}")))
        }
        top => Ok(top),
    }
}

/// Reads `n`, of which there are `most` at most.
fn read_choices(fields: &Fields<'_>, most: usize) -> Result<usize, ApiError> {
    let wrong = || fields.wrong("n", &format!("between 1 and {most}"));
    let choices = fields.count("n").map_err(|_| wrong())?.unwrap_or(1);
    if (1..=most).contains(&choices) { Ok(choices) } else { Err(wrong()) }
}

/// Reads a whole number of at least 1.
pub(crate) fn read_positive(fields: &Fields<'_>, field: &str) -> Result<Option<usize>, ApiError> {
    let wrong = || fields.wrong(field, "a whole number of at least 1");
    match fields.count(field).map_err(|_| wrong())? {
        Some(0) => Err(wrong()),
        count => Ok(count),
    }
}

/// Reads `max_completion_tokens`, or `max_tokens`, its older name; of the latter a negative value stands
/// for no limit.
fn read_max_tokens(fields: &Fields<'_>) -> Result<Option<usize>, ApiError> {
    let newer = "max_completion_tokens";
    if fields.value(newer).is_some() {
        return read_positive(fields, newer);
    }
    match fields.integer("max_tokens")? {
        Some(0) => read_positive(fields, "max_tokens"),
        most => Ok(most.and_then(|most| usize::try_from(most).ok())),
    }
}

/// Most log probabilities of a token, beside its own.
const MAX_LOGPROBS: usize = 20;

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
    generation.seed = fields.seed("seed")?;
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
    check_ranges(fields, sampling)
}

/// Checks every number; an error names the field as the client wrote it.
pub(crate) fn check_ranges(fields: &Fields<'_>, sampling: &Sampling) -> Result<(), ApiError> {
    sampling.validate().map_err(|error| match error {
        SamplingError::OutOfRange { field, value, allowed } => {
            // The one that was read last.
            let repeat = field == "repetition_penalty" && fields.value("repeat_penalty").is_some();
            let name = fields.name(if repeat { "repeat_penalty" } else { field });
            ApiError::invalid(&name, format!("{name} is {value}, allowed is {allowed}"))
        }
        error => ApiError::invalid(fields.name("logit_bias"), error.to_string()),
    })
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generation::Prompt;

    fn param(body: Value) -> Option<String> {
        let mut generation = Generation::new(Prompt::Tokens(vec![0]));
        let fields = Fields::of(&body, "").unwrap();
        read_sampler(&fields, &mut generation).unwrap_err().param
    }

    #[test]
    fn the_document_has_the_true_defaults() {
        let document: Value = serde_json::from_str(include_str!("../openapi.json")).unwrap();
        let sampling = Generation::new(Prompt::Tokens(vec![0])).sampling;
        for schema in ["ChatRequest", "CompletionRequest"] {
            let default = |name: &str| {
                let value =
                    &document["components"]["schemas"][schema]["properties"][name]["default"];
                value.as_f64().unwrap() as f32
            };
            assert_eq!(default("temperature"), sampling.temperature);
            assert_eq!(default("top_p"), sampling.top_p);
            assert_eq!(default("min_p"), sampling.min_p);
            assert_eq!(default("top_k"), sampling.top_k as f32);
        }
    }

    #[test]
    fn answers_to_all_prompts_are_bounded_together() {
        let body = json!({});
        let fields = Fields::of(&body, "").unwrap();
        let param = |prompts, choices| {
            let checked = check_answers(&fields, prompts, choices, 32);
            checked.err().and_then(|error| error.param)
        };
        for (prompts, choices) in [(1, 1), (1, 32), (32, 1), (4, 8)] {
            assert_eq!(param(prompts, choices), None, "{prompts} prompts, {choices} choices");
        }
        for (prompts, choices) in [(1, 0), (1, 33), (4, 0), (4, 9), (32, 2)] {
            assert_eq!(param(prompts, choices).as_deref(), Some("n"), "{prompts}, {choices}");
        }
        assert_eq!(param(33, 1).as_deref(), Some("prompt"));
    }

    #[test]
    fn errors_name_the_field_that_was_sent() {
        for (field, value) in [
            ("temperature", json!(-1)),
            ("temperature", json!(1e308)),
            ("top_p", json!(1.5)),
            ("min_p", json!(-0.1)),
            ("repetition_penalty", json!(0)),
            ("repeat_penalty", json!(0)),
            ("logit_bias", json!({ "1": 1000 })),
        ] {
            assert_eq!(param(json!({ field: value })).as_deref(), Some(field), "{value}");
        }
        for value in [json!(-1), json!(0), json!(9), json!("2")] {
            let body = json!({ "n": value });
            let error = read_choices(&Fields::of(&body, "").unwrap(), 8).unwrap_err();
            assert_eq!(error.message, "n must be between 1 and 8");
        }
        for value in [json!(-1), json!(0), json!(0.5)] {
            let body = json!({ "max_output_tokens": value });
            let fields = Fields::of(&body, "").unwrap();
            let error = read_positive(&fields, "max_output_tokens").unwrap_err();
            assert_eq!(error.message, "max_output_tokens must be a whole number of at least 1");
        }
        for field in ["max_tokens", "max_completion_tokens"] {
            let body = json!({ field: 0 });
            let error = read_max_tokens(&Fields::of(&body, "").unwrap()).unwrap_err();
            assert_eq!(error.param.as_deref(), Some(field));
            assert!(error.message.starts_with(field), "{}", error.message);
        }
    }
}
