//! Texts put together from a pattern, and texts spaced or escaped.

use super::budget::{Budget, Writer};
use super::expression::Arguments;
use super::fault::Fault;
use super::python;
use super::value::Value;
use super::{lists, operators::lookup};

/// Python's `%`: `%s`, `%r`, `%d`, `%f` and `%x`, with a width, zeros, a side and a precision.
pub(super) fn percent(budget: &Budget, pattern: &str, values: &[Value]) -> Result<Value, Fault> {
    const WIDEST: usize = 1000;
    budget.scan(pattern)?;
    let mut out = Writer::new(budget);
    let mut values = values.iter();
    let mut rest = pattern;
    while let Some((before, after)) = rest.split_once('%') {
        out.push(before)?;
        let flags = after.len() - after.trim_start_matches(['-', '0', '+', ' ']).len();
        let (flags, after) = after.split_at(flags);
        let (width, after) = number(after);
        let (precision, after) = match after.strip_prefix('.') {
            Some(after) => (number(after).0.or(Some(0)), number(after).1),
            None => (None, after),
        };
        let mut characters = after.chars();
        let conversion = characters.next();
        rest = characters.as_str();
        if conversion == Some('%') {
            out.push("%")?;
            continue;
        }
        let value = values.next().ok_or_else(|| Fault::failed("a format lacks a value"))?;
        let text = converted(budget, conversion, value, precision.map(|it| it.min(WIDEST)))?;
        let missing = width.unwrap_or(0).min(WIDEST).saturating_sub(text.chars().count());
        let (left, fill) = (flags.contains('-'), if flags.contains('0') { "0" } else { " " });
        out.push(&if left { String::new() } else { fill.repeat(missing) })?;
        out.push(&text)?;
        out.push(&if left { " ".repeat(missing) } else { String::new() })?;
    }
    out.push(rest)?;
    out.into_value()
}

/// The number that a text begins with, and what follows it.
fn number(text: &str) -> (Option<usize>, &str) {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    (text[..digits].parse().ok(), &text[digits..])
}

fn converted(
    budget: &Budget,
    conversion: Option<char>,
    value: &Value,
    precision: Option<usize>,
) -> Result<String, Fault> {
    let wrong = || Fault::failed(format!("a format wants a number, not {}", value.kind()));
    match conversion {
        Some('s') => {
            let mut text = Writer::new(budget);
            python::print(value, &mut text)?;
            Ok(text.into_string())
        }
        Some('r') => {
            let mut text = Writer::new(budget);
            python::repr(value, &mut text)?;
            Ok(text.into_string())
        }
        Some('d' | 'i') => Ok((value.as_float().ok_or_else(wrong)? as i64).to_string()),
        Some('x') => Ok(format!("{:x}", value.as_integer().ok_or_else(wrong)?)),
        Some('f') => {
            Ok(format!("{:.*}", precision.unwrap_or(6), value.as_float().ok_or_else(wrong)?))
        }
        _ => Err(Fault::failed("a format has an unknown conversion")),
    }
}

/// Python's `format`: `{}`, `{0}`, `{name}` and `{name.part}`, without specifications.
pub(super) fn braces(
    budget: &Budget,
    pattern: &str,
    arguments: &Arguments,
) -> Result<Value, Fault> {
    let mut out = Writer::new(budget);
    let mut next = 0;
    let mut rest = pattern;
    while let Some(at) = rest.find(['{', '}']) {
        out.push(&rest[..at])?;
        let brace = &rest[at..at + 1];
        let after = &rest[at + 1..];
        if let Some(after) = after.strip_prefix(brace) {
            out.push(brace)?;
            rest = after;
            continue;
        }
        let field = if brace == "{" { after.split_once('}') } else { None };
        let Some((field, after)) = field else {
            return Err(Fault::failed("a format has a single brace"));
        };
        let mut names = field.split('.');
        let first = names.next().unwrap_or_default();
        let place = if first.is_empty() { Some(next) } else { first.parse().ok() };
        next += usize::from(first.is_empty());
        let value = arguments.get(place.unwrap_or(usize::MAX), first);
        let mut value = value.ok_or_else(|| Fault::failed("a format lacks a value"))?.clone();
        for name in names {
            value = match &value {
                Value::Map(map) => {
                    let key = budget.text(name)?;
                    lookup(budget, &map.entries, &key)?.cloned().unwrap_or(Value::Undefined)
                }
                other => lists::attribute(budget, other, name)?,
            };
        }
        python::print(&value, &mut out)?;
        rest = after;
    }
    out.push(rest)?;
    out.into_value()
}

/// Every line but the first behind some spaces, empty ones left as they are.
pub(super) fn indent(budget: &Budget, text: &str, arguments: &Arguments) -> Result<Value, Fault> {
    let blanks = match arguments.get(0, "width") {
        Some(Value::Text(text)) => {
            budget.memory(text.len())?;
            text.to_string()
        }
        _ => {
            let width = arguments.integer(0, "width")?.unwrap_or(4);
            let width = usize::try_from(width).unwrap_or(0);
            budget.memory(width)?;
            " ".repeat(width)
        }
    };
    let (first, blank) = (arguments.flag(1, "first"), arguments.flag(2, "blank"));
    let mut out = Writer::new(budget);
    for (place, line) in text.split('\n').enumerate() {
        budget.read(line.len())?;
        out.push(if place > 0 { "\n" } else { "" })?;
        let indented = if place == 0 { first } else { blank || !line.is_empty() };
        out.push(if indented { &blanks } else { "" })?;
        out.push(line)?;
    }
    out.into_value()
}

/// The five characters that mean something in HTML, escaped.
pub(super) fn escape(budget: &Budget, text: &str) -> Result<Value, Fault> {
    budget.scan(text)?;
    let mut out = Writer::new(budget);
    for character in text.chars() {
        match character {
            '&' => out.push("&amp;")?,
            '<' => out.push("&lt;")?,
            '>' => out.push("&gt;")?,
            '"' => out.push("&#34;")?,
            '\'' => out.push("&#39;")?,
            _ => out.push_char(character)?,
        }
    }
    out.into_value()
}
