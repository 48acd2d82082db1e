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
#[derive(PartialEq)]
pub(super) struct Tables {
    /// Of global layers.
    pub global: RopeConfig,
    /// Of windowed layers, where it differs.
    pub window: Option<RopeConfig>,
}

/// The base of a table, as a key beside it says.
#[derive(Clone, Copy)]
struct Base {
    key: &'static str,
    said: Option<f64>,
    default: f64,
}

impl Base {
    fn of(keys: &Keys<'_>, key: &'static str, default: f64) -> Result<Base, ModelError> {
        Ok(Base { key, said: keys.float(key)?, default })
    }

    fn plain(self) -> RopeConfig {
        RopeConfig { base: self.said.unwrap_or(self.default), scaling: RopeScaling::None }
    }
}

/// transformers 5 writes `rope_parameters`, older versions `rope_theta`, `rope_local_base_freq` and
/// `rope_scaling`; a file with both has to say the same twice.
pub(super) fn tables(
    keys: &Keys<'_>,
    family: &Family,
    head_dim: usize,
) -> Result<Tables, ModelError> {
    let rules = &family.hugging_face;
    let context = keys.count("max_position_embeddings")?.unwrap_or(rules.context);
    let outer = Outer { keys, context, head_dim };
    whole_heads(keys)?;
    let base = Base::of(keys, "rope_theta", rules.rope_base)?;
    let window = match family.window_rope_base {
        Some(default) => Some(Base::of(keys, "rope_local_base_freq", default)?),
        None => None,
    };
    let read = |key: &str| match keys.object(key)? {
        Some(value) => read_tables(&value, base, window, outer).map(Some),
        None => Ok(None),
    };
    match (read("rope_parameters")?, read("rope_scaling")?) {
        (Some(new), Some(old)) if new != old => {
            let old = keys.get("rope_scaling").unwrap_or(&Value::Null);
            Err(keys.refused("rope_scaling", old, "rope_parameters says otherwise"))
        }
        (Some(tables), _) | (None, Some(tables)) => Ok(tables),
        (None, None) => Ok(Tables { global: base.plain(), window: window.map(Base::plain) }),
    }
}

/// One object for all layers, or one for each kind of layer.
fn read_tables(
    parameters: &Keys<'_>,
    base: Base,
    window: Option<Base>,
    outer: Outer<'_>,
) -> Result<Tables, ModelError> {
    let Some(global) = parameters.object("full_attention")? else {
        let global = table(parameters, base, outer)?;
        return Ok(Tables { global, window: window.map(Base::plain) });
    };
    let global = table(&global, base, outer)?;
    let window = match parameters.object("sliding_attention")? {
        Some(parameters) => Some(table(&parameters, window.unwrap_or(base), outer)?),
        None => window.map(Base::plain),
    };
    Ok(Tables { global, window })
}

fn table(keys: &Keys<'_>, base: Base, outer: Outer<'_>) -> Result<RopeConfig, ModelError> {
    const KEY: &str = "rope_theta";
    let scaling = scaling(keys, outer)?;
    match (keys.float(KEY)?, base.said) {
        (Some(found), Some(said)) if found != said => {
            Err(keys.refused(KEY, &found.into(), format!("{} is {said}", base.key)))
        }
        (found, said) => Ok(RopeConfig { base: found.or(said).unwrap_or(base.default), scaling }),
    }
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
