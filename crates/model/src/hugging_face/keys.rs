//! Keys of a `config.json` that no family reads in every case, and when they change no result.

use crate::unread::Harmless::{AllNumber, AllText, Empty, Flag, Number, Text};
use crate::unread::{Harmless, Known};

/// Keys that change no result, whatever they say: notes of tools, training, how weights are loaded and
/// computed elsewhere, settings of generation (which stand in `generation_config.json` today).
pub(super) const HARMLESS: &[&str] = &[
    // Notes.
    "_commit_hash",
    "_name_or_path",
    "auto_map",
    "finetuning_task",
    "id2label",
    "is_llama_config",
    "keys_to_ignore_at_inference",
    "label2id",
    "model_max_length",
    "num_labels",
    "prefix",
    "problem_type",
    "task_specific_params",
    "tokenizer_class",
    "transformers.js_config",
    "transformers_version",
    "unsloth_fixed",
    "unsloth_version",
    // Tokens, which the tokeniser's files and generation_config.json say.
    "bos_token_id",
    "decoder_start_token_id",
    "eos_token_id",
    "mask_token_id",
    "pad_token_id",
    "sep_token_id",
    "unk_token_id",
    // Training.
    "attention_dropout",
    "attn_pdrop",
    "dropout",
    "embd_pdrop",
    "finetuned",
    "gradient_checkpointing",
    "hidden_dropout",
    "hidden_dropout_prob",
    "initializer_factor",
    "initializer_range",
    "max_seq_len",
    "max_seq_length",
    "max_sequence_length",
    "neftune_noise_alpha",
    "output_router_logits",
    "resid_pdrop",
    "router_aux_loss_coef",
    "seq_length",
    // How transformers loads and computes.
    "_attn_implementation",
    "_attn_implementation_autoset",
    "_flash_attn_2_enabled",
    "attn_implementation",
    "cache_implementation",
    "chunk_size_feed_forward",
    "dtype",
    "is_decoder",
    "output_attentions",
    "output_hidden_states",
    "pretraining_tp",
    "return_dict",
    "tf_legacy_loss",
    "tie_encoder_decoder",
    "torch_dtype",
    "torchscript",
    "use_bfloat16",
    "use_cache",
    "use_flash_attention",
    "use_flash_attention_2",
    // Generation.
    "bad_words_ids",
    "begin_suppress_tokens",
    "diversity_penalty",
    "do_sample",
    "early_stopping",
    "encoder_no_repeat_ngram_size",
    "exponential_decay_length_penalty",
    "forced_bos_token_id",
    "forced_eos_token_id",
    "length_penalty",
    "max_length",
    "max_new_tokens",
    "min_length",
    "min_p",
    "no_repeat_ngram_size",
    "num_beam_groups",
    "num_beams",
    "num_return_sequences",
    "output_scores",
    "remove_invalid_values",
    "repetition_penalty",
    "return_dict_in_generate",
    "suppress_tokens",
    "temperature",
    "top_k",
    "top_p",
    "typical_p",
    // Read where there are windows, or a stretching of positions that needs it.
    "max_window_layers",
    "original_max_position_embeddings",
];

/// Keys of the part that reads pictures, beside `text_config`. It is left out, with a notice.
pub(super) const VISION: &[&str] = &[
    "boi_token_id",
    "boi_token_index",
    "eoi_token_id",
    "eoi_token_index",
    "ignore_index",
    "image_grid_pinpoints",
    "image_seq_length",
    "image_token_id",
    "image_token_index",
    "mm_tokens_per_image",
    "multimodal_projector_bias",
    "projector_hidden_act",
    "spatial_merge_size",
    "use_image_newline_parameter",
    "vision_config",
    "vision_feature_layer",
    "vision_feature_select_strategy",
    // Of both models; the text model's own is checked.
    "vocab_size",
];

const fn known(name: &'static str, harmless: &'static [Harmless], meaning: &'static str) -> Known {
    Known { name, harmless, meaning }
}

const BOTH_WAYS: &str = "attention in both directions, as embedding models have";
const MIXTURE: &str = "a mixture of experts";
const PREDICTED: &str = "layers that predict further tokens";
const ENCODER: &str = "an encoder beside the decoder";
const QUANTIZED: &str = "weights quantised by another tool";
const NO_ROPE: &str = "layers without positions, as in SmolLM3";
const SCORES: &str = "another scale of attention scores";
const BY_POSITION: &str = "attention scores that depend on positions, as in Ministral 3";
const BIAS: &str = "a bias";
const HEAD_NORMS: &str = "norms on the heads of queries and keys";
const STRETCH: &str = "another stretching of positions";
const WINDOWS: &str = "windows on some layers";
const ONE: &[Harmless] = &[Number(1.0)];
const ZERO: &[Harmless] = &[Number(0.0), Empty];
const NO: &[Harmless] = &[Flag(false)];

