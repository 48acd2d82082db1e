//! Rendering in which what people wrote cannot become special tokens.
//!
//! Every string of the messages and tools is rendered between two sentinels,
//! characters that occur nowhere else. Taken out again they must leave what
//! the template renders without them; then what lay between them is plain
//! text, and only special tokens wholly outside are recognised. White space at
//! the ends of a string stays outside its sentinels, so that a template may trim.
//!
//! A template that cuts strings up (Qwen 3 drops earlier thoughts) loses
//! sentinels. Then only the special tokens that a string spells are marked, by
//! a sentinel inside each: that survives cutting, but not a template that
//! would put a token together from strings that hold a part of it each. If
//! marks do not survive either, the conversation is refused.

use std::ops::Range;

use serde_json::{Map, Value};

use super::{ChatTemplate, Conversation};
use crate::added::Specials;
use crate::error::Error;
use crate::tokenizer::Tokenizer;

impl ChatTemplate {
    /// The tokens of a conversation, with the beginning-of-sequence token where
    /// the model wants one. The template's special tokens are recognised; those
    /// that a message, a tool or a variable spells are plain text.
    pub fn render_tokens(
        &self,
        conversation: &Conversation,
        tokenizer: &Tokenizer,
    ) -> Result<Vec<u32>, Error> {
        let context = self.context(conversation)?;
        let text = self.render_context(context.clone(), conversation.now)?;
        let sentinels = Sentinels::absent_from(&[&text, &self.source, &in_full(&context)]);
        let plain = [How::Enclose, How::Mark].into_iter().find_map(|how| {
            let guard = Guard { sentinels, tokenizer, how };
            let rendered = self.render_context(guard.context(context.clone()), conversation.now);
            sentinels.ranges(&rendered.ok()?, &text)
        });
        let plain = plain.ok_or(Error::Inseparable)?;
        Ok(tokenizer.with_bos(tokenizer.encode_with(&text, Specials::Outside(&plain))?))
    }
}

/// Every string and key, unescaped.
fn in_full(context: &Map<String, Value>) -> String {
    fn append(value: &Value, all: &mut String) {
        match value {
            Value::String(text) => all.push_str(text),
            Value::Array(items) => items.iter().for_each(|item| append(item, all)),
            Value::Object(fields) => fields.iter().for_each(|(key, field)| {
                all.push_str(key);
                append(field, all);
            }),
            _ => {}
        }
    }
    let mut all = String::new();
    context.values().for_each(|value| append(value, &mut all));
    all
}

#[derive(Clone, Copy)]
struct Sentinels {
    open: char,
    close: char,
    mark: char,
}

impl Sentinels {
    /// Three characters that none of the texts contains: noncharacters, which
    /// no text should, else private ones, of which no text can have all.
    fn absent_from(texts: &[&str]) -> Sentinels {
        let candidates = ('\u{fdd0}'..='\u{fdef}').chain('\u{f0000}'..='\u{10fffd}');
        let mut free = candidates.filter(|&it| !texts.iter().any(|text| text.contains(it)));
        let mut next = || free.next().unwrap_or('\u{10ffff}');
        Sentinels { open: next(), close: next(), mark: next() }
    }

    /// The stretches of `expected` that are plain text, if `rendered` is it
    /// with whole pairs of sentinels.
    fn ranges(self, rendered: &str, expected: &str) -> Option<Vec<Range<usize>>> {
        let mut text = String::with_capacity(rendered.len());
        let mut ranges = Vec::new();
        let mut opened = None;
        for character in rendered.chars() {
            if character == self.open {
                if opened.replace(text.len()).is_some() {
                    return None;
                }
            } else if character == self.close {
                ranges.push(opened.take()?..text.len());
            } else if character == self.mark {
                let before = text.chars().next_back()?;
                ranges.push(text.len() - before.len_utf8()..text.len());
            } else {
                text.push(character);
            }
        }
        (opened.is_none() && text == expected).then_some(ranges)
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum How {
    Enclose,
    Mark,
}

/// Puts sentinels into the variables of a template.
struct Guard<'a> {
    sentinels: Sentinels,
    tokenizer: &'a Tokenizer,
    how: How,
}

impl Guard<'_> {
    fn context(&self, context: Map<String, Value>) -> Map<String, Value> {
        let variable = |(name, value): (String, Value)| match name.as_str() {
            "bos_token" | "eos_token" => (name, value),
            "messages" | "tools" | "documents" => (name, self.value(value, self.how)),
            // The template compares these with words it knows.
            _ => (name, self.value(value, How::Mark)),
        };
        context.into_iter().map(variable).collect()
    }

    fn value(&self, value: Value, how: How) -> Value {
        match value {
            Value::String(text) if how == How::Enclose => Value::String(self.enclose(&text)),
            Value::String(text) => Value::String(self.mark(&text)),
            Value::Array(items) => items.into_iter().map(|item| self.value(item, how)).collect(),
            Value::Object(fields) => {
                let field = |(key, field): (String, Value)| {
                    let known = matches!(key.as_str(), "role" | "type");
                    (self.mark(&key), self.value(field, if known { How::Mark } else { how }))
                };
                Value::Object(fields.into_iter().map(field).collect())
            }
            other => other,
        }
    }

    fn enclose(&self, text: &str) -> String {
        let Sentinels { open, close, .. } = self.sentinels;
        let core = text.trim();
        if core.is_empty() {
            return text.to_owned();
        }
        let start = text.len() - text.trim_start().len();
        let (before, after) = (&text[..start], &text[start + core.len()..]);
        format!("{before}{open}{core}{close}{after}")
    }

    /// A mark after the first character of every special token.
    fn mark(&self, text: &str) -> String {
        let mut marked = String::with_capacity(text.len());
        for (start, character) in text.char_indices() {
            marked.push(character);
            if self.tokenizer.special_begins(&text[start..]) {
                marked.push(self.sentinels.mark);
            }
        }
        marked
    }
}
