//! Rotary tables from a `config.json`.

use super::Keys;
use crate::config::{RopeConfig, RopeScaling};
use crate::error::ModelError;
use crate::family::Family;
use serde_json::Value;

const ORIGINAL: &str = "original_max_position_embeddings";

/// What the parameters of a table do not hold themselves.
#[derive(Clone, Copy)]
struct Outer<'a> {
    keys: &'a Keys<'a>,
    context: usize,
    head_dim: usize,
}

/// Rotary tables of a model.
pub(super) struct Tables {
    /// Of global layers.
    pub global: RopeConfig,
    /// Of windowed layers, where it differs.
    pub window: Option<RopeConfig>,
}

pub(super) fn tables(
    keys: &Keys<'_>,
    family: &Family,
    head_dim: usize,
) -> Result<Tables, ModelError> {
    let rules = &family.hugging_face;
    let context = keys.count("max_position_embeddings")?.unwrap_or(rules.context);
    let outer = Outer { keys, context, head_dim };
    whole_heads(keys)?;
    let base = keys.float("rope_theta")?.unwrap_or(rules.rope_base);
    let window = match family.window_rope_base {
        Some(default) => {
            let base = keys.float("rope_local_base_freq")?.unwrap_or(default);
            Some(RopeConfig { base, scaling: RopeScaling::None })
        }
        None => None,
    };
    let old = Tables { global: RopeConfig { base, scaling: old_scaling(outer)? }, window };
    let Some(parameters) = keys.object("rope_parameters")? else { return Ok(old) };
    let new = new_tables(&parameters, &old, outer)?;
    let said = |key: &str| keys.get(key).is_some();
    let differs = [
        ("rope_scaling", said("rope_scaling") && new.global.scaling != old.global.scaling),
        ("rope_theta", said("rope_theta") && new.global.base != old.global.base),
        ("rope_local_base_freq", said("rope_local_base_freq") && new.window != old.window),
    ];
    match differs.iter().find(|(_, differs)| *differs) {
        Some((key, _)) => {
            let value = keys.get(key).unwrap_or(&Value::Null);
            Err(keys.refused(key, value, "rope_parameters says otherwise"))
        }
        None => Ok(new),
    }
}

/// What older versions of transformers write: a base, and beside it the stretching.
fn old_scaling(outer: Outer<'_>) -> Result<RopeScaling, ModelError> {
    match outer.keys.object("rope_scaling")? {
        Some(value) => scaling(&value, outer),
        None => Ok(RopeScaling::None),
    }
}

/// What newer ones write: one object for all layers, or one for each kind of layer.
fn new_tables(parameters: &Keys<'_>, old: &Tables, outer: Outer<'_>) -> Result<Tables, ModelError> {
    let Some(global) = parameters.object("full_attention")? else {
        let global = table(parameters, old.global.base, outer)?;
        return Ok(Tables { global, window: old.window.clone() });
    };
    let base = old.window.as_ref().unwrap_or(&old.global).base;
    let global = table(&global, old.global.base, outer)?;
    let window = match parameters.object("sliding_attention")? {
        Some(window) => Some(table(&window, base, outer)?),
        None => old.window.clone(),
    };
    Ok(Tables { global, window })
}

fn table(inner: &Keys<'_>, base: f64, outer: Outer<'_>) -> Result<RopeConfig, ModelError> {
    let base = inner.float("rope_theta")?.unwrap_or(base);
    Ok(RopeConfig { base, scaling: scaling(inner, outer)? })
}

fn whole_heads(keys: &Keys<'_>) -> Result<(), ModelError> {
    const KEY: &str = "partial_rotary_factor";
    match keys.float(KEY)? {
        Some(found) if found != 1.0 => {
            Err(keys.refused(KEY, &found.into(), "only whole heads are rotated"))
        }
        _ => Ok(()),
    }
}

fn needed(keys: &Keys<'_>, key: &str) -> Result<f64, ModelError> {
    keys.float(key)?.ok_or_else(|| ModelError::MissingKey(keys.full(key)))
}

