//! Normalises JSON schemas from requests into ones that the compiler enforces in full.
//!
//! The result has only keywords that are enforced, and references only to its own `$defs`. Everything
//! else was an annotation, was rewritten, was refused, or was relaxed.

mod alternatives;
mod formats;
mod keywords;
mod limits;
mod numbers;
mod path;
mod patterns;
mod references;

use crate::GrammarError;
use keywords::{Class, Siblings, classify};
pub(crate) use limits::Sizes;
use numbers::Multiples;
use path::{Path, Step};
use references::{References, Unresolved};
use serde_json::{Map, Value, json};

/// What happens to keywords that no grammar can enforce: `uniqueItems`, `not`, `if`, `contains`,
/// `propertyNames`, `oneOf` of alternatives that may overlap, formats without a rule, and the like.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SchemaStrictness {
    /// They are errors: an answer is valid by the whole schema.
    #[default]
    Strict,
    /// They are left out, and `oneOf` becomes `anyOf`: an answer is valid by the rest. If even so the
    /// schema cannot be compiled, as with a pattern that looks ahead, it is taken as
    /// [`Structure`](SchemaStrictness::Structure). For tools, whose authors test with other engines.
    Relaxed,
    /// Types, properties, items and alternatives only: no patterns, formats, bounds or lengths.
    Structure,
}

impl SchemaStrictness {
    /// What applies in the second attempt to compile, where `fallback` is set.
    pub(crate) fn with(self, fallback: bool) -> SchemaStrictness {
        match (self, fallback) {
            (SchemaStrictness::Relaxed, true) => SchemaStrictness::Structure,
            (strictness, _) => strictness,
        }
    }
}

/// A schema that the compiler takes.
pub(crate) struct Normalised {
    pub value: Value,
    pub names: Names,
}

/// How the schema's author calls what the compiler knows by a number.
pub(crate) struct Names(Vec<(String, String)>);

impl Names {
    /// An error in the author's terms.
    pub fn restore(&self, error: GrammarError) -> GrammarError {
        match error {
            GrammarError::Refused { what, reason } if reason.contains("oneOf constraints") => {
                let reason = "alternatives of a `oneOf` may overlap; use `anyOf`, or give each a required property with a `const` of its own";
                GrammarError::Refused { what, reason: reason.into() }
            }
            GrammarError::Refused { what, mut reason } => {
                // Longer numbers first: `d1` is the beginning of `d10`.
                for (name, reference) in self.0.iter().rev() {
                    reason = reason.replace(name, reference);
                }
                GrammarError::Refused { what, reason }
            }
            error => error,
        }
    }
}

/// Checks a schema and makes it one that the compiler enforces in full. `sizes` are those of the
/// request's schemas before it.
pub(crate) fn normalise(
    schema: &Value,
    strictness: SchemaStrictness,
    sizes: &mut Sizes,
) -> Result<Normalised, GrammarError> {
    sizes.add(schema)?;
    let mut normaliser = Normaliser {
        strictness,
        references: References::new(schema),
        multiples: Multiples::default(),
        path: Path::new("#".into()),
        depth: 0,
        made: 0,
    };
    let mut value = normaliser.schema(schema)?;
    let mut definitions = Map::new();
    let mut levels = limits::depth(&value);
    while let Some((name, target, place)) = normaliser.references.next() {
        normaliser.path = Path::new(place);
        let definition = normaliser.schema(target)?;
        levels += limits::depth(&definition);
        definitions.insert(name, definition);
    }
    limits::check_levels(levels)?;
    sizes.add_expanded(normaliser.made)?;
    if value == Value::Bool(true) {
        value = json!({});
    }
    if let Value::Object(map) = &mut value {
        map.insert("$defs".into(), definitions.into());
        map.insert("x-guidance".into(), compiler_options(strictness));
    }
    Ok(Normalised { value, names: Names(normaliser.references.into_names()) })
}

/// White space between two tokens of JSON is a space, or a line break with some indentation, so that
/// a small model cannot write it for ever. Characters are escaped only where they must be: with
/// `\u0061` for `a`, a key could be written that the schema forbids.
fn compiler_options(strictness: SchemaStrictness) -> Value {
    json!({
        "whitespace_pattern": " |\\n[ \\t]{0,24}",
        "json_allowed_escapes": "nrbtf\\\"",
        "lenient": strictness != SchemaStrictness::Strict,
    })
}

