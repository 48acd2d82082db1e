//! Methods of strings, lists and mappings, as Python has them; those that change a value in place
//! are missing, as in Hugging Face's sandbox.

use super::budget::{Budget, Writer};
use super::expression::Arguments;
use super::fault::Fault;
use super::operators::{equal, lookup};
use super::python;
use super::value::Value;

/// Calls a method; none if the value has none of this name.
pub(super) fn call(
    budget: &Budget,
    value: &Value,
    name: &str,
    arguments: &Arguments,
) -> Result<Option<Value>, Fault> {
    match value {
        Value::Text(text) => string(budget, text, name, arguments),
        Value::Map(map) => Ok(Some(match name {
            "items" => pairs(budget, value)?,
            "keys" => value.iterate(budget).map(Value::List)?,
            "values" => {
                budget.items(map.entries.len())?;
                budget.list(map.entries.iter().map(|(_, value)| value.clone()).collect())?
            }
            "get" => {
                let found = lookup(budget, &map.entries, arguments.required(0, "key")?)?;
                found.or(arguments.get(1, "default")).cloned().unwrap_or(Value::None)
            }
            "copy" => value.clone(),
            _ => return Ok(None),
        })),
        Value::List(list) => {
            let other = || arguments.required(0, "value");
            let mut places = Vec::new();
            if matches!(name, "count" | "index") {
                for (place, item) in list.items.iter().enumerate() {
                    if equal(budget, item, other()?)? {
                        places.push(place as i64);
                    }
                }
            }
            match (name, places.first()) {
                ("count", _) => Ok(Some(Value::Int(places.len() as i64))),
                ("index", Some(place)) => Ok(Some(Value::Int(*place))),
                ("index", None) => Err(Fault::failed("a value is not in the list")),
                ("copy", _) => Ok(Some(value.clone())),
                _ => Ok(None),
            }
        }
        _ => Ok(None),
    }
}

/// The entries of a mapping as tuples of two.
pub(super) fn pairs(budget: &Budget, value: &Value) -> Result<Value, Fault> {
    let Value::Map(map) = value else {
        return Err(Fault::failed(format!("{} has no entries", value.kind())));
    };
    budget.items(3 * map.entries.len())?;
    let pairs =
        map.entries.iter().map(|(key, value)| budget.tuple(vec![key.clone(), value.clone()]));
    budget.list(pairs.collect::<Result<_, _>>()?)
}

fn string(
    budget: &Budget,
    text: &str,
    name: &str,
    arguments: &Arguments,
) -> Result<Option<Value>, Fault> {
    // Whatever the method, it reads the text and its arguments at most a few times.
    budget.scan(text)?;
    let named = arguments.named.iter().map(|(_, value)| value);
    for argument in arguments.positional.iter().chain(named).filter_map(Value::as_text) {
        budget.scan(argument)?;
    }
    let all = |test: fn(char) -> bool| Value::Bool(!text.is_empty() && text.chars().all(test));
    let cased = |wanted: fn(char) -> bool, other: fn(char) -> bool| {
        Value::Bool(text.chars().any(wanted) && !text.chars().any(other))
    };
    let trimmed = |start: bool, end: bool| -> Result<Value, Fault> {
        let set = arguments.text(0, "chars")?;
        budget.read(set.map_or(0, |set| set.len().saturating_mul(text.len())))?;
        let taken = |c: char| set.map_or(c.is_whitespace(), |set| set.contains(c));
        let left = if start { text.trim_start_matches(taken) } else { text };
        budget.text(if end { left.trim_end_matches(taken) } else { left })
    };
    let changed = |change: fn(&str) -> String| {
        // A change of case may make a character longer, by a few bytes.
        budget.memory(text.len().saturating_mul(3))?;
        budget.text(&change(text))
    };
    let place =
        |found: Option<usize>| Value::Int(found.map_or(-1, |at| text[..at].chars().count() as i64));
    Ok(Some(match name {
        "upper" => changed(str::to_uppercase)?,
        "lower" => changed(str::to_lowercase)?,
        "title" => changed(title)?,
        "capitalize" => changed(capitalize)?,
        "strip" => trimmed(true, true)?,
        "lstrip" => trimmed(true, false)?,
        "rstrip" => trimmed(false, true)?,
        "islower" => cased(char::is_lowercase, char::is_uppercase),
        "isupper" => cased(char::is_uppercase, char::is_lowercase),
        "isspace" => all(char::is_whitespace),
        "isalnum" => all(char::is_alphanumeric),
        "isalpha" => all(char::is_alphabetic),
        "isdigit" | "isnumeric" | "isdecimal" => all(char::is_numeric),
        "isascii" => Value::Bool(text.is_ascii()),
        "startswith" => affix(budget, arguments, |part| text.starts_with(part))?,
        "endswith" => affix(budget, arguments, |part| text.ends_with(part))?,
        "removeprefix" => {
            let part = arguments.required_text(0, "prefix")?;
            budget.text(text.strip_prefix(part).unwrap_or(text))?
        }
        "removesuffix" => {
            let part = arguments.required_text(0, "suffix")?;
            budget.text(text.strip_suffix(part).unwrap_or(text))?
        }
        "find" => place(text.find(arguments.required_text(0, "sub")?)),
        "rfind" => place(text.rfind(arguments.required_text(0, "sub")?)),
        "index" | "rindex" => {
            let part = arguments.required_text(0, "sub")?;
            let found = if name == "index" { text.find(part) } else { text.rfind(part) };
            place(Some(found.ok_or_else(|| Fault::failed("a substring is not found"))?))
        }
        "count" => {
            let part = arguments.required_text(0, "sub")?;
            Value::Int(text.matches(part).count() as i64)
        }
        _ => return divided(budget, text, name, arguments),
    }))
}