fn scaling(keys: &Keys<'_>, outer: Outer<'_>) -> Result<RopeScaling, ModelError> {
    whole_heads(keys)?;
    let original = || -> Result<f64, ModelError> {
        Ok(original(keys, outer)?.unwrap_or(outer.context) as f64)
    };
    match kind(keys)? {
        None | Some("default") => Ok(RopeScaling::None),
        Some("linear") => Ok(RopeScaling::Linear { factor: needed(keys, "factor")? }),
        Some("llama3") => Ok(RopeScaling::Llama3 {
            factor: needed(keys, "factor")?,
            low: needed(keys, "low_freq_factor")?,
            high: needed(keys, "high_freq_factor")?,
            original: original()?,
        }),
        Some("yarn") => {
            let factor = needed(keys, "factor")?;
            let magnitude = match keys.float("attention_factor")? {
                Some(magnitude) => magnitude,
                None if factor <= 1.0 => 1.0,
                None => 1.0 + 0.1 * factor.ln(),
            };
            Ok(RopeScaling::Yarn {
                factor,
                fast: keys.float("beta_fast")?.unwrap_or(32.0),
                slow: keys.float("beta_slow")?.unwrap_or(1.0),
                original: original()?,
                magnitude,
            })
        }
        Some("longrope") => long(keys, outer),
        Some(found) => {
            let expected = "default, linear, llama3, yarn and longrope are supported";
            Err(keys.refused("rope_type", &found.into(), expected))
        }
    }
}

/// How positions are stretched, by either name that the key has had.
fn kind<'a>(keys: &Keys<'a>) -> Result<Option<&'a str>, ModelError> {
    let read = |key: &str| -> Result<Option<&'a str>, ModelError> {
        // The first files of Phi 3 call it su.
        Ok(keys.text(key)?.map(|kind| if kind == "su" { "longrope" } else { kind }))
    };
    match (read("rope_type")?, read("type")?) {
        (Some(new), Some(old)) if new != old => {
            Err(keys.refused("type", &old.into(), "rope_type says otherwise"))
        }
        (new, old) => Ok(new.or(old)),
    }
}

/// The training context: in the table, or beside it as Phi 3 has it.
fn original(keys: &Keys<'_>, outer: Outer<'_>) -> Result<Option<usize>, ModelError> {
    match (keys.count(ORIGINAL)?, outer.keys.count(ORIGINAL)?) {
        (Some(inner), Some(beside)) if inner != beside => {
            let expected = format!("beside the table it is {beside}");
            Err(keys.refused(ORIGINAL, &inner.into(), expected))
        }
        (inner, beside) => Ok(inner.or(beside)),
    }
}

fn long(keys: &Keys<'_>, outer: Outer<'_>) -> Result<RopeScaling, ModelError> {
    let original = original(keys, outer)?;
    let original = original.ok_or_else(|| ModelError::MissingKey(keys.full(ORIGINAL)))?;
    let factor = match keys.float("factor")? {
        Some(factor) => factor,
        None => outer.context as f64 / original as f64,
    };
    let magnitude = match keys.float("attention_factor")? {
        Some(magnitude) => magnitude,
        None if factor <= 1.0 => 1.0,
        None => (1.0 + factor.ln() / (original as f64).ln()).sqrt(),
    };
    let pairs = outer.head_dim / 2;
    Ok(RopeScaling::Long {
        short: divisors(keys, "short_factor", pairs)?,
        long: divisors(keys, "long_factor", pairs)?,
        original,
        magnitude,
    })
}

/// A divisor for each pair of a head.
fn divisors(keys: &Keys<'_>, key: &str, pairs: usize) -> Result<Vec<f32>, ModelError> {
    let value = keys.get(key).ok_or_else(|| ModelError::MissingKey(keys.full(key)))?;
    let number = |value: &Value| value.as_f64().map(|value| value as f32);
    let list = value.as_array().filter(|list| list.len() == pairs);
    list.and_then(|list| list.iter().map(number).collect()).ok_or_else(|| {
        let expected = format!("it must list {pairs} numbers, one for each pair of a head");
        keys.refused(key, value, expected)
    })
}
