//! `/v1/completions`: texts to continue, without a template.

use super::chat::finish_reason;
use super::sampling;
use crate::call::Call;
use crate::error::{ApiError, Dialect};
use crate::fields::{Fields, TextOrTokens};
use crate::generation::{Generation, Prompt};
use crate::reply::{self, Reply};
use crate::running::{Running, TokenInfo, Update, UpdateEvent};
use crate::state::now;
use pianola_engine::Usage;
use serde_json::{Value, json};
use std::sync::Arc;

/// Tokens of an answer where none are asked for, as OpenAI has it.
const DEFAULT_TOKENS: usize = 16;

/// Continues a text, or several.
pub(crate) async fn answer(call: &Arc<Call>, body: &Value) -> Result<Reply, ApiError> {
    let fields = Fields::of(body, "")?;
    for field in ["suffix", "best_of"] {
        let harmless = |value: &Value| value.as_str() == Some("") || value.as_u64() == Some(1);
        if fields.value(field).is_some_and(|value| !harmless(value)) {
            return Err(ApiError::invalid(field, format!("{field} is not supported here")));
        }
    }
    let stream = fields.flag("stream")?.unwrap_or(false);
    let include_usage = sampling::read_include_usage(&fields)?;
    let prompts = read_prompts(&fields)?;
    let echo = fields.flag("echo")?.unwrap_or(false);
    if echo && fields.value("logprobs").is_some() {
        let message = "echo cannot be combined with logprobs: those of the prompt are not computed here; leave one of them out";
        return Err(ApiError::invalid("echo", message));
    }
    let echoed = if echo { prompts.clone() } else { Vec::new() };
    let mut prompts = prompts.into_iter().map(|prompt| match prompt {
        TextOrTokens::Text(text) => Prompt::Text(text),
        TextOrTokens::Tokens(tokens) => Prompt::Tokens(tokens),
    });
    let first = prompts.next().ok_or_else(|| fields.missing("prompt"))?;
    let mut generation =
        Generation { further_prompts: prompts.collect(), ..Generation::new(first) };
    sampling::read(call, &fields, &mut generation)?;
    generation.max_tokens = generation.max_tokens.or(Some(DEFAULT_TOKENS));
    generation.logprobs = sampling::read_logprobs(&fields, "logprobs")?;
    generation.split_reasoning = false;
    generation.ignore_end = fields.flag("ignore_eos")?.unwrap_or(false);
    generation.token_ids = fields.flag("return_token_ids")?.unwrap_or(false);
    let choices = generation.choices;
    let running = call.generate(fields.text("model")?, generation).await?;
    let echo = |prompt| match prompt {
        TextOrTokens::Text(text) => Ok(text),
        TextOrTokens::Tokens(tokens) => Ok(running.model().text()?.tokenizer.decode(&tokens, true)),
    };
    let echoes = echoed.into_iter().map(echo).collect::<Result<Vec<String>, ApiError>>()?;
    let (id, model) = (call.state.fresh_id("cmpl-"), running.model().id.clone());
    let completion = Completion { id, created: now(), model, choices, echoes };
    match stream {
        true => Ok(stream_answer(call.clone(), running, completion, include_usage)),
        false => whole_answer(running, &completion).await,
    }
}

fn read_prompts(fields: &Fields<'_>) -> Result<Vec<TextOrTokens>, ApiError> {
    let prompts = fields.texts_or_tokens("prompt")?;
    if prompts.is_empty() {
        return Err(fields.wrong("prompt", "a list of at least one prompt"));
    }
    Ok(prompts)
}

/// What the whole answer and all of its chunks have in common.
struct Completion {
    id: String,
    created: u64,
    model: String,
    /// Answers to each prompt.
    choices: usize,
    /// What each prompt's answers begin with, where that was asked for.
    echoes: Vec<String>,
}

impl Completion {
    fn object(&self, choices: Value) -> Value {
        json!({
            "id": self.id, "object": "text_completion", "created": self.created,
            "model": self.model, "system_fingerprint": null, "choices": choices,
        })
    }

    /// What an answer begins with.
    fn echo(&self, answer: usize) -> String {
        self.echoes.get(answer / self.choices).cloned().unwrap_or_default()
    }

    /// Whether an answer is its prompt's first, with which the prompt's tokens are counted.
    fn is_first(&self, answer: usize) -> bool {
        answer.is_multiple_of(self.choices)
    }
}

/// Where a token begins in an answer's text, in characters, and where the next one begins. A token that
/// begins inside a character begins where that does.
fn advance_offset(offset: &mut usize, token: &[u8]) -> usize {
    let is_inside = |byte: &u8| byte & 0xc0 == 0x80;
    let begin = offset.saturating_sub(usize::from(token.first().is_some_and(is_inside)));
    *offset += token.iter().filter(|byte| !is_inside(byte)).count();
    begin
}

