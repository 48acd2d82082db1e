//! What tensors are called in GGUF files and in Hugging Face folders.

use crate::config::{Config, Dialect};

/// A tensor of a transformer by its role.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Role {
    Embedding,
    Head,
    FinalNorm,
    AttentionNorm,
    Query,
    Key,
    Value,
    Output,
    QueryNorm,
    KeyNorm,
    AfterAttentionNorm,
    FeedForwardNorm,
    Gate,
    Up,
    Down,
    AfterFeedForwardNorm,
}

impl Role {
    /// Name in the plan, and in GGUF files behind `blk.N.`
    pub fn short(self) -> &'static str {
        match self {
            Role::Embedding => "token_embd",
            Role::Head => "output",
            Role::FinalNorm => "output_norm",
            Role::AttentionNorm => "attn_norm",
            Role::Query => "attn_q",
            Role::Key => "attn_k",
            Role::Value => "attn_v",
            Role::Output => "attn_output",
            Role::QueryNorm => "attn_q_norm",
            Role::KeyNorm => "attn_k_norm",
            Role::AfterAttentionNorm => "post_attention_norm",
            Role::FeedForwardNorm => "ffn_norm",
            Role::Gate => "ffn_gate",
            Role::Up => "ffn_up",
            Role::Down => "ffn_down",
            Role::AfterFeedForwardNorm => "post_ffw_norm",
        }
    }

    /// Name in a Hugging Face folder. Where a layer has four norms (Gemma), the one before the
    /// feed-forward layer has another name than where it has two.
    fn hugging_face(self, four_norms: bool) -> &'static str {
        match self {
            Role::Embedding => "embed_tokens",
            Role::Head => "lm_head",
            Role::FinalNorm => "norm",
            Role::AttentionNorm => "input_layernorm",
            Role::Query => "self_attn.q_proj",
            Role::Key => "self_attn.k_proj",
            Role::Value => "self_attn.v_proj",
            Role::Output => "self_attn.o_proj",
            Role::QueryNorm => "self_attn.q_norm",
            Role::KeyNorm => "self_attn.k_norm",
            Role::AfterAttentionNorm => "post_attention_layernorm",
            Role::FeedForwardNorm if four_norms => "pre_feedforward_layernorm",
            Role::FeedForwardNorm => "post_attention_layernorm",
            Role::Gate => "mlp.gate_proj",
            Role::Up => "mlp.up_proj",
            Role::Down => "mlp.down_proj",
            Role::AfterFeedForwardNorm => "post_feedforward_layernorm",
        }
    }

    /// The tensor's name in the file; `kind` is `weight` or `bias`.
    pub fn name(self, config: &Config, layer: Option<usize>, kind: &str) -> String {
        match config.dialect {
            Dialect::Gguf => {
                let prefix = layer.map_or(String::new(), |layer| format!("blk.{layer}."));
                format!("{prefix}{}.{kind}", self.short())
            }
            Dialect::HuggingFace => {
                let four_norms = config.architecture == crate::Architecture::Gemma3;
                let name = self.hugging_face(four_norms);
                let prefix = &config.prefix;
                match (self, layer) {
                    // The head stands beside the model, not in it.
                    (Role::Head, _) => {
                        let outer =
                            if prefix == "language_model.model." { "language_model." } else { "" };
                        format!("{outer}{name}.{kind}")
                    }
                    (_, Some(layer)) => format!("{prefix}layers.{layer}.{name}.{kind}"),
                    (_, None) => format!("{prefix}{name}.{kind}"),
                }
            }
        }
    }
}

/// Prefixes under which folders keep the text model: plain, and inside a multimodal one.
pub(crate) const PREFIXES: [&str; 4] =
    ["model.", "language_model.model.", "model.language_model.", ""];
