//! Values written as Python writes them. Templates are made for Python's
//! Jinja: `{{ none }}` is `None` there, and JSON has a space after its commas.

use std::fmt::Write;

use minijinja::value::{Kwargs, ValueKind};
use minijinja::{Error, ErrorKind, Value};

/// What `{{ value }}` prints.
pub(super) fn print(value: &Value, out: &mut String) -> Result<(), Error> {
    match value.as_str() {
        Some(text) => out.push_str(text),
        None => repr(value, out)?,
    }
    Ok(())
}

fn repr(value: &Value, out: &mut String) -> Result<(), Error> {
    match value.kind() {
        ValueKind::Undefined => {}
        ValueKind::None => out.push_str("None"),
        ValueKind::Bool => out.push_str(if value.is_true() { "True" } else { "False" }),
        ValueKind::Number => number(value, out),
        ValueKind::String => quote(value.as_str().unwrap_or_default(), out),
        ValueKind::Seq => {
            out.push('[');
            for (index, item) in value.try_iter()?.enumerate() {
                out.push_str(if index > 0 { ", " } else { "" });
                repr(&item, out)?;
            }
            out.push(']');
        }
        ValueKind::Map => {
            out.push('{');
            for (index, key) in value.try_iter()?.enumerate() {
                out.push_str(if index > 0 { ", " } else { "" });
                repr(&key, out)?;
                out.push_str(": ");
                repr(&value.get_item(&key)?, out)?;
            }
            out.push('}');
        }
        _ => out.push_str(&value.to_string()),
    }
    Ok(())
}

fn number(value: &Value, out: &mut String) {
    if value.is_integer() {
        out.push_str(&value.to_string());
    } else {
        out.push_str(&float(f64::try_from(value.clone()).unwrap_or(f64::NAN)));
    }
}

/// Python's `repr`: decimal from 1e-4 to 1e16, else an exponent of two digits or more.
fn float(value: f64) -> String {
    if !value.is_finite() {
        return if value.is_nan() {
            "nan"
        } else if value > 0.0 {
            "inf"
        } else {
            "-inf"
        }
        .into();
    }
    let scientific = format!("{value:e}");
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if value != 0.0 && !(-4..16).contains(&exponent) {
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{mantissa}e{sign}{:02}", exponent.abs());
    }
    let decimal = value.to_string();
    if decimal.contains('.') { decimal } else { decimal + ".0" }
}

fn quote(text: &str, out: &mut String) {
    let mark = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.push(mark);
    for character in text.chars() {
        match character {
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\\' => out.push_str("\\\\"),
            _ if character == mark => out.extend(['\\', mark]),
            _ => out.push(character),
        }
    }
    out.push(mark);
}

/// The filter `tojson` of Hugging Face: `json.dumps` without escapes for HTML.
pub(super) fn to_json(
    value: &Value,
    ensure_ascii: Option<bool>,
    options: Kwargs,
) -> Result<Value, Error> {
    let ensure_ascii = options.get::<Option<bool>>("ensure_ascii")?.or(ensure_ascii);
    let indent: Option<Value> = options.get("indent")?;
    let indent = match indent.filter(|indent| !indent.is_none()) {
        Some(indent) => Some(match indent.as_str() {
            Some(text) => text.to_owned(),
            None => " ".repeat(usize::try_from(indent)?.min(64)),
        }),
        None => None,
    };
    let separators: Option<Vec<String>> = options.get("separators")?;
    let (comma, colon) = match separators.as_deref() {
        Some([comma, colon]) => (comma.clone(), colon.clone()),
        _ => (if indent.is_some() { "," } else { ", " }.into(), ": ".into()),
    };
    let sort_keys = options.get::<Option<bool>>("sort_keys")?.unwrap_or(false);
    options.assert_all_used()?;
    let ensure_ascii = ensure_ascii.unwrap_or(false);
    let mut json = Json { indent, comma, colon, ensure_ascii, sort_keys, out: String::new() };
    json.write(value, 0)?;
    Ok(Value::from(json.out))
}

