//! Tool calls as a model's family writes them.

use crate::text::literal;
use crate::{GrammarError, SchemaStrictness};
use pianola_text::{CallSyntax, Tokenizer};
use serde_json::Value;
use std::collections::HashMap;
use std::fmt::Write;

/// A tool that may be called.
#[derive(Clone, Copy, Debug)]
pub struct ToolSchema<'a> {
    /// Name.
    pub name: &'a str,
    /// JSON schema of the arguments.
    pub parameters: &'a Value,
    /// What happens to keywords of the schema that cannot be enforced.
    pub strictness: SchemaStrictness,
}

/// The special tokens of a vocabulary.
pub(crate) struct Specials {
    /// By spelling.
    ids: HashMap<String, u32>,
    /// Those that end an answer.
    ends: Vec<u32>,
}

impl Specials {
    pub(crate) fn new(tokenizer: &Tokenizer) -> Specials {
        let special = (0..tokenizer.len() as u32).filter(|&id| tokenizer.is_special(id));
        let named = special.filter_map(|id| tokenizer.token_text(id).map(|text| (text, id)));
        Specials {
            ids: named.filter(|(text, _)| !text.is_empty()).collect(),
            ends: tokenizer.stop_tokens().to_vec(),
        }
    }

    /// The longest special token that a text begins with, and its bytes.
    fn longest(&self, text: &str) -> Option<(usize, u32)> {
        let begins = self.ids.iter().filter(|(spelling, _)| text.starts_with(spelling.as_str()));
        begins.map(|(spelling, &id)| (spelling.len(), id)).max()
    }
}

/// Name of the grammar of a tool's parameters.
pub(crate) fn parameters_name(tool: usize) -> String {
    format!("parameters_{tool}")
}

/// Name of the grammar of an answer that is no call.
pub(crate) const ANSWER: &str = "answer";

/// The rule `calls` and those below it, in Lark's syntax: what stands around parameters. White space is optional and bounded, as it
/// is inside of the parameters.
pub(crate) fn frame(
    specials: &Specials,
    syntax: &CallSyntax,
    tools: &[ToolSchema<'_>],
    parallel: bool,
) -> Result<String, GrammarError> {
    let begin = marker(specials, syntax.begin, syntax.begin_special)?;
    let end = marker(specials, syntax.end, false)?;
    let (begin, separator, end) = match syntax.list {
        true => (format!("{begin} OPEN"), "COMMA".to_string(), format!("CLOSE {end}")),
        false => (begin, marker(specials, syntax.separator, false)?, end),
    };
    let more = match parallel && !separator.is_empty() {
        true => format!("({separator} call)*"),
        false => String::new(),
    };
    let names: Vec<String> = (0..tools.len()).map(|tool| format!("call_{tool}")).collect();
    let mut lark = format!("calls: {begin} call {more} {end}\ncall: {}\n", names.join(" | "));
    lark.push_str("SPACE: / |\\n {0,8}/\n");
    lark.push_str("OPEN: \"[\" SPACE?\nCOMMA: SPACE? \",\" SPACE?\nCLOSE: SPACE? \"]\"\n");
    lark.push_str("TAIL: SPACE? \"}\"\n");
    let key = literal(&Value::from(syntax.arguments_key).to_string());
    for (index, tool) in tools.iter().enumerate() {
        let name = literal(&Value::from(tool.name).to_string());
        let parameters = parameters_name(index);
        // Writing to a string cannot fail.
        let _ = writeln!(lark, "call_{index}: HEAD_{index} @{parameters} TAIL");
        let _ = writeln!(
            lark,
            "HEAD_{index}: \"{{\" SPACE? \"\\\"name\\\"\" SPACE? \":\" SPACE? {name} SPACE? \",\" SPACE? {key} SPACE? \":\" SPACE?"
        );
    }
    Ok(lark)
}

/// A marker as Lark's expression: special tokens by their ids, the text between them as it is. One
/// that ends the answer is left out, because there the answer ends without it.
fn marker(specials: &Specials, text: &str, special: bool) -> Result<String, GrammarError> {
    if special && !specials.ids.contains_key(text) {
        return Err(GrammarError::MissingToken { token: text.to_string() });
    }
    let mut parts = Vec::new();
    let (mut start, mut at) = (0, 0);
    while at < text.len() {
        match specials.longest(&text[at..]) {
            Some((length, id)) => {
                push_text(&mut parts, &text[start..at]);
                if !specials.ends.contains(&id) {
                    parts.push(format!("<[{id}]>"));
                }
                at += length;
                start = at;
            }
            None => at += text[at..].chars().next().map_or(1, char::len_utf8),
        }
    }
    push_text(&mut parts, &text[start..]);
    Ok(parts.join(" "))
}

fn push_text(parts: &mut Vec<String>, text: &str) {
    if !text.is_empty() {
        parts.push(literal(text));
    }
}