/// Keys that change no result with the values that are listed.
pub(super) const KNOWN: &[Known] = &[
    known("is_causal", &[Flag(true)], BOTH_WAYS),
    known("is_encoder_decoder", NO, ENCODER),
    known("add_cross_attention", NO, ENCODER),
    known("cross_attention_hidden_size", &[], ENCODER),
    known("pruned_heads", &[Empty], "heads that were taken out"),
    known("per_layer_config", &[Empty], "layers that differ from one another"),
    known("quantization", &[], QUANTIZED),
    known("compression_config", &[], QUANTIZED),
    // Mixtures.
    known("num_local_experts", ZERO, MIXTURE),
    known("num_experts", ZERO, MIXTURE),
    known("num_experts_", ZERO, MIXTURE),
    known("n_routed_experts", ZERO, MIXTURE),
    known("n_shared_experts", ZERO, MIXTURE),
    known("decoder_sparse_step", &[], MIXTURE),
    known("norm_topk_prob", &[], MIXTURE),
    known("enable_moe_block", NO, MIXTURE),
    known("moe_", &[Number(0.0), Flag(false)], MIXTURE),
    known("mlp_only_layers", &[Empty], MIXTURE),
    known("mlp_layer_types", &[AllText("dense")], MIXTURE),
    known("num_nextn_predict_layers", ZERO, PREDICTED),
    known("num_mtp_layers", ZERO, PREDICTED),
    known("mtp_num_hidden_layers", ZERO, PREDICTED),
    // Factors.
    known("attention_multiplier", &[], "another scale of attention scores, as in Granite"),
    known("query_pre_attn_scalar", &[], SCORES),
    known("embedding_multiplier", ONE, "a factor on embeddings, as in Granite"),
    known("logits_scaling", ONE, "a divisor of logits, as in Granite"),
    known("residual_multiplier", ONE, "a factor on the output of blocks, as in Granite"),
    known("logit_scale", ONE, "a factor on logits"),
    known("scale_emb", ONE, "a factor on embeddings, as in MiniCPM"),
    known("scale_depth", ONE, "a factor on the output of blocks, as in MiniCPM"),
    known("clip_qkv", &[], "a limit on queries, keys and values"),
    known("llama_4_scaling_beta", &[Number(0.0)], BY_POSITION),
    known("attn_temperature_tuning", &[Flag(false), Number(0.0)], BY_POSITION),
    // Layers that are not alike.
    known("no_rope_layers", &[Empty, AllNumber(1.0)], NO_ROPE),
    known("no_rope_layer_interval", ZERO, NO_ROPE),
    known("num_kv_shared_layers", ZERO, "layers that share keys and values"),
    known("use_sliding_window", NO, WINDOWS),
    known("sliding_window", ZERO, WINDOWS),
    known("sliding_window_pattern", &[], WINDOWS),
    known("_sliding_window_pattern", &[], WINDOWS),
    known("dual_chunk_attention_config", &[], "attention in chunks"),
    // Falcon 3 names the gate so, beside hidden_act.
    known("activation", &[Text("swiglu")], "another feed-forward layer"),
    // Biases and norms.
    known("bias", NO, BIAS),
    known("lm_head_bias", NO, BIAS),
    known("qkv_bias", NO, BIAS),
    known("use_bias", NO, BIAS),
    known("qk_layernorm", NO, HEAD_NORMS),
    known("qk_layer_norms", NO, HEAD_NORMS),
    known("qk_norm", NO, HEAD_NORMS),
    known("use_qk_norm", NO, HEAD_NORMS),
    // Rotation.
    known("rope_interleaved", NO, "another order of rotated values"),
    known("use_mrope", NO, "positions in several dimensions"),
    known("mrope_section", &[], "positions in several dimensions"),
    known("rope_local_base_freq", &[], "another table of positions for some layers"),
    known("rotary_pct", ONE, "heads that are rotated in part"),
    known("truncate", &[Flag(true)], STRETCH),
    known("mscale", &[Number(0.0)], STRETCH),
    known("mscale_all_dim", &[Number(0.0)], STRETCH),
    known("extrapolation_factor", ONE, STRETCH),
    known("attention_factor", ONE, STRETCH),
    known("attn_factor", ONE, STRETCH),
    known("factor", ONE, STRETCH),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_listed_once() {
        let mut names: Vec<&str> = HARMLESS.iter().chain(VISION).copied().collect();
        names.extend(KNOWN.iter().map(|known| known.name));
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
    }
}
