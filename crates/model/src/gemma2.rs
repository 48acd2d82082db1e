//! Gemma 2: Gemma 3's layer without norms on q and k, every other layer windowed, soft caps on
//! attention scores and logits.
//!
//! Gemma Team 2024, <https://arxiv.org/abs/2408.00118>.

use crate::family::{Family, GgufRules, HuggingFaceRules, Windows};
use crate::gemma3;

/// Gemma 2.
pub(crate) const FAMILY: Family = Family {
    name: "gemma2",
    head_norms: false,
    window_rope_base: None,
    attention_soft_cap: Some(50.0),
    final_soft_cap: Some(30.0),
    gguf: GgufRules {
        architecture: Some("gemma2"),
        windows: Windows::AllButEvery(2),
        window: Some(4096),
        // 27B
        scaled_by_width: Some(46),
        ..gemma3::FAMILY.gguf
    },
    hugging_face: HuggingFaceRules {
        model_types: &["gemma2"],
        architectures: &["Gemma2ForCausalLM"],
        windows: Windows::AllButEvery(2),
        context: 8192,
        rope_base: 10_000.0,
        ..gemma3::FAMILY.hugging_face
    },
    ..gemma3::FAMILY
};
