//! What a request asks for, whichever API it came through.

use pianola_engine::sampler::Sampling;
use pianola_engine::{PenaltyScope, Request};
use pianola_text::Conversation;
use serde_json::Value;

/// What to generate.
pub(crate) struct Generation {
    pub prompt: Prompt,
    /// Further prompts, answered with the same settings.
    pub further_prompts: Vec<Prompt>,
    /// Answers to generate for each prompt.
    pub choices: usize,
    pub sampling: Sampling,
    pub seed: Option<u64>,
    pub penalties: PenaltyScope,
    pub max_tokens: Option<usize>,
    pub stop: Vec<String>,
    /// Go on past the model's end-of-turn tokens.
    pub ignore_end: bool,
    /// Whether the answer includes the ids of its tokens.
    pub token_ids: bool,
    /// Log probabilities of each token and of this many others.
    pub logprobs: Option<usize>,
    pub output: OutputRule,
    pub tools: Tools,
    /// Whether reasoning at the start of an answer is reported separately.
    pub split_reasoning: bool,
}

/// What is continued or answered.
pub(crate) enum Prompt {
    Chat(Conversation),
    /// A text to continue, without a template.
    Text(String),
    Tokens(Vec<u32>),
}

/// What the text of an answer has to be.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) enum OutputRule {
    #[default]
    Free,
    /// Any JSON object.
    JsonObject,
    JsonSchema(JsonRule),
}

/// JSON by a schema.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct JsonRule {
    /// The request's field, which errors name.
    pub field: &'static str,
    pub schema: Value,
    /// Whether a schema that cannot be enforced in full is refused; else the answer is valid by the part
    /// that can be. True unless the request says otherwise: an answer by a schema is to be valid.
    pub strict: bool,
}

/// What an answer has to consist of, tools considered.
pub(crate) enum AnswerRule<'a> {
    /// Text, and calls of tools where there are any.
    Free,
    /// Calls of some of these tools.
    Calls(Vec<&'a Tool>),
    Json(JsonRule),
    /// Calls of some of these tools, or else JSON.
    CallsOrJson(Vec<&'a Tool>, JsonRule),
}

/// Functions that the model may call.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tools {
    pub list: Vec<Tool>,
    pub choice: ToolChoice,
    /// Whether one answer may hold several calls.
    pub parallel: bool,
}

/// A function that the model may call.
#[derive(Clone, Debug)]
pub(crate) struct Tool {
    pub name: String,
    pub description: Option<String>,
    /// A JSON schema.
    pub parameters: Value,
    /// Whether a schema that cannot be enforced in full is refused. Else it is relaxed: authors of tools
    /// test their schemas with other engines.
    pub strict: bool,
}

/// Whether the model has to call a function.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) enum ToolChoice {
    #[default]
    Auto,
    None,
    Required,
    Named(String),
}

impl JsonRule {
    /// A schema whose answers have to be valid.
    pub fn strict(field: &'static str, schema: Value) -> JsonRule {
        JsonRule { field, schema, strict: true }
    }

    fn any_object() -> JsonRule {
        JsonRule::strict("response_format", serde_json::json!({ "type": "object" }))
    }
}

impl Tools {
    /// The tools that the prompt lists: none where the model may not call any.
    pub fn offered(&self) -> &[Tool] {
        if self.choice == ToolChoice::None { &[] } else { &self.list }
    }

    /// Those one of which the answer has to call.
    pub fn forced(&self) -> Option<Vec<&Tool>> {
        match &self.choice {
            ToolChoice::Auto | ToolChoice::None => None,
            ToolChoice::Required => Some(self.list.iter().collect()),
            ToolChoice::Named(name) => {
                Some(self.list.iter().filter(|tool| tool.name == *name).collect())
            }
        }
    }

    /// In the form that chat templates expect.
    pub fn for_template(&self) -> Option<Value> {
        let tools = self.offered();
        (!tools.is_empty()).then(|| tools.iter().map(Tool::openai).collect())
    }
}

impl Tool {
    /// In OpenAI's form.
    pub fn openai(&self) -> Value {
        let mut function = serde_json::Map::new();
        function.insert("name".into(), self.name.as_str().into());
        if let Some(description) = &self.description {
            function.insert("description".into(), description.as_str().into());
        }
        function.insert("parameters".into(), self.parameters.clone());
        serde_json::json!({ "type": "function", "function": function })
    }
}

