//! A validator of JSON schemas for tests: plain, slow, and independent of the compiler.

use fancy_regex::Regex;
use serde_json::Value;

/// Why the value is not valid by the schema, if it is not.
pub fn check(root: &Value, schema: &Value, value: &Value) -> Result<(), String> {
    let map = match schema {
        Value::Bool(true) => return Ok(()),
        Value::Object(map) => map,
        other => return Err(format!("{other} allows nothing, not {value}")),
    };
    for (keyword, rule) in map {
        let holds = match keyword.as_str() {
            "$ref" => {
                let target = root.pointer(&rule.as_str().unwrap()[1..].replace("%25", "%"));
                let target = target.unwrap();
                check(root, target, value)?;
                true
            }
            "type" => match rule {
                Value::Array(kinds) => kinds.iter().any(|kind| is_kind(kind, value)),
                kind => is_kind(kind, value),
            },
            "enum" => rule.as_array().unwrap().iter().any(|one| equal(one, value)),
            "const" => equal(rule, value),
            "anyOf" => valid_by(root, rule, value) > 0,
            "oneOf" => valid_by(root, rule, value) == 1,
            "allOf" => valid_by(root, rule, value) == rule.as_array().unwrap().len(),
            _ => detail(root, map, keyword, rule, value)?,
        };
        if !holds {
            return Err(format!("{keyword}: {rule} does not hold for {value}"));
        }
    }
    Ok(())
}

fn valid_by(root: &Value, schemas: &Value, value: &Value) -> usize {
    let schemas = schemas.as_array().unwrap().iter();
    schemas.filter(|schema| check(root, schema, value).is_ok()).count()
}

fn is_kind(kind: &Value, value: &Value) -> bool {
    match kind.as_str().unwrap() {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "string" => value.is_string(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        "number" => value.is_number(),
        "integer" => value.as_f64().is_some_and(|number| number.fract() == 0.0),
        other => panic!("{other}"),
    }
}

fn equal(one: &Value, other: &Value) -> bool {
    match (one.as_f64(), other.as_f64()) {
        (Some(one), Some(other)) => one == other,
        _ => one == other,
    }
}

fn detail(
    root: &Value,
    schema: &serde_json::Map<String, Value>,
    keyword: &str,
    rule: &Value,
    value: &Value,
) -> Result<bool, String> {
    if let (Some(number), Some(bound)) = (value.as_f64(), rule.as_f64()) {
        return Ok(match keyword {
            "minimum" => number >= bound,
            "maximum" => number <= bound,
            "exclusiveMinimum" => number > bound,
            "exclusiveMaximum" => number < bound,
            "multipleOf" => (number / bound).fract() == 0.0,
            _ => true,
        });
    }
    match value {
        Value::String(text) => Ok(string(keyword, rule, text)),
        Value::Array(items) => array(root, schema, keyword, rule, items),
        Value::Object(map) => object(root, schema, keyword, rule, map),
        _ => Ok(true),
    }
}

fn string(keyword: &str, rule: &Value, text: &str) -> bool {
    let length = text.chars().count() as u64;
    let matches = |pattern: &str| Regex::new(pattern).unwrap().is_match(text).unwrap();
    match (keyword, rule.as_str()) {
        ("minLength", _) => length >= rule.as_u64().unwrap(),
        ("maxLength", _) => length <= rule.as_u64().unwrap(),
        ("pattern", Some(pattern)) => matches(pattern),
        ("format", Some("uuid")) => matches("^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$"),
        ("format", Some("email")) => matches("^[^@ ]+@[^@ ]+$"),
        ("format", Some("date")) => is_date(text),
        ("format", Some("date-time")) => {
            text.split_once('T').is_some_and(|(date, time)| is_date(date) && time.len() >= 9)
        }
        ("format", Some("ipv4")) => text.parse::<std::net::Ipv4Addr>().is_ok(),
        ("format", Some("ipv6")) => text.parse::<std::net::Ipv6Addr>().is_ok(),
        _ => true,
    }
}

fn is_date(text: &str) -> bool {
    let parts: Vec<u32> = text.split('-').map(|part| part.parse().unwrap_or(0)).collect();
    let [year, month, day] = parts[..] else { return false };
    let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let days = [31, 28 + u32::from(leap), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    year > 0 && (1..=12).contains(&month) && (1..=days[month as usize - 1]).contains(&day)
}

fn array(
    root: &Value,
    schema: &serde_json::Map<String, Value>,
    keyword: &str,
    rule: &Value,
    items: &[Value],
) -> Result<bool, String> {
    let prefix = schema.get("prefixItems").and_then(Value::as_array).map_or(0, Vec::len);
    match keyword {
        "minItems" => Ok(items.len() as u64 >= rule.as_u64().unwrap()),
        "maxItems" => Ok(items.len() as u64 <= rule.as_u64().unwrap()),
        "items" => {
            items.iter().skip(prefix).try_for_each(|item| check(root, rule, item))?;
            Ok(true)
        }
        "prefixItems" => {
            let mut pairs = rule.as_array().unwrap().iter().zip(items);
            pairs.try_for_each(|(rule, item)| check(root, rule, item))?;
            Ok(true)
        }
        _ => Ok(true),
    }
}

fn object(
    root: &Value,
    schema: &serde_json::Map<String, Value>,
    keyword: &str,
    rule: &Value,
    map: &serde_json::Map<String, Value>,
) -> Result<bool, String> {
    let named = |key: &str| schema.get("properties").is_some_and(|all| all.get(key).is_some());
    let patterns = schema.get("patternProperties").and_then(Value::as_object);
    let patterned = |pattern: &str, key: &str| Regex::new(pattern).unwrap().is_match(key).unwrap();
    let matched =
        |key: &str| patterns.is_some_and(|all| all.keys().any(|pattern| patterned(pattern, key)));
    for (key, value) in map {
        match keyword {
            "properties" if named(key) => check(root, &rule[key], value)?,
            "patternProperties" => {
                let rules = rule.as_object().unwrap().iter();
                for (_, rule) in rules.filter(|(pattern, _)| patterned(pattern, key)) {
                    check(root, rule, value)?;
                }
            }
            "additionalProperties" if !named(key) && !matched(key) => check(root, rule, value)?,
            _ => {}
        }
    }
    Ok(match keyword {
        "required" => {
            rule.as_array().unwrap().iter().all(|key| map.contains_key(key.as_str().unwrap()))
        }
        "minProperties" => map.len() as u64 >= rule.as_u64().unwrap(),
        "maxProperties" => map.len() as u64 <= rule.as_u64().unwrap(),
        _ => true,
    })
}
