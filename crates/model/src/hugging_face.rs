//! Configuration from a `config.json`, in both dialects: transformers 5 writes
//! `rope_parameters`, older ones `rope_theta`, `rope_local_base_freq` and `rope_scaling`.

mod keys;
mod record;
mod rope;

use crate::config::{Config, Dialect};
use crate::error::ModelError;
use crate::family::{AttentionBias, Family, Windows};
use crate::role::{PREFIXES, Part, Role};
use crate::unread::{UnreadKey, check_tensors};
use pianola_formats::{HuggingFaceFolder, TensorSource};
use pianola_plan::{Activation, RopePairing};
use record::Record;
use serde_json::Value;

/// Reads keys of an object, and records which; `null` counts as absent, as it does in transformers.
struct Keys<'a> {
    value: &'a Value,
    /// Names of the objects that it stands in, each with a dot behind it.
    path: String,
    record: &'a Record,
}

impl<'a> Keys<'a> {
    fn full(&self, key: &str) -> String {
        format!("{}{key}", self.path)
    }

    fn get(&self, key: &str) -> Option<&'a Value> {
        self.record.read(self.full(key));
        self.value.get(key).filter(|value| !value.is_null())
    }

    /// The keys of an object.
    fn object(&self, key: &str) -> Result<Option<Keys<'a>>, ModelError> {
        match self.get(key) {
            None => Ok(None),
            Some(value) if value.is_object() => {
                self.record.open(self.full(key));
                let path = format!("{}.", self.full(key));
                Ok(Some(Keys { value, path, record: self.record }))
            }
            Some(value) => Err(self.refused(key, value, "it must be an object")),
        }
    }

    fn refused(&self, key: &str, value: &Value, expected: impl ToString) -> ModelError {
        ModelError::value(&self.full(key), value, expected)
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
                None => Err(self.refused(key, value, format!("it must be {what}"))),
            },
        }
    }

    fn count(&self, key: &str) -> Result<Option<usize>, ModelError> {
        self.typed(key, "a whole number", |value| value.as_u64()?.try_into().ok())
    }

    /// `default` where the key is absent, none where it is `null`: a default of transformers that a
    /// configuration switches off.
    fn count_or(&self, key: &str, default: Option<usize>) -> Result<Option<usize>, ModelError> {
        if self.value.get(key).is_some() { self.count(key) } else { Ok(default) }
    }

    /// The same for a number.
    fn float_or(&self, key: &str, default: Option<f32>) -> Result<Option<f32>, ModelError> {
        let found = self.float(key)?.map(|value| value as f32);
        if self.value.get(key).is_some() { Ok(found) } else { Ok(default) }
    }

    fn needed(&self, key: &str) -> Result<usize, ModelError> {
        self.count(key)?.ok_or_else(|| ModelError::MissingKey(self.full(key)))
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
            Some(value) => Err(self.refused(key, value, "it must be a string")),
        }
    }
}

pub(crate) fn config(folder: &HuggingFaceFolder) -> Result<Config, ModelError> {
    let record = Record::default();
    let root = Keys { value: folder.config(), path: String::new(), record: &record };
    // A multimodal configuration keeps the text model's apart.
    let text = root.object("text_config")?;
    let keys = text.as_ref().unwrap_or(&root);
    // The outer name says what the pictures are read by.
    let model_type = root.text("model_type")?;
    let model_type = keys.text("model_type")?.or(model_type);
    let model_type = model_type.ok_or_else(|| ModelError::MissingKey("model_type".to_string()))?;
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
    refuse(keys)?;
    architectures(&root, family)?;
    // Inside another model this names the text model alone; the head is the outer one's.
    keys.get("architectures");
    let (prefix, vocabulary) = vocabulary(folder, keys, family)?;
    let rope::Tables { global: rope, window: window_rope } = rope::tables(keys, family, head_dim)?;
    let scale_base = match rules.scale_base {
        Some(default) => keys.float("query_pre_attn_scalar")?.unwrap_or(default),
        None => head_dim as f64,
    };
    let (attention_bias, output_bias) = match (rules.attention_bias, keys.flag("attention_bias")?) {
        (AttentionBias::Never, _) => (false, false),
        (AttentionBias::OnRequest, asked) => (asked == Some(true), asked == Some(true)),
        (AttentionBias::QueryKeyValue, asked) => (asked != Some(false), false),
    };
    let tied = keys.flag("tie_word_embeddings")?.or(root.flag("tie_word_embeddings")?);
    let config = Config {
        family,
        dialect: Dialect::HuggingFace,
        prefix: prefix.to_string(),
        name: root.text("_name_or_path")?.map(str::to_string),
        context: keys.count("max_position_embeddings")?.unwrap_or(rules.context),
        vocabulary,
        hidden,
        feed_forward: keys.needed("intermediate_size")?,
        layers,
        heads,
        kv_heads,
        head_dim,
        epsilon: keys.float("rms_norm_eps")?.unwrap_or(rules.epsilon) as f32,
        activation: activation(keys, family.activation)?,
        attention_scale: (1.0 / scale_base.sqrt()) as f32,
        rope,
        window_rope,
        pairing: RopePairing::Halves,
        windows: windows(keys, family, layers)?,
        attention_soft_cap: keys.float_or("attn_logit_softcapping", family.attention_soft_cap)?,
        final_soft_cap: keys.float_or("final_logit_softcapping", family.final_soft_cap)?,
        tied: tied.unwrap_or(rules.tied),
        attention_bias,
        output_bias,
        feed_forward_bias: keys.flag("mlp_bias")?.unwrap_or(false),
    };
    let config = config.validate()?;
    record.check(folder.config(), family)?;
    tensors(folder, &config)?;
    Ok(config)
}

