//! A loaded model: its engine, and what requests to it need besides.

use crate::error::{ApiError, ErrorKind};
use crate::generation::{AnswerRule, Generation, JsonRule, Prompt, Tool};
use crate::output::Output;
use crate::state::State;
use pianola_engine::{Constraint, DevicePart, Service, Text};
use pianola_grammar::{GrammarError, Grammars, JsonAnswer, SchemaStrictness, ToolSchema};
use pianola_text::{
    ChatTemplate, Conversation, OutputParser, ParserOptions, ReasoningMode, ToolFormat,
};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, OnceLock};

/// A loaded model.
pub(crate) struct LoadedModel {
    /// What clients call it.
    pub id: String,
    service: Service,
    /// How it writes calls of functions; none without a template.
    format: Option<ToolFormat>,
    /// Made when first needed: a large vocabulary takes a second.
    grammars: OnceLock<Result<Grammars, GrammarError>>,
    /// Constraints in their first state, by what they were made from, the most recently used last:
    /// clients send the same schemas again and again. None where schemas were only checked.
    compiled: Mutex<RecentlyUsed<Option<Box<dyn Constraint>>>>,
}

/// Constraints that are kept.
const KEPT_CONSTRAINTS: usize = 32;

/// The values that were used last, by the sum of what they were made from.
struct RecentlyUsed<T>(VecDeque<([u8; 32], T)>);

impl<T> Default for RecentlyUsed<T> {
    fn default() -> Self {
        RecentlyUsed(VecDeque::new())
    }
}

impl<T: Clone> RecentlyUsed<T> {
    /// A value, which is the most recently used from now on.
    fn use_again(&mut self, key: &[u8; 32]) -> Option<T> {
        let at = self.0.iter().position(|(other, _)| other == key)?;
        let found = self.0.remove(at)?;
        let value = found.1.clone();
        self.0.push_back(found);
        Some(value)
    }

    /// Adds a value; the least recently used one is dropped where there are too many.
    fn add(&mut self, key: [u8; 32], value: T) {
        // Two requests may have made the same.
        self.0.retain(|(other, _)| *other != key);
        if self.0.len() >= KEPT_CONSTRAINTS {
            self.0.pop_front();
        }
        self.0.push_back((key, value));
    }
}

impl LoadedModel {
    pub fn new(id: String, service: Service) -> LoadedModel {
        let text = service.text();
        let format = text.and_then(|text| {
            let (template, _) = text.template.as_ref()?;
            Some(ToolFormat::of(template, &text.tokenizer))
        });
        LoadedModel { id, service, format, grammars: OnceLock::new(), compiled: Mutex::default() }
    }

    pub fn service(&self) -> &Service {
        &self.service
    }

    /// Bytes of weights on all devices.
    pub fn weight_bytes(&self) -> u64 {
        self.service.info().placement.parts.iter().map(|part| part.weight_bytes).sum()
    }

    /// Bytes that keys and values may take. On a CPU they take them as requests come.
    pub fn kv_limit_bytes(&self) -> u64 {
        self.service.snapshot().map_or(0, |report| report.cache.bytes)
    }

    /// Bytes of memory that unloading it sets free at most: weights, activations and KV pages.
    pub fn memory_bytes(&self) -> u64 {
        let parts = &self.service.info().placement.parts;
        let weights = |part: &DevicePart| match part.heaps {
            Some(heaps) => heaps.device_local + heaps.host,
            None => part.weight_bytes,
        };
        // A GPU's heaps hold its pages as well.
        let pages_apart = parts.iter().any(|part| part.heaps.is_none());
        let pages = self.service.snapshot().filter(|_| pages_apart);
        parts.iter().map(weights).sum::<u64>() + pages.map_or(0, |report| report.cache.bytes)
    }

    /// Tokeniser and template.
    pub fn text(&self) -> Result<&Text, ApiError> {
        self.service.text().ok_or_else(|| {
            let message = format!("{} has no tokeniser, so it cannot read text", self.id);
            ApiError::new(ErrorKind::InvalidRequest, message)
        })
    }

