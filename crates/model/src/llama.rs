//! Llama: pre-norm, rotary positions, grouped-query attention, SwiGLU.
//!
//! Touvron et al. 2023, <https://arxiv.org/abs/2302.13971> and <https://arxiv.org/abs/2307.09288>.

use crate::build::Build;
use crate::error::ModelError;
use crate::family::{AttentionBias, Family, GgufRules, HuggingFaceRules, Windows};
use crate::role::Role;
use pianola_plan::{Activation, RopePairing, TensorId};

/// Llama 2 and 3, SmolLM2, TinyLlama.
pub(crate) const FAMILY: Family = Family {
    name: "llama",
    forward,
    activation: Activation::Silu,
    scaled_embedding: false,
    head_norms: false,
    post_norms: false,
    window_rope_base: None,
    attention_soft_cap: None,
    final_soft_cap: None,
    fused: &[],
    gguf: GgufRules {
        architecture: Some("llama"),
        // The converter permutes q and k so that rotated pairs are neighbours.
        pairing: RopePairing::Adjacent,
        // Mistral's files carry this name too.
        windows: Windows::All,
        window: None,
        scaled_by_width: None,
    },
    hugging_face: HuggingFaceRules {
        model_types: &["llama"],
        architectures: &[
            "LlamaForCausalLM",
            "LLaMAForCausalLM",
            "LlavaForConditionalGeneration",
            "LlavaNextForConditionalGeneration",
        ],
        names: &[],
        norm_offset: 0.0,
        attention_bias: AttentionBias::OnRequest,
        windows: Windows::None,
        window: None,
        scale_base: None,
        heads: None,
        kv_heads: None,
        head_dim: None,
        context: 2048,
        epsilon: 1e-6,
        rope_base: 10_000.0,
        tied: false,
    },
};

pub(crate) fn forward(model: &mut Build<'_>) -> Result<TensorId, ModelError> {
    let mut x = model.embed()?;
    for layer in 0..model.config.layers {
        model.enter_layer(layer);
        let h = model.norm(Role::AttentionNorm, x)?;
        let [q, k, v] = model.qkv(h)?;
        let a = model.attention(layer, q, k, v);
        let a = model.linear(Role::Output, a)?;
        x = model.add("attn_residual", x, a);
        let h = model.norm(Role::FeedForwardNorm, x)?;
        let f = model.feed_forward(h)?;
        x = model.add("ffn_residual", x, f);
    }
    model.head(x)
}
