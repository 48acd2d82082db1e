//! Tensors that the graph does not read.

use crate::config::Config;
use crate::error::ModelError;
use crate::role::{PREFIXES, Role};
use std::collections::HashSet;

/// How names of tensors begin that read pictures: in GGUF files, and behind [`PREFIXES`] in others.
const VISION: [&str; 8] = [
    "v.",
    "mm.",
    "vision_tower.",
    "vision_model.",
    "visual.",
    "multi_modal_projector.",
    "mm_projector.",
    "image_newline",
];

/// Endings of tensors that are computed from the configuration: old files carry them along.
const DERIVED: [&str; 3] =
    [".rotary_emb.inv_freq", ".rotary_emb.cos_cached", ".rotary_emb.sin_cached"];

/// Parts of names and what such a tensor means; the first that fits says it.
const MEANINGS: [(&str, &str); 22] = [
    ("_exps.", "experts of a mixture of experts"),
    (".experts.", "experts of a mixture of experts"),
    ("block_sparse_moe.", "a mixture of experts"),
    ("ffn_gate_inp", "the router of a mixture of experts"),
    ("_shexp.", "shared experts of a mixture of experts"),
    (".mlp.gate.", "the router of a mixture of experts"),
    (".lora_", "a LoRA adapter"),
    ("attn_sinks", "attention sinks"),
    (".sinks", "attention sinks"),
    ("attn_q_norm", "norms on the heads of queries and keys"),
    ("attn_k_norm", "norms on the heads of queries and keys"),
    (".q_norm.", "norms on the heads of queries and keys"),
    (".k_norm.", "norms on the heads of queries and keys"),
    ("post_attention_norm", "a norm behind attention"),
    ("post_ffw_norm", "a norm behind the feed-forward layer"),
    ("ssm_", "a recurrent layer"),
    ("nextn.", "a layer that predicts further tokens"),
    ("mtp.", "a layer that predicts further tokens"),
    ("dense", "a layer behind the model, as embedding models have"),
    ("cls", "the head of a classifier"),
    ("classifier", "the head of a classifier"),
    ("score.", "the head of a classifier"),
];

/// Whether a tensor belongs to the part of a model that reads pictures, which is left out.
pub(crate) fn is_vision(name: &str) -> bool {
    let mut rests = PREFIXES.iter().filter_map(|prefix| name.strip_prefix(prefix));
    rests.any(|rest| VISION.iter().any(|start| rest.starts_with(start)))
}

/// Refuses a file with a tensor that the model does not read. `others` are those that were read
/// beside the weights.
pub(crate) fn check_tensors<'a>(
    config: &Config,
    names: impl Iterator<Item = &'a str>,
    others: &[&str],
) -> Result<(), ModelError> {
    let read: HashSet<String> = Role::of_model(config)
        .map(|(role, layer, part)| role.locate(config, layer, part).name)
        .collect();
    let harmless = |name: &str| {
        is_vision(name) || others.contains(&name) || DERIVED.iter().any(|end| name.ends_with(end))
    };
    let mut unread = names.filter(|name| !read.contains(*name) && !harmless(name));
    let Some(first) = unread.next() else { return Ok(()) };
    Err(ModelError::UnreadTensor {
        name: first.to_string(),
        others: unread.count(),
        meaning: meaning(config, first),
        family: config.family.name,
    })
}

fn meaning(config: &Config, name: &str) -> String {
    let known = MEANINGS.iter().find(|(part, _)| name.contains(part));
    let mut numbers = name.split('.').filter_map(|part| part.parse::<usize>().ok());
    let beyond = numbers.next().filter(|&layer| layer >= config.layers);
    match (known, beyond) {
        (_, Some(layer)) => {
            format!("layer {layer}, where the configuration has {} layers", config.layers)
        }
        (Some((_, meaning)), None) => meaning.to_string(),
        (None, None) if name.ends_with(".bias") => {
            "a bias that the configuration or the other layers do not have".to_string()
        }
        (None, None) => "an unknown tensor".to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Dialect;
    use crate::random::RandomWeights;
    use crate::shapes::SHAPES;
    use pianola_formats::{TensorSource, TensorType};

    /// The list by which tensors are refused is that of the weights in the graph.
    #[test]
    fn the_graph_reads_what_is_listed() {
        for shape in SHAPES {
            for dialect in [Dialect::Gguf, Dialect::HuggingFace] {
                let plain = Config { dialect, ..shape.reduced(2, 64).config() };
                let biased = Config {
                    attention_bias: true,
                    output_bias: true,
                    feed_forward_bias: true,
                    tied: !plain.tied,
                    ..plain.clone()
                };
                for config in [plain, biased] {
                    let weights = RandomWeights::new(&config, 1, |_, _, _| TensorType::F32);
                    let graph = crate::graph(&config, &weights, None).unwrap();
                    let read: HashSet<&str> =
                        graph.weights.iter().map(|weight| weight.name.as_str()).collect();
                    let infos = weights.tensor_infos();
                    let listed: HashSet<&str> =
                        infos.iter().map(|info| info.name.as_str()).collect();
                    assert_eq!(read, listed, "{}", shape.name);
                    check_tensors(&config, listed.into_iter(), &[]).unwrap();
                }
            }
        }
    }
}
