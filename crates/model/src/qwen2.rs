//! Qwen 2 and 2.5: Llama's layer with biases on queries, keys and values.
//!
//! Yang et al. 2024, <https://arxiv.org/abs/2407.10671>.

use crate::family::{AttentionBias, Family, GgufRules, HuggingFaceRules, Windows};
use crate::llama;
use pianola_plan::RopePairing;

/// Qwen 2 and 2.5.
pub(crate) const FAMILY: Family = Family {
    name: "qwen2",
    gguf: GgufRules {
        architecture: Some("qwen2"),
        pairing: RopePairing::Halves,
        // Files do not say from which layer on there are windows, nor whether they are used.
        windows: Windows::None,
        ..llama::FAMILY.gguf
    },
    hugging_face: HuggingFaceRules {
        model_types: &["qwen2"],
        architectures: &["Qwen2ForCausalLM"],
        attention_bias: AttentionBias::QueryKeyValue,
        windows: Windows::From(28),
        window: Some(4096),
        context: 32_768,
        ..llama::FAMILY.hugging_face
    },
    ..llama::FAMILY
};