struct Normaliser<'a> {
    strictness: SchemaStrictness,
    references: References<'a>,
    multiples: Multiples,
    path: Path<'a>,
    depth: usize,
    /// Schemas made so far, definitions included.
    made: usize,
}

impl<'a> Normaliser<'a> {
    fn schema(&mut self, schema: &'a Value) -> Result<Value, GrammarError> {
        self.made += 1;
        limits::check_expanded(self.made)?;
        match schema {
            Value::Bool(_) => Ok(schema.clone()),
            Value::Object(map) => {
                self.depth += 1;
                let result = self.object(map);
                self.depth -= 1;
                result
            }
            other => Err(self.invalid(format!("a schema is an object or a boolean, not {other}"))),
        }
    }

    /// Reads what is one step further in.
    fn inside<T>(
        &mut self,
        step: Step<'a>,
        read: impl FnOnce(&mut Self) -> Result<T, GrammarError>,
    ) -> Result<T, GrammarError> {
        self.path.enter(step);
        let result = read(self);
        self.path.leave();
        result
    }

    fn object(&mut self, map: &'a Map<String, Value>) -> Result<Value, GrammarError> {
        let siblings = Siblings::new(map);
        let mut result = Map::new();
        for (keyword, value) in map {
            let kept = match classify(keyword) {
                Class::Annotation => None,
                class @ (Class::Schema
                | Class::Schemas
                | Class::SchemaOrSchemas
                | Class::Properties
                | Class::Patterns) => {
                    self.inside(Step::Key(keyword), |inner| inner.schemas(class, keyword, value))?
                }
                Class::Reference => self.reference(value)?,
                Class::Values => Some(self.values(keyword, value)?),
                Class::Shape => Some(value.clone()),
                Class::Detail if self.strictness == SchemaStrictness::Structure => None,
                Class::Detail => self.detail(keyword, value, &siblings)?,
                Class::Unenforceable => {
                    let nested = self.depth > 1 || !self.path.is_root();
                    if !siblings.has_no_effect(keyword, value, nested) {
                        self.cannot(keyword, keywords::fix(keyword))?;
                    }
                    None
                }
            };
            let Some(kept) = kept else { continue };
            match value {
                Value::Array(any) if keyword == "oneOf" && self.are_exclusive(any) => {
                    add_condition(&mut result, json!({ "anyOf": kept }));
                }
                _ => add(&mut result, keyword, kept),
            }
        }
        let pattern = result.get("format").and_then(formats::pattern);
        if let Some(pattern) = pattern {
            result.remove("format");
            add_condition(&mut result, json!({ "pattern": pattern }));
        }
        Ok(Value::Object(result))
    }

    fn are_exclusive(&self, alternatives: &'a [Value]) -> bool {
        alternatives::are_exclusive(alternatives, &self.references)
    }

    /// The schemas that a keyword holds.
    fn schemas(
        &mut self,
        class: Class,
        keyword: &str,
        value: &'a Value,
    ) -> Result<Option<Value>, GrammarError> {
        match class {
            Class::Schemas => self.list(value).map(Some),
            Class::SchemaOrSchemas if value.is_array() => self.list(value).map(Some),
            Class::Properties => self.properties(value).map(Some),
            Class::Patterns => self.patterns(keyword, value),
            _ => self.schema(value).map(Some),
        }
    }

    fn list(&mut self, value: &'a Value) -> Result<Value, GrammarError> {
        let Value::Array(items) = value else {
            return Err(self.invalid("a list of schemas is needed".into()));
        };
        let schema = |(index, item)| self.inside(Step::Index(index), |inner| inner.schema(item));
        Ok(Value::Array(items.iter().enumerate().map(schema).collect::<Result<_, _>>()?))
    }

    fn properties(&mut self, value: &'a Value) -> Result<Value, GrammarError> {
        let Value::Object(map) = value else {
            return Err(self.invalid("an object of schemas is needed".into()));
        };
        let schema = |(name, schema): (&'a String, &'a Value)| {
            let schema = self.inside(Step::Key(name), |inner| inner.schema(schema))?;
            Ok((name.clone(), schema))
        };
        Ok(Value::Object(map.iter().map(schema).collect::<Result<_, GrammarError>>()?))
    }

    fn patterns(&mut self, keyword: &str, value: &'a Value) -> Result<Option<Value>, GrammarError> {
        let patterns = value.as_object().into_iter().flatten();
        if !patterns.map(|(pattern, _)| pattern).all(|pattern| patterns::compiles(pattern)) {
            return self.cannot(keyword, patterns::FIX).map(|()| None);
        }
        self.properties(value).map(Some)
    }

