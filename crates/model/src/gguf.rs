//! Configuration from a GGUF file's metadata.

use crate::config::{Config, Dialect, RopeConfig, RopeScaling};
use crate::error::ModelError;
use crate::family::{Family, Windows};
use crate::role::Role;
use crate::unread::check_tensors;
use pianola_formats::{Array, Gguf, TensorSource, Value};
use std::cell::RefCell;
use std::collections::HashSet;

mod keys;

/// Reads keys of the model, and remembers which.
struct Keys<'a> {
    file: &'a Gguf,
    architecture: &'a str,
    read: RefCell<HashSet<String>>,
    /// Tensors that are part of the configuration.
    tensors: RefCell<Vec<&'static str>>,
}

impl<'a> Keys<'a> {
    fn key(&self, key: &str) -> String {
        let full = format!("{}.{key}", self.architecture);
        self.read.borrow_mut().insert(full.clone());
        full
    }

    /// Values of a tensor of this length; none where the file has no such tensor.
    fn values(&self, name: &'static str, length: usize) -> Result<Option<Vec<f32>>, ModelError> {
        let Some(tensor) = self.file.tensor(name) else { return Ok(None) };
        if tensor.shape != [length] {
            let (expected, found) = (vec![length], tensor.shape);
            return Err(ModelError::Shape { name: name.to_string(), expected, found });
        }
        self.tensors.borrow_mut().push(name);
        Ok(Some(tensor.to_f32()))
    }

    /// A number that has two names; with both it has to be the same.
    fn either(&self, first: &str, second: &str) -> Result<Option<f64>, ModelError> {
        match self.float(first)? {
            Some(found) => self.agree(second, found).map(|()| Some(found)),
            None => self.float(second),
        }
    }

    /// Refuses a key that says otherwise than what it follows from.
    fn agree(&self, key: &str, expected: f64) -> Result<(), ModelError> {
        match self.float(key)? {
            // Files hold single floats.
            Some(found) if (found - expected).abs() > 1e-6 * expected.abs() => {
                Err(ModelError::value(&self.key(key), found, format!("it must be {expected}")))
            }
            _ => Ok(()),
        }
    }

    fn count(&self, key: &str) -> Result<Option<usize>, ModelError> {
        let full = self.key(key);
        match self.file.unsigned(&full) {
            Some(value) => usize::try_from(value)
                .map(Some)
                .map_err(|_| ModelError::value(&full, value, "it is too large")),
            // A list with a value a layer (head counts that vary): not done.
            None if self.file.get(&full).is_some() => Err(ModelError::value(
                &full,
                "not a number",
                "one value for all layers is supported",
            )),
            None => Ok(None),
        }
    }

    fn needed(&self, key: &str) -> Result<usize, ModelError> {
        self.count(key)?.ok_or_else(|| ModelError::MissingKey(self.key(key)))
    }

    fn float(&self, key: &str) -> Result<Option<f64>, ModelError> {
        let full = self.key(key);
        match self.file.float(&full) {
            None if self.file.get(&full).is_some() => {
                Err(ModelError::value(&full, "not a number", "it must be a number"))
            }
            value => Ok(value),
        }
    }

    fn needed_float(&self, key: &str) -> Result<f64, ModelError> {
        self.float(key)?.ok_or_else(|| ModelError::MissingKey(self.key(key)))
    }

    fn text(&self, key: &str) -> Result<Option<&'a str>, ModelError> {
        let full = self.key(key);
        match self.file.string(&full) {
            None if self.file.get(&full).is_some() => {
                Err(ModelError::value(&full, "no text", "it must be text"))
            }
            text => Ok(text),
        }
    }
}

