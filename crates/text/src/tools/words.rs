//! Tools, calls and results as text, for templates that have no place for them.

use std::io;

use serde::Serialize;
use serde_json::Value;
use serde_json::ser::{Formatter, Serializer};

use super::ToolFormat;
use crate::template::Message;

/// What the system message says about the tools.
pub(super) fn describe(format: ToolFormat, tools: &Value) -> String {
    let syntax = format.call_syntax();
    let tools: Vec<String> = tools
        .as_array()
        .into_iter()
        .flatten()
        .map(|tool| to_json(tool.get("function").unwrap_or(tool)))
        .collect();
    let example =
        format!("{{\"name\": \"NAME\", \"{}\": {{\"KEY\": VALUE}}}}", syntax.arguments_key);
    let several = match (syntax.list, syntax.begin) {
        (true, _) => " Further calls are further items of the list.",
        (false, "") => " The call is then the whole answer.",
        (false, _) => " Each call has a block of its own.",
    };
    format!(
        "You can call tools. These are available, each described by a JSON object:\n{}\n\n\
         To call a tool, write its name and its arguments as JSON in exactly this form:\n{}\n\
         Arguments must fit the tool's parameters.{several} Results come back inside \
         <tool_response> tags. Answer without a call when no tool is needed.",
        tools.join("\n"),
        enclose(format, &[example])
    )
}

/// Calls as the model writes them.
pub(super) fn calls(format: ToolFormat, calls: &Value) -> String {
    let key = format.call_syntax().arguments_key;
    let calls: Vec<String> = calls
        .as_array()
        .into_iter()
        .flatten()
        .map(|call| {
            let function = call.get("function").unwrap_or(call);
            let arguments = match &function["arguments"] {
                Value::String(text) if is_object(text) => text.clone(),
                other => to_json(other),
            };
            format!("{{\"name\": {}, \"{key}\": {arguments}}}", to_json(&function["name"]))
        })
        .collect();
    enclose(format, &calls)
}

fn enclose(format: ToolFormat, calls: &[String]) -> String {
    let syntax = format.call_syntax();
    let (open, close) = if syntax.list { ("[", "]") } else { ("", "") };
    format!("{}{open}{}{close}{}", syntax.begin, calls.join(syntax.separator), syntax.end)
}

/// A result as part of a user message.
pub(super) fn result(message: &Message, content: &str) -> String {
    match &message.name {
        Some(name) => format!("<tool_response>\n{name}:\n{content}\n</tool_response>"),
        None => format!("<tool_response>\n{content}\n</tool_response>"),
    }
}

fn is_object(text: &str) -> bool {
    serde_json::from_str::<Value>(text).is_ok_and(|value| value.is_object())
}

/// JSON with a space after colons and commas, which is what models are trained on.
pub(super) fn to_json(value: &Value) -> String {
    struct Spaced;
    impl Formatter for Spaced {
        fn begin_array_value<W: ?Sized + io::Write>(
            &mut self,
            out: &mut W,
            first: bool,
        ) -> io::Result<()> {
            if first { Ok(()) } else { out.write_all(b", ") }
        }
        fn begin_object_key<W: ?Sized + io::Write>(
            &mut self,
            out: &mut W,
            first: bool,
        ) -> io::Result<()> {
            if first { Ok(()) } else { out.write_all(b", ") }
        }
        fn begin_object_value<W: ?Sized + io::Write>(&mut self, out: &mut W) -> io::Result<()> {
            out.write_all(b": ")
        }
    }
    let mut out = Vec::new();
    // Neither a value of JSON nor a vector can fail to be written.
    let _ = value.serialize(&mut Serializer::with_formatter(&mut out, Spaced));
    String::from_utf8_lossy(&out).into_owned()
}