    /// The chat template and the format of calls that goes with it.
    pub fn template(&self) -> Result<(&ChatTemplate, ToolFormat), ApiError> {
        match (&self.text()?.template, self.format) {
            (Some((template, _)), Some(format)) => Ok((template, format)),
            _ => Err(ApiError::new(
                ErrorKind::InvalidRequest,
                format!(
                    "{} has no chat template, so it cannot chat; /v1/completions continues a text",
                    self.id
                ),
            )),
        }
    }

    /// The bytes of a token.
    pub fn token_bytes(&self, token: u32) -> Vec<u8> {
        let text = self.service.text();
        text.and_then(|text| text.tokenizer.token_bytes(token)).unwrap_or_default().to_vec()
    }

    /// The tokens of a conversation.
    pub fn render(&self, conversation: Conversation) -> Result<Vec<u32>, ApiError> {
        let (template, format) = self.template()?;
        let conversation = format.adapt(conversation, template);
        Ok(template.render_tokens(&conversation, &self.text()?.tokenizer)?)
    }

    fn grammars(&self) -> Result<&Grammars, ApiError> {
        let vocabulary = self.service.info().vocabulary;
        let tokenizer = &self.text()?.tokenizer;
        let made = self.grammars.get_or_init(|| Grammars::new(tokenizer, vocabulary));
        made.as_ref().map_err(|error| ApiError::new(ErrorKind::InvalidRequest, error.to_string()))
    }

    /// What restricts the tokens of an answer.
    pub fn constraint(
        &self,
        generation: &Generation,
    ) -> Result<Option<Box<dyn Constraint>>, ApiError> {
        let Some(key) = constraint_key(generation) else { return Ok(None) };
        // Schemas may be large.
        let key: [u8; 32] = Sha256::digest(key).into();
        let kept = || self.compiled.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if let Some(made) = kept().use_again(&key) {
            return Ok(made);
        }
        let made = self.compile(generation)?;
        kept().add(key, made.clone());
        Ok(made)
    }

    fn compile(&self, generation: &Generation) -> Result<Option<Box<dyn Constraint>>, ApiError> {
        let grammars = self.grammars()?;
        let parallel = generation.tools.parallel;
        let (field, made) = match generation.answer_rule() {
            AnswerRule::Free => {
                let tools = schemas(generation.tools.offered());
                ("tools", grammars.check_strict(&tools).map(|()| None))
            }
            AnswerRule::Calls(tools) => {
                let syntax = self.template()?.1.call_syntax();
                ("tools", grammars.tool_calls(&syntax, &schemas(tools), parallel).map(Some))
            }
            AnswerRule::Json(rule) => {
                let JsonAnswer { schema, strictness } = answer(&rule);
                (rule.field, grammars.json_schema_with(schema, strictness).map(Some))
            }
            AnswerRule::CallsOrJson(tools, rule) => {
                let syntax = self.template()?.1.marked_call_syntax();
                let tools = schemas(tools);
                let made = grammars.tool_calls_or_json(&syntax, &tools, parallel, answer(&rule));
                if let Err(GrammarError::MissingToken { .. }) = made {
                    let message = format!(
                        "{} has no marker that tells calls from other JSON, so an answer cannot be either; send tools or {}, or force or forbid calls by tool_choice",
                        self.id, rule.field
                    );
                    return Err(ApiError::invalid("tools", message));
                }
                let field = match made {
                    Err(GrammarError::Answer { .. }) => rule.field,
                    _ => "tools",
                };
                (field, made.map(Some))
            }
        };
        made.map_err(|error| match error {
            GrammarError::Busy { .. } => {
                ApiError::new(ErrorKind::QueueFull, error.to_string()).retry_after(1)
            }
            error => ApiError::invalid(field, error.to_string()),
        })
    }