/// Methods that take a text apart or put one together.
fn divided(
    budget: &Budget,
    text: &str,
    name: &str,
    arguments: &Arguments,
) -> Result<Option<Value>, Fault> {
    Ok(Some(match name {
        "replace" => replace(budget, text, arguments)?,
        "split" => split(budget, text, arguments, false)?,
        "rsplit" => split(budget, text, arguments, true)?,
        "splitlines" => {
            let keep = arguments.flag(0, "keepends");
            let line = |line: &str| {
                budget.items(1)?;
                budget.text(if keep { line } else { line.trim_end_matches(['\r', '\n']) })
            };
            budget.list(text.split_inclusive('\n').map(line).collect::<Result<_, _>>()?)?
        }
        "partition" | "rpartition" => {
            let separator = arguments.required_text(0, "sep")?;
            let last = name == "rpartition";
            let found = if last { text.rsplit_once(separator) } else { text.split_once(separator) };
            let parts = match (found, last) {
                (Some((before, after)), _) => [before, separator, after],
                (None, false) => [text, "", ""],
                (None, true) => ["", "", text],
            };
            budget.items(3)?;
            let parts = parts.into_iter().map(|part| budget.text(part));
            budget.tuple(parts.collect::<Result<_, _>>()?)?
        }
        "join" => {
            let mut joined = Writer::new(budget);
            let list = arguments.required(0, "iterable")?.iterate(budget)?;
            for (place, item) in list.items.iter().enumerate() {
                joined.push(if place > 0 { text } else { "" })?;
                python::print(item, &mut joined)?;
            }
            joined.into_value()?
        }
        "format" => super::format::braces(budget, text, arguments)?,
        "center" | "ljust" | "rjust" | "zfill" => padded(budget, text, name, arguments)?,
        _ => return Ok(None),
    }))
}

/// Whether one of the given parts is there: a string, or a list of them.
fn affix(
    budget: &Budget,
    arguments: &Arguments,
    test: impl Fn(&str) -> bool,
) -> Result<Value, Fault> {
    let part = arguments.required(0, "prefix")?;
    let parts = match part {
        Value::List(parts) => &parts.items,
        part => std::slice::from_ref(part),
    };
    for part in parts {
        let no_text = || Fault::failed(format!("{} is no string", part.kind()));
        let part = part.as_text().ok_or_else(no_text)?;
        budget.read(part.len())?;
        if test(part) {
            return Ok(Value::Bool(true));
        }
    }
    Ok(Value::Bool(false))
}

