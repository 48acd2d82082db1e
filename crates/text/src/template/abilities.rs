//! What a template can render, found out by trial: needles go in, and are looked for in the text.

use std::cell::Cell;

use serde_json::{Value, json};

use super::{ChatTemplate, Conversation, Message};
use crate::error::Error;

/// What a template renders without an error and without losing text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Abilities {
    /// Tool definitions.
    pub(crate) tools: bool,
    /// Conversations without a list of tools.
    pub(crate) no_tools: bool,
    /// Assistant messages with `tool_calls` and no content.
    pub(crate) calls: bool,
    /// Messages of role `tool`.
    pub(crate) results: bool,
    /// Several calls in one message.
    pub(crate) parallel_calls: bool,
    /// Content beside calls.
    pub(crate) text_beside_calls: bool,
    /// Ids of calls that are not nine letters and digits.
    pub(crate) any_ids: bool,
    /// A system message before the first user message.
    pub(crate) system: bool,
    /// That system message still, when the last message is a tool's.
    pub(crate) system_before_results: bool,
    /// System messages in the middle.
    pub(crate) later_system: bool,
    /// Two messages of one role in a row, and an assistant's first.
    pub(crate) repeated_roles: bool,
    /// Conversations without a user message.
    pub(crate) no_user: bool,
    /// Assistant messages without content.
    pub(crate) empty_answers: bool,
}

/// Needles for what a trial's messages hold.
const A: &str = "pianola-needle-a";
const B: &str = "pianola-needle-b";
const C: &str = "pianola-needle-c";
const ID_A: &str = "pianola0a";
const ID_B: &str = "pianola0b";

impl ChatTemplate {
    /// Whether it describes `tools` to the model.
    pub fn takes_tools(&self) -> bool {
        self.abilities().tools
    }

    /// Whether it renders messages of role `tool`.
    pub fn takes_tool_messages(&self) -> bool {
        self.abilities().results
    }

    /// Whether it renders assistant messages with `tool_calls` and no content.
    pub fn takes_tool_calls(&self) -> bool {
        self.abilities().calls
    }

    /// The trials, made once when first asked for.
    pub(crate) fn abilities(&self) -> Abilities {
        *self.abilities.get_or_init(|| Trial::of(self).all())
    }

    /// How the template writes a call: the call, and a few characters before its name. `None` if
    /// it does not.
    pub(crate) fn written_call(&self) -> Option<String> {
        const BEFORE: usize = 40;
        let text = Trial::of(self).calls(called(""))?;
        let at = text.rfind(A)?;
        let start = text[..at].char_indices().rev().nth(BEFORE).map_or(0, |(start, _)| start);
        Some(text[start..].to_owned())
    }
}

/// Renders needles.
struct Trial<'a> {
    template: &'a ChatTemplate,
    /// The template went beyond what templates may take: it will again, and is not asked to.
    stopped: Cell<bool>,
}

impl Trial<'_> {
    fn of(template: &ChatTemplate) -> Trial<'_> {
        Trial { template, stopped: Cell::new(false) }
    }

    fn render(&self, messages: &[Message], tools: Option<Value>) -> Option<String> {
        if self.stopped.get() {
            return None;
        }
        let conversation = Conversation { tools, ..Conversation::new(messages.to_vec()) };
        let text = self.template.render(&conversation);
        self.stopped.set(matches!(text, Err(Error::TemplateLimit(_))));
        text.ok()
    }

    /// The text of messages with calls. Some templates want to see a tool for that.
    fn calls(&self, messages: Vec<Message>) -> Option<String> {
        self.render(&messages, Some(tool("f"))).or_else(|| self.render(&messages, None))
    }

    /// The text of messages without calls. Some templates want a list of tools, be it empty.
    fn chat(&self, messages: Vec<Message>) -> Option<String> {
        self.render(&messages, None).or_else(|| self.render(&messages, Some(json!([]))))
    }

    fn all(&self) -> Abilities {
        let says = |role: &str, text: &str| Message::new(role, text);
        let has = |text: Option<String>, needles: &[&str]| {
            text.is_some_and(|text| needles.iter().all(|needle| text.contains(needle)))
        };
        let calls = |messages: Vec<Message>, needles: &[&str]| has(self.calls(messages), needles);
        let chat = |messages: Vec<Message>, needles: &[&str]| has(self.chat(messages), needles);
        let two = [(A, ID_A), (B, ID_B)];
        let both = vec![user(), calling("", &two), result("y", ID_A), result("z", ID_B)];
        let long = "call_0123456789abcdef01234567";
        let system = || says("system", B);
        let answer = || says("assistant", A);
        Abilities {
            tools: has(self.render(&[user()], Some(tool(A))), &[A]),
            no_tools: self.render(&[user()], None).is_some(),
            calls: calls(called(""), &[A]),
            results: calls(vec![user(), calling("", &[("f", ID_A)]), result(B, ID_A)], &[B]),
            parallel_calls: calls(both, &[A, B]),
            text_beside_calls: calls(called(B), &[A, B]),
            any_ids: calls(vec![user(), calling("", &[(A, long)]), result("y", long)], &[A]),
            system: chat(vec![system(), user()], &[B]),
            system_before_results: calls([vec![system()], called("")].concat(), &[A, B]),
            later_system: chat(
                vec![system(), user(), answer(), says("system", C), user()],
                &[A, B, C],
            ),
            repeated_roles: chat(vec![says("user", A), says("user", B)], &[A, B])
                && chat(vec![user(), answer(), says("assistant", B)], &[A, B])
                && chat(vec![answer(), user()], &[A]),
            no_user: chat(vec![system()], &[B]) && chat(vec![system(), answer()], &[A, B]),
            empty_answers: chat(vec![user(), says("assistant", ""), says("user", A)], &[A]),
        }
    }
}

/// A call of `A`, beside this text, and its result.
fn called(text: &str) -> Vec<Message> {
    vec![user(), calling(text, &[(A, ID_A)]), result("y", ID_A)]
}

fn user() -> Message {
    Message::new("user", "x")
}

fn tool(name: &str) -> Value {
    let field = json!({ "type": "string", "description": "x" });
    let parameters = json!({ "type": "object", "properties": { "x": field }, "required": ["x"] });
    let function = json!({ "name": name, "description": "x", "parameters": parameters });
    json!([{ "type": "function", "function": function }])
}

fn calling(text: &str, calls: &[(&str, &str)]) -> Message {
    let call = |&(name, id): &(&str, &str)| {
        let function = json!({ "name": name, "arguments": { "x": "y" } });
        json!({ "type": "function", "id": id, "function": function })
    };
    let calls: Value = calls.iter().map(call).collect();
    Message { tool_calls: Some(calls), ..Message::new("assistant", text) }
}

fn result(content: &str, id: &str) -> Message {
    Message {
        tool_call_id: Some(id.into()),
        name: Some("f".into()),
        ..Message::new("tool", content)
    }
}
