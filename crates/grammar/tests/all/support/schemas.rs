//! Schemas that are enforced in full.

use serde_json::{Value, json};

/// Name and schema.
pub fn all() -> Vec<(&'static str, Value)> {
    let mut all = scalars();
    all.extend(structures());
    all.extend(combinations());
    all
}

/// A schema of medium size, as a client might send it.
pub fn medium() -> Value {
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Order", "type": "object", "additionalProperties": false,
        "required": ["id", "customer", "lines", "status"],
        "properties": {
            "id": { "type": "string", "format": "uuid" },
            "customer": { "$ref": "#/$defs/Customer" },
            "lines": { "type": "array", "minItems": 1, "maxItems": 20, "items": { "$ref": "#/$defs/Line" } },
            "status": { "enum": ["new", "paid", "shipped", "returned"] },
            "note": { "anyOf": [{ "type": "string", "maxLength": 200 }, { "type": "null" }] },
            "ordered": { "type": "string", "format": "date-time" }
        },
        "$defs": {
            "Customer": {
                "type": "object", "required": ["name", "email"], "additionalProperties": false,
                "properties": {
                    "name": { "type": "string", "minLength": 1 },
                    "email": { "type": "string", "format": "email" },
                    "age": { "type": "integer", "minimum": 0, "maximum": 150 }
                }
            },
            "Line": {
                "type": "object", "required": ["sku", "count"], "additionalProperties": false,
                "properties": {
                    "sku": { "type": "string", "pattern": "^[A-Z]{3}-[0-9]{4}$" },
                    "count": { "type": "integer", "exclusiveMinimum": 0 },
                    "price": { "type": "number", "minimum": 0, "maximum": 1000 }
                }
            }
        }
    })
}

fn scalars() -> Vec<(&'static str, Value)> {
    vec![
        ("types", json!({ "type": ["string", "integer", "null", "boolean"] })),
        (
            "nullable",
            json!({ "type": "object", "properties": { "a": { "type": ["string", "null"] } }, "required": ["a"] }),
        ),
        (
            "enum",
            json!({ "enum": ["a", "ä \"quoted\"", 3, -1.5, null, true, [1, 2], { "x": [] }] }),
        ),
        (
            "const",
            json!({ "type": "object", "properties": { "kind": { "const": "circle" }, "v": { "const": 7 } }, "required": ["kind", "v"], "additionalProperties": false }),
        ),
        ("pattern", json!({ "type": "string", "pattern": "^(\\d{3}-)?\\w+x$" })),
        ("unanchored", json!({ "type": "string", "pattern": "ab+c", "maxLength": 12 })),
        (
            "lengths",
            json!({ "type": "array", "minItems": 3, "maxItems": 3, "items": { "type": "string", "minLength": 2, "maxLength": 5 } }),
        ),
        (
            "integers",
            json!({ "type": "array", "items": { "type": "integer", "minimum": -17, "exclusiveMaximum": 423 }, "minItems": 4, "maxItems": 8 }),
        ),
        (
            "numbers",
            json!({ "type": "array", "items": { "type": "number", "exclusiveMinimum": 0, "maximum": 12.5 }, "minItems": 4, "maxItems": 8 }),
        ),
        (
            "multiples",
            json!({ "type": "array", "items": { "type": "integer", "multipleOf": 12, "minimum": 0 }, "minItems": 2, "maxItems": 6 }),
        ),
        (
            "large bounds",
            json!({ "type": "integer", "minimum": -9_223_372_036_854_775_808i64, "maximum": u64::MAX }),
        ),
        (
            "dates",
            json!({ "type": "array", "items": { "type": "string", "format": "date" }, "minItems": 3, "maxItems": 9 }),
        ),
        ("date and pattern", json!({ "type": "string", "format": "date", "pattern": "^20" })),
        (
            "more formats",
            json!({
                "type": "object", "additionalProperties": false, "required": ["h", "u", "t", "d"],
                "properties": {
                    "h": { "type": "string", "format": "hostname", "maxLength": 40 }, "u": { "type": "string", "format": "uri", "maxLength": 60 },
                    "t": { "type": "string", "format": "time" }, "d": { "type": "string", "format": "duration" }
                }
            }),
        ),
        (
            "halves",
            json!({ "type": "array", "items": { "type": "number", "multipleOf": 0.5, "minimum": -20, "maximum": 20 }, "minItems": 3, "maxItems": 5 }),
        ),
        (
            "below zero",
            json!({ "type": "array", "items": { "type": "number", "exclusiveMaximum": -0.25, "minimum": -3.75 }, "minItems": 3, "maxItems": 5 }),
        ),
        (
            "formats",
            json!({
                "type": "object", "additionalProperties": false, "required": ["u", "e", "t", "four", "six"],
                "properties": {
                    "u": { "type": "string", "format": "uuid" }, "e": { "type": "string", "format": "email" },
                    "t": { "type": "string", "format": "date-time" }, "four": { "type": "string", "format": "ipv4" },
                    "six": { "type": "string", "format": "ipv6" }, "h": { "type": "string", "format": "hostname" },
                    "p": { "type": "string", "format": "password" }, "n": { "type": "integer", "format": "int32" }
                }
            }),
        ),
    ]
}

