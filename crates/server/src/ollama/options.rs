//! `options`, `format` and `think`.

use crate::error::ApiError;
use crate::fields::Fields;
use crate::generation::{Generation, JsonRule, OutputRule, Prompt};
use crate::model::LoadedModel;
use crate::openai;
use pianola_engine::PenaltyScope;
use pianola_engine::sampler::Sampling;
use pianola_text::Conversation;
use serde_json::Value;

/// A generation as Ollama's clients expect it where they say nothing.
pub(super) fn generation(prompt: Prompt) -> Generation {
    let mut generation = Generation::new(prompt);
    generation.sampling = Sampling {
        temperature: 0.8,
        top_k: 40,
        top_p: 0.9,
        repetition_penalty: 1.1,
        penalty_window: 64,
        ..Sampling::default()
    };
    generation.penalties = PenaltyScope::PromptAndAnswer;
    generation
}

/// Reads `options`, `format` and `logprobs`. Options that concern how Ollama runs a model (`num_gpu`,
/// `num_thread`, …) and unknown ones have no meaning here and are ignored.
pub(super) fn read(fields: &Fields<'_>, generation: &mut Generation) -> Result<(), ApiError> {
    if let Some(options) = fields.object("options")? {
        read_options(&options, generation)?;
    }
    generation.output = read_format(fields)?;
    let top = openai::read_logprobs(fields, "top_logprobs")?;
    if fields.flag("logprobs")?.unwrap_or(false) {
        generation.logprobs = Some(top.unwrap_or(0));
    }
    Ok(())
}

fn read_options(options: &Fields<'_>, generation: &mut Generation) -> Result<(), ApiError> {
    openai::read_numbers(options, generation)?;
    let sampling = &mut generation.sampling;
    if let Some(window) = options.integer("repeat_last_n")? {
        // -1 stands for the whole context.
        sampling.penalty_window = usize::try_from(window).unwrap_or(usize::MAX);
    }
    openai::check_ranges(options, sampling)?;
    // 0, -1 (no limit) and -2 (until the context is full) mean the same here: the context is never shifted.
    let most = options.integer("num_predict")?.filter(|&most| most > 0);
    generation.max_tokens = most.and_then(|most| usize::try_from(most).ok());
    generation.stop = openai::read_stops(options, "stop")?;
    Ok(())
}

/// Refuses a context that the model is not served with.
pub(super) fn check_context(fields: &Fields<'_>, model: &LoadedModel) -> Result<(), ApiError> {
    let Some(options) = fields.object("options")? else { return Ok(()) };
    options.integer("num_ctx")?;
    // Negative ones ask for nothing.
    let wanted = options.value("num_ctx").and_then(Value::as_f64).unwrap_or(0.0);
    let (served, most) = (model.service().info().context, model.service().info().model_context);
    if wanted <= served as f64 {
        return Ok(());
    }
    let other = match wanted <= most as f64 {
        true => format!(", or serve it with --context {wanted}"),
        false => format!("; the model itself allows {most}"),
    };
    let message = format!(
        "options.num_ctx is {wanted}, but {} is served with a context of {served} tokens; ask for at most {served}{other}",
        model.id
    );
    Err(ApiError::invalid("options.num_ctx", message))
}

fn read_format(fields: &Fields<'_>) -> Result<OutputRule, ApiError> {
    match fields.value("format") {
        None => Ok(OutputRule::Free),
        Some(Value::String(format)) if format.is_empty() => Ok(OutputRule::Free),
        Some(Value::String(format)) if format == "json" => Ok(OutputRule::JsonObject),
        Some(schema @ Value::Object(_)) => {
            Ok(OutputRule::JsonSchema(JsonRule::strict("format", schema.clone())))
        }
        Some(_) => Err(fields.wrong("format", "\"json\" or a JSON schema")),
    }
}

/// Reads `think` into the variables that templates know.
pub(super) fn read_think(
    fields: &Fields<'_>,
    conversation: &mut Conversation,
) -> Result<(), ApiError> {
    let think = match fields.value("think") {
        None => return Ok(()),
        Some(Value::Bool(think)) => *think,
        Some(Value::String(effort)) if ["low", "medium", "high"].contains(&effort.as_str()) => {
            conversation.extra.insert("reasoning_effort".into(), effort.as_str().into());
            true
        }
        Some(_) => {
            return Err(fields.wrong("think", "true, false, \"low\", \"medium\" or \"high\""));
        }
    };
    conversation.extra.insert("enable_thinking".into(), think.into());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read_body(body: Value) -> Result<Generation, ApiError> {
        let mut generation = generation(Prompt::Text(String::new()));
        read(&Fields::of(&body, "")?, &mut generation)?;
        Ok(generation)
    }

    #[test]
    fn defaults_are_those_of_ollama() {
        let generation = read_body(json!({ "options": {} })).unwrap();
        let Sampling { temperature, top_k, top_p, repetition_penalty, penalty_window, .. } =
            generation.sampling;
        assert_eq!((temperature, top_k, top_p), (0.8, 40, 0.9));
        assert_eq!((repetition_penalty, penalty_window), (1.1, 64));
        assert_eq!(generation.penalties, PenaltyScope::PromptAndAnswer);
        assert_eq!((generation.max_tokens, generation.seed), (None, None));
    }

    #[test]
    fn numbers_below_zero_have_their_meanings() {
        let options = json!({ "num_predict": -2, "repeat_last_n": -1, "top_k": -1, "seed": -1 });
        let generation = read_body(json!({ "options": options })).unwrap();
        assert_eq!((generation.max_tokens, generation.seed), (None, None));
        assert_eq!(generation.sampling.penalty_window, usize::MAX);
        assert_eq!(generation.sampling.top_k, 0);
        let generation =
            read_body(json!({ "options": { "num_predict": 7, "seed": 3.0 } })).unwrap();
        assert_eq!((generation.max_tokens, generation.seed), (Some(7), Some(3)));
    }

    #[test]
    fn what_is_impossible_is_refused_by_name() {
        let message = |body: Value| match read_body(body) {
            Err(error) => error.message,
            Ok(_) => String::new(),
        };
        assert!(message(json!({ "options": { "temperature": -1 } })).contains("temperature"));
        assert!(message(json!({ "options": { "stop": 3 } })).contains("options.stop"));
        assert!(message(json!({ "format": "xml" })).contains("format"));
        assert!(message(json!({ "options": [] })).contains("options"));
        assert_eq!(message(json!({ "options": { "num_gpu": 99, "mirostat": 2, "x": [] } })), "");
    }
}
