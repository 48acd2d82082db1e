//! Filters: what stands behind `|`.

use super::budget::{Budget, Writer};
use super::expression::Arguments;
use super::fault::Fault;
use super::operators::{self, apply as operate, equal, sort};
use super::python;
use super::tests::holds;
use super::value::Value;
use super::{ast::Operator, lists, methods};

/// Applies a filter.
pub(super) fn apply(
    budget: &Budget,
    name: &str,
    value: &Value,
    arguments: &Arguments,
) -> Result<Value, Fault> {
    match name {
        "default" | "d" => {
            let missing = matches!(value, Value::Undefined)
                || arguments.flag(1, "boolean") && !value.is_true();
            let otherwise = || arguments.get(0, "default_value").cloned();
            Ok(if missing { otherwise().unwrap_or(Value::Text("".into())) } else { value.clone() })
        }
        "length" | "count" => length(budget, value).map(Value::Int),
        "first" => Ok(value.iterate(budget)?.items.first().cloned().unwrap_or(Value::Undefined)),
        "last" => match value {
            Value::Text(_) => lists::item(budget, value, &Value::Int(-1)),
            _ => Ok(value.iterate(budget)?.items.last().cloned().unwrap_or(Value::Undefined)),
        },
        "list" => {
            let list = value.iterate(budget)?;
            budget.items(list.items.len())?;
            budget.list(list.items.clone())
        }
        "items" => match value {
            Value::Undefined => budget.list(Vec::new()),
            _ => methods::pairs(budget, value),
        },
        "string" => match value {
            Value::Text(_) => Ok(value.clone()),
            _ => {
                let mut text = Writer::new(budget);
                python::print(value, &mut text)?;
                text.into_value()
            }
        },
        "tojson" => python::to_json(budget, value, arguments),
        "abs" => match value.as_integer() {
            Some(integer) => Ok(Value::Int(integer.saturating_abs())),
            None => float(value).map(|float| Value::Float(float.abs())),
        },
        "int" => {
            budget.scan(value.as_text().unwrap_or_default())?;
            Ok(integer(value, arguments))
        }
        "float" => {
            budget.scan(value.as_text().unwrap_or_default())?;
            let default = || arguments.get(0, "default").cloned().unwrap_or(Value::Float(0.0));
            Ok(parsed(value).map_or_else(default, Value::Float))
        }
        "bool" => Ok(Value::Bool(value.is_true())),
        "round" => round(value, arguments),
        "attr" => lists::attribute(budget, value, arguments.required_text(0, "name")?),
        "reverse" => lists::slice(budget, &sequence(budget, value)?, [None, None, Some(-1)]),
        "join" => join(budget, value, arguments),
        "sort" => sorted(budget, value, arguments),
        "dictsort" => dictsort(budget, value, arguments),
        "unique" => unique(budget, value, arguments),
        "min" | "max" => extreme(budget, value, name == "max"),
        "sum" => sum(budget, value, arguments),
        "map" => map(budget, value, arguments),
        "select" | "reject" => choose(budget, value, arguments, None, name == "select"),
        "selectattr" | "rejectattr" => {
            let attribute = arguments.required(0, "attribute")?;
            choose(budget, value, arguments, Some(attribute), name == "selectattr")
        }
        "batch" => batch(budget, value, arguments),
        "safe" => Ok(value.clone()),
        "format" => super::format::percent(budget, text_of(value, name)?, &arguments.positional),
        _ => text_filter(budget, name, value, arguments),
    }
}

/// Filters of texts.
fn text_filter(
    budget: &Budget,
    name: &str,
    value: &Value,
    arguments: &Arguments,
) -> Result<Value, Fault> {
    let printed = |budget| {
        let mut text = Writer::new(budget);
        python::print(value, &mut text)?;
        Ok::<String, Fault>(text.into_string())
    };
    let method = match name {
        "upper" | "lower" | "title" | "capitalize" | "replace" | "center" => name,
        "trim" => "strip",
        "indent" => return super::format::indent(budget, &printed(budget)?, arguments),
        "escape" | "e" => return super::format::escape(budget, &printed(budget)?),
        "wordcount" => {
            let text = printed(budget)?;
            budget.scan(&text)?;
            return Ok(Value::Int(text.split_whitespace().count() as i64));
        }
        _ => return Err(Fault::failed(format!("the filter '{name:.40}' is unknown"))),
    };
    let text = match value {
        Value::Text(_) => value.clone(),
        _ => budget.text(&printed(budget)?)?,
    };
    let result = methods::call(budget, &text, method, arguments)?;
    result.ok_or_else(|| Fault::failed(format!("the filter '{name}' is unknown")))
}

fn text_of<'v>(value: &'v Value, filter: &str) -> Result<&'v str, Fault> {
    value
        .as_text()
        .ok_or_else(|| Fault::failed(format!("'{filter}' is for strings, not {}", value.kind())))
}

