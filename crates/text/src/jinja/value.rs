//! Values of a template.
//!
//! Lists and maps never change once they are made, and count how deep they are, so a value that
//! contains itself cannot be made of them. A namespace changes; it keeps only data, that is, no
//! other namespace, macro or loop, and therefore nothing that leads back to it.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

use super::ast::{For, Macro};
use super::budget::Budget;
use super::fault::Fault;

/// Variables of one scope.
pub(super) type Frame = HashMap<Arc<str>, Value>;

#[derive(Clone)]
pub(super) enum Value {
    Undefined,
    None,
    Bool(bool),
    Int(i64),
    Float(f64),
    Text(Arc<str>),
    List(Rc<List>),
    Map(Rc<Map>),
    Namespace(Rc<RefCell<Frame>>),
    Macro(Rc<Closure>),
    Loop(Rc<LoopState>),
    Function(Function),
}

/// A list or a tuple: they differ in how they print, and are never equal.
pub(super) struct List {
    pub(super) form: Form,
    pub(super) items: Vec<Value>,
    pub(super) depth: usize,
    pub(super) plain: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    List,
    Tuple,
}

pub(super) struct Map {
    /// In the order written, no two keys equal.
    pub(super) entries: Vec<(Value, Value)>,
    pub(super) depth: usize,
    pub(super) plain: bool,
}

/// A macro and the scopes around it; variables of the whole template are found when it is called.
pub(super) struct Closure {
    pub(super) definition: Arc<Macro>,
    pub(super) frames: Vec<Frame>,
    /// Values inside one another in these scopes.
    pub(super) depth: usize,
}

/// The variable `loop`.
pub(super) struct LoopState {
    pub(super) definition: Arc<For>,
    pub(super) items: Rc<List>,
    pub(super) index: Cell<usize>,
    /// Recursive loops around this one.
    pub(super) level: usize,
    /// What `loop.changed` was last called with.
    pub(super) changed: RefCell<Option<Value>>,
}

/// Functions that every template has.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Function {
    Range,
    Namespace,
    Dict,
    RaiseException,
    StrftimeNow,
}

impl Function {
    pub(super) fn named(name: &str) -> Option<Function> {
        Some(match name {
            "range" => Function::Range,
            "namespace" => Function::Namespace,
            "dict" => Function::Dict,
            "raise_exception" => Function::RaiseException,
            "strftime_now" => Function::StrftimeNow,
            _ => return None,
        })
    }
}

impl Value {
    /// A value of JSON.
    pub(super) fn from_json(json: serde_json::Value, budget: &Budget) -> Result<Value, Fault> {
        use serde_json::Value as Json;
        Ok(match json {
            Json::Null => Value::None,
            Json::Bool(value) => Value::Bool(value),
            Json::Number(number) => match number.as_i64() {
                Some(integer) => Value::Int(integer),
                None => Value::Float(number.as_f64().unwrap_or(f64::NAN)),
            },
            Json::String(text) => budget.text(&text)?,
            Json::Array(items) => {
                budget.items(items.len())?;
                let items = items.into_iter().map(|item| Value::from_json(item, budget));
                budget.list(items.collect::<Result<_, _>>()?)?
            }
            Json::Object(fields) => {
                let entry = |(key, field): (String, serde_json::Value)| {
                    Ok((budget.text(&key)?, Value::from_json(field, budget)?))
                };
                budget.map(fields.into_iter().map(entry).collect::<Result<_, Fault>>()?)?
            }
        })
    }

    /// Values inside one another. Dropping a value recurses as deep as this. A namespace holds only
    /// data, so it adds at most one such nest and counts as none.
    pub(super) fn depth(&self) -> usize {
        match self {
            Value::List(list) => list.depth,
            Value::Map(map) => map.depth,
            Value::Macro(closure) => closure.depth,
            Value::Loop(state) => state.items.depth,
            _ => 0,
        }
    }

    /// Whether it is data through and through.
    pub(super) fn is_plain(&self) -> bool {
        match self {
            Value::List(list) => list.plain,
            Value::Map(map) => map.plain,
            Value::Namespace(_) | Value::Macro(_) | Value::Loop(_) => false,
            _ => true,
        }
    }

    /// What Python's `bool` says.
    pub(super) fn is_true(&self) -> bool {
        match self {
            Value::Undefined | Value::None => false,
            Value::Bool(value) => *value,
            Value::Int(value) => *value != 0,
            Value::Float(value) => *value != 0.0,
            Value::Text(text) => !text.is_empty(),
            Value::List(list) => !list.items.is_empty(),
            Value::Map(map) => !map.entries.is_empty(),
            Value::Namespace(_) | Value::Macro(_) | Value::Loop(_) | Value::Function(_) => true,
        }
    }

    /// For errors.
    pub(super) fn kind(&self) -> &'static str {
        match self {
            Value::Undefined => "an undefined value",
            Value::None => "none",
            Value::Bool(_) => "a boolean",
            Value::Int(_) => "an integer",
            Value::Float(_) => "a float",
            Value::Text(_) => "a string",
            Value::List(list) if list.form == Form::Tuple => "a tuple",
            Value::List(_) => "a list",
            Value::Map(_) => "a mapping",
            Value::Namespace(_) => "a namespace",
            Value::Macro(_) => "a macro",
            Value::Loop(_) => "a loop",
            Value::Function(_) => "a function",
        }
    }

    pub(super) fn as_text(&self) -> Option<&str> {
        match self {
            Value::Text(text) => Some(text),
            _ => None,
        }
    }

    pub(super) fn as_integer(&self) -> Option<i64> {
        match self {
            Value::Int(value) => Some(*value),
            Value::Bool(value) => Some(i64::from(*value)),
            _ => None,
        }
    }

    pub(super) fn as_float(&self) -> Option<f64> {
        match self {
            Value::Float(value) => Some(*value),
            _ => self.as_integer().map(|value| value as f64),
        }
    }

    /// What a loop over it gives: items, keys, or characters.
    pub(super) fn iterate(&self, budget: &Budget) -> Result<Rc<List>, Fault> {
        let items = match self {
            Value::List(list) => {
                budget.work(list.items.len())?;
                return Ok(list.clone());
            }
            Value::Undefined => Vec::new(),
            Value::Map(map) => {
                budget.items(map.entries.len())?;
                map.entries.iter().map(|(key, _)| key.clone()).collect()
            }
            Value::Text(text) => {
                budget.items(text.len())?;
                let character = |character: char| budget.text(character.encode_utf8(&mut [0; 4]));
                text.chars().map(character).collect::<Result<_, _>>()?
            }
            _ => return Err(Fault::failed(format!("{} cannot be iterated over", self.kind()))),
        };
        budget.sequence(Form::List, items)
    }
}
