//! Gemma 3, text: norms before and after each block, norms on q and k, windowed layers among
//! global ones with rotary tables of their own, GELU gates, scaled embeddings.
//!
//! Gemma Team 2025, <https://arxiv.org/abs/2503.19786>.

use crate::build::Build;
use crate::error::ModelError;
use crate::names::Role;
use pianola_plan::TensorId;

pub(crate) fn forward(model: &mut Build<'_>) -> Result<TensorId, ModelError> {
    let mut x = model.embed((model.config.hidden as f32).sqrt())?;
    for layer in 0..model.config.layers {
        model.enter_layer(layer);
        let h = model.norm(Role::AttentionNorm, x)?;
        let [q, k, v] = model.qkv(h)?;
        let q = model.norm_heads(Role::QueryNorm, q, model.config.heads)?;
        let k = model.norm_heads(Role::KeyNorm, k, model.config.kv_heads)?;
        let a = model.attention(layer, q, k, v);
        let a = model.attention_output(a)?;
        let a = model.norm(Role::AfterAttentionNorm, a)?;
        x = model.add("attn_residual", x, a);
        let h = model.norm(Role::FeedForwardNorm, x)?;
        let f = model.feed_forward(h)?;
        let f = model.norm(Role::AfterFeedForwardNorm, f)?;
        x = model.add("ffn_residual", x, f);
    }
    model.head(x)
}