fn length(budget: &Budget, value: &Value) -> Result<i64, Fault> {
    let length = match value {
        Value::Undefined => 0,
        Value::Text(text) => {
            budget.read(text.len())?;
            text.chars().count()
        }
        Value::List(list) => list.items.len(),
        Value::Map(map) => map.entries.len(),
        _ => return Err(Fault::failed(format!("{} has no length", value.kind()))),
    };
    Ok(length as i64)
}

/// A list or a text; keys of a map.
fn sequence(budget: &Budget, value: &Value) -> Result<Value, Fault> {
    match value {
        Value::Text(_) => Ok(value.clone()),
        _ => value.iterate(budget).map(Value::List),
    }
}

fn float(value: &Value) -> Result<f64, Fault> {
    value.as_float().ok_or_else(|| Fault::failed(format!("{} is no number", value.kind())))
}

fn parsed(value: &Value) -> Option<f64> {
    value.as_float().or_else(|| value.as_text()?.trim().parse().ok())
}

fn integer(value: &Value, arguments: &Arguments) -> Value {
    let whole = value.as_integer().or_else(|| value.as_text()?.trim().parse().ok());
    // A float becomes the integer that is left of it.
    let cut = || parsed(value).filter(|float| float.is_finite()).map(|float| float as i64);
    let default = || arguments.get(0, "default").cloned().unwrap_or(Value::Int(0));
    whole.or_else(cut).map_or_else(default, Value::Int)
}

fn round(value: &Value, arguments: &Arguments) -> Result<Value, Fault> {
    let precision = arguments.integer(0, "precision")?.unwrap_or(0).clamp(-300, 300) as i32;
    let factor = 10f64.powi(precision);
    let scaled = float(value)? * factor;
    let rounded = match arguments.text(1, "method")? {
        Some("ceil") => scaled.ceil(),
        Some("floor") => scaled.floor(),
        _ => scaled.round_ties_even(),
    };
    Ok(Value::Float(rounded / factor))
}

/// The value that an attribute names, `a.b` inside `a`, or the value itself.
fn part(budget: &Budget, value: &Value, path: Option<&Value>) -> Result<Value, Fault> {
    match path {
        None | Some(Value::None) => Ok(value.clone()),
        Some(Value::Text(path)) => {
            budget.read(path.len())?;
            path.split('.').try_fold(value.clone(), |value, name| match name.parse() {
                Ok(index) if !matches!(value, Value::Map(_)) => {
                    lists::item(budget, &value, &Value::Int(index))
                }
                _ => lists::attribute(budget, &value, name),
            })
        }
        Some(index) => lists::item(budget, value, index),
    }
}

/// Texts sort without regard to case, unless asked to.
fn folded(budget: &Budget, value: Value, exact: bool) -> Result<Value, Fault> {
    match &value {
        Value::Text(text) if !exact => {
            budget.memory(2 * text.len())?;
            budget.scan(text)?;
            budget.text(&text.to_lowercase())
        }
        _ => Ok(value),
    }
}

fn join(budget: &Budget, value: &Value, arguments: &Arguments) -> Result<Value, Fault> {
    let separator = arguments.text(0, "d")?.unwrap_or_default();
    let path = arguments.get(1, "attribute");
    let mut text = Writer::new(budget);
    for (place, item) in value.iterate(budget)?.items.iter().enumerate() {
        text.push(if place > 0 { separator } else { "" })?;
        python::print(&part(budget, item, path)?, &mut text)?;
    }
    text.into_value()
}

fn sorted(budget: &Budget, value: &Value, arguments: &Arguments) -> Result<Value, Fault> {
    let (exact, path) = (arguments.flag(1, "case_sensitive"), arguments.get(2, "attribute"));
    let list = value.iterate(budget)?;
    budget.items(2 * list.items.len())?;
    let keyed = list.items.iter().map(|item| {
        let key = folded(budget, part(budget, item, path)?, exact)?;
        Ok((key, item.clone()))
    });
    let sorted = sort(budget, keyed.collect::<Result<_, Fault>>()?)?;
    let mut items: Vec<Value> = sorted.into_iter().map(|(_, item)| item).collect();
    if arguments.flag(0, "reverse") {
        items.reverse();
    }
    budget.list(items)
}

fn dictsort(budget: &Budget, value: &Value, arguments: &Arguments) -> Result<Value, Fault> {
    let Value::Map(map) = value else {
        return Err(Fault::failed(format!("'dictsort' is for mappings, not {}", value.kind())));
    };
    let exact = arguments.flag(0, "case_sensitive");
    let by_value = arguments.text(1, "by")? == Some("value");
    budget.items(4 * map.entries.len())?;
    let keyed = map.entries.iter().map(|(key, value)| {
        let sorted_by = if by_value { value } else { key };
        let pair = budget.list(vec![key.clone(), value.clone()])?;
        Ok((folded(budget, sorted_by.clone(), exact)?, pair))
    });
    let sorted = sort(budget, keyed.collect::<Result<_, Fault>>()?)?;
    let mut items: Vec<Value> = sorted.into_iter().map(|(_, item)| item).collect();
    if arguments.flag(2, "reverse") {
        items.reverse();
    }
    budget.list(items)
}

