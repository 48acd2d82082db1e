//! Mistral: Llama's layer with a sliding window on all layers; later versions have none.
//!
//! Jiang et al. 2023, <https://arxiv.org/abs/2310.06825>.

use crate::family::{AttentionBias, Family, GgufRules, HuggingFaceRules, Windows};
use crate::llama;

/// Mistral 7B.
pub(crate) const FAMILY: Family = Family {
    name: "mistral",
    // GGUF files say llama, and have a window or none.
    gguf: GgufRules { architecture: None, ..llama::FAMILY.gguf },
    hugging_face: HuggingFaceRules {
        model_types: &["mistral"],
        architectures: &[
            "MistralForCausalLM",
            "Mistral3ForConditionalGeneration",
            "LlavaForConditionalGeneration",
            "LlavaNextForConditionalGeneration",
        ],
        attention_bias: AttentionBias::Never,
        windows: Windows::All,
        window: Some(4096),
        kv_heads: Some(8),
        context: 131_072,
        ..llama::FAMILY.hugging_face
    },
    ..llama::FAMILY
};
