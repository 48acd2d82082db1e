//! The fields of a JSON body, with errors that name the field.

use crate::error::{ApiError, ErrorKind};
use serde_json::{Map, Value};

/// A text, as it is or as tokens.
#[derive(Clone)]
pub(crate) enum TextOrTokens {
    Text(String),
    Tokens(Vec<u32>),
}

/// An object of a request. A field that is null counts as absent.
#[derive(Clone)]
pub(crate) struct Fields<'a> {
    object: &'a Map<String, Value>,
    /// Where the object stands in the body, as in `options.`; empty for the body itself.
    prefix: String,
}

/// The body of a request, which must be a JSON object.
pub(crate) fn parse(body: &[u8]) -> Result<Value, ApiError> {
    let value: Value = serde_json::from_slice(body).map_err(|error| {
        ApiError::new(ErrorKind::InvalidRequest, format!("the body is not valid JSON: {error}"))
    })?;
    match value {
        Value::Object(_) => Ok(value),
        _ => Err(ApiError::new(ErrorKind::InvalidRequest, "the body must be a JSON object")),
    }
}

impl<'a> Fields<'a> {
    /// Those of an object; `name` is what errors call it.
    pub fn of(value: &'a Value, name: &str) -> Result<Fields<'a>, ApiError> {
        let prefix = if name.is_empty() { String::new() } else { format!("{name}.") };
        match value.as_object() {
            Some(object) => Ok(Fields { object, prefix }),
            None => Err(ApiError::invalid(name, format!("{name} must be an object"))),
        }
    }

    /// The full name of a field.
    pub fn name(&self, field: &str) -> String {
        format!("{}{field}", self.prefix)
    }

    /// An error about a field.
    pub fn wrong(&self, field: &str, must: &str) -> ApiError {
        let name = self.name(field);
        ApiError::invalid(&name, format!("{name} must be {must}"))
    }

    /// A field of any type.
    pub fn value(&self, field: &str) -> Option<&'a Value> {
        self.object.get(field).filter(|value| !value.is_null())
    }

    fn typed<T>(
        &self,
        field: &str,
        must: &str,
        read: impl Fn(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, ApiError> {
        match self.value(field) {
            None => Ok(None),
            Some(value) => read(value).map(Some).ok_or_else(|| self.wrong(field, must)),
        }
    }

    pub fn text(&self, field: &str) -> Result<Option<&'a str>, ApiError> {
        self.typed(field, "a string", Value::as_str)
    }

    /// A text that has to be there.
    pub fn required_text(&self, field: &str) -> Result<&'a str, ApiError> {
        self.text(field)?.ok_or_else(|| self.missing(field))
    }

    pub fn missing(&self, field: &str) -> ApiError {
        let name = self.name(field);
        ApiError::invalid(&name, format!("{name} is missing"))
    }

    pub fn flag(&self, field: &str) -> Result<Option<bool>, ApiError> {
        self.typed(field, "true or false", Value::as_bool)
    }

    pub fn number(&self, field: &str) -> Result<Option<f32>, ApiError> {
        self.typed(field, "a number of at most 3.4e38 in size", |value| {
            value.as_f64().map(|number| number as f32).filter(|number| number.is_finite())
        })
    }

    /// A whole number of at least zero; `3.0` is one, too.
    pub fn count(&self, field: &str) -> Result<Option<usize>, ApiError> {
        self.typed(field, "a whole number of at least 0", |value| {
            let whole = value.as_f64().filter(|n| n.fract() == 0.0 && (0.0..9e15).contains(n));
            value.as_u64().and_then(|n| usize::try_from(n).ok()).or(whole.map(|n| n as usize))
        })
    }

    /// A whole number of either sign; what is too large becomes the largest.
    pub fn integer(&self, field: &str) -> Result<Option<i64>, ApiError> {
        self.typed(field, "a whole number", |value| {
            let whole = value.as_f64().filter(|n| n.fract() == 0.0 && n.abs() < 9e15);
            let large = value.as_u64().map(|_| i64::MAX);
            value.as_i64().or(large).or(whole.map(|n| n as i64))
        })
    }