fn unique(budget: &Budget, value: &Value, arguments: &Arguments) -> Result<Value, Fault> {
    let (exact, path) = (arguments.flag(0, "case_sensitive"), arguments.get(1, "attribute"));
    let (mut keys, mut items) = (Vec::new(), Vec::new());
    for item in &value.iterate(budget)?.items {
        let key = folded(budget, part(budget, item, path)?, exact)?;
        let mut seen = false;
        for other in &keys {
            seen = seen || equal(budget, other, &key)?;
        }
        if !seen {
            budget.items(2)?;
            keys.push(key);
            items.push(item.clone());
        }
    }
    budget.list(items)
}

fn extreme(budget: &Budget, value: &Value, largest: bool) -> Result<Value, Fault> {
    let mut best: Option<&Value> = None;
    let list = value.iterate(budget)?;
    for item in &list.items {
        let better = match best {
            None => true,
            Some(best) if largest => operators::order(budget, item, best)?.is_gt(),
            Some(best) => operators::order(budget, item, best)?.is_lt(),
        };
        best = if better { Some(item) } else { best };
    }
    Ok(best.cloned().unwrap_or(Value::Undefined))
}

fn sum(budget: &Budget, value: &Value, arguments: &Arguments) -> Result<Value, Fault> {
    let path = arguments.get(0, "attribute");
    let start = arguments.get(1, "start").cloned().unwrap_or(Value::Int(0));
    let list = value.iterate(budget)?;
    list.items.iter().try_fold(start, |total, item| {
        operate(budget, Operator::Add, &total, &part(budget, item, path)?)
    })
}

fn map(budget: &Budget, value: &Value, arguments: &Arguments) -> Result<Value, Fault> {
    let list = value.iterate(budget)?;
    budget.items(list.items.len())?;
    let attribute = arguments.get(usize::MAX, "attribute");
    let default = arguments.get(usize::MAX, "default");
    let rest = Arguments {
        positional: arguments.positional.iter().skip(1).cloned().collect(),
        named: arguments.named.clone(),
    };
    let mapped = list.items.iter().map(|item| match attribute {
        Some(_) => Ok(match (part(budget, item, attribute)?, default) {
            (Value::Undefined, Some(default)) => default.clone(),
            (value, _) => value,
        }),
        None => apply_inner(budget, arguments.required_text(0, "filter")?, item, &rest),
    });
    budget.list(mapped.collect::<Result<_, _>>()?)
}

/// A filter named by another one's argument, which itself names none: so they do not nest.
fn apply_inner(
    budget: &Budget,
    name: &str,
    value: &Value,
    arguments: &Arguments,
) -> Result<Value, Fault> {
    if name == "map" {
        return Err(Fault::failed("'map' cannot be mapped"));
    }
    apply(budget, name, value, arguments)
}

/// Items for which a test holds, or does not; of the items themselves, or of an attribute.
fn choose(
    budget: &Budget,
    value: &Value,
    arguments: &Arguments,
    attribute: Option<&Value>,
    wanted: bool,
) -> Result<Value, Fault> {
    let place = usize::from(attribute.is_some());
    let test = arguments.text(place, "test")?;
    let rest = Arguments {
        positional: arguments.positional.iter().skip(place + 1).cloned().collect(),
        named: Vec::new(),
    };
    let mut chosen = Vec::new();
    for item in &value.iterate(budget)?.items {
        let tested = part(budget, item, attribute)?;
        let found = match test {
            Some(test) => holds(budget, test, &tested, &rest)?,
            None => tested.is_true(),
        };
        if found == wanted {
            budget.items(1)?;
            chosen.push(item.clone());
        }
    }
    budget.list(chosen)
}

fn batch(budget: &Budget, value: &Value, arguments: &Arguments) -> Result<Value, Fault> {
    let count = arguments.integer(0, "linecount")?.and_then(|count| usize::try_from(count).ok());
    let count =
        count.filter(|count| *count > 0).ok_or_else(|| Fault::failed("'batch' needs a size"))?;
    let list = value.iterate(budget)?;
    budget.items(2 * list.items.len())?;
    let batches = list.items.chunks(count).map(|items| match arguments.get(1, "fill_with") {
        Some(filler) if items.len() < count => {
            budget.items(count)?;
            let filled = items.iter().chain(std::iter::repeat(filler)).take(count);
            budget.list(filled.cloned().collect())
        }
        _ => budget.list(items.to_vec()),
    });
    budget.list(batches.collect::<Result<_, _>>()?)
}
