//! Which type each matrix of a quantised GGUF file has, by the name of its quantisation. A file of
//! `Q4_K_M` is mostly `q4_k`: its size and its memory are known only with the other types in it.
//!
//! The rules are those of llama.cpp's quantiser, as far as the families here have such tensors.

use crate::config::Config;
use crate::random::RandomWeights;
use pianola_formats::{TensorSource, TensorType};

/// The types in files of one quantisation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mixture {
    /// As files and people write it: `Q4_K_M`.
    pub label: &'static str,
    /// Of most matrices.
    base: TensorType,
    /// Of q + k + v in one tensor.
    fused_attention: TensorType,
    /// Of the values and the down projection in those layers where errors cost most.
    refined: TensorType,
    /// Of the head, and of the embedding where it is the head too.
    head: TensorType,
}

/// All types alike, but for the head.
const fn plain(label: &'static str, base: TensorType, head: TensorType) -> Mixture {
    Mixture { label, base, fused_attention: base, refined: base, head }
}

/// Quantisations whose rules are known.
const MIXTURES: [Mixture; 5] = [
    plain("Q4_0", TensorType::Q4_0, TensorType::Q6K),
    plain("Q4_1", TensorType::Q4_1, TensorType::Q6K),
    plain("Q8_0", TensorType::Q8_0, TensorType::Q8_0),
    // Google's files of Gemma that was trained for its quantisation leave the embedding at f16.
    plain("QAT Q4_0", TensorType::Q4_0, TensorType::F16),
    Mixture {
        label: "Q4_K_M",
        base: TensorType::Q4K,
        fused_attention: TensorType::Q5K,
        refined: TensorType::Q6K,
        head: TensorType::Q6K,
    },
];

impl Mixture {
    /// The quantisation of that name, in upper or lower case.
    pub fn named(label: &str) -> Option<Mixture> {
        MIXTURES.into_iter().find(|mixture| mixture.label.eq_ignore_ascii_case(label))
    }

    /// Weights of a configuration in these types.
    pub fn weights(&self, config: &Config) -> RandomWeights {
        RandomWeights::new(config, 7, |name, _, columns| self.type_of(config, name, columns))
    }

    /// Bytes of all tensors of a configuration; a file has its vocabulary and its keys besides.
    pub fn bytes(&self, config: &Config) -> u64 {
        self.weights(config).tensor_infos().iter().map(|info| info.bytes).sum()
    }

    /// The type of a matrix by its name in a GGUF file.
    fn type_of(&self, config: &Config, name: &str, columns: usize) -> TensorType {
        let mut parts = name.split('.');
        let wanted = match (parts.next(), parts.next(), parts.next()) {
            (Some("output"), ..) => self.head,
            (Some("token_embd"), ..) if config.tied => self.head,
            (Some("blk"), Some(layer), Some("attn_v" | "ffn_down")) => {
                match layer.parse().is_ok_and(|layer| is_refined(layer, config.layers)) {
                    true => self.refined,
                    false => self.base,
                }
            }
            (Some("blk"), _, Some("attn_qkv")) => self.fused_attention,
            _ => self.base,
        };
        match columns.is_multiple_of(wanted.block_len()) {
            true => wanted,
            false => in_short_blocks(wanted),
        }
    }
}

/// The first and the last eighth of the layers, and every third between.
fn is_refined(layer: usize, layers: usize) -> bool {
    let eighth = layers / 8;
    layer < eighth || layer >= 7 * layers / 8 || (layer - eighth) % 3 == 2
}

/// What takes the place of a type whose blocks are longer than a row is a multiple of.
fn in_short_blocks(ty: TensorType) -> TensorType {
    match ty {
        TensorType::Q4K => TensorType::Q5_0,
        TensorType::Q5K => TensorType::Q5_1,
        _ => TensorType::Q8_0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shapes::shape;

    fn type_of(label: &str, model: &str, name: &str, columns: usize) -> TensorType {
        Mixture::named(label).unwrap().type_of(&shape(model).unwrap().config(), name, columns)
    }

    #[test]
    fn heads_and_some_layers_have_more_bits() {
        let medium = |name: &str| type_of("q4_k_m", "llama3:8b", name, 4096);
        assert_eq!(medium("output.weight"), TensorType::Q6K);
        assert_eq!(medium("token_embd.weight"), TensorType::Q4K);
        assert_eq!(medium("blk.5.attn_q.weight"), TensorType::Q4K);
        // Of 32 layers 0 to 3, 6, 9, … and 28 to 31.
        let refined = |layer: usize| medium(&format!("blk.{layer}.attn_v.weight"));
        let found: Vec<usize> =
            (0..32).filter(|&layer| refined(layer) == TensorType::Q6K).collect();
        assert_eq!(found, [0, 1, 2, 3, 6, 9, 12, 15, 18, 21, 24, 27, 28, 29, 30, 31]);
        assert_eq!(type_of("Q4_K_M", "gemma3:4b", "token_embd.weight", 2560), TensorType::Q6K);
        assert_eq!(type_of("Q4_K_M", "phi3:mini", "blk.0.attn_qkv.weight", 3072), TensorType::Q5K);
        assert_eq!(type_of("QAT Q4_0", "gemma3:4b", "token_embd.weight", 2560), TensorType::F16);
    }

    #[test]
    fn rows_without_whole_long_blocks_have_short_ones() {
        let narrow = |name: &str| type_of("Q4_K_M", "gemma3:270m", name, 640);
        assert_eq!(narrow("token_embd.weight"), TensorType::Q8_0);
        assert_eq!(narrow("blk.0.attn_q.weight"), TensorType::Q5_0);
        assert_eq!(type_of("Q4_0", "gemma3:270m", "blk.0.attn_q.weight", 640), TensorType::Q4_0);
        assert_eq!(Mixture::named("Q9"), None);
    }
}
