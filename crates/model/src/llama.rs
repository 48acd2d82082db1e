//! Llama: pre-norm, rotary positions, grouped-query attention, SwiGLU.
//!
//! Touvron et al. 2023, <https://arxiv.org/abs/2302.13971> and <https://arxiv.org/abs/2307.09288>.

use crate::build::Build;
use crate::error::ModelError;
use crate::names::Role;
use pianola_plan::TensorId;

pub(crate) fn forward(model: &mut Build<'_>) -> Result<TensorId, ModelError> {
    let mut x = model.embed(1.0)?;
    for layer in 0..model.config.layers {
        model.enter_layer(layer);
        let h = model.norm(Role::AttentionNorm, x)?;
        let [q, k, v] = model.qkv(h)?;
        let a = model.attention(layer, q, k, v);
        let a = model.attention_output(a)?;
        x = model.add("attn_residual", x, a);
        let h = model.norm(Role::FeedForwardNorm, x)?;
        let f = model.feed_forward(h)?;
        x = model.add("ffn_residual", x, f);
    }
    model.head(x)
}
