//! Gemma 3, text: norms before and after each block, norms on q and k, windowed layers among
//! global ones with rotary tables of their own, GELU gates, scaled embeddings.
//!
//! Gemma Team 2025, <https://arxiv.org/abs/2503.19786>.

use crate::build::Build;
use crate::error::ModelError;
use crate::family::{AttentionBias, Family, GgufRules, HuggingFaceRules, Windows};
use crate::role::Role;
use pianola_plan::{Activation, RopePairing, TensorId};

/// Gemma 3, text.
pub(crate) const FAMILY: Family = Family {
    name: "gemma3",
    forward,
    activation: Activation::GeluTanh,
    scaled_embedding: true,
    head_norms: true,
    post_norms: true,
    window_rope_base: Some(10_000.0),
    attention_soft_cap: None,
    final_soft_cap: None,
    fused: &[],
    gguf: GgufRules {
        architecture: Some("gemma3"),
        pairing: RopePairing::Halves,
        windows: Windows::AllButEvery(6),
        window: None,
        // 27B
        scaled_by_width: Some(62),
    },
    hugging_face: HuggingFaceRules {
        model_types: &["gemma3_text", "gemma3"],
        architectures: &["Gemma3ForCausalLM", "Gemma3ForConditionalGeneration"],
        // The usual name of this norm is here that of the one behind attention.
        names: &[(Role::FeedForwardNorm, "pre_feedforward_layernorm")],
        norm_offset: 1.0,
        attention_bias: AttentionBias::OnRequest,
        windows: Windows::AllButEvery(6),
        window: Some(4096),
        scale_base: Some(256.0),
        heads: Some(8),
        kv_heads: Some(4),
        head_dim: Some(256),
        context: 131_072,
        epsilon: 1e-6,
        rope_base: 1_000_000.0,
        tied: true,
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
        let a = model.norm(Role::AfterAttentionNorm, a)?;
        x = model.add("attn_residual", x, a);
        let h = model.norm(Role::FeedForwardNorm, x)?;
        let f = model.feed_forward(h)?;
        let f = model.norm(Role::AfterFeedForwardNorm, f)?;
        x = model.add("ffn_residual", x, f);
    }
    model.head(x)
}