pub(crate) fn config(file: &Gguf) -> Result<Config, ModelError> {
    let name = file
        .string("general.architecture")
        .ok_or_else(|| ModelError::MissingKey("general.architecture".to_string()))?;
    let family = Family::of_gguf(name)?;
    let keys =
        Keys { file, architecture: name, read: RefCell::default(), tensors: RefCell::default() };
    let hidden = keys.needed("embedding_length")?;
    let heads = keys.needed("attention.head_count")?;
    let layers = crate::config::checked_layers(keys.needed("block_count")?)?;
    let head_dim = head_dim(&keys, hidden / heads.max(1))?;
    let window_rope = match family.window_rope_base {
        Some(base) => {
            // The second name is that of Ollama's converter.
            let found = keys.either("rope.freq_base_swa", "rope.local.freq_base")?;
            let base = found.unwrap_or(base);
            Some(RopeConfig { base, scaling: RopeScaling::None })
        }
        None => None,
    };
    let by_width = family.gguf.scaled_by_width == Some(layers);
    let scale_base = if by_width { hidden / heads.max(1) } else { head_dim };
    let vocabulary = match file.info("token_embd.weight") {
        Some(info) if info.shape.len() == 2 => info.shape[0],
        _ => return Err(ModelError::MissingTensor("token_embd.weight".to_string())),
    };
    let soft_cap = |key: &str, default: Option<f32>| -> Result<Option<f32>, ModelError> {
        Ok(keys.float(key)?.map(|cap| cap as f32).or(default))
    };
    let biased = |role: Role| {
        let name = role.file_name(family, Dialect::Gguf);
        file.info(&format!("blk.0.{name}.bias")).is_some()
    };
    let config = Config {
        family,
        dialect: Dialect::Gguf,
        prefix: String::new(),
        name: file.string("general.name").map(str::to_string),
        context: keys.needed("context_length")?,
        vocabulary,
        hidden,
        feed_forward: keys.needed("feed_forward_length")?,
        layers,
        heads,
        kv_heads: keys.count("attention.head_count_kv")?.unwrap_or(heads),
        head_dim,
        epsilon: keys.needed_float("attention.layer_norm_rms_epsilon")? as f32,
        activation: family.activation,
        attention_scale: 1.0 / (scale_base as f32).sqrt(),
        rope: RopeConfig {
            base: rope_base(&keys, family)?,
            scaling: rope_scaling(&keys, head_dim)?,
        },
        window_rope,
        pairing: family.gguf.pairing,
        windows: windows(&keys, family, layers)?,
        attention_soft_cap: soft_cap("attn_logit_softcapping", family.attention_soft_cap)?,
        final_soft_cap: soft_cap("final_logit_softcapping", family.final_soft_cap)?,
        tied: file.info("output.weight").is_none(),
        attention_bias: biased(Role::Query),
        output_bias: biased(Role::Output),
        feed_forward_bias: biased(Role::Gate),
    };
    let config = config.validate()?;
    must_agree(&keys, &config)?;
    keys::check(&keys, family)?;
    let infos = file.tensor_infos();
    let names = infos.iter().map(|info| info.name.as_str());
    check_tensors(&config, names, &keys.tensors.borrow())?;
    Ok(config)
}

/// Refuses keys that follow from others and say otherwise.
fn must_agree(keys: &Keys<'_>, config: &Config) -> Result<(), ModelError> {
    keys.agree("vocab_size", config.vocabulary as f64)?;
    keys.agree("embedding_length_out", config.hidden as f64)?;
    for key in [
        "attention.head_dim",
        "attention.key_length_swa",
        "attention.value_length_swa",
        "rope.dimension_count_swa",
    ] {
        keys.agree(key, config.head_dim as f64)?;
    }
    // Zero stands for the usual scale.
    if keys.float("attention.scale")? != Some(0.0) {
        keys.agree("attention.scale", f64::from(config.attention_scale))?;
    }
    if config.window_rope.is_none() {
        keys.agree("rope.freq_base_swa", config.rope.base)?;
    }
    Ok(())
}

/// Base of the rotary table of global layers. Where windowed layers have another, files name it: the usual
/// default is that of the windowed ones.
fn rope_base(keys: &Keys<'_>, family: &Family) -> Result<f64, ModelError> {
    const KEY: &str = "rope.freq_base";
    // The second name is that of Ollama's converter.
    match (keys.either(KEY, "rope.global.freq_base")?, family.window_rope_base) {
        (Some(base), _) => Ok(base),
        (None, None) => Ok(10_000.0),
        (None, Some(_)) => Err(ModelError::MissingKey(keys.key(KEY))),
    }
}

fn head_dim(keys: &Keys<'_>, default: usize) -> Result<usize, ModelError> {
    let head_dim = match keys.count("attention.key_length")? {
        Some(length) => length,
        None => keys.count("rope.dimension_count")?.unwrap_or(default),
    };
    for key in ["attention.value_length", "rope.dimension_count"] {
        match keys.count(key)? {
            Some(found) if found != head_dim => {
                let expected = format!("only the head size, {head_dim}, is supported");
                return Err(ModelError::value(&keys.key(key), found, expected));
            }
            _ => {}
        }
    }
    Ok(head_dim)
}

