//! Configuration from a `config.json`, in both dialects: transformers 5 writes
//! `rope_parameters`, older ones `rope_theta`, `rope_local_base_freq` and `rope_scaling`.

use crate::config::{Architecture, Config, Dialect, RopeConfig, RopeScaling};
use crate::error::ModelError;
use crate::names::PREFIXES;
use pianola_formats::{HuggingFaceFolder, TensorSource};
use pianola_plan::{Activation, RopePairing};
use serde_json::Value;

/// What a configuration leaves out because it is the default of its class in transformers.
struct Defaults {
    heads: Option<usize>,
    kv_heads: Option<usize>,
    head_dim: Option<usize>,
    context: usize,
    rope_base: f64,
    window: Option<usize>,
    activation: &'static str,
    tied: bool,
    attention_bias: bool,
}

fn defaults(architecture: Architecture) -> Defaults {
    match architecture {
        Architecture::Llama => Defaults {
            heads: None,
            kv_heads: None,
            head_dim: None,
            context: 2048,
            rope_base: 10_000.0,
            window: None,
            activation: "silu",
            tied: false,
            attention_bias: false,
        },
        Architecture::Qwen2 => Defaults {
            context: 32_768,
            window: Some(4096),
            attention_bias: true,
            ..defaults(Architecture::Llama)
        },
        Architecture::Gemma3 => Defaults {
            heads: Some(8),
            kv_heads: Some(4),
            head_dim: Some(256),
            context: 131_072,
            rope_base: 1_000_000.0,
            window: Some(4096),
            activation: "gelu_pytorch_tanh",
            tied: true,
            attention_bias: false,
        },
    }
}

/// Reads keys; `null` counts as absent, as it does in transformers.
struct Keys<'a>(&'a Value);

impl<'a> Keys<'a> {
    fn get(&self, key: &str) -> Option<&'a Value> {
        self.0.get(key).filter(|value| !value.is_null())
    }

    fn typed<T>(
        &self,
        key: &str,
        what: &str,
        read: impl Fn(&Value) -> Option<T>,
    ) -> Result<Option<T>, ModelError> {
        match self.get(key) {
            None => Ok(None),
            Some(value) => match read(value) {
                Some(read) => Ok(Some(read)),
                None => Err(ModelError::value(key, value, format!("it must be {what}"))),
            },
        }
    }

    fn count(&self, key: &str) -> Result<Option<usize>, ModelError> {
        self.typed(key, "a whole number", |value| value.as_u64()?.try_into().ok())
    }

    fn needed(&self, key: &str) -> Result<usize, ModelError> {
        self.count(key)?.ok_or_else(|| ModelError::MissingKey(key.to_string()))
    }

    fn float(&self, key: &str) -> Result<Option<f64>, ModelError> {
        self.typed(key, "a number", Value::as_f64)
    }

    fn flag(&self, key: &str) -> Result<Option<bool>, ModelError> {
        self.typed(key, "true or false", Value::as_bool)
    }

    fn text(&self, key: &str) -> Result<Option<&'a str>, ModelError> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(value) => Err(ModelError::value(key, value, "it must be a string")),
        }
    }
}

