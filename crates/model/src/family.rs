//! The table of model families. What sets a family apart is data in its row; the row stands in the
//! family's own file, with the forward pass where no other family has the same.

use crate::build::Build;
use crate::error::ModelError;
use crate::role::Role;
use crate::{gemma2, gemma3, llama, mistral, phi3, qwen2, qwen3};
use pianola_plan::{Activation, RopePairing, TensorId};

/// All families.
const FAMILIES: [&Family; 7] = [
    &llama::FAMILY,
    &mistral::FAMILY,
    &phi3::FAMILY,
    &qwen2::FAMILY,
    &qwen3::FAMILY,
    &gemma2::FAMILY,
    &gemma3::FAMILY,
];

/// A family of models: everything that sets it apart from the others.
pub struct Family {
    /// Name, as GGUF files write it where they have one for it.
    pub name: &'static str,
    /// Writes the graph.
    pub(crate) forward: fn(&mut Build<'_>) -> Result<TensorId, ModelError>,
    /// Non-linearity of the feed-forward layer, unless the file names another.
    pub(crate) activation: Activation,
    /// Embeddings are multiplied by the square root of the hidden size.
    pub(crate) scaled_embedding: bool,
    /// Each head of q and k has a norm.
    pub(crate) head_norms: bool,
    /// Attention and the feed-forward layer have norms behind them too.
    pub(crate) post_norms: bool,
    /// Base of the rotary table of windowed layers, where it is another than that of global layers.
    pub(crate) window_rope_base: Option<f64>,
    /// Soft cap on attention scores, unless the file names another.
    pub(crate) attention_soft_cap: Option<f32>,
    /// Soft cap on logits, unless the file names another.
    pub(crate) final_soft_cap: Option<f32>,
    /// Tensors of a file that hold several weights.
    pub(crate) fused: &'static [FusedTensor],
    /// Conventions of GGUF files.
    pub(crate) gguf: GgufRules,
    /// Conventions of Hugging Face folders.
    pub(crate) hugging_face: HuggingFaceRules,
}

/// A tensor of a file that holds the rows of several weights, one below another.
pub(crate) struct FusedTensor {
    /// The weights, from the first row on.
    pub roles: &'static [Role],
    /// Name in GGUF files, behind `blk.N.`
    pub gguf: &'static str,
    /// Name in Hugging Face folders, behind `layers.N.`
    pub hugging_face: &'static str,
}

/// Which layers have a sliding window, where a file does not list them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Windows {
    /// None, whatever the file says of windows.
    None,
    /// All.
    All,
    /// All but every n-th, unless the file names another number.
    AllButEvery(usize),
    /// Those from number n on, unless the file names another one, and only where the file switches
    /// windows on.
    From(usize),
}

/// How GGUF files of a family differ from the training code, and what they leave unsaid.
#[derive(Clone, Copy)]
pub(crate) struct GgufRules {
    /// `general.architecture`; none where files of this family carry another family's name.
    pub architecture: Option<&'static str>,
    /// Order of the rows of q and k.
    pub pairing: RopePairing,
    /// Layers with a window.
    pub windows: Windows,
    /// Window where the file names none.
    pub window: Option<usize>,
    /// The number of layers by which to know the one size of the family that scales scores by hidden
    /// size over heads, not by head size: files carry no key for it.
    pub scaled_by_width: Option<usize>,
}

/// Names in Hugging Face folders of a family, and what a `config.json` leaves out because it is the
/// default of its class in transformers.
#[derive(Clone, Copy)]
pub(crate) struct HuggingFaceRules {
    /// `model_type`
    pub model_types: &'static [&'static str],
    /// `architectures`: a language model's head, alone or behind one that reads pictures.
    pub architectures: &'static [&'static str],
    /// Names of weights that differ from [`Role`]'s usual ones.
    pub names: &'static [(Role, &'static str)],
    /// Added to the weights of norms; GGUF files hold the sum.
    pub norm_offset: f32,
    /// Biases of attention.
    pub attention_bias: AttentionBias,
    /// Layers with a window.
    pub windows: Windows,
    /// `sliding_window`
    pub window: Option<usize>,
    /// `query_pre_attn_scalar`; none where the head size is the base of the attention scale.
    pub scale_base: Option<f64>,
    /// `num_attention_heads`
    pub heads: Option<usize>,
    /// `num_key_value_heads`; none for as many as there are heads.
    pub kv_heads: Option<usize>,
    /// `head_dim`; none for hidden size over heads.
    pub head_dim: Option<usize>,
    /// `max_position_embeddings`
    pub context: usize,
    /// `rms_norm_eps`
    pub epsilon: f64,
    /// `rope_theta`
    pub rope_base: f64,
    /// `tie_word_embeddings`
    pub tied: bool,
}

/// Which projections of attention have biases in a Hugging Face folder.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum AttentionBias {
    /// None, whatever the configuration says.
    Never,
    /// q, k, v and output where `attention_bias` is set.
    OnRequest,
    /// q, k and v, unless `attention_bias` is false.
    QueryKeyValue,
}

impl Family {
    /// The family of that name.
    pub fn named(name: &str) -> Result<&'static Family, ModelError> {
        Family::find(name, |family| family.name == name)
    }

    /// By `general.architecture` of a GGUF file.
    pub(crate) fn of_gguf(architecture: &str) -> Result<&'static Family, ModelError> {
        Family::find(architecture, |family| family.gguf.architecture == Some(architecture))
    }

    /// By `model_type` of a `config.json`.
    pub(crate) fn of_model_type(name: &str) -> Result<&'static Family, ModelError> {
        Family::find(name, |family| family.hugging_face.model_types.contains(&name))
    }

    fn find(name: &str, matches: impl Fn(&Family) -> bool) -> Result<&'static Family, ModelError> {
        let found = FAMILIES.into_iter().find(|family| matches(family));
        found.ok_or_else(|| ModelError::Architecture { found: name.to_string() })
    }

    /// The names of all families.
    pub(crate) fn names() -> String {
        FAMILIES.map(|family| family.name).join(", ")
    }
}

/// A name stands for one family.
impl PartialEq for Family {
    fn eq(&self, other: &Family) -> bool {
        self.name == other.name
    }
}

impl std::fmt::Debug for Family {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

impl Windows {
    /// For each layer its window, where each windowed layer has `window`.
    pub fn layers(self, window: Option<usize>, layers: usize) -> Vec<Option<usize>> {
        let windowed = |layer: usize| match self {
            Windows::None => false,
            Windows::All => true,
            Windows::AllButEvery(period) => !(layer + 1).is_multiple_of(period),
            Windows::From(first) => layer >= first,
        };
        (0..layers).map(|layer| window.filter(|_| windowed(layer))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_stands_for_one_family() {
        for family in FAMILIES {
            assert_eq!(Family::named(family.name).unwrap(), family);
            if let Some(architecture) = family.gguf.architecture {
                assert_eq!(Family::of_gguf(architecture).unwrap(), family);
            }
            for model_type in family.hugging_face.model_types {
                assert_eq!(Family::of_model_type(model_type).unwrap(), family);
            }
        }
        let error = Family::of_gguf("mamba").unwrap_err().to_string();
        assert!(error.contains("'mamba'") && error.contains("phi3"), "{error}");
    }
}
