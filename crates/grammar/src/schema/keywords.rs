//! What each keyword of JSON Schema holds, and which cannot be enforced.

use serde_json::{Map, Value};

/// What a keyword holds.
pub(super) enum Class {
    /// Says nothing about what is valid, or is unknown to the standard, which makes it an annotation.
    Annotation,
    /// A schema.
    Schema,
    /// A list of schemas.
    Schemas,
    /// A schema, or in older drafts a list of them.
    SchemaOrSchemas,
    /// Schemas by name.
    Properties,
    /// Schemas by a pattern of names.
    Patterns,
    /// A reference.
    Reference,
    /// Values that are themselves allowed.
    Values,
    /// Part of a value's structure.
    Shape,
    /// A condition on strings, numbers or counts.
    Detail,
    /// A condition that no grammar can state.
    Unenforceable,
}

pub(super) fn classify(keyword: &str) -> Class {
    match keyword {
        "additionalProperties" | "additionalItems" => Class::Schema,
        "anyOf" | "oneOf" | "allOf" | "prefixItems" => Class::Schemas,
        "items" => Class::SchemaOrSchemas,
        "properties" => Class::Properties,
        "patternProperties" => Class::Patterns,
        "$ref" => Class::Reference,
        "enum" | "const" => Class::Values,
        "type" | "required" => Class::Shape,
        "minLength" | "maxLength" | "pattern" | "format" | "minimum" | "maximum"
        | "exclusiveMinimum" | "exclusiveMaximum" | "multipleOf" | "minItems" | "maxItems"
        | "minProperties" | "maxProperties" => Class::Detail,
        "not"
        | "if"
        | "then"
        | "else"
        | "contains"
        | "minContains"
        | "maxContains"
        | "uniqueItems"
        | "propertyNames"
        | "dependencies"
        | "dependentRequired"
        | "dependentSchemas"
        | "unevaluatedItems"
        | "unevaluatedProperties"
        | "$dynamicRef"
        | "$recursiveRef"
        | "$id" => Class::Unenforceable,
        _ => Class::Annotation,
    }
}

/// What to do about a keyword that cannot be enforced.
pub(super) fn fix(keyword: &str) -> &'static str {
    match keyword {
        "uniqueItems" | "contains" | "minContains" | "maxContains" => {
            "a grammar does not compare the items of a list; leave it out and check the answer"
        }
        "propertyNames" => "use `patternProperties` with `additionalProperties: false`",
        "not" => "list what is allowed, by `enum` or `anyOf`",
        "if" | "then" | "else" | "dependencies" | "dependentRequired" | "dependentSchemas" => {
            "write the cases as alternatives of `anyOf`"
        }
        "unevaluatedItems" | "unevaluatedProperties" => {
            "use `additionalProperties: false` or `items: false`"
        }
        "$id" => "a schema inside of another cannot have a base of its own; leave it out",
        _ => "refer to definitions by `$ref` and `#/$defs/NAME`",
    }
}

/// The keywords of one schema, which some conditions depend on.
pub(super) struct Siblings<'a>(&'a Map<String, Value>);

impl<'a> Siblings<'a> {
    pub(super) fn new(map: &'a Map<String, Value>) -> Siblings<'a> {
        Siblings(map)
    }

    /// Whether a value of this type may be valid.
    pub(super) fn may_be(&self, kind: &str) -> bool {
        match self.0.get("type") {
            Some(Value::String(only)) => only == kind,
            Some(Value::Array(any)) => any.iter().any(|one| one == kind),
            _ => true,
        }
    }

    /// Whether `minProperties` can be enforced: a grammar does not know whether a key that the schema
    /// does not name was written before.
    pub(super) fn distinct_properties(&self, at_least: &Value) -> bool {
        let required = self.0.get("required").and_then(Value::as_array).map_or(0, Vec::len);
        at_least.as_u64().is_none_or(|at_least| at_least <= required as u64 + 1)
    }

    /// Whether an unenforceable keyword excludes nothing.
    pub(super) fn has_no_effect(&self, keyword: &str, value: &Value, nested: bool) -> bool {
        let has = |keyword| self.0.contains_key(keyword);
        let objects = self.may_be("object");
        match keyword {
            "$id" => !nested,
            "not" => *value == Value::Bool(false),
            "uniqueItems" => *value == Value::Bool(false) || !self.may_be("array"),
            "if" => !has("then") && !has("else"),
            "then" | "else" => !has("if"),
            "minContains" | "maxContains" => !has("contains"),
            "contains" => !self.may_be("array"),
            "unevaluatedItems" => !self.may_be("array") || allows_all(value, "array"),
            "propertyNames" => !objects || allows_all(value, "string"),
            "unevaluatedProperties" => !objects || allows_all(value, "object"),
            "dependencies" | "dependentRequired" | "dependentSchemas" => {
                !objects || value.as_object().is_some_and(Map::is_empty)
            }
            _ => false,
        }
    }
}

/// Whether a schema allows every value that can stand there; `kind` is the type it has anyway.
fn allows_all(schema: &Value, kind: &str) -> bool {
    let harmless = |(keyword, value): (&String, &Value)| match keyword.as_str() {
        "type" => value == kind && kind == "string",
        keyword => matches!(classify(keyword), Class::Annotation),
    };
    match schema {
        Value::Bool(all) => *all,
        Value::Object(map) => map.iter().all(harmless),
        _ => false,
    }
}
