//! Configuration from a GGUF file's metadata.

use crate::config::{Architecture, Config, Dialect, RopeConfig, RopeScaling};
use crate::error::ModelError;
use pianola_formats::{Gguf, TensorSource};
use pianola_plan::{Activation, RopePairing};

/// Every sixth layer of Gemma 3 is global; files do not say so.
const GEMMA3_PATTERN: usize = 6;
/// Gemma 3's windowed layers rotate by this base; files do not say so either.
const GEMMA3_WINDOW_BASE: f64 = 10_000.0;
/// Gemma 3 27B, alone in the family, scales scores by hidden size over heads. Files carry no key
/// for it; the number of layers tells.
const GEMMA3_27B_LAYERS: usize = 62;

struct Keys<'a> {
    file: &'a Gguf,
    architecture: &'a str,
}

impl Keys<'_> {
    fn key(&self, key: &str) -> String {
        format!("{}.{key}", self.architecture)
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
}

pub(crate) fn config(file: &Gguf) -> Result<Config, ModelError> {
    let name = file
        .string("general.architecture")
        .ok_or_else(|| ModelError::MissingKey("general.architecture".to_string()))?;
    let architecture = Architecture::parse(name)?;
    let keys = Keys { file, architecture: name };
    let hidden = keys.needed("embedding_length")?;
    let heads = keys.needed("attention.head_count")?;
    let layers = crate::config::checked_layers(keys.needed("block_count")?)?;
    let head_dim = match keys.count("attention.key_length")? {
        Some(length) => length,
        None => keys.count("rope.dimension_count")?.unwrap_or(hidden / heads.max(1)),
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
    let gemma = architecture == Architecture::Gemma3;
    let window = keys.count("attention.sliding_window")?.filter(|&window| window > 0);
    let pattern = keys.count("attention.sliding_window_pattern")?.unwrap_or(GEMMA3_PATTERN).max(1);
    let windows =
        (0..layers).map(|layer| window.filter(|_| gemma && (layer + 1) % pattern != 0)).collect();
    let rope = RopeConfig {
        base: keys.float("rope.freq_base")?.unwrap_or(10_000.0),
        scaling: rope_scaling(&keys, architecture, head_dim)?,
    };
    let window_base = keys.float("rope.freq_base_swa")?.unwrap_or(GEMMA3_WINDOW_BASE);
    let scale_base =
        if gemma && layers == GEMMA3_27B_LAYERS { hidden / heads.max(1) } else { head_dim };
    let vocabulary = match file.info("token_embd.weight") {
        Some(info) if info.shape.len() == 2 => info.shape[0],
        _ => return Err(ModelError::MissingTensor("token_embd.weight".to_string())),
    };
    Config {
        architecture,
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
        epsilon: keys.float("attention.layer_norm_rms_epsilon")?.unwrap_or(1e-6) as f32,
        activation: if gemma { Activation::GeluTanh } else { Activation::Silu },
        attention_scale: 1.0 / (scale_base as f32).sqrt(),
        window_rope: gemma.then_some(RopeConfig { base: window_base, scaling: RopeScaling::None }),
        rope,
        // The converter permutes llama's q and k so that pairs are neighbours; others it keeps.
        pairing: match architecture {
            Architecture::Llama => RopePairing::Adjacent,
            Architecture::Qwen2 | Architecture::Gemma3 => RopePairing::Halves,
        },
        windows,
        attention_soft_cap: keys.float("attn_logit_softcapping")?.map(|cap| cap as f32),
        final_soft_cap: keys.float("final_logit_softcapping")?.map(|cap| cap as f32),
        tied: file.info("output.weight").is_none(),
        attention_bias: file.info("blk.0.attn_q.bias").is_some(),
        output_bias: file.info("blk.0.attn_output.bias").is_some(),
        feed_forward_bias: file.info("blk.0.ffn_gate.bias").is_some(),
    }
    .validate()
}

fn rope_scaling(
    keys: &Keys<'_>,
    architecture: Architecture,
    head_dim: usize,
) -> Result<RopeScaling, ModelError> {
    // Llama 3's ramp comes as a divisor for each pair.
    if let Some(tensor) = keys.file.tensor("rope_freqs.weight") {
        let factors = tensor.to_f32();
        if factors.len() != head_dim / 2 {
            let (expected, found) = (vec![head_dim / 2], tensor.shape.clone());
            return Err(ModelError::Shape {
                name: "rope_freqs.weight".to_string(),
                expected,
                found,
            });
        }
        return Ok(RopeScaling::Factors(factors));
    }
    let factor = keys.float("rope.scaling.factor")?;
    match (keys.file.string(&keys.key("rope.scaling.type")), factor) {
        (None | Some("none"), None) => Ok(RopeScaling::None),
        (Some("none"), _) => Ok(RopeScaling::None),
        (None | Some("linear"), Some(factor)) => Ok(RopeScaling::Linear { factor }),
        (Some("yarn"), Some(factor)) => {
            let original =
                keys.float("rope.scaling.original_context_length")?.ok_or_else(|| {
                    ModelError::MissingKey(keys.key("rope.scaling.original_context_length"))
                })?;
            let magnitude = if factor <= 1.0 { 1.0 } else { 1.0 + 0.1 * factor.ln() };
            Ok(RopeScaling::Yarn { factor, fast: 32.0, slow: 1.0, original, magnitude })
        }
        (Some(kind), _) => Err(ModelError::value(
            &keys.key("rope.scaling.type"),
            kind,
            format!("not supported for {}; none, linear and yarn are", architecture.name()),
        )),
    }
}
