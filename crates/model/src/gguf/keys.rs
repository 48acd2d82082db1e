//! Keys of GGUF files that no family reads in every case, and when they change no result.

use super::Keys;
use crate::error::ModelError;
use crate::family::Family;
use crate::unread::Harmless::{Flag, Number};
use crate::unread::{Known, Refusals, UnreadKey};
use pianola_formats::{Array, Value};
use serde_json::json;

/// Keys that change no result, whatever they say.
const HARMLESS: [&str; 3] = [
    // How the rows of q and k lay in the original, not in this file.
    "tensor_data_layout",
    "rope.scaling.finetuned",
    // Only the stretchings that read it use it.
    "rope.scaling.original_context_length",
];

/// Keys of the part that reads pictures. It is left out, with a notice.
const VISION: [&str; 2] = ["vision.", "mm."];

const fn known(
    name: &'static str,
    harmless: &'static [crate::unread::Harmless],
    meaning: &'static str,
) -> Known {
    Known { name, harmless, meaning }
}

const MIXTURE: &str = "a mixture of experts";
const STRETCH: &str = "another stretching of positions";
const POOLED: &str = "a vector as output, as embedding models have";
const FACTOR: &str = "a factor on activations";
const RECURRENT: &str = "recurrent layers";

const KNOWN: [Known; 35] = [
    known(
        "attention.causal",
        &[Flag(true)],
        "attention in both directions, as embedding models have",
    ),
    // Negative: not said.
    known("pooling_type", &[Number(0.0), Number(-1.0)], POOLED),
    known("dense_", &[], POOLED),
    known("classifier.", &[], "a classifier"),
    known("expert_", &[Number(0.0), Flag(false)], MIXTURE),
    known("experts_", &[Number(0.0)], MIXTURE),
    known("moe_", &[Number(0.0)], MIXTURE),
    known("leading_dense_block_count", &[Number(0.0)], MIXTURE),
    known("interleave_moe_layer_step", &[Number(0.0)], MIXTURE),
    known("nextn_predict_layers", &[Number(0.0)], "layers that predict further tokens"),
    known("logit_scale", &[Number(1.0), Number(0.0)], "a factor on logits"),
    known("residual_scale", &[Number(1.0), Number(0.0)], FACTOR),
    known("embedding_scale", &[Number(1.0), Number(0.0)], "a factor on embeddings"),
    known("attention.output_scale", &[Number(1.0), Number(0.0)], FACTOR),
    known("attention.value_scale", &[Number(1.0), Number(0.0)], FACTOR),
    known("attention.temperature_", &[Number(0.0)], "attention scores that depend on positions"),
    known("attention.clamp_kqv", &[Number(0.0)], "a limit on queries, keys and values"),
    known("attention.max_alibi_bias", &[Number(0.0)], "positions by ALiBi"),
    known("attention.shared_kv_layers", &[Number(0.0)], "layers that share keys and values"),
    known("attention.layer_norm_epsilon", &[], "norms that subtract the mean"),
    known("attention.sliding_window_pattern", &[], "windows on some layers"),
    known("attention.rope_pattern", &[], "layers without positions"),
    known("use_parallel_residual", &[Flag(false)], "blocks side by side"),
    known("rope.scale_linear", &[Number(1.0), Number(0.0)], STRETCH),
    known("rope.scaling.factor", &[Number(1.0), Number(0.0)], STRETCH),
    known("rope.scaling.alpha", &[Number(0.0)], STRETCH),
    known("rope.scaling.attn_factor", &[Number(1.0)], "a factor on rotated values"),
    known("rope.scaling.yarn_attn_factor", &[Number(1.0)], "a factor on rotated values"),
    known("rope.scaling.yarn_log_multiplier", &[Number(0.0)], "a factor on rotated values"),
    known("rope.scaling.yarn_ext_factor", &[Number(1.0), Number(-1.0)], STRETCH),
    known("rope.scaling.yarn_beta_fast", &[Number(32.0)], STRETCH),
    known("rope.scaling.yarn_beta_slow", &[Number(1.0)], STRETCH),
    known("rope.dimension_sections", &[], "positions in several dimensions"),
    known("ssm.", &[], RECURRENT),
    known("wkv.", &[], RECURRENT),
];

/// Refuses a key of the model that nothing read and that may change a result.
pub(super) fn check(keys: &Keys<'_>, family: &'static Family) -> Result<(), ModelError> {
    let mut refusals = Refusals::default();
    for (full, value) in keys.file.metadata() {
        let name = full.strip_prefix(keys.architecture).and_then(|rest| rest.strip_prefix('.'));
        let Some(name) = name.filter(|_| !keys.read.borrow().contains(full)) else { continue };
        let vision = VISION.iter().any(|start| name.starts_with(start));
        if !vision && !HARMLESS.contains(&name) {
            refusals.add(UnreadKey { name, full, value: &as_json(value) }, &KNOWN, family);
        }
    }
    refusals.finish()
}

/// A value for comparison and for messages; of a list of text only that it is one.
fn as_json(value: &Value) -> serde_json::Value {
    match value {
        Value::Bool(flag) => json!(flag),
        Value::String(text) => json!(text),
        Value::Array(Array::Bool(list)) => json!(list),
        Value::Array(list) => match list.to_floats() {
            Some(numbers) => json!(numbers),
            None => json!(format!("a list of {}", list.len())),
        },
        Value::F32(number) => json!(number),
        Value::F64(number) => json!(number),
        _ => {
            let number = value.as_integer().unwrap_or_default();
            i64::try_from(number).map_or(json!(number.to_string()), |number| json!(number))
        }
    }
}