/// Refuses tensors that the graph does not read.
fn tensors(folder: &HuggingFaceFolder, config: &Config) -> Result<(), ModelError> {
    let infos = folder.tensor_infos();
    let decoded = infos.iter().map(|info| info.name.as_str());
    let names = decoded.chain(folder.unsupported().map(|(name, _)| name));
    let head = Role::Head.locate(config, None, Part::Weight).name;
    let copied = config.tied && is_copy(folder, config, &head);
    let others = copied.then_some(head.as_str());
    check_tensors(config, names, others.as_slice())
}

/// Whether a head is the embedding once more, as some tools write it. A head of its own differs in every
/// row, and comparing some of them reads little of the file.
fn is_copy(folder: &HuggingFaceFolder, config: &Config, head: &str) -> bool {
    const COMPARED: usize = 64;
    let embedding = Role::Embedding.locate(config, None, Part::Weight).name;
    let (Some(head), Some(embedding)) = (folder.tensor(head), folder.tensor(&embedding)) else {
        return false;
    };
    let row = head.bytes.len() / config.vocabulary;
    let rows = (0..config.vocabulary).step_by(config.vocabulary.div_ceil(COMPARED));
    let mut places = rows.map(|index| index * row..(index + 1) * row);
    (head.ty, &head.shape) == (embedding.ty, &embedding.shape)
        && places.all(|place| head.bytes[place.clone()] == embedding.bytes[place])
}

/// Refuses a folder with another head than a language model's, such as a classifier.
fn architectures(root: &Keys<'_>, family: &'static Family) -> Result<(), ModelError> {
    const KEY: &str = "architectures";
    let Some(value) = root.get(KEY) else { return Ok(()) };
    let known = |name: &Value| {
        name.as_str().is_some_and(|name| family.hugging_face.architectures.contains(&name))
    };
    match value.as_array().is_some_and(|names| names.iter().all(known)) {
        true => Ok(()),
        false => {
            let meaning = "another model, or another head than a language model's";
            Err(UnreadKey { name: KEY, full: KEY, value }.refused(meaning, family))
        }
    }
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
    let read = |key: &str| match keys.text(key)? {
        None => Ok(None),
        Some("silu" | "swish") => Ok(Some(Activation::Silu)),
        Some("gelu_pytorch_tanh" | "gelu_new") => Ok(Some(Activation::GeluTanh)),
        Some(found) => {
            Err(ModelError::value(key, found, "silu and gelu_pytorch_tanh are supported"))
        }
    };
    // Gemma's name for it, and the name that all others have.
    match (read("hidden_activation")?, read("hidden_act")?) {
        (Some(first), Some(second)) if first != second => {
            let found = keys.text("hidden_act")?.unwrap_or_default();
            Err(ModelError::value("hidden_act", found, "hidden_activation says otherwise"))
        }
        (first, second) => Ok(first.or(second).unwrap_or(default)),
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
    let pattern = pattern(keys, rules.windows)?;
    // A family without windows leaves the key unread, so that a window is refused.
    let window = match rules.windows {
        Windows::None => None,
        _ => keys.count_or("sliding_window", rules.window)?,
    };
    let by_pattern = pattern.layers(window, layers);
    let Some(types) = keys.get("layer_types") else { return Ok(by_pattern) };
    let listed = listed(keys, types, layers)?;
    match pattern {
        Windows::AllButEvery(_) | Windows::From(_) => {
            Ok(listed.into_iter().map(|windowed| window.filter(|_| windowed)).collect())
        }
        // transformers does not read the list for these.
        Windows::None | Windows::All => {
            let agrees = by_pattern.iter().map(Option::is_some).eq(listed);
            let expected = format!("other windows than {} models have", family.name);
            agrees.then_some(by_pattern).ok_or_else(|| keys.refused("layer_types", types, expected))
        }
    }
}

/// The pattern by which layers have windows where they are not listed.
fn pattern(keys: &Keys<'_>, rule: Windows) -> Result<Windows, ModelError> {
    match rule {
        fixed @ (Windows::None | Windows::All) => Ok(fixed),
        Windows::From(default) => {
            let first = keys.count("max_window_layers")?.unwrap_or(default);
            let used = keys.flag("use_sliding_window")? == Some(true);
            Ok(if used { Windows::From(first) } else { Windows::None })
        }
        Windows::AllButEvery(default) => {
            let private = keys.count("_sliding_window_pattern")?;
            match keys.count("sliding_window_pattern")?.or(private).unwrap_or(default) {
                0 => Err(ModelError::value("sliding_window_pattern", 0, "it must be at least 1")),
                period => Ok(Windows::AllButEvery(period)),
            }
        }
    }
}

/// For each layer whether a list says that it has a window.
fn listed(keys: &Keys<'_>, types: &Value, layers: usize) -> Result<Vec<bool>, ModelError> {
    let list = types.as_array().filter(|list| list.len() == layers);
    let expected = || format!("it must list all {layers} layers");
    let list = list.ok_or_else(|| keys.refused("layer_types", types, expected()))?;
    let windowed = |ty: &Value| match ty.as_str() {
        Some("sliding_attention") => Ok(true),
        Some("full_attention") => Ok(false),
        _ => {
            let expected = "sliding_attention and full_attention are supported";
            Err(keys.refused("layer_types", ty, expected))
        }
    };
    list.iter().map(windowed).collect()
}
