//! Rotary tables from a `config.json`.

use super::Keys;
use crate::config::{RopeConfig, RopeScaling};
use crate::error::ModelError;
use crate::family::Family;
use serde_json::Value;

/// What the parameters of a table do not hold themselves.
#[derive(Clone, Copy)]
struct Outer<'a> {
    keys: &'a Keys<'a>,
    context: usize,
    head_dim: usize,
}

/// Rotary tables of global and of windowed layers.
pub(super) fn tables(
    keys: &Keys<'_>,
    family: &Family,
    head_dim: usize,
) -> Result<(RopeConfig, Option<RopeConfig>), ModelError> {
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
    match keys.get("rope_parameters") {
        Some(parameters) if parameters.get("full_attention").is_some() => {
            let global = table(&parameters["full_attention"], base, outer)?;
            let parameters = parameters.get("sliding_attention").filter(|value| !value.is_null());
            let base = family.window_rope_base.unwrap_or(base);
            let window = parameters.map(|value| table(value, base, outer)).transpose()?;
            Ok((global, window))
        }
        Some(parameters) => Ok((table(parameters, base, outer)?, window)),
        None => {
            let scaling = match keys.get("rope_scaling") {
                Some(value) => scaling(&Keys(value), outer)?,
                None => RopeScaling::None,
            };
            Ok((RopeConfig { base, scaling }, window))
        }
    }
}

fn table(value: &Value, base: f64, outer: Outer<'_>) -> Result<RopeConfig, ModelError> {
    let inner = Keys(value);
    let base = inner.float("rope_theta")?.unwrap_or(base);
    Ok(RopeConfig { base, scaling: scaling(&inner, outer)? })
}

fn whole_heads(keys: &Keys<'_>) -> Result<(), ModelError> {
    const KEY: &str = "partial_rotary_factor";
    match keys.float(KEY)? {
        Some(found) if found != 1.0 => {
            Err(ModelError::value(KEY, found, "only whole heads are rotated"))
        }
        _ => Ok(()),
    }
}

fn needed(keys: &Keys<'_>, key: &str) -> Result<f64, ModelError> {
    keys.float(key)?.ok_or_else(|| ModelError::MissingKey(key.to_string()))
}

fn scaling(keys: &Keys<'_>, outer: Outer<'_>) -> Result<RopeScaling, ModelError> {
    whole_heads(keys)?;
    let kind = match keys.text("rope_type")? {
        Some(kind) => Some(kind),
        None => keys.text("type")?,
    };
    let original = || -> Result<f64, ModelError> {
        let found = keys.float("original_max_position_embeddings")?;
        Ok(found.unwrap_or(outer.context as f64))
    };
    match kind {
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
        // The first files of Phi 3 call it su.
        Some("longrope" | "su") => long(keys, outer),
        Some(found) => Err(ModelError::value(
            "rope_type",
            found,
            "default, linear, llama3, yarn and longrope are supported",
        )),
    }
}

fn long(keys: &Keys<'_>, outer: Outer<'_>) -> Result<RopeScaling, ModelError> {
    const ORIGINAL: &str = "original_max_position_embeddings";
    // Phi 3 has it beside the table, and there it takes precedence.
    let original = match outer.keys.count(ORIGINAL)? {
        Some(original) => original,
        None => keys.needed(ORIGINAL)?,
    };
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
    let value = keys.get(key).ok_or_else(|| ModelError::MissingKey(key.to_string()))?;
    let number = |value: &Value| value.as_f64().map(|value| value as f32);
    let list = value.as_array().filter(|list| list.len() == pairs);
    list.and_then(|list| list.iter().map(number).collect()).ok_or_else(|| {
        let expected = format!("it must list {pairs} numbers, one for each pair of a head");
        ModelError::value(key, value, expected)
    })
}
