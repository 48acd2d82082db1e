//! Conversations as clients send them, in the form a template renders.
//!
//! ```text
//! messages ─► tidy ─► link results to calls ─┬─ template takes tools ─► split what it refuses ─┐
//!                                            └─ it does not ─► calls and results as text ──────┤
//!                                    alternate ◄─ one system message at the front ◄────────────┘
//! ```

use std::collections::HashMap;

use serde_json::{Value, json};

use super::content::{self, Joined};
use super::link::link;
use super::{ToolFormat, words};
use crate::template::{Abilities, ChatTemplate, Conversation, Message};

impl ToolFormat {
    /// The conversation in a form that the template renders without an error and without losing
    /// text. Where the template takes tools, only what it would refuse or leave out is changed;
    /// else tools, calls and results become text in this format. Any sequence of the roles
    /// `system`, `developer`, `user`, `assistant`, `tool` and `function` will do.
    pub fn adapt(self, mut conversation: Conversation, template: &ChatTemplate) -> Conversation {
        let able = template.abilities();
        conversation.tools =
            conversation.tools.filter(|it| it.as_array().is_none_or(|it| !it.is_empty()));
        let messages = conversation.messages.into_iter();
        let mut messages: Vec<Message> = messages.map(tidy).collect();
        link(&mut messages, able.any_ids);
        if !able.no_user && !messages.iter().any(|message| message.role == "user") {
            begin_with_user(&mut messages);
        }
        if self.is_native(able) {
            messages = split(messages, able);
        } else {
            messages = messages.into_iter().map(|message| self.in_words(message)).collect();
            messages = join_neighbours(messages, is_result);
            for message in messages.iter_mut().filter(|message| is_result(message)) {
                (message.tool_call_id, message.name) = (None, None);
            }
            if let Some(tools) = conversation.tools.take() {
                messages.insert(0, Message::new("system", words::describe(self, &tools)));
            }
        }
        messages = gather_system(messages, able);
        let has_tools = conversation.tools.is_some();
        // Llama's template takes the first message for the user's if there are tools.
        if !able.repeated_roles || (has_tools && self == ToolFormat::Llama3) {
            begin_with_user(&mut messages);
        }
        if !able.repeated_roles {
            messages = alternate(join_neighbours(messages, |_| true));
        }
        if !able.empty_answers {
            messages
                .iter_mut()
                .filter(|it| says_nothing(it))
                .for_each(|it| it.content = " ".into());
        }
        if !able.no_tools {
            conversation.tools.get_or_insert(json!([]));
        }
        conversation.messages = fold_system(messages, able);
        conversation
    }

    /// Whether the template itself writes tools, calls and results, in this format.
    fn is_native(self, able: Abilities) -> bool {
        self != ToolFormat::Generic && able.tools && able.calls && able.results
    }

    /// Calls and results as text.
    fn in_words(self, mut message: Message) -> Message {
        if let Some(calls) = message.tool_calls.take() {
            let calls = words::calls(self, &calls);
            message.content = match content::text(&message.content) {
                // Calls begin a line.
                Some(text) if text.is_empty() || text.ends_with('\n') => (text + &calls).into(),
                Some(text) => format!("{text}\n{calls}").into(),
                None => content::join(message.content, calls.into()),
            };
        }
        if message.role == "tool" {
            let text = content::text(&message.content);
            message.content = match text {
                Some(text) => words::result(&message, &text).into(),
                None => content::join(words::result(&message, "").into(), message.content),
            };
            message.role = "user".into();
        }
        message
    }
}

/// A message in today's form: no roles or fields that templates do not know, no absent content.
fn tidy(mut message: Message) -> Message {
    match message.role.as_str() {
        "developer" => message.role = "system".into(),
        "function" => message.role = "tool".into(),
        _ => {}
    }
    if let Some(function @ Value::Object(_)) = message.other.shift_remove("function_call") {
        message.tool_calls.get_or_insert(json!([{ "type": "function", "function": function }]));
    }
    message.tool_calls =
        message.tool_calls.filter(|calls| calls.as_array().is_some_and(|calls| !calls.is_empty()));
    for call in message.tool_calls.iter_mut().filter_map(Value::as_array_mut).flatten() {
        if let Some(arguments) = call.pointer_mut("/function/arguments")
            && (arguments.is_null() || arguments.as_str().is_some_and(|it| it.trim().is_empty()))
        {
            *arguments = json!({});
        }
    }
    // Some templates write the first part only of what the system or a tool says.
    let whole = matches!(message.role.as_str(), "system" | "tool");
    if (whole || !message.content.is_array())
        && let Some(text) = content::text(&message.content)
    {
        message.content = text.into();
    }
    message
}

/// Takes apart messages with calls that the template would refuse, or leave text out of.
fn split(messages: Vec<Message>, able: Abilities) -> Vec<Message> {
    let mut out = Vec::with_capacity(messages.len());
    let mut rest = messages.into_iter().peekable();
    while let Some(mut message) = rest.next() {
        let Some(calls) = message.tool_calls.as_ref().and_then(Value::as_array) else {
            out.push(message);
            continue;
        };
        let single = calls.len() == 1;
        if !able.text_beside_calls && !content::is_empty(&message.content) {
            let text = std::mem::replace(&mut message.content, "".into());
            out.push(Message { content: text, ..Message::new(message.role.as_str(), "") });
        }
        if able.parallel_calls || single {
            out.push(message);
            continue;
        }
        let results = std::iter::from_fn(|| rest.next_if(|next| next.role == "tool")).collect();
        split_calls(message, results, &mut out);
    }
    out
}