pub(crate) fn config(folder: &HuggingFaceFolder) -> Result<Config, ModelError> {
    let root = folder.config();
    // A multimodal configuration keeps the text model's apart.
    let text = root.get("text_config").filter(|value| value.is_object()).unwrap_or(root);
    let keys = Keys(text);
    let model_type = match keys.text("model_type")? {
        Some(found) => found,
        None => Keys(root)
            .text("model_type")?
            .ok_or_else(|| ModelError::MissingKey("model_type".to_string()))?,
    };
    let architecture = Architecture::parse(model_type)?;
    let defaults = defaults(architecture);
    let hidden = keys.needed("hidden_size")?;
    let layers = crate::config::checked_layers(keys.needed("num_hidden_layers")?)?;
    let heads = match (keys.count("num_attention_heads")?, defaults.heads) {
        (Some(heads), _) | (None, Some(heads)) => heads,
        _ => return Err(ModelError::MissingKey("num_attention_heads".to_string())),
    };
    let kv_heads = keys.count("num_key_value_heads")?.or(defaults.kv_heads).unwrap_or(heads);
    let head_dim = keys.count("head_dim")?.or(defaults.head_dim).unwrap_or(hidden / heads.max(1));
    refuse(&keys)?;
    let prefix = PREFIXES
        .into_iter()
        .find(|prefix| folder.info(&format!("{prefix}embed_tokens.weight")).is_some())
        .ok_or_else(|| ModelError::MissingTensor("model.embed_tokens.weight".to_string()))?;
    let embedding = folder.info(&format!("{prefix}embed_tokens.weight"));
    let vocabulary = embedding.and_then(|info| info.shape.first().copied()).unwrap_or(0);
    if let Some(found) = keys.count("vocab_size")?.filter(|&found| found != vocabulary) {
        let expected = format!("the embedding has {vocabulary} rows");
        return Err(ModelError::value("vocab_size", found, expected));
    }
    let gemma = architecture == Architecture::Gemma3;
    let (rope, window_rope) = ropes(&keys, gemma, defaults.rope_base)?;
    let scale_base = match keys.float("query_pre_attn_scalar")? {
        Some(base) if gemma => base,
        None if gemma => 256.0,
        _ => head_dim as f64,
    };
    let attention_bias = keys.flag("attention_bias")?.unwrap_or(defaults.attention_bias);
    let tied = keys.flag("tie_word_embeddings")?.or(Keys(root).flag("tie_word_embeddings")?);
    Config {
        architecture,
        dialect: Dialect::HuggingFace,
        prefix: prefix.to_string(),
        name: Keys(root).text("_name_or_path")?.map(str::to_string),
        context: keys.count("max_position_embeddings")?.unwrap_or(defaults.context),
        vocabulary,
        hidden,
        feed_forward: keys.needed("intermediate_size")?,
        layers,
        heads,
        kv_heads,
        head_dim,
        epsilon: keys.float("rms_norm_eps")?.unwrap_or(1e-6) as f32,
        activation: activation(&keys, defaults.activation)?,
        attention_scale: (1.0 / scale_base.sqrt()) as f32,
        rope,
        window_rope,
        pairing: RopePairing::Halves,
        windows: windows(&keys, architecture, layers, defaults.window)?,
        attention_soft_cap: keys.float("attn_logit_softcapping")?.map(|cap| cap as f32),
        final_soft_cap: keys.float("final_logit_softcapping")?.map(|cap| cap as f32),
        tied: tied.unwrap_or(defaults.tied),
        attention_bias,
        // Llama's flag covers the output projection too; Qwen 2 never has that bias.
        output_bias: attention_bias && architecture != Architecture::Qwen2,
        feed_forward_bias: keys.flag("mlp_bias")?.unwrap_or(false),
    }
    .validate()
}

/// What would change the result and is not done.
fn refuse(keys: &Keys<'_>) -> Result<(), ModelError> {
    if keys.flag("use_bidirectional_attention")? == Some(true) {
        return Err(ModelError::value(
            "use_bidirectional_attention",
            true,
            "only causal attention is supported",
        ));
    }
    if let Some(quantization) = keys.get("quantization_config") {
        let method = quantization.get("quant_method").unwrap_or(&Value::Null);
        let expected =
            "pre-quantised folders are not supported; use the f16 or bf16 weights with --quantize";
        return Err(ModelError::value("quantization_config.quant_method", method, expected));
    }
    Ok(())
}

fn activation(keys: &Keys<'_>, default: &str) -> Result<Activation, ModelError> {
    let found = match keys.text("hidden_activation")? {
        Some(found) => found,
        None => keys.text("hidden_act")?.unwrap_or(default),
    };
    match found {
        "silu" | "swish" => Ok(Activation::Silu),
        "gelu_pytorch_tanh" | "gelu_new" => Ok(Activation::GeluTanh),
        _ => {
            Err(ModelError::value("hidden_act", found, "silu and gelu_pytorch_tanh are supported"))
        }
    }
}