    fn reference(&mut self, value: &Value) -> Result<Option<Value>, GrammarError> {
        let Value::String(reference) = value else {
            return Err(self.invalid("`$ref` is a text".into()));
        };
        if self.references.resolve(reference) == Err(Unresolved::TooManyHops) {
            let problem = format!(
                "`$ref` {reference:?} leads back to itself, or over more than {} references that say nothing else; refer to the definition itself",
                references::MAX_HOPS
            );
            return Err(self.invalid(problem));
        }
        match self.references.name(reference) {
            Some(name) => Ok(Some(Value::from(format!("#/$defs/{name}")))),
            None => {
                let fix = format!(
                    "{reference:?} is not a place in this schema; put the definition under `$defs` and refer to it as `#/$defs/NAME`"
                );
                self.cannot("$ref", &fix).map(|()| None)
            }
        }
    }

    /// `enum` and `const`.
    fn values(&self, keyword: &str, value: &Value) -> Result<Value, GrammarError> {
        if keyword == "enum" && !value.is_array() {
            return Err(self.invalid("`enum` is a list of values".into()));
        }
        if let Some(number) = numbers::inexact(value) {
            let fix = format!("{number} has too many digits to be compared; use a text");
            self.cannot(keyword, &fix)?;
        }
        Ok(value.clone())
    }

    fn detail(
        &mut self,
        keyword: &str,
        value: &Value,
        siblings: &Siblings<'_>,
    ) -> Result<Option<Value>, GrammarError> {
        match keyword {
            "minimum" | "maximum" | "exclusiveMinimum" | "exclusiveMaximum" => {
                match numbers::bound(keyword, value) {
                    Some(bound) => Ok(Some(bound)),
                    None => {
                        let fix = "bounds lie between -2^53 and 2^53; leave it out";
                        self.cannot(keyword, fix).map(|()| None)
                    }
                }
            }
            "format" => match formats::enforced(value) {
                Some(true) => Ok(Some(value.clone())),
                Some(false) => Ok(None),
                None if !siblings.may_be("string") => Ok(None),
                None => {
                    let known = formats::KNOWN.join(", ");
                    let fix = format!("{value} has no rule; use one of {known}, or a `pattern`");
                    self.cannot(keyword, &fix).map(|()| None)
                }
            },
            "multipleOf" if !self.multiples.add(value) => {
                let fix = "the multiples of this schema have no common one that is small enough; leave it out";
                self.cannot(keyword, fix).map(|()| None)
            }
            "pattern" if !value.as_str().is_none_or(patterns::compiles) => {
                self.cannot(keyword, patterns::FIX).map(|()| None)
            }
            "minProperties" if !siblings.distinct_properties(value) => {
                let fix = "keys that differ can only be counted on where they are listed as `required`; list them";
                self.cannot(keyword, fix).map(|()| None)
            }
            _ => Ok(Some(value.clone())),
        }
    }

    /// What cannot be enforced: an error, or nothing where it is relaxed.
    fn cannot(&self, keyword: &str, fix: &str) -> Result<(), GrammarError> {
        match self.strictness {
            SchemaStrictness::Strict => Err(GrammarError::Unsupported {
                keyword: keyword.into(),
                place: self.path.to_string(),
                fix: fix.into(),
            }),
            SchemaStrictness::Relaxed | SchemaStrictness::Structure => Ok(()),
        }
    }

    fn invalid(&self, problem: String) -> GrammarError {
        let problem = match problem.char_indices().nth(200) {
            Some((end, _)) => format!("{}…", &problem[..end]),
            None => problem,
        };
        GrammarError::Invalid { place: self.path.to_string(), problem }
    }
}

/// Adds a keyword; conditions that came before it stay.
fn add(schema: &mut Map<String, Value>, keyword: &str, value: Value) {
    match (keyword, value) {
        ("allOf", Value::Array(all)) => {
            all.into_iter().for_each(|condition| add_condition(schema, condition));
        }
        (keyword, value) => drop(schema.insert(keyword.into(), value)),
    }
}

/// Adds a schema that has to hold, too.
fn add_condition(schema: &mut Map<String, Value>, condition: Value) {
    let all = schema.entry("allOf").or_insert_with(|| json!([]));
    if let Value::Array(all) = all {
        all.push(condition);
    }
}