impl Generation {
    /// An answer with the server's default sampling.
    pub fn new(prompt: Prompt) -> Generation {
        Generation {
            prompt,
            further_prompts: Vec::new(),
            choices: 1,
            sampling: default_sampling(),
            seed: None,
            penalties: PenaltyScope::Answer,
            max_tokens: None,
            stop: Vec::new(),
            ignore_end: false,
            token_ids: false,
            logprobs: None,
            output: OutputRule::Free,
            tools: Tools::default(),
            split_reasoning: true,
        }
    }

    /// What the answer has to consist of. A call that is forced leaves no room for another answer.
    pub fn answer_rule(&self) -> AnswerRule<'_> {
        if let Some(tools) = self.tools.forced() {
            return AnswerRule::Calls(tools);
        }
        let rule = match &self.output {
            OutputRule::Free => return AnswerRule::Free,
            OutputRule::JsonObject => JsonRule::any_object(),
            OutputRule::JsonSchema(rule) => rule.clone(),
        };
        match self.tools.offered() {
            [] => AnswerRule::Json(rule),
            tools => AnswerRule::CallsOrJson(tools.iter().collect(), rule),
        }
    }

    /// Texts that end the answer: none where it can only be calls, whose JSON they would cut.
    pub fn stop_texts(&self) -> Vec<String> {
        if self.tools.forced().is_some() { Vec::new() } else { self.stop.clone() }
    }

    /// The engine's request for one of the choices.
    pub fn request(&self, prompt: Vec<u32>, choice: usize) -> Request {
        Request {
            sampling: self.sampling.clone(),
            seed: self.seed.map(|seed| seed.wrapping_add(choice as u64)),
            penalties: self.penalties,
            max_tokens: self.max_tokens,
            stop: self.stop_texts(),
            logprobs: self.logprobs,
            ignore_end: self.ignore_end,
            ..Request::new(prompt)
        }
    }
}

/// How tokens are sampled where a request says nothing: small models lose the thread when they sample
/// from their whole distribution.
pub(crate) fn default_sampling() -> Sampling {
    Sampling { temperature: 0.7, top_k: 40, top_p: 0.95, min_p: 0.05, ..Sampling::default() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn rule(choice: ToolChoice, tools: usize, output: OutputRule) -> &'static str {
        let tool = |index| Tool {
            name: format!("f{index}"),
            description: None,
            parameters: json!({}),
            strict: false,
        };
        let mut generation = Generation::new(Prompt::Text(String::new()));
        let list = (0..tools).map(tool).collect();
        generation.tools = Tools { list, choice, parallel: true };
        generation.output = output;
        match generation.answer_rule() {
            AnswerRule::Free => "free",
            AnswerRule::Calls(_) => "calls",
            AnswerRule::Json(_) => "json",
            AnswerRule::CallsOrJson(..) => "calls or json",
        }
    }

    #[test]
    fn stop_texts_do_not_cut_forced_calls() {
        let mut generation = Generation::new(Prompt::Text(String::new()));
        generation.stop = vec!["}".into()];
        for (choice, stops) in [
            (ToolChoice::Auto, 1),
            (ToolChoice::None, 1),
            (ToolChoice::Required, 0),
            (ToolChoice::Named("f".into()), 0),
        ] {
            generation.tools.choice = choice;
            assert_eq!(generation.request(vec![0], 0).stop.len(), stops);
        }
    }

    #[test]
    fn tools_and_formats_together() {
        let schema =
            || OutputRule::JsonSchema(JsonRule::strict("format", json!({ "type": "integer" })));
        assert_eq!(rule(ToolChoice::Auto, 1, OutputRule::Free), "free");
        assert_eq!(rule(ToolChoice::Auto, 0, schema()), "json");
        assert_eq!(rule(ToolChoice::Auto, 1, schema()), "calls or json");
        assert_eq!(rule(ToolChoice::Auto, 1, OutputRule::JsonObject), "calls or json");
        assert_eq!(rule(ToolChoice::None, 1, schema()), "json");
        assert_eq!(rule(ToolChoice::Required, 1, schema()), "calls");
        assert_eq!(rule(ToolChoice::Named("f0".into()), 2, schema()), "calls");
    }
}