fn windows(
    keys: &Keys<'_>,
    architecture: Architecture,
    layers: usize,
    default: Option<usize>,
) -> Result<Vec<Option<usize>>, ModelError> {
    let window = keys.count("sliding_window")?.or(default);
    let gemma = architecture == Architecture::Gemma3;
    let used = match architecture {
        Architecture::Llama => false,
        Architecture::Qwen2 => keys.flag("use_sliding_window")?.unwrap_or(false),
        Architecture::Gemma3 => true,
    };
    if !used {
        return Ok(vec![None; layers]);
    }
    if let Some(types) = keys.get("layer_types") {
        let list = types.as_array().filter(|list| list.len() == layers);
        let list = list.ok_or_else(|| {
            ModelError::value("layer_types", types, format!("it must list all {layers} layers"))
        })?;
        return list
            .iter()
            .map(|ty| match ty.as_str() {
                Some("sliding_attention") => Ok(window),
                Some("full_attention") => Ok(None),
                _ => Err(ModelError::value(
                    "layer_types",
                    ty,
                    "sliding_attention and full_attention are supported",
                )),
            })
            .collect();
    }
    if gemma {
        let pattern = match keys.count("sliding_window_pattern")? {
            Some(pattern) => pattern,
            None => keys.count("_sliding_window_pattern")?.unwrap_or(6),
        };
        return Ok((0..layers)
            .map(|layer| window.filter(|_| (layer + 1) % pattern.max(1) != 0))
            .collect());
    }
    let first = keys.count("max_window_layers")?.unwrap_or(28);
    Ok((0..layers).map(|layer| window.filter(|_| layer >= first)).collect())
}

/// Rotary tables of global and of windowed layers.
fn ropes(
    keys: &Keys<'_>,
    gemma: bool,
    default_base: f64,
) -> Result<(RopeConfig, Option<RopeConfig>), ModelError> {
    const WINDOW_BASE: f64 = 10_000.0;
    let context = keys.count("max_position_embeddings")?;
    let base = keys.float("rope_theta")?.unwrap_or(default_base);
    let table = |value: &Value, base: f64| -> Result<RopeConfig, ModelError> {
        let inner = Keys(value);
        let base = inner.float("rope_theta")?.unwrap_or(base);
        Ok(RopeConfig { base, scaling: scaling(&inner, context)? })
    };
    match keys.get("rope_parameters") {
        Some(parameters) if parameters.get("full_attention").is_some() => {
            let global = table(&parameters["full_attention"], base)?;
            let window = parameters.get("sliding_attention").filter(|value| !value.is_null());
            let window = window.map(|value| table(value, WINDOW_BASE)).transpose()?;
            Ok((global, window))
        }
        Some(parameters) => {
            let window = keys.float("rope_local_base_freq")?.unwrap_or(WINDOW_BASE);
            let window = RopeConfig { base: window, scaling: RopeScaling::None };
            Ok((table(parameters, base)?, gemma.then_some(window)))
        }
        None => {
            let scaling = match keys.get("rope_scaling") {
                Some(value) => scaling(&Keys(value), context)?,
                None => RopeScaling::None,
            };
            let window = keys.float("rope_local_base_freq")?.unwrap_or(WINDOW_BASE);
            let window = RopeConfig { base: window, scaling: RopeScaling::None };
            Ok((RopeConfig { base, scaling }, gemma.then_some(window)))
        }
    }
}

fn scaling(keys: &Keys<'_>, context: Option<usize>) -> Result<RopeScaling, ModelError> {
    let kind = match keys.text("rope_type")? {
        Some(kind) => Some(kind),
        None => keys.text("type")?,
    };
    if keys.float("partial_rotary_factor")?.is_some_and(|factor| factor != 1.0) {
        let found = keys.get("partial_rotary_factor").unwrap_or(&Value::Null);
        return Err(ModelError::value(
            "partial_rotary_factor",
            found,
            "only whole heads are rotated",
        ));
    }
    let number =
        |key: &str| keys.float(key)?.ok_or_else(|| ModelError::MissingKey(key.to_string()));
    let original = || match keys.float("original_max_position_embeddings")? {
        Some(original) => Ok(original),
        None => context
            .map(|context| context as f64)
            .ok_or_else(|| ModelError::MissingKey("original_max_position_embeddings".to_string())),
    };
    match kind {
        None | Some("default") => Ok(RopeScaling::None),
        Some("linear") => Ok(RopeScaling::Linear { factor: number("factor")? }),
        Some("llama3") => Ok(RopeScaling::Llama3 {
            factor: number("factor")?,
            low: number("low_freq_factor")?,
            high: number("high_freq_factor")?,
            original: original()?,
        }),
        Some("yarn") => {
            let factor = number("factor")?;
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
        Some(found) => Err(ModelError::value(
            "rope_type",
            found,
            "default, linear, llama3 and yarn are supported",
        )),
    }
}
