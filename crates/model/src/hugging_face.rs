//! Configuration from a `config.json`, in both dialects: transformers 5 writes
//! `rope_parameters`, older ones `rope_theta`, `rope_local_base_freq` and `rope_scaling`.

mod rope;

use crate::config::{Config, Dialect};
use crate::error::ModelError;
use crate::family::{AttentionBias, Family, Windows};
use crate::role::{PREFIXES, Role};
use pianola_formats::{HuggingFaceFolder, TensorSource};
use pianola_plan::{Activation, RopePairing};
use serde_json::Value;

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

    /// `default` where the key is absent, none where it is `null`: a default of transformers that a
    /// configuration switches off.
    fn count_or(&self, key: &str, default: Option<usize>) -> Result<Option<usize>, ModelError> {
        if self.0.get(key).is_some() { self.count(key) } else { Ok(default) }
    }

    /// The same for a number.
    fn float_or(&self, key: &str, default: Option<f32>) -> Result<Option<f32>, ModelError> {
        let found = self.float(key)?.map(|value| value as f32);
        if self.0.get(key).is_some() { Ok(found) } else { Ok(default) }
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
    let family = Family::of_model_type(model_type)?;
    let rules = &family.hugging_face;
    let hidden = keys.needed("hidden_size")?;
    let layers = crate::config::checked_layers(keys.needed("num_hidden_layers")?)?;
    let heads = match (keys.count("num_attention_heads")?, rules.heads) {
        (Some(heads), _) | (None, Some(heads)) => heads,
        _ => return Err(ModelError::MissingKey("num_attention_heads".to_string())),
    };
    let kv_heads = keys.count_or("num_key_value_heads", rules.kv_heads)?.unwrap_or(heads);
    let head_dim = keys.count("head_dim")?.or(rules.head_dim).unwrap_or(hidden / heads.max(1));
    refuse(&keys)?;
    let (prefix, vocabulary) = vocabulary(folder, &keys, family)?;
    let (rope, window_rope) = rope::tables(&keys, family, head_dim)?;
    let scale_base = match rules.scale_base {
        Some(default) => keys.float("query_pre_attn_scalar")?.unwrap_or(default),
        None => head_dim as f64,
    };
    let (attention_bias, output_bias) = match (rules.attention_bias, keys.flag("attention_bias")?) {
        (AttentionBias::Never, _) => (false, false),
        (AttentionBias::OnRequest, asked) => (asked == Some(true), asked == Some(true)),
        (AttentionBias::QueryKeyValue, asked) => (asked != Some(false), false),
    };
    let tied = keys.flag("tie_word_embeddings")?.or(Keys(root).flag("tie_word_embeddings")?);
    Config {
        family,
        dialect: Dialect::HuggingFace,
        prefix: prefix.to_string(),
        name: Keys(root).text("_name_or_path")?.map(str::to_string),
        context: keys.count("max_position_embeddings")?.unwrap_or(rules.context),
        vocabulary,
        hidden,
        feed_forward: keys.needed("intermediate_size")?,
        layers,
        heads,
        kv_heads,
        head_dim,
        epsilon: keys.float("rms_norm_eps")?.unwrap_or(rules.epsilon) as f32,
        activation: activation(&keys, family.activation)?,
        attention_scale: (1.0 / scale_base.sqrt()) as f32,
        rope,
        window_rope,
        pairing: RopePairing::Halves,
        windows: windows(&keys, family, layers)?,
        attention_soft_cap: keys.float_or("attn_logit_softcapping", family.attention_soft_cap)?,
        final_soft_cap: keys.float_or("final_logit_softcapping", family.final_soft_cap)?,
        tied: tied.unwrap_or(rules.tied),
        attention_bias,
        output_bias,
        feed_forward_bias: keys.flag("mlp_bias")?.unwrap_or(false),
    }
    .validate()
}

/// The prefix of the text model's tensors, and the entries of its vocabulary.
fn vocabulary(
    folder: &HuggingFaceFolder,
    keys: &Keys<'_>,
    family: &Family,
) -> Result<(&'static str, usize), ModelError> {
    let name = Role::Embedding.file_name(family, Dialect::HuggingFace);
    let (prefix, embedding) = PREFIXES
        .into_iter()
        .find_map(|prefix| Some((prefix, folder.info(&format!("{prefix}{name}.weight"))?)))
        .ok_or_else(|| ModelError::MissingTensor(format!("model.{name}.weight")))?;
    let vocabulary = embedding.shape.first().copied().unwrap_or(0);
    if let Some(found) = keys.count("vocab_size")?.filter(|&found| found != vocabulary) {
        let expected = format!("the embedding has {vocabulary} rows");
        return Err(ModelError::value("vocab_size", found, expected));
    }
    Ok((prefix, vocabulary))
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
        let expected = "pre-quantised folders are not supported; use the f16 or bf16 weights, quantised at load";
        return Err(ModelError::value("quantization_config.quant_method", method, expected));
    }
    Ok(())
}

fn activation(keys: &Keys<'_>, default: Activation) -> Result<Activation, ModelError> {
    let found = match keys.text("hidden_activation")? {
        Some(found) => Some(found),
        None => keys.text("hidden_act")?,
    };
    match found {
        None => Ok(default),
        Some("silu" | "swish") => Ok(Activation::Silu),
        Some("gelu_pytorch_tanh" | "gelu_new") => Ok(Activation::GeluTanh),
        Some(found) => {
            Err(ModelError::value("hidden_act", found, "silu and gelu_pytorch_tanh are supported"))
        }
    }
}

/// For each layer its window. A configuration lists the layers that have one, or gives the pattern,
/// or leaves it to the family.
fn windows(
    keys: &Keys<'_>,
    family: &Family,
    layers: usize,
) -> Result<Vec<Option<usize>>, ModelError> {
    let rules = &family.hugging_face;
    let window = keys.count_or("sliding_window", rules.window)?;
    let pattern = match rules.windows {
        // transformers reads neither a list of layers nor a pattern for these.
        fixed @ (Windows::None | Windows::All) => return Ok(fixed.layers(window, layers)),
        Windows::From(_) if keys.flag("use_sliding_window")? != Some(true) => Windows::None,
        Windows::From(default) => {
            Windows::From(keys.count("max_window_layers")?.unwrap_or(default))
        }
        Windows::AllButEvery(default) => {
            let period = match keys.count("sliding_window_pattern")? {
                Some(period) => period,
                None => keys.count("_sliding_window_pattern")?.unwrap_or(default),
            };
            if period == 0 {
                return Err(ModelError::value(
                    "sliding_window_pattern",
                    0,
                    "it must be at least 1",
                ));
            }
            Windows::AllButEvery(period)
        }
    };
    let Some(types) = keys.get("layer_types").filter(|_| pattern != Windows::None) else {
        return Ok(pattern.layers(window, layers));
    };
    let list = types.as_array().filter(|list| list.len() == layers);
    let list = list.ok_or_else(|| {
        ModelError::value("layer_types", types, format!("it must list all {layers} layers"))
    })?;
    list.iter()
        .map(|ty| match ty.as_str() {
            Some("sliding_attention") => Ok(window),
            Some("full_attention") => Ok(None),
            _ => Err(ModelError::value(
                "layer_types",
                ty,
                "sliding_attention and full_attention are supported",
            )),
        })
        .collect()
}
