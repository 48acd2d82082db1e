//! How large a schema may be, and all schemas of a request together.

use crate::GrammarError;
use serde_json::{Map, Value};

/// Nesting of JSON inside of JSON.
const MAX_DEPTH: usize = 128;
/// JSON values in a schema.
const MAX_VALUES: usize = 20_000;
/// Properties that objects name or require: the compiler's time grows with their square.
const MAX_PROPERTIES: usize = 2_000;
/// Bytes of texts in a schema.
const MAX_BYTES: usize = 512 << 10;
/// Nesting of all definitions together: the compiler goes into one when it meets a reference.
const MAX_LEVELS: usize = 4_000;
/// Schemas once references are followed: a definition inside of another is made once for each.
const MAX_EXPANDED: usize = 40_000;
/// Alternatives times values: the compiler copies what alternatives are combined with.
const MAX_WORK: usize = 4_000_000;
/// All schemas of a request together, in the limits of one. Requests of agents have a hundred tools of
/// ten properties.
const MAX_TOGETHER: usize = 4;

fn too_large(found: usize, unit: &str, limit: usize) -> GrammarError {
    GrammarError::TooLarge { found: format!("{found} {unit}"), limit }
}

/// The sizes of a request's schemas, added up.
#[derive(Default)]
pub(crate) struct Sizes {
    values: usize,
    bytes: usize,
    properties: usize,
    work: usize,
    expanded: usize,
}

impl Sizes {
    /// Adds a schema, and checks it before anything recurses over it.
    pub(super) fn add(&mut self, schema: &Value) -> Result<(), GrammarError> {
        let one = measure(schema)?;
        let sums = [
            (&mut self.values, one.values, "JSON values", MAX_VALUES),
            (&mut self.bytes, one.bytes, "bytes of text", MAX_BYTES),
            (&mut self.properties, one.properties, "properties", MAX_PROPERTIES),
            (&mut self.work, one.work, "combinations of alternatives and values", MAX_WORK),
        ];
        sums.into_iter().try_for_each(|(sum, one, unit, limit)| add(sum, one, unit, limit))
    }

    /// Adds the schemas that were made from one by following its references.
    pub(super) fn add_expanded(&mut self, made: usize) -> Result<(), GrammarError> {
        add(&mut self.expanded, made, "schemas once references are followed", MAX_EXPANDED)
    }
}

/// Adds to a sum over schemas of which one may have `limit`.
fn add(sum: &mut usize, one: usize, unit: &str, limit: usize) -> Result<(), GrammarError> {
    *sum += one;
    let limit = limit * MAX_TOGETHER;
    match *sum > limit {
        true => Err(too_large(*sum, &format!("{unit} together with those before it"), limit)),
        false => Ok(()),
    }
}

/// A schema's size, if it is within limits.
fn measure(schema: &Value) -> Result<Sizes, GrammarError> {
    let (mut values, mut bytes, mut alternatives, mut properties) = (0, 0, 0, 0);
    let mut open = vec![(schema, 1)];
    while let Some((value, depth)) = open.pop() {
        values += 1;
        if depth > MAX_DEPTH {
            return Err(too_large(depth, "levels of nesting", MAX_DEPTH));
        }
        match value {
            Value::String(text) => bytes += text.len(),
            Value::Array(items) => open.extend(items.iter().map(|item| (item, depth + 1))),
            Value::Object(map) => {
                bytes += map.keys().map(String::len).sum::<usize>();
                alternatives += count_alternatives(value);
                properties += count_properties(value);
                open.extend(map.values().map(|item| (item, depth + 1)));
            }
            _ => {}
        }
        if values > MAX_VALUES {
            return Err(too_large(values, "JSON values or more", MAX_VALUES));
        }
        if bytes > MAX_BYTES {
            return Err(too_large(bytes, "bytes of text or more", MAX_BYTES));
        }
    }
    if properties > MAX_PROPERTIES {
        return Err(too_large(properties, "properties", MAX_PROPERTIES));
    }
    let work = alternatives * values;
    if work > MAX_WORK {
        return Err(too_large(work, "combinations of alternatives and values", MAX_WORK));
    }
    Ok(Sizes { values, bytes, properties, work, expanded: 0 })
}

/// Alternatives that the compiler combines with what stands beside them.
fn count_alternatives(schema: &Value) -> usize {
    let count = |keyword: &str| schema.get(keyword).and_then(Value::as_array).map_or(0, Vec::len);
    let structured = ["properties", "items", "prefixItems", "$ref", "allOf", "anyOf", "oneOf"];
    let values = match structured.iter().any(|keyword| schema.get(keyword).is_some()) {
        true => count("enum"),
        false => 0,
    };
    values + count("anyOf") + count("oneOf") + count("allOf")
}

/// Properties that an object names or requires.
fn count_properties(schema: &Value) -> usize {
    let named = schema.get("properties").and_then(Value::as_object);
    let is_named = |key: &Value| {
        named.is_some_and(|named| key.as_str().is_some_and(|key| named.contains_key(key)))
    };
    let required = schema.get("required").and_then(Value::as_array).into_iter().flatten();
    named.map_or(0, Map::len) + required.filter(|key| !is_named(key)).count()
}

/// Checks how many schemas have been made from the author's.
pub(super) fn check_expanded(made: usize) -> Result<(), GrammarError> {
    if made > MAX_EXPANDED {
        let unit = "schemas or more once its references are followed";
        return Err(too_large(made, unit, MAX_EXPANDED));
    }
    Ok(())
}

/// Levels of nesting.
pub(super) fn depth(value: &Value) -> usize {
    match value {
        Value::Array(items) => 1 + items.iter().map(depth).max().unwrap_or(0),
        Value::Object(map) => 1 + map.values().map(depth).max().unwrap_or(0),
        _ => 1,
    }
}

/// Checks how deep the compiler may have to go.
pub(super) fn check_levels(levels: usize) -> Result<(), GrammarError> {
    if levels > MAX_LEVELS {
        return Err(too_large(levels, "levels in all definitions together", MAX_LEVELS));
    }
    Ok(())
}