fn structures() -> Vec<(&'static str, Value)> {
    vec![
        ("medium", medium()),
        ("any object", json!({ "type": "object" })),
        ("anything", json!({})),
        (
            "prefix",
            json!({ "type": "array", "prefixItems": [{ "type": "integer" }, { "type": "string" }], "items": { "type": "boolean" }, "minItems": 2, "maxItems": 5 }),
        ),
        (
            "nested arrays",
            json!({ "type": "array", "items": { "type": "array", "items": { "type": "array", "items": { "type": "integer" }, "maxItems": 3 }, "maxItems": 3 }, "minItems": 1, "maxItems": 3 }),
        ),
        (
            "additional",
            json!({ "type": "object", "properties": { "a": { "type": "integer" } }, "required": ["a"], "additionalProperties": { "type": "string", "maxLength": 4 } }),
        ),
        (
            "patterned",
            json!({ "type": "object", "patternProperties": { "^x_": { "type": "integer" } }, "additionalProperties": false, "properties": { "z": { "type": "null" } } }),
        ),
        (
            "counted",
            json!({ "type": "object", "additionalProperties": { "type": "integer" }, "minProperties": 1, "maxProperties": 3 }),
        ),
        (
            "required alone",
            json!({ "type": "object", "required": ["b", "a"], "properties": { "a": { "type": "boolean" } }, "minProperties": 2, "additionalProperties": { "type": "integer" } }),
        ),
        (
            "names",
            json!({ "type": "object", "propertyNames": { "type": "string" }, "additionalProperties": { "type": "number", "minimum": 0 }, "title": "a map" }),
        ),
        (
            "odd keys",
            json!({ "type": "object", "properties": { "a\"b\\": { "type": "integer" }, "ü/~": { "$ref": "#/$defs/s~1l%25h" } }, "required": ["a\"b\\", "ü/~"], "additionalProperties": false, "$defs": { "s/l%h": { "const": "slash" } } }),
        ),
    ]
}

fn combinations() -> Vec<(&'static str, Value)> {
    vec![
        (
            "tree",
            json!({ "$ref": "#/$defs/node", "$defs": { "node": { "type": "object", "required": ["v"], "additionalProperties": false, "properties": { "v": { "type": "integer" }, "left": { "$ref": "#/$defs/node" }, "right": { "anyOf": [{ "$ref": "#/$defs/node" }, { "type": "null" }] } } } } }),
        ),
        ("itself", json!({ "type": "array", "items": { "$ref": "#" }, "maxItems": 2 })),
        (
            "anyOf",
            json!({ "anyOf": [{ "type": "object", "properties": { "a": { "type": "integer" } }, "required": ["a"] }, { "type": "array", "items": { "type": "null" } }, { "const": "neither" }] }),
        ),
        (
            "oneOf",
            json!({ "oneOf": [{ "type": "object", "properties": { "kind": { "const": "a" }, "x": { "type": "integer" } }, "required": ["kind", "x"], "additionalProperties": false }, { "type": "object", "properties": { "kind": { "const": "b" }, "y": { "type": "string", "maxLength": 3 } }, "required": ["kind", "y"], "additionalProperties": false }] }),
        ),
        (
            "titled constants",
            json!({ "oneOf": (0..30).map(|n| json!({ "const": n, "title": "a number" })).collect::<Vec<_>>() }),
        ),
        (
            "discriminated",
            json!({
                "$defs": {
                    "Cat": { "type": "object", "properties": { "kind": { "const": "cat" }, "lives": { "type": "integer", "maximum": 9, "minimum": 0 } }, "required": ["kind", "lives"] },
                    "Dog": { "type": "object", "properties": { "kind": { "enum": ["dog", "puppy"] }, "name": { "type": "string", "maxLength": 5 } }, "required": ["kind"], "additionalProperties": false }
                },
                "type": "array", "maxItems": 2, "minItems": 1,
                "items": { "discriminator": { "propertyName": "kind" }, "oneOf": [{ "$ref": "#/$defs/Cat" }, { "$ref": "#/$defs/Dog" }] }
            }),
        ),
        (
            "allOf",
            json!({ "allOf": [{ "type": "object", "properties": { "a": { "type": "integer", "minimum": 5 } }, "required": ["a"] }, { "properties": { "a": { "maximum": 9 }, "b": { "type": "boolean" } }, "required": ["b"] }] }),
        ),
        (
            "beside",
            json!({ "type": "object", "properties": { "a": { "$ref": "#/$defs/p", "maximum": 20, "description": "beside a reference" } }, "required": ["a"], "$defs": { "p": { "type": "integer", "minimum": 10 } } }),
        ),
    ]
}
