//! Qwen 3: Llama's layer with norms on the heads of queries and keys.
//!
//! Yang et al. 2025, <https://arxiv.org/abs/2505.09388>.

use crate::family::{AttentionBias, Family, GgufRules, HuggingFaceRules};
use crate::qwen2;

/// Qwen 3, dense.
pub(crate) const FAMILY: Family = Family {
    name: "qwen3",
    head_norms: true,
    gguf: GgufRules { architecture: Some("qwen3"), ..qwen2::FAMILY.gguf },
    hugging_face: HuggingFaceRules {
        model_types: &["qwen3"],
        architectures: &["Qwen3ForCausalLM"],
        attention_bias: AttentionBias::OnRequest,
        head_dim: Some(128),
        ..qwen2::FAMILY.hugging_face
    },
    ..qwen2::FAMILY
};