/// Log probabilities in the form of completions; `offset` is where the first token begins in the text.
fn logprobs(running: &Running, infos: &[TokenInfo], offset: &mut usize) -> Value {
    let bytes = |token: u32| running.model().token_bytes(token);
    let text = |token: u32| String::from_utf8_lossy(&bytes(token)).into_owned();
    let (mut tokens, mut own, mut top, mut offsets) = (vec![], vec![], vec![], vec![]);
    for info in infos {
        offsets.push(advance_offset(offset, &bytes(info.token)));
        tokens.push(text(info.token));
        own.push(info.logprob.max(-9999.0));
        let others = info.top.iter().map(|&(id, logprob)| (text(id), logprob.max(-9999.0).into()));
        top.push(Value::Object(others.collect()));
    }
    json!({ "tokens": tokens, "token_logprobs": own, "top_logprobs": top, "text_offset": offsets })
}

/// The ids of tokens that have come, where they were asked for.
fn add_ids(choice: &mut Value, ids: &mut Vec<u32>) {
    if !ids.is_empty() {
        choice["token_ids"] = std::mem::take(ids).into();
    }
}

async fn whole_answer(mut running: Running, completion: &Completion) -> Result<Reply, ApiError> {
    let mut usage = Usage::default();
    let wants_logprobs = running.wants_logprobs();
    let answers = 0..running.answers();
    let mut texts: Vec<_> =
        answers.map(|answer| (completion.echo(answer), Vec::new(), None)).collect();
    let mut ids = vec![Vec::new(); running.answers()];
    while let Some(Update { answer, event }) = running.next().await {
        let (text, infos, reason) = &mut texts[answer];
        match event {
            UpdateEvent::Text { text: more, logprobs } => {
                text.push_str(&more);
                infos.extend(logprobs);
            }
            UpdateEvent::End(end) => {
                sampling::add_usage(&mut usage, &end.usage, completion.is_first(answer));
                *reason = Some(end.reason);
            }
            UpdateEvent::TokenId(id) => ids[answer].push(id),
            UpdateEvent::Failed(error) => return Err(error),
            _ => {}
        }
    }
    let mut list = Vec::new();
    for (index, (text, infos, reason)) in texts.into_iter().enumerate() {
        let found = match wants_logprobs {
            true => logprobs(&running, &infos, &mut 0),
            false => Value::Null,
        };
        let reason = reason.map(finish_reason);
        let mut item =
            json!({ "index": index, "text": text, "logprobs": found, "finish_reason": reason });
        add_ids(&mut item, &mut ids[index]);
        list.push(item);
    }
    let mut object = completion.object(list.into());
    object["usage"] = sampling::usage(&usage);
    Ok(reply::ok(&object))
}

fn stream_answer(
    call: Arc<Call>,
    mut running: Running,
    completion: Completion,
    include_usage: bool,
) -> Reply {
    reply::stream("text/event-stream", move |writer| async move {
        let mut usage = Usage::default();
        let mut echoes: Vec<_> =
            (0..running.answers()).map(|answer| completion.echo(answer)).collect();
        let mut offsets = vec![0; running.answers()];
        let mut ids = vec![Vec::new(); running.answers()];
        while let Some(update) = running.next_or_comment(&writer).await? {
            let Update { answer: index, event } = update;
            let mut chunk = match event {
                UpdateEvent::TokenId(id) => {
                    ids[index].push(id);
                    continue;
                }
                UpdateEvent::Text { text, logprobs: infos } => {
                    let found = match infos.is_empty() {
                        true => Value::Null,
                        false => logprobs(&running, &infos, &mut offsets[index]),
                    };
                    let text = std::mem::take(&mut echoes[index]) + &text;
                    json!({ "index": index, "text": text, "logprobs": found, "finish_reason": null })
                }
                UpdateEvent::End(end) => {
                    sampling::add_usage(&mut usage, &end.usage, completion.is_first(index));
                    let reason = finish_reason(end.reason);
                    let text = std::mem::take(&mut echoes[index]);
                    json!({ "index": index, "text": text, "logprobs": null, "finish_reason": reason })
                }
                UpdateEvent::Failed(error) => {
                    call.set_error(&error);
                    let body = error.body(Dialect::OpenAi, &call.id);
                    return writer.send(reply::event(&body)).await;
                }
                _ => continue,
            };
            add_ids(&mut chunk, &mut ids[index]);
            writer.send(reply::event(&completion.object(json!([chunk])))).await?;
        }
        if include_usage {
            let mut chunk = completion.object(json!([]));
            chunk["usage"] = sampling::usage(&usage);
            writer.send(reply::event(&chunk)).await?;
        }
        writer.send("data: [DONE]\n\n").await?;
        call.set_complete();
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_count_the_characters_of_the_text() {
        let mut offset = "écho ".chars().count();
        let tokens: [&[u8]; 5] = [b"a", "é".as_bytes(), b"\xf0\x9f", b"\x98\x80", b"b"];
        let found = tokens.map(|token| advance_offset(&mut offset, token));
        assert_eq!(found, [5, 6, 7, 7, 8]);
        assert_eq!(offset, 9);
    }
}