    /// How the text of answers to a prompt is read.
    pub fn output_reader(&self, generation: &Generation, prompt: &[u32]) -> OutputReader {
        let chat = matches!(generation.prompt, Prompt::Chat(_));
        let format = self.format.unwrap_or(ToolFormat::Generic);
        let rule = generation.answer_rule();
        let tools: Vec<String> = match rule {
            // Nothing of an answer by a schema is a call, whatever it looks like.
            AnswerRule::Json(_) => Vec::new(),
            _ => generation.tools.offered().iter().map(|tool| tool.name.clone()).collect(),
        };
        let json_answer = matches!(rule, AnswerRule::CallsOrJson(..));
        let tokenizer = self.service.text().map(|text| &text.tokenizer);
        let reasoning = match tokenizer {
            Some(tokenizer) if chat && generation.split_reasoning => {
                // The end of the prompt says whether thoughts have begun.
                let end = &prompt[prompt.len().saturating_sub(8)..];
                ReasoningMode::of_prompt(&tokenizer.decode(end, true))
            }
            _ => ReasoningMode::Off,
        };
        let parses = chat && (!tools.is_empty() || reasoning != ReasoningMode::Off);
        let show_special =
            parses && tokenizer.is_some_and(|tokenizer| format.needs_special_tokens(tokenizer));
        let parallel_calls = generation.tools.parallel;
        let only_calls = matches!(rule, AnswerRule::Calls(_));
        let options = ParserOptions { tools, parallel_calls, json_answer, only_calls, reasoning };
        OutputReader { format, options, show_special }
    }
}

/// The schemas of tools.
fn schemas<'a>(tools: impl IntoIterator<Item = &'a Tool>) -> Vec<ToolSchema<'a>> {
    let schema = |tool: &'a Tool| ToolSchema {
        name: &tool.name,
        parameters: &tool.parameters,
        strictness: strictness(tool.strict),
    };
    tools.into_iter().map(schema).collect()
}

fn answer(rule: &JsonRule) -> JsonAnswer<'_> {
    JsonAnswer { schema: &rule.schema, strictness: strictness(rule.strict) }
}

fn strictness(strict: bool) -> SchemaStrictness {
    if strict { SchemaStrictness::Strict } else { SchemaStrictness::Relaxed }
}

/// What a constraint is made from.
fn constraint_key(generation: &Generation) -> Option<String> {
    let parallel = generation.tools.parallel;
    let facts = |tools: Vec<&Tool>| -> Value {
        tools.iter().map(|tool| json!([tool.name, tool.parameters, tool.strict])).collect()
    };
    Some(match generation.answer_rule() {
        AnswerRule::Free => {
            let strict = generation.tools.offered().iter().filter(|tool| tool.strict);
            let strict: Vec<&Tool> = strict.collect();
            if strict.is_empty() {
                return None;
            }
            format!("check {}", facts(strict))
        }
        AnswerRule::Calls(tools) => format!("calls {parallel} {}", facts(tools)),
        AnswerRule::Json(rule) => format!("json {} {}", rule.strict, rule.schema),
        AnswerRule::CallsOrJson(tools, rule) => {
            format!("either {parallel} {} {} {}", facts(tools), rule.strict, rule.schema)
        }
    })
}

/// How the text of answers is read.
pub(crate) struct OutputReader {
    format: ToolFormat,
    options: ParserOptions,
    /// Whether special tokens have to be in the text, because they mark calls.
    pub show_special: bool,
}

impl OutputReader {
    /// What reads the text of one answer.
    pub fn output(&self, state: &Arc<State>) -> Output {
        let state = state.clone();
        let parser = OutputParser::new(self.format, self.options.clone());
        Output::new(parser, move || state.fresh_id("call_"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_recently_used_is_dropped() {
        let mut kept = RecentlyUsed::default();
        (0..KEPT_CONSTRAINTS as u8).for_each(|value| kept.add([value; 32], value));
        assert_eq!(kept.use_again(&[0; 32]), Some(0));
        kept.add([200; 32], 200);
        assert_eq!((kept.use_again(&[1; 32]), kept.use_again(&[0; 32])), (None, Some(0)));
        kept.add([0; 32], 7);
        assert_eq!((kept.use_again(&[0; 32]), kept.0.len()), (Some(7), KEPT_CONSTRAINTS));
    }
}
