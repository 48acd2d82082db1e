//! The weights of a transformer by their role: what shape each has, and where a file keeps it.

use crate::config::{Config, Dialect};
use crate::family::Family;
use pianola_plan::WeightShape;

/// A weight of a transformer by its role.
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

/// The matrix or the scale of a role, or what is added behind it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Part {
    Weight,
    Bias,
}

/// Where a file keeps a weight.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Location {
    /// Name of the tensor.
    pub name: String,
    /// First row of the weight in it.
    pub first_row: usize,
    /// Rows of the tensor.
    pub file_rows: usize,
}

impl Location {
    /// Shape of the tensor that holds a weight of that shape.
    pub fn file_shape(&self, shape: WeightShape) -> Vec<usize> {
        match shape {
            WeightShape::Matrix { columns, .. } => vec![self.file_rows, columns],
            WeightShape::Vector { .. } => vec![self.file_rows],
        }
    }
}

/// Prefixes under which folders keep the text model: plain, and inside a multimodal one.
pub(crate) const PREFIXES: [&str; 4] =
    ["model.", "language_model.model.", "model.language_model.", ""];

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

    /// Usual name in a Hugging Face folder.
    fn hugging_face(self) -> &'static str {
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
            Role::AfterAttentionNorm | Role::FeedForwardNorm => "post_attention_layernorm",
            Role::Gate => "mlp.gate_proj",
            Role::Up => "mlp.up_proj",
            Role::Down => "mlp.down_proj",
            Role::AfterFeedForwardNorm => "post_feedforward_layernorm",
        }
    }

    /// Name of the tensor that holds the weight, without prefix and ending.
    pub fn file_name(self, family: &Family, dialect: Dialect) -> &'static str {
        let fused = family.fused.iter().find(|fused| fused.roles.contains(&self));
        let renamed = family.hugging_face.names.iter().find(|(role, _)| *role == self);
        match (dialect, fused, renamed) {
            (Dialect::Gguf, Some(fused), _) => fused.gguf,
            (Dialect::Gguf, None, _) => self.short(),
            (Dialect::HuggingFace, Some(fused), _) => fused.hugging_face,
            (Dialect::HuggingFace, None, Some((_, name))) => name,
            (Dialect::HuggingFace, None, None) => self.hugging_face(),
        }
    }

    /// Roles that a layer of the family has.
    pub fn of_layer(family: &Family) -> impl Iterator<Item = Role> {
        const ALL: [Role; 13] = [
            Role::AttentionNorm,
            Role::Query,
            Role::Key,
            Role::Value,
            Role::QueryNorm,
            Role::KeyNorm,
            Role::Output,
            Role::AfterAttentionNorm,
            Role::FeedForwardNorm,
            Role::Gate,
            Role::Up,
            Role::Down,
            Role::AfterFeedForwardNorm,
        ];
        let (head_norms, post_norms) = (family.head_norms, family.post_norms);
        ALL.into_iter().filter(move |role| match role {
            Role::QueryNorm | Role::KeyNorm => head_norms,
            Role::AfterAttentionNorm | Role::AfterFeedForwardNorm => post_norms,
            _ => true,
        })
    }

    /// Everything that the graph of a model reads: role, layer, part.
    pub fn of_model(config: &Config) -> impl Iterator<Item = (Role, Option<usize>, Part)> {
        let head = (!config.tied).then_some(Role::Head);
        let outside = [Role::Embedding, Role::FinalNorm].into_iter().chain(head);
        let inside = (0..config.layers)
            .flat_map(|layer| Role::of_layer(config.family).map(move |role| (role, Some(layer))));
        outside.map(|role| (role, None)).chain(inside).flat_map(|(role, layer)| {
            let bias = role.is_biased(config).then_some((role, layer, Part::Bias));
            std::iter::once((role, layer, Part::Weight)).chain(bias)
        })
    }

    /// Whether it is the scale of a norm.
    pub fn is_norm(self) -> bool {
        matches!(
            self,
            Role::FinalNorm
                | Role::AttentionNorm
                | Role::QueryNorm
                | Role::KeyNorm
                | Role::AfterAttentionNorm
                | Role::FeedForwardNorm
                | Role::AfterFeedForwardNorm
        )
    }

    /// Whether there is a bias beside the weight.
    pub fn is_biased(self, config: &Config) -> bool {
        match self {
            Role::Query | Role::Key | Role::Value => config.attention_bias,
            Role::Output => config.output_bias,
            Role::Gate | Role::Up | Role::Down => config.feed_forward_bias,
            _ => false,
        }
    }

    /// Shape of the weight or of the bias.
    pub fn shape(self, config: &Config, part: Part) -> WeightShape {
        let Config { hidden, feed_forward, vocabulary, head_dim, .. } = *config;
        let (queries, keys) = (config.heads * head_dim, config.kv_heads * head_dim);
        let (rows, columns) = match self {
            Role::Embedding | Role::Head => (vocabulary, hidden),
            Role::Query => (queries, hidden),
            Role::Key | Role::Value => (keys, hidden),
            Role::Output => (hidden, queries),
            Role::Gate | Role::Up => (feed_forward, hidden),
            Role::Down => (hidden, feed_forward),
            Role::QueryNorm | Role::KeyNorm => (head_dim, 1),
            Role::FinalNorm
            | Role::AttentionNorm
            | Role::AfterAttentionNorm
            | Role::FeedForwardNorm
            | Role::AfterFeedForwardNorm => (hidden, 1),
        };
        match part {
            Part::Weight if !self.is_norm() => WeightShape::Matrix { rows, columns },
            _ => WeightShape::Vector { length: rows },
        }
    }

    /// Where the file keeps the weight or the bias.
    pub fn locate(self, config: &Config, layer: Option<usize>, part: Part) -> Location {
        let rows = |role: Role| role.shape(config, part).rows().0;
        let fused = config.family.fused.iter().find(|fused| fused.roles.contains(&self));
        let roles = fused.map_or(&[][..], |fused| fused.roles);
        let before = roles.iter().take_while(|role| **role != self);
        let first_row = before.map(|role| rows(*role)).sum();
        let file_rows = match roles {
            [] => rows(self),
            _ => roles.iter().map(|role| rows(*role)).sum(),
        };
        Location { name: self.full_name(config, layer, part), first_row, file_rows }
    }

    fn full_name(self, config: &Config, layer: Option<usize>, part: Part) -> String {
        let Config { prefix, dialect, .. } = config;
        let name = self.file_name(config.family, *dialect);
        let ending = match part {
            Part::Weight => "weight",
            Part::Bias => "bias",
        };
        match (dialect, layer) {
            (Dialect::Gguf, Some(layer)) => format!("blk.{layer}.{name}.{ending}"),
            (Dialect::Gguf, None) => format!("{name}.{ending}"),
            // The head stands beside the model, not in it.
            (Dialect::HuggingFace, _) if self == Role::Head => {
                let outer = if prefix == "language_model.model." { "language_model." } else { "" };
                format!("{outer}{name}.{ending}")
            }
            (Dialect::HuggingFace, Some(layer)) => {
                format!("{prefix}layers.{layer}.{name}.{ending}")
            }
            (Dialect::HuggingFace, None) => format!("{prefix}{name}.{ending}"),
        }
    }
}
