//! Phi 3: Llama's layer with q + k + v in one tensor and gate + up in another, a sliding window on
//! all layers, and rotary divisors for short and for long contexts.
//!
//! Abdin et al. 2024, <https://arxiv.org/abs/2404.14219>; the divisors: Ding et al. 2024,
//! <https://arxiv.org/abs/2402.13753>.

use crate::family::{AttentionBias, Family, FusedTensor, GgufRules, HuggingFaceRules, Windows};
use crate::llama;
use crate::role::Role;
use pianola_plan::RopePairing;

/// Phi 3 and 3.5 mini and medium.
pub(crate) const FAMILY: Family = Family {
    name: "phi3",
    fused: &[
        FusedTensor {
            roles: &[Role::Query, Role::Key, Role::Value],
            gguf: "attn_qkv",
            hugging_face: "self_attn.qkv_proj",
        },
        FusedTensor {
            roles: &[Role::Gate, Role::Up],
            gguf: "ffn_up",
            hugging_face: "mlp.gate_up_proj",
        },
    ],
    gguf: GgufRules {
        architecture: Some("phi3"),
        pairing: RopePairing::Halves,
        ..llama::FAMILY.gguf
    },
    hugging_face: HuggingFaceRules {
        model_types: &["phi3"],
        architectures: &["Phi3ForCausalLM"],
        attention_bias: AttentionBias::Never,
        windows: Windows::All,
        context: 4096,
        epsilon: 1e-5,
        ..llama::FAMILY.hugging_face
    },
    ..llama::FAMILY
};