    /// A seed: a whole number of 64 bits. -1 stands for a random one, as no seed does; other negative ones
    /// are seeds, too.
    pub fn seed(&self, field: &str) -> Result<Option<u64>, ApiError> {
        match self.value(field).and_then(Value::as_u64) {
            Some(seed) => Ok(Some(seed)),
            None => {
                let seed = self.integer(field)?.filter(|&seed| seed != -1);
                Ok(seed.map(|seed| seed as u64))
            }
        }
    }

    /// The model's name, which some of Ollama's clients call `name`.
    pub fn model_or_name(&self) -> Result<&'a str, ApiError> {
        match self.text("model")?.filter(|name| !name.is_empty()) {
            Some(name) => Ok(name),
            None => self.text("name")?.ok_or_else(|| self.missing("model")),
        }
    }

    pub fn list(&self, field: &str) -> Result<Option<&'a [Value]>, ApiError> {
        self.typed(field, "a list", |value| value.as_array().map(Vec::as_slice))
    }

    pub fn object(&self, field: &str) -> Result<Option<Fields<'a>>, ApiError> {
        match self.value(field) {
            None => Ok(None),
            Some(value) => Fields::of(value, &self.name(field)).map(Some),
        }
    }

    /// All fields.
    pub fn entries(&self) -> impl Iterator<Item = (&'a String, &'a Value)> {
        self.object.iter()
    }

    /// A text, a list of token ids, or a list of either.
    pub fn texts_or_tokens(&self, field: &str) -> Result<Vec<TextOrTokens>, ApiError> {
        let tokens = |list: &[Value]| -> Option<Vec<u32>> {
            list.iter().map(|id| id.as_u64().and_then(|id| u32::try_from(id).ok())).collect()
        };
        let one = |value: &Value| match value {
            Value::String(text) => Some(TextOrTokens::Text(text.clone())),
            Value::Array(list) => tokens(list).map(TextOrTokens::Tokens),
            _ => None,
        };
        let must = "a string, a list of token ids, or a list of either";
        let found = self.typed(field, must, |value| match value {
            Value::Array(list) if list.first().is_some_and(Value::is_number) => {
                tokens(list).map(|tokens| vec![TextOrTokens::Tokens(tokens)])
            }
            Value::Array(list) => list.iter().map(one).collect(),
            value => one(value).map(|only| vec![only]),
        })?;
        found.ok_or_else(|| self.missing(field))
    }

    /// A text or a list of texts.
    pub fn texts(&self, field: &str) -> Result<Vec<String>, ApiError> {
        let must = "a string or a list of strings";
        let texts = self.typed(field, must, |value| match value {
            Value::String(text) => Some(vec![text.clone()]),
            Value::Array(list) => {
                list.iter().map(|item| item.as_str().map(str::to_string)).collect()
            }
            _ => None,
        })?;
        Ok(texts.unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn large_numbers_keep_their_sign() {
        let body =
            json!({ "large": u64::MAX, "random": -1, "negative": -2, "whole": 3.0, "text": "1" });
        let fields = Fields::of(&body, "").unwrap();
        assert_eq!(fields.integer("large").unwrap(), Some(i64::MAX));
        assert_eq!(fields.seed("large").unwrap(), Some(u64::MAX));
        assert_eq!(fields.seed("random").unwrap(), None);
        assert_eq!(fields.seed("negative").unwrap(), Some(u64::MAX - 1));
        assert_eq!(fields.seed("whole").unwrap(), Some(3));
        assert_eq!(fields.seed("text").unwrap_err().param.as_deref(), Some("text"));
    }

    #[test]
    fn numbers_that_do_not_fit_are_refused_by_name() {
        let body =
            json!({ "large": 1e308, "small": 1e-308, "text": "1", "options": { "x": -1e39 } });
        let fields = Fields::of(&body, "").unwrap();
        assert_eq!(fields.number("small").unwrap(), Some(0.0));
        let options = fields.object("options").unwrap().unwrap();
        for (error, name) in [
            (fields.number("large").unwrap_err(), "large"),
            (fields.number("text").unwrap_err(), "text"),
            (options.number("x").unwrap_err(), "options.x"),
        ] {
            assert_eq!(error.param.as_deref(), Some(name));
            assert_eq!(error.message, format!("{name} must be a number of at most 3.4e38 in size"));
        }
    }
}
