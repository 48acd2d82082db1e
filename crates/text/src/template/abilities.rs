//! What a template can render, found out by trial: needles go in, and are looked for in the text.

use serde_json::{Value, json};

use super::{ChatTemplate, Conversation, Message};

/// What a template renders without an error and without losing text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Abilities {
    /// Tool definitions.
    pub(crate) tools: bool,
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
}

/// Needles for what a trial's messages hold.
const A: &str = "pianola-needle-a";
const B: &str = "pianola-needle-b";
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
        *self.abilities.get_or_init(|| self.try_all())
    }

    fn try_all(&self) -> Abilities {
        let user = || Message::new("user", "x");
        let says = |role: &str, text: &str| Message::new(role, text);
        let prints = |messages: Vec<Message>, needles: &[&str]| {
            let text = self.render(&Conversation::new(messages));
            text.is_ok_and(|text| needles.iter().all(|needle| text.contains(needle)))
        };
        let tool = |name: &str| {
            let field = json!({ "type": "string", "description": "x" });
            let parameters =
                json!({ "type": "object", "properties": { "x": field }, "required": ["x"] });
            let function = json!({ "name": name, "description": "x", "parameters": parameters });
            json!([{ "type": "function", "function": function }])
        };
        let with_tools = Conversation { tools: Some(tool(A)), ..Conversation::new(vec![user()]) };
        let calls = |text: &str, calls: &[(&str, &str)]| calling(text, calls);
        let called = |text: &str| vec![user(), calls(text, &[(A, ID_A)]), result("y", ID_A)];
        let long = "call_0123456789abcdef01234567";
        let long_id = vec![user(), calls("", &[(A, long)]), result("y", long)];
        let two =
            vec![user(), calls("", &[(A, ID_A), (B, ID_B)]), result("y", ID_A), result("z", ID_B)];
        let mut after_result = called("");
        after_result.insert(0, says("system", B));
        let chat =
            |role: &str| vec![says("system", "x"), user(), says("assistant", "y"), says(role, A)];
        let mut later_system = chat("system");
        later_system.push(user());
        Abilities {
            tools: self.render(&with_tools).is_ok_and(|text| text.contains(A)),
            calls: prints(called(""), &[A]),
            results: prints(vec![user(), calls("", &[("f", ID_A)]), result(B, ID_A)], &[B]),
            parallel_calls: prints(two, &[A, B]),
            text_beside_calls: prints(called(B), &[A, B]),
            any_ids: prints(long_id, &[A]),
            system: prints(vec![says("system", A), user()], &[A]),
            system_before_results: prints(after_result, &[A, B]),
            later_system: prints(later_system, &[A]),
            repeated_roles: prints(vec![says("user", A), says("user", B)], &[A, B])
                && prints(vec![user(), says("assistant", A), says("assistant", B)], &[A, B])
                && prints(vec![says("assistant", A), user()], &[A]),
        }
    }
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