/// One message for each call of a message, followed by its results. What else the message has stays
/// with the first call.
fn split_calls(mut message: Message, results: Vec<Message>, out: &mut Vec<Message>) {
    let Some(Value::Array(calls)) = message.tool_calls.take() else { return };
    let mut by_id: HashMap<String, Vec<usize>> = HashMap::new();
    for (at, result) in results.iter().enumerate() {
        if let Some(id) = &result.tool_call_id {
            by_id.entry(id.clone()).or_default().push(at);
        }
    }
    let mut results: Vec<Option<Message>> = results.into_iter().map(Some).collect();
    let role = message.role.clone();
    let mut whole = Some(message);
    for call in calls {
        let own = call["id"].as_str().and_then(|id| by_id.remove(id)).unwrap_or_default();
        let base = whole.take().unwrap_or_else(|| Message::new(role.as_str(), ""));
        out.push(Message { tool_calls: Some(Value::Array(vec![call])), ..base });
        out.extend(own.into_iter().filter_map(|at| results[at].take()));
    }
    out.extend(results.into_iter().flatten());
}

/// Whether a user message stands for a tool's result.
fn is_result(message: &Message) -> bool {
    message.tool_call_id.is_some()
}

/// A message whose content grows.
struct Growing {
    message: Message,
    content: Joined,
}

impl Growing {
    fn new(mut message: Message) -> Growing {
        let content = Joined::new(std::mem::take(&mut message.content));
        Growing { message, content }
    }

    fn finish(self) -> Message {
        Message { content: self.content.into_content(), ..self.message }
    }
}

/// Joins neighbours of one role that are both `alike` and have no calls; results stay apart from
/// one another only where they have a role of their own.
fn join_neighbours(messages: Vec<Message>, alike: fn(&Message) -> bool) -> Vec<Message> {
    let mut out: Vec<Growing> = Vec::with_capacity(messages.len());
    for message in messages {
        match out.last_mut() {
            Some(Growing { message: last, content })
                if last.role == message.role
                    && message.role != "tool"
                    && alike(last)
                    && alike(&message)
                    && last.tool_calls.is_none()
                    && message.tool_calls.is_none() =>
            {
                content.add(message.content);
            }
            _ => out.push(Growing::new(message)),
        }
    }
    out.into_iter().map(Growing::finish).collect()
}

/// One system message at the front, of those there and, unless the template takes them where they
/// are, of all others.
fn gather_system(messages: Vec<Message>, able: Abilities) -> Vec<Message> {
    let mut system: Option<Growing> = None;
    let mut others: Vec<Message> = Vec::with_capacity(messages.len());
    for message in messages {
        if message.role != "system" || (able.later_system && !others.is_empty()) {
            others.push(message);
        } else if let Some(system) = &mut system {
            system.content.add(message.content);
        } else {
            system = Some(Growing::new(message));
        }
    }
    system.map(Growing::finish).into_iter().chain(others).collect()
}

fn says_nothing(message: &Message) -> bool {
    let bare = message.tool_calls.is_none() && content::is_empty(&message.content);
    bare && message.role == "assistant"
}

/// Puts an empty user message after the system's, unless there is one.
fn begin_with_user(messages: &mut Vec<Message>) {
    let at = messages.iter().take_while(|message| message.role == "system").count();
    if messages.get(at).is_none_or(|message| message.role != "user") {
        messages.insert(at, Message::new("user", ""));
    }
}

/// Inserts empty messages so that users and assistants take turns; calls and results do not count.
fn alternate(messages: Vec<Message>) -> Vec<Message> {
    let mut out: Vec<Message> = Vec::with_capacity(messages.len());
    let mut expected = "user";
    for message in messages {
        let counted = matches!(message.role.as_str(), "user" | "assistant");
        if counted && message.tool_calls.is_none() {
            if message.role != expected {
                out.push(Message::new(expected, ""));
            }
            expected = if message.role == "user" { "assistant" } else { "user" };
        }
        out.push(message);
    }
    out
}

/// Puts the system's words before the user's where the template would leave them out.
fn fold_system(mut messages: Vec<Message>, able: Abilities) -> Vec<Message> {
    let is_user = |message: &Message| message.role == "user";
    let leads = messages.first().is_some_and(|message| message.role == "system");
    let at = if !able.system {
        messages.iter().position(is_user)
    } else if !able.system_before_results && !messages.last().is_some_and(is_user) {
        messages.iter().rposition(is_user)
    } else {
        None
    };
    if let (true, Some(at)) = (leads, at) {
        let system = messages.remove(0);
        let user = &mut messages[at - 1];
        let words = std::mem::take(&mut user.content);
        user.content = content::join(system.content, words);
    }
    messages
}
