//! Filters: what stands behind `|`.

use super::budget::{Budget, Writer};
use super::expression::Arguments;
use super::fault::Fault;
use super::operators::{apply as operate, equal, order, sort, too_large, truncated};
use super::python;
use super::tests::holds;
use super::value::{Form, List, Value};
use super::{ast::Operator, lists, methods};
use std::rc::Rc;

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
        "first" => match value {
            Value::Text(_) => lists::item(budget, value, &Value::Int(0)),
            _ => Ok(value.iterate(budget)?.items.first().cloned().unwrap_or(Value::Undefined)),
        },
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
            Some(integer) => integer.checked_abs().map(Value::Int).ok_or_else(too_large),
            None => float(value).map(|float| Value::Float(float.abs())),
        },
        "int" => {
            budget.scan(value.as_text().unwrap_or_default())?;
            integer(value, arguments)
        }
        "float" => {
            budget.scan(value.as_text().unwrap_or_default())?;
            let default = || arguments.get(0, "default").cloned().unwrap_or(Value::Float(0.0));
            Ok(parsed(value).map_or_else(default, Value::Float))
        }
        "bool" => Ok(Value::Bool(value.is_true())),
        "round" => round(budget, value, arguments),
        "attr" => lists::attribute(budget, value, arguments.required_text(0, "name")?),
        "reverse" => lists::slice(budget, &sequence(budget, value)?, [None, None, Some(-1)]),
        "join" => join(budget, value, arguments),
        "sort" => sorted(budget, value, arguments),
        "dictsort" => dictsort(budget, value, arguments),
        "unique" => unique(budget, value, arguments),
        "min" | "max" => extreme(budget, value, arguments, name == "max"),
        "sum" => sum(budget, value, arguments),
        "map" => map(budget, value, arguments),
        "select" | "reject" => select(budget, value, arguments, None, name == "select"),
        "selectattr" | "rejectattr" => {
            let attribute = arguments.required(0, "attribute")?;
            select(budget, value, arguments, Some(attribute), name == "selectattr")
        }
        "batch" => batch(budget, value, arguments),
        "safe" => Ok(value.clone()),
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
    let printed = || python::printed(budget, value);
    let method = match name {
        "upper" | "lower" | "capitalize" | "replace" | "center" => name,
        "trim" => "strip",
        "title" => {
            let text = printed()?;
            // A change of case may make a character longer, by a few bytes.
            budget.memory(text.len().saturating_mul(3))?;
            return budget.text(&methods::title_words(&text));
        }
        "format" => {
            return super::format::percent(budget, &printed()?, &arguments.positional);
        }
        "indent" => return super::format::indent(budget, &printed()?, arguments),
        "escape" | "e" => return super::format::escape(budget, &printed()?),
        "wordcount" => {
            let text = printed()?;
            let words = text.split(|c: char| !c.is_alphanumeric() && c != '_');
            return Ok(Value::Int(words.filter(|word| !word.is_empty()).count() as i64));
        }
        _ => return Err(Fault::failed(format!("the filter '{name:.40}' is unknown"))),
    };
    let text = match value {
        Value::Text(_) => value.clone(),
        _ => budget.text(&printed()?)?,
    };
    let result = methods::call(budget, &text, method, arguments)?;
    result.ok_or_else(|| Fault::failed(format!("the filter '{name}' is unknown")))
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

fn integer(value: &Value, arguments: &Arguments) -> Result<Value, Fault> {
    let whole = value.as_integer().or_else(|| value.as_text()?.trim().parse().ok());
    if let Some(whole) = whole {
        return Ok(Value::Int(whole));
    }
    match parsed(value).filter(|float| !float.is_nan()) {
        Some(float) => truncated(float).map(Value::Int),
        None => Ok(arguments.get(0, "default").cloned().unwrap_or(Value::Int(0))),
    }
}

fn round(budget: &Budget, value: &Value, arguments: &Arguments) -> Result<Value, Fault> {
    // No float has more decimals, and none is larger.
    let precision = arguments.integer(0, "precision")?.unwrap_or(0).clamp(-400, 400) as i32;
    budget.work(1 + precision.unsigned_abs() as usize)?;
    let float = float(value)?;
    let scaled = |change: fn(f64) -> f64| {
        let factor = 10f64.powi(precision);
        let scaled = change(float * factor) / factor;
        if scaled.is_finite() { scaled } else { float }
    };
    Ok(match (arguments.text(1, "method")?, value.as_integer()) {
        (Some("ceil"), _) => Value::Float(scaled(f64::ceil)),
        (Some("floor"), _) => Value::Float(scaled(f64::floor)),
        (_, Some(integer)) if precision >= 0 => Value::Int(integer),
        (_, Some(_)) => Value::Int(truncated(scaled(f64::round_ties_even))?),
        (_, None) if precision < 0 => Value::Float(scaled(f64::round_ties_even)),
        // Rounds the decimals of the float itself, as Python does, not of a product.
        (_, None) => {
            let decimals = format!("{float:.0$}", precision as usize);
            Value::Float(decimals.parse().unwrap_or(float))
        }
    })
}

/// The value that an attribute names, `a.b` inside `a`, or the value itself.
fn part(budget: &Budget, value: &Value, path: Option<&Value>) -> Result<Value, Fault> {
    match path {
        None | Some(Value::None) => Ok(value.clone()),
        Some(Value::Text(path)) => {
            budget.scan(path)?;
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
    let keyed = keyed.collect::<Result<_, Fault>>()?;
    in_order(budget, keyed, arguments.flag(0, "reverse"))
}

/// The values by their keys; those with equal keys stay in the order they came, also when reversed.
fn in_order(
    budget: &Budget,
    mut keyed: Vec<(Value, Value)>,
    reversed: bool,
) -> Result<Value, Fault> {
    if reversed {
        keyed.reverse();
    }
    let sorted = sort(budget, keyed)?;
    let mut items: Vec<Value> = sorted.into_iter().map(|(_, item)| item).collect();
    if reversed {
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
        let pair = budget.tuple(vec![key.clone(), value.clone()])?;
        Ok((folded(budget, sorted_by.clone(), exact)?, pair))
    });
    let keyed = keyed.collect::<Result<_, Fault>>()?;
    in_order(budget, keyed, arguments.flag(2, "reverse"))
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

fn extreme(
    budget: &Budget,
    value: &Value,
    arguments: &Arguments,
    largest: bool,
) -> Result<Value, Fault> {
    let (exact, path) = (arguments.flag(0, "case_sensitive"), arguments.get(1, "attribute"));
    let mut best: Option<(Value, &Value)> = None;
    let list = value.iterate(budget)?;
    for item in &list.items {
        let key = folded(budget, part(budget, item, path)?, exact)?;
        let better = match &best {
            None => true,
            Some((best, _)) if largest => order(budget, &key, best)?.is_gt(),
            Some((best, _)) => order(budget, &key, best)?.is_lt(),
        };
        best = if better { Some((key, item)) } else { best };
    }
    Ok(best.map_or(Value::Undefined, |(_, item)| item.clone()))
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
    let list = items_if_true(budget, value)?;
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

/// What `map`, `select` and the like visit: nothing of a value that is false, such as none.
fn items_if_true(budget: &Budget, value: &Value) -> Result<Rc<List>, Fault> {
    match value.is_true() {
        true => value.iterate(budget),
        false => budget.sequence(Form::List, Vec::new()),
    }
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
fn select(
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
    for item in &items_if_true(budget, value)?.items {
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