/// For each layer its window. A file lists the layers that have one, or says that every n-th has
/// none, or leaves it to the family.
fn windows(
    keys: &Keys<'_>,
    family: &Family,
    layers: usize,
) -> Result<Vec<Option<usize>>, ModelError> {
    const PATTERN: &str = "attention.sliding_window_pattern";
    let rules = &family.gguf;
    let window = keys.count("attention.sliding_window")?.or(rules.window).filter(|&size| size > 0);
    if rules.windows == Windows::None {
        return Ok(vec![None; layers]);
    }
    let key = keys.key(PATTERN);
    if let Some(Value::Array(list)) = keys.file.get(&key) {
        let windowed: Option<Vec<bool>> = match list {
            Array::Bool(list) => Some(list.clone()),
            _ => list.to_integers().map(|list| list.iter().map(|&value| value != 0).collect()),
        };
        let windowed = windowed.filter(|list| list.len() == layers).ok_or_else(|| {
            let expected =
                format!("it must have a number or true or false for each of {layers} layers");
            ModelError::value(&key, format!("a list of {}", list.len()), expected)
        })?;
        return Ok(windowed.into_iter().map(|windowed| window.filter(|_| windowed)).collect());
    }
    let pattern = match (rules.windows, keys.count(PATTERN)?) {
        (_, Some(0)) => return Err(ModelError::value(&key, 0, "it must be at least 1")),
        (Windows::AllButEvery(_), Some(period)) => Windows::AllButEvery(period),
        (_, Some(period)) if window.is_some() => {
            let expected = format!("a number is not supported for {}", family.name);
            return Err(ModelError::value(&key, period, expected));
        }
        (pattern, _) => pattern,
    };
    Ok(pattern.layers(window, layers))
}

fn rope_scaling(keys: &Keys<'_>, head_dim: usize) -> Result<RopeScaling, ModelError> {
    const SHORT: &str = "rope_factors_short.weight";
    const LONG: &str = "rope_factors_long.weight";
    const ORIGINAL: &str = "rope.scaling.original_context_length";
    // A divisor for each pair of a head.
    let read = |name: &'static str| keys.values(name, head_dim / 2);
    let kind = keys.text("rope.scaling.type")?;
    // Llama 3's ramp comes as a divisor for each pair.
    match (read("rope_freqs.weight")?, kind) {
        (Some(factors), None | Some("none")) => return Ok(RopeScaling::Factors(factors)),
        (Some(_), Some(kind)) => {
            let key = keys.key("rope.scaling.type");
            return Err(ModelError::value(&key, kind, "not supported beside rope_freqs.weight"));
        }
        (None, _) => {}
    }
    let (short, long) = (read(SHORT)?, read(LONG)?);
    if kind == Some("longrope") || short.is_some() || long.is_some() {
        return Ok(RopeScaling::Long {
            short: short.ok_or_else(|| ModelError::MissingTensor(SHORT.to_string()))?,
            long: long.ok_or_else(|| ModelError::MissingTensor(LONG.to_string()))?,
            original: keys.needed(ORIGINAL)?,
            magnitude: keys.float("rope.scaling.attn_factor")?.unwrap_or(1.0),
        });
    }
    match (kind, keys.float("rope.scaling.factor")?) {
        (None | Some("none"), None) => Ok(RopeScaling::None),
        (Some("none"), _) => Ok(RopeScaling::None),
        (None | Some("linear"), Some(factor)) => Ok(RopeScaling::Linear { factor }),
        (Some("yarn"), Some(factor)) => {
            let original = keys.needed_float(ORIGINAL)?;
            let magnitude = if factor <= 1.0 { 1.0 } else { 1.0 + 0.1 * factor.ln() };
            let fast = keys.float("rope.scaling.yarn_beta_fast")?.unwrap_or(32.0);
            let slow = keys.float("rope.scaling.yarn_beta_slow")?.unwrap_or(1.0);
            Ok(RopeScaling::Yarn { factor, fast, slow, original, magnitude })
        }
        (Some(kind), _) => Err(ModelError::value(
            &keys.key("rope.scaling.type"),
            kind,
            format!("not supported for {}; none, linear, yarn and longrope are", keys.architecture),
        )),
    }
}