struct Json {
    indent: Option<String>,
    comma: String,
    colon: String,
    ensure_ascii: bool,
    sort_keys: bool,
    out: String,
}

/// Deeper than any tool definition; a value that contains itself would not end.
const DEEPEST: usize = 200;

impl Json {
    fn write(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        if depth > DEEPEST {
            return Err(Error::new(ErrorKind::InvalidOperation, "tojson: nested too deeply"));
        }
        match value.kind() {
            ValueKind::None => self.out.push_str("null"),
            ValueKind::Bool => self.out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => self.number(value),
            ValueKind::String => self.string(value.as_str().unwrap_or_default()),
            ValueKind::Seq | ValueKind::Iterable => {
                self.out.push('[');
                let mut empty = true;
                for item in value.try_iter()? {
                    self.separate(&mut empty, depth + 1);
                    self.write(&item, depth + 1)?;
                }
                self.close(empty, depth, ']');
            }
            ValueKind::Map => {
                let mut keys: Vec<Value> = value.try_iter()?.collect();
                if self.sort_keys {
                    keys.sort();
                }
                self.out.push('{');
                let mut empty = true;
                for key in keys {
                    self.separate(&mut empty, depth + 1);
                    match key.as_str() {
                        Some(text) => self.string(text),
                        None => self.string(&key.to_string()),
                    }
                    self.out.push_str(&self.colon);
                    self.write(&value.get_item(&key)?, depth + 1)?;
                }
                self.close(empty, depth, '}');
            }
            kind => {
                let problem = format!("tojson: {kind} has no JSON form");
                return Err(Error::new(ErrorKind::InvalidOperation, problem));
            }
        }
        Ok(())
    }

    fn separate(&mut self, empty: &mut bool, depth: usize) {
        if !*empty {
            self.out.push_str(&self.comma);
        }
        *empty = false;
        self.line(depth);
    }

    fn close(&mut self, empty: bool, depth: usize, bracket: char) {
        if !empty {
            self.line(depth);
        }
        self.out.push(bracket);
    }

    fn line(&mut self, depth: usize) {
        if let Some(indent) = &self.indent {
            self.out.push('\n');
            self.out.push_str(&indent.repeat(depth));
        }
    }

    fn number(&mut self, value: &Value) {
        let start = self.out.len();
        number(value, &mut self.out);
        let named = match &self.out[start..] {
            "nan" => "NaN",
            "inf" => "Infinity",
            "-inf" => "-Infinity",
            _ => return,
        };
        self.out.replace_range(start.., named);
    }

    fn string(&mut self, text: &str) {
        self.out.push('"');
        for character in text.chars() {
            match character {
                '"' => self.out.push_str("\\\""),
                '\\' => self.out.push_str("\\\\"),
                '\n' => self.out.push_str("\\n"),
                '\r' => self.out.push_str("\\r"),
                '\t' => self.out.push_str("\\t"),
                '\u{8}' => self.out.push_str("\\b"),
                '\u{c}' => self.out.push_str("\\f"),
                _ if character < ' ' || self.ensure_ascii && character > '~' => {
                    for unit in character.encode_utf16(&mut [0; 2]) {
                        // Writing to a string does not fail.
                        let _ = write!(self.out, "\\u{unit:04x}");
                    }
                }
                _ => self.out.push(character),
            }
        }
        self.out.push('"');
    }
}

#[cfg(test)]
mod tests {
    use super::float;

    #[test]
    fn floats_are_written_as_in_python() {
        for (value, text) in [
            (1.0, "1.0"),
            (0.1, "0.1"),
            (-0.0, "-0.0"),
            (1e15, "1000000000000000.0"),
            (1e16, "1e+16"),
            (1.5e300, "1.5e+300"),
            (1e-4, "0.0001"),
            (1e-5, "1e-05"),
            (f64::INFINITY, "inf"),
        ] {
            assert_eq!(float(value), text);
        }
    }
}
