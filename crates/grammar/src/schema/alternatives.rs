//! Alternatives of `oneOf` that exclude each other: then it is the same as `anyOf`, which a grammar
//! states.

use super::references::References;
use serde_json::Value;
use std::collections::HashSet;

/// Whether the alternatives have no value in common: all are constants that differ, or all are
/// objects told apart by a required property with different constants.
pub(super) fn are_exclusive(alternatives: &[Value], references: &References<'_>) -> bool {
    let resolved: Option<Vec<&Value>> =
        alternatives.iter().map(|alternative| resolve(alternative, references)).collect();
    let Some(resolved) = resolved else { return false };
    if differ(resolved.iter().map(|alternative| constants(alternative))) {
        return true;
    }
    let Some(first) = resolved.first() else { return false };
    let tags = first.get("required").and_then(Value::as_array).into_iter().flatten();
    tags.filter_map(Value::as_str)
        .any(|tag| differ(resolved.iter().map(|alternative| tag_constants(alternative, tag))))
}

fn resolve<'v>(schema: &'v Value, references: &References<'v>) -> Option<&'v Value> {
    match schema.get("$ref") {
        None => Some(schema),
        Some(reference) => references.resolve(reference.as_str()?).ok(),
    }
}

/// The values that a schema lists.
fn constants(schema: &Value) -> Option<Vec<&Value>> {
    match (schema.get("const"), schema.get("enum")) {
        (Some(value), _) => Some(vec![value]),
        (None, Some(values)) => Some(values.as_array()?.iter().collect()),
        (None, None) => None,
    }
}

/// The values that a required property of an object may have.
fn tag_constants<'v>(schema: &'v Value, tag: &str) -> Option<Vec<&'v Value>> {
    let required = schema.get("required")?.as_array()?.iter().any(|name| name == tag);
    let is_object = schema.get("type")? == "object";
    (required && is_object).then(|| constants(schema.get("properties")?.get(tag)?))?
}

/// Whether all lists are there, and no value is in two of them. Of numbers only integers are compared,
/// which have one spelling.
fn differ<'v>(lists: impl Iterator<Item = Option<Vec<&'v Value>>>) -> bool {
    let mut seen = HashSet::new();
    let mut distinct = |value: &Value| match value {
        Value::Number(number) if !number.is_i64() => false,
        Value::Array(_) | Value::Object(_) => false,
        value => seen.insert(value.to_string()),
    };
    let mut differ = |list: Option<Vec<&Value>>| {
        let mut list = list?;
        list.sort_by_key(|value| value.to_string());
        list.dedup();
        list.into_iter().all(&mut distinct).then_some(())
    };
    lists.into_iter().all(|list| differ(list).is_some())
}