fn replace(budget: &Budget, text: &str, arguments: &Arguments) -> Result<Value, Fault> {
    let (from, to) = (arguments.required_text(0, "old")?, arguments.required_text(1, "new")?);
    let most = match arguments.integer(2, "count")? {
        Some(count) if count >= 0 => usize::try_from(count).unwrap_or(usize::MAX),
        _ => usize::MAX,
    };
    let mut replaced = Writer::new(budget);
    let mut end = 0;
    for (start, found) in text.match_indices(from).take(most) {
        budget.work(1)?;
        replaced.push(&text[end..start])?;
        replaced.push(to)?;
        end = start + found.len();
    }
    replaced.push(&text[end..])?;
    replaced.into_value()
}

fn split(budget: &Budget, text: &str, arguments: &Arguments, last: bool) -> Result<Value, Fault> {
    let separator = arguments.text(0, "sep")?;
    if separator == Some("") {
        return Err(Fault::failed("a text cannot be split by an empty separator"));
    }
    let most = match arguments.integer(1, "maxsplit")? {
        Some(count) if count >= 0 => usize::try_from(count).unwrap_or(usize::MAX),
        _ => usize::MAX,
    };
    // Paid for before they are kept: a text of separators has as many parts as bytes.
    let (mut parts, mut rest) = (Vec::new(), Some(text));
    while let Some(left) = rest.take() {
        budget.items(1)?;
        let left = match (separator, last) {
            (Some(_), _) => left,
            (None, false) => left.trim_start(),
            (None, true) => left.trim_end(),
        };
        let found = match (separator, last) {
            _ if parts.len() >= most => None,
            (Some(separator), false) => left.split_once(separator),
            (Some(separator), true) => left.rsplit_once(separator).map(|(a, b)| (b, a)),
            (None, false) => left.split_once(char::is_whitespace),
            (None, true) => left.rsplit_once(char::is_whitespace).map(|(a, b)| (b, a)),
        };
        match found {
            Some((part, after)) => {
                parts.push(budget.text(part)?);
                rest = Some(after);
            }
            None if separator.is_none() && left.is_empty() => {}
            None => parts.push(budget.text(left)?),
        }
    }
    if last {
        parts.reverse();
    }
    budget.list(parts)
}

fn padded(budget: &Budget, text: &str, name: &str, arguments: &Arguments) -> Result<Value, Fault> {
    let width = usize::try_from(arguments.integer(0, "width")?.unwrap_or(0)).unwrap_or(0);
    let fill = if name == "zfill" { "0" } else { arguments.text(1, "fillchar")?.unwrap_or(" ") };
    let missing = width.saturating_sub(text.chars().count());
    budget.memory(missing.saturating_mul(fill.len()))?;
    let left = match name {
        "ljust" => 0,
        "rjust" | "zfill" => missing,
        // As in CPython: the odd one goes to the left if the width is odd.
        _ => missing / 2 + (missing & width & 1),
    };
    // Zeros go between a sign and its digits.
    let signed = name == "zfill" && text.starts_with(['+', '-']);
    let (sign, text) = text.split_at(usize::from(signed));
    let mut padded = Writer::new(budget);
    padded.push(sign)?;
    padded.push(&fill.repeat(left))?;
    padded.push(text)?;
    padded.push(&fill.repeat(missing - left))?;
    padded.into_value()
}

fn capitalize(text: &str) -> String {
    let mut characters = text.chars();
    let first: String = characters.next().into_iter().flat_map(char::to_uppercase).collect();
    first + &characters.as_str().to_lowercase()
}

/// The method `title`: a capital for each letter that follows no letter.
fn title(text: &str) -> String {
    capitals(text, |before| !before.is_alphabetic())
}

/// The filter `title`: a capital after white space, a hyphen or an opening bracket.
pub(super) fn title_words(text: &str) -> String {
    capitals(text, |before| before.is_whitespace() || "-({[<".contains(before))
}

/// A capital at the start and after each character for which `ends` holds, else small letters.
fn capitals(text: &str, ends: fn(char) -> bool) -> String {
    let mut titled = String::with_capacity(text.len());
    let mut starts = true;
    for character in text.chars() {
        if starts {
            titled.extend(character.to_uppercase());
        } else {
            titled.extend(character.to_lowercase());
        }
        starts = ends(character);
    }
    titled
}
