//! Values written as Python writes them: `{{ none }}` is `None` there, and JSON has a space after its
//! commas. Recursion ends because values count their depth; length is paid for.

use super::budget::{Budget, Writer};
use super::expression::Arguments;
use super::fault::Fault;
use super::operators::sort;
use super::value::{Form, Value};

/// What `{{ value }}` prints.
pub(super) fn print(value: &Value, out: &mut Writer) -> Result<(), Fault> {
    match value {
        Value::Text(text) => out.push(text),
        Value::Undefined => Ok(()),
        _ => repr(value, out),
    }
}

/// The same as a text of its own.
pub(super) fn printed(budget: &Budget, value: &Value) -> Result<String, Fault> {
    let mut text = Writer::new(budget);
    print(value, &mut text)?;
    let text = text.into_string();
    budget.scan(&text)?;
    Ok(text)
}

/// Python's `repr`.
pub(super) fn repr(value: &Value, out: &mut Writer) -> Result<(), Fault> {
    out.budget().work(1)?;
    match value {
        Value::Undefined => out.push("Undefined"),
        Value::None => out.push("None"),
        Value::Bool(value) => out.push(if *value { "True" } else { "False" }),
        Value::Int(value) => out.push(&value.to_string()),
        Value::Float(value) => out.push(&float(*value)),
        Value::Text(text) => quote(text, out),
        Value::List(list) => {
            let (open, close) = match (list.form, list.items.len()) {
                (Form::List, _) => ("[", "]"),
                // Without the comma it would be a value in parentheses.
                (Form::Tuple, 1) => ("(", ",)"),
                (Form::Tuple, _) => ("(", ")"),
            };
            out.push(open)?;
            for (index, item) in list.items.iter().enumerate() {
                out.push(if index > 0 { ", " } else { "" })?;
                repr(item, out)?;
            }
            out.push(close)
        }
        Value::Map(map) => {
            out.push("{")?;
            for (index, (key, value)) in map.entries.iter().enumerate() {
                out.push(if index > 0 { ", " } else { "" })?;
                repr(key, out)?;
                out.push(": ")?;
                repr(value, out)?;
            }
            out.push("}")
        }
        Value::Namespace(_) => out.push("<Namespace>"),
        Value::Macro(_) => out.push("<Macro>"),
        Value::Loop(_) => out.push("<LoopContext>"),
        Value::Function(_) => out.push("<function>"),
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

fn quote(text: &str, out: &mut Writer) -> Result<(), Fault> {
    out.budget().scan(text)?;
    let mark = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.push_char(mark)?;
    for character in text.chars() {
        match character {
            '\n' => out.push("\\n")?,
            '\r' => out.push("\\r")?,
            '\t' => out.push("\\t")?,
            '\\' => out.push("\\\\")?,
            _ if character.is_control() => out.push(&format!("\\x{:02x}", character as u32))?,
            _ => {
                if character == mark {
                    out.push("\\")?;
                }
                out.push_char(character)?;
            }
        }
    }
    out.push_char(mark)
}

/// The filter `tojson` of Hugging Face: `json.dumps` without escapes for HTML.
pub(super) fn to_json(
    budget: &Budget,
    value: &Value,
    arguments: &Arguments,
) -> Result<Value, Fault> {
    let indent = match arguments.get(1, "indent") {
        None | Some(Value::None) => None,
        Some(Value::Text(text)) => {
            budget.memory(text.len())?;
            Some(text.to_string())
        }
        Some(_) => {
            let width = arguments.integer(1, "indent")?.unwrap_or(0);
            let width = usize::try_from(width).unwrap_or(0);
            budget.memory(width)?;
            Some(" ".repeat(width))
        }
    };
    let mut comma = if indent.is_some() { "," } else { ", " };
    let mut colon = ": ";
    if let Some(Value::List(separators)) = arguments.get(2, "separators")
        && let [Value::Text(first), Value::Text(second)] = &*separators.items
    {
        (comma, colon) = (first, second);
    }
    let ensure_ascii = arguments.flag(0, "ensure_ascii");
    let sort_keys = arguments.flag(3, "sort_keys");
    let out = Writer::new(budget);
    let mut json = Json { indent, comma, colon, ensure_ascii, sort_keys, out };
    json.write(value, 0)?;
    json.out.into_value()
}

struct Json<'a, 'b> {
    indent: Option<String>,
    comma: &'a str,
    colon: &'a str,
    ensure_ascii: bool,
    sort_keys: bool,
    out: Writer<'b>,
}

impl Json<'_, '_> {
    fn write(&mut self, value: &Value, depth: usize) -> Result<(), Fault> {
        self.out.budget().work(1)?;
        match value {
            Value::None => self.out.push("null"),
            Value::Bool(value) => self.out.push(if *value { "true" } else { "false" }),
            Value::Int(value) => self.out.push(&value.to_string()),
            Value::Float(value) => self.out.push(&match float(*value).as_str() {
                "nan" => "NaN".to_owned(),
                "inf" => "Infinity".to_owned(),
                "-inf" => "-Infinity".to_owned(),
                finite => finite.to_owned(),
            }),
            Value::Text(text) => self.string(text),
            Value::List(list) => {
                self.out.push("[")?;
                for (index, item) in list.items.iter().enumerate() {
                    self.separate(index, depth + 1)?;
                    self.write(item, depth + 1)?;
                }
                self.close(list.items.is_empty(), depth, "]")
            }
            Value::Map(map) => {
                self.out.push("{")?;
                let budget = self.out.budget();
                budget.items(2 * map.entries.len())?;
                let mut entries = map.entries.clone();
                if self.sort_keys {
                    entries = sort(budget, entries)?;
                }
                for (index, (key, value)) in entries.iter().enumerate() {
                    self.separate(index, depth + 1)?;
                    self.key(key)?;
                    self.out.push(self.colon)?;
                    self.write(value, depth + 1)?;
                }
                self.close(map.entries.is_empty(), depth, "}")
            }
            _ => Err(Fault::failed(format!("tojson: {} has no JSON form", value.kind()))),
        }
    }

    fn key(&mut self, key: &Value) -> Result<(), Fault> {
        match key {
            Value::Text(text) => self.string(text),
            Value::List(_) | Value::Map(_) => {
                Err(Fault::failed(format!("tojson: {} cannot be a key", key.kind())))
            }
            _ => {
                self.out.push("\"")?;
                self.write(key, 0)?;
                self.out.push("\"")
            }
        }
    }

    fn separate(&mut self, index: usize, depth: usize) -> Result<(), Fault> {
        if index > 0 {
            self.out.push(self.comma)?;
        }
        self.line(depth)
    }

    fn close(&mut self, empty: bool, depth: usize, bracket: &str) -> Result<(), Fault> {
        if !empty {
            self.line(depth)?;
        }
        self.out.push(bracket)
    }

    fn line(&mut self, depth: usize) -> Result<(), Fault> {
        let Some(indent) = &self.indent else { return Ok(()) };
        self.out.push("\n")?;
        for _ in 0..depth {
            self.out.push(indent)?;
        }
        Ok(())
    }

    fn string(&mut self, text: &str) -> Result<(), Fault> {
        self.out.budget().scan(text)?;
        self.out.push("\"")?;
        for character in text.chars() {
            match character {
                '"' => self.out.push("\\\"")?,
                '\\' => self.out.push("\\\\")?,
                '\n' => self.out.push("\\n")?,
                '\r' => self.out.push("\\r")?,
                '\t' => self.out.push("\\t")?,
                '\u{8}' => self.out.push("\\b")?,
                '\u{c}' => self.out.push("\\f")?,
                _ if character < ' ' || self.ensure_ascii && character > '~' => {
                    for unit in character.encode_utf16(&mut [0; 2]) {
                        self.out.push(&format!("\\u{unit:04x}"))?;
                    }
                }
                _ => self.out.push_char(character)?,
            }
        }
        self.out.push("\"")
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
