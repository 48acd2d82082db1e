//! What a file holds beyond what was read: an error, unless it is known to change no result.
//!
//! A reader of a configuration records each key that it looks at. Every other key of the model is
//! looked up in a table of [`Known`] ones. One that is not there, or has a value that is not listed
//! as harmless, is refused. Tensors are simpler: those that the graph reads are known by name.

mod tensors;

pub(crate) use tensors::{check_tensors, is_vision};

use crate::error::ModelError;
use crate::family::Family;
use serde_json::Value;

/// A key that no family reads in every case.
pub(crate) struct Known {
    /// Name. One that ends in `.` or `_` stands for all that begin with it.
    pub name: &'static str,
    /// Values with which it changes no result.
    pub harmless: &'static [Harmless],
    /// What it means with another value.
    pub meaning: &'static str,
}

/// Values of a key that change no result.
#[derive(Clone, Copy)]
pub(crate) enum Harmless {
    /// This one.
    Flag(bool),
    /// This one.
    Number(f64),
    /// This one.
    Text(&'static str),
    /// No entries.
    Empty,
    /// A list with this number in every place.
    AllNumber(f64),
    /// A list with this text in every place.
    AllText(&'static str),
}

impl Harmless {
    fn is(self, value: &Value) -> bool {
        let list =
            |all: &dyn Fn(&Value) -> bool| value.as_array().is_some_and(|l| l.iter().all(all));
        match self {
            Harmless::Flag(flag) => value.as_bool() == Some(flag),
            Harmless::Number(number) => value.as_f64() == Some(number),
            Harmless::Text(text) => value.as_str() == Some(text),
            Harmless::Empty => match value {
                Value::Array(list) => list.is_empty(),
                Value::Object(map) => map.is_empty(),
                Value::String(text) => text.is_empty(),
                _ => false,
            },
            Harmless::AllNumber(number) => list(&|entry| entry.as_f64() == Some(number)),
            Harmless::AllText(text) => list(&|entry| entry.as_str() == Some(text)),
        }
    }
}

impl Known {
    fn is_called(&self, name: &str) -> bool {
        name == self.name || (self.name.ends_with(['.', '_']) && name.starts_with(self.name))
    }
}

/// A key that nothing read.
#[derive(Clone, Copy)]
pub(crate) struct UnreadKey<'a> {
    /// Name, without what it stands in.
    pub name: &'a str,
    /// Name in full, for messages.
    pub full: &'a str,
    /// Its value.
    pub value: &'a Value,
}

/// Keys of a file that are refused: of several the first whose meaning is known, since it tells more.
#[derive(Default)]
pub(crate) struct Refusals {
    known: Option<ModelError>,
    unknown: Option<ModelError>,
}

impl Refusals {
    /// Adds a key that nothing read, unless it changes no result.
    pub fn add(&mut self, key: UnreadKey<'_>, known: &[Known], family: &'static Family) {
        match known.iter().find(|known| known.is_called(key.name)) {
            Some(known) if known.harmless.iter().any(|harmless| harmless.is(key.value)) => {}
            Some(known) => {
                self.known.get_or_insert_with(|| key.refused(known.meaning, family));
            }
            None => {
                self.unknown.get_or_insert_with(|| key.refused("an unknown key", family));
            }
        }
    }

    /// An error if a key is refused.
    pub fn finish(self) -> Result<(), ModelError> {
        self.known.or(self.unknown).map_or(Ok(()), Err)
    }
}

impl UnreadKey<'_> {
    /// Why the key is refused.
    pub fn refused(self, meaning: &'static str, family: &'static Family) -> ModelError {
        ModelError::UnreadKey {
            key: self.full.to_string(),
            found: self.value.to_string(),
            meaning,
            family: family.name,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn values_are_harmless_as_listed_and_not_otherwise() {
        let cases = [
            (Harmless::Flag(false), json!(false), json!(true)),
            (Harmless::Flag(false), json!(false), json!(0)),
            (Harmless::Number(1.0), json!(1), json!(1.5)),
            (Harmless::Text("swiglu"), json!("swiglu"), json!("geglu")),
            (Harmless::Empty, json!({}), json!([0])),
            (Harmless::AllNumber(1.0), json!([1, 1]), json!([1, 0])),
            (Harmless::AllText("dense"), json!(["dense"]), json!(["dense", "sparse"])),
            (Harmless::AllText("dense"), json!([]), json!("dense")),
        ];
        for (harmless, good, bad) in cases {
            assert!(harmless.is(&good) && !harmless.is(&bad), "{good}, {bad}");
        }
    }
}
