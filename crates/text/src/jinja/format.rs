//! Texts put together from a pattern, and texts spaced or escaped.

use super::budget::{Budget, Writer};
use super::expression::Arguments;
use super::fault::Fault;
use super::lists;
use super::operators::{lookup, truncated};
use super::python;
use super::value::Value;

/// Python's `%`: `%s`, `%r`, `%d`, `%f` and `%x`, with a side, a sign, zeros, a width and a precision.
pub(super) fn percent(budget: &Budget, pattern: &str, values: &[Value]) -> Result<Value, Fault> {
    budget.scan(pattern)?;
    let mut out = Writer::new(budget);
    let mut values = values.iter();
    let mut rest = pattern;
    while let Some((before, after)) = rest.split_once('%') {
        out.push(before)?;
        let (conversion, after) = Conversion::parse(after)?;
        rest = after;
        if conversion.letter == Some('%') {
            out.push("%")?;
            continue;
        }
        let value = values.next().ok_or_else(|| Fault::failed("a format lacks a value"))?;
        conversion.write(value, &mut out)?;
    }
    // Python lets pass what it might have looked names up in.
    let looked_in = |value| matches!(value, &(Value::Map(_) | Value::List(_) | Value::Undefined));
    if values.next().is_some_and(|value| !looked_in(value)) {
        return Err(Fault::failed("a format has more values than places for them"));
    }
    out.push(rest)?;
    out.into_value()
}

/// What stands behind a `%`.
struct Conversion<'p> {
    flags: &'p str,
    width: usize,
    precision: Option<usize>,
    letter: Option<char>,
}

impl<'p> Conversion<'p> {
    /// Reads one, and returns it with what follows it.
    fn parse(text: &'p str) -> Result<(Conversion<'p>, &'p str), Fault> {
        let after = text.trim_start_matches(['-', '0', '+', ' ']);
        let flags = &text[..text.len() - after.len()];
        let (width, after) = number(after)?;
        let (precision, after) = match after.strip_prefix('.') {
            Some(after) => number(after).map(|(precision, after)| (Some(precision), after))?,
            None => (None, after),
        };
        let mut characters = after.chars();
        let letter = characters.next();
        Ok((Conversion { flags, width, precision, letter }, characters.as_str()))
    }

    fn write(&self, value: &Value, out: &mut Writer) -> Result<(), Fault> {
        let budget = out.budget();
        // Decimals take longer than other characters.
        budget.work(1 + self.precision.unwrap_or(0))?;
        let number = !matches!(self.letter, Some('s' | 'r'));
        let text = if number { self.number(value)? } else { self.text(value, budget)? };
        let (sign, text) = match text.strip_prefix('-') {
            Some(digits) if number => ("-", digits),
            _ if number && self.flags.contains('+') => ("+", &*text),
            _ if number && self.flags.contains(' ') => (" ", &*text),
            _ => ("", &*text),
        };
        let missing = self.width.saturating_sub(sign.len() + text.chars().count());
        let fill = |character: &str, fills: bool| character.repeat(if fills { missing } else { 0 });
        let left = self.flags.contains('-');
        let zeros = !left && number && self.flags.contains('0');
        out.push(&fill(" ", !left && !zeros))?;
        out.push(sign)?;
        out.push(&fill("0", zeros))?;
        out.push(text)?;
        out.push(&fill(" ", left))
    }

    fn text(&self, value: &Value, budget: &Budget) -> Result<String, Fault> {
        let mut text = Writer::new(budget);
        match self.letter {
            Some('r') => python::repr(value, &mut text)?,
            _ => python::print(value, &mut text)?,
        }
        let mut text = text.into_string();
        budget.scan(&text)?;
        if let Some((end, _)) = self.precision.and_then(|most| text.char_indices().nth(most)) {
            text.truncate(end);
        }
        Ok(text)
    }

    /// A number with a `-` if it is negative.
    fn number(&self, value: &Value) -> Result<String, Fault> {
        let wrong = || Fault::failed(format!("a format wants a number, not {}", value.kind()));
        let integer = |integer: i64, digits: String| {
            let digits = format!("{digits:0>0$}", self.precision.unwrap_or(0));
            if integer < 0 { format!("-{digits}") } else { digits }
        };
        match self.letter {
            Some('d' | 'i') => {
                let whole = match value.as_integer() {
                    Some(whole) => whole,
                    None => truncated(value.as_float().ok_or_else(wrong)?)?,
                };
                Ok(integer(whole, whole.unsigned_abs().to_string()))
            }
            Some('x') => {
                let whole = value.as_integer().ok_or_else(wrong)?;
                Ok(integer(whole, format!("{:x}", whole.unsigned_abs())))
            }
            Some('f') => {
                let float = value.as_float().ok_or_else(wrong)?;
                Ok(format!("{float:.0$}", self.precision.unwrap_or(6)).to_lowercase())
            }
            _ => Err(Fault::failed("a format has an unknown conversion")),
        }
    }
}

/// The number that a text begins with, 0 if there is none, and what follows it.
fn number(text: &str) -> Result<(usize, &str), Fault> {
    const LARGEST: usize = 1000;
    let after = text.trim_start_matches(|c: char| c.is_ascii_digit());
    let digits = &text[..text.len() - after.len()];
    let number = if digits.is_empty() { Some(0) } else { digits.parse().ok() };
    match number.filter(|number| *number <= LARGEST) {
        Some(number) => Ok((number, after)),
        None => Err(Fault::failed(format!("a format has a width or precision over {LARGEST}"))),
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
        budget.work(1 + arguments.named.len() / 8)?;
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
