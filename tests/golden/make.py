#!/usr/bin/env python3
"""Makes the golden cases in this folder: tiny models with random weights, the logits that Hugging
Face transformers computes for them in float32, and the tokens it picks greedily.

usage: make.py OUT [CASE ...]        (needs torch and transformers 5; all cases unless some are named)

Each case is a folder as transformers saves it, with tokens.npy, logits.npy (one row a position) and
greedy.npy (the next 16 tokens). Weights are random draws, rounded to bf16 so that the files stay
small; nothing here comes from a trained model.
"""
import sys
from pathlib import Path

import numpy as np
import torch
from transformers import (
    Gemma2Config, Gemma2ForCausalLM, Gemma3ForCausalLM, Gemma3TextConfig, LlamaConfig, LlamaForCausalLM, MistralConfig,
    MistralForCausalLM, Phi3Config, Phi3ForCausalLM, Qwen2Config, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM,
)

SHAPE = dict(vocab_size=200, hidden_size=64, intermediate_size=96, num_attention_heads=4,
             num_key_value_heads=2, max_position_embeddings=256)

# Phi 3's divisors for the eight pairs of a head, and the training context that decides between them.
PHI3 = dict(**SHAPE, num_hidden_layers=2, pad_token_id=0, sliding_window=21)


def longrope(original):
    return {"rope_type": "longrope", "rope_theta": 1e4, "original_max_position_embeddings": original,
            "short_factor": [1.0, 1.05, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6],
            "long_factor": [1.1, 1.5, 2.0, 3.0, 4.5, 6.0, 7.0, 8.0]}


CASES = {
    # Four norms, q and k norms, two rotary tables, a head size that is not hidden / heads.
    "gemma3": (Gemma3ForCausalLM, Gemma3TextConfig(
        **SHAPE, num_hidden_layers=3, head_dim=32, query_pre_attn_scalar=20, sliding_window=9,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
        rope_parameters={"full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
                         "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}})),
    # Llama 3.1's rotary ramp, with the wavelengths of all three kinds in so small a head.
    "llama3-rope": (LlamaForCausalLM, LlamaConfig(
        **SHAPE, num_hidden_layers=2, tie_word_embeddings=True,
        rope_parameters={"rope_type": "llama3", "rope_theta": 500.0, "factor": 8.0, "low_freq_factor": 1.0,
                         "high_freq_factor": 4.0, "original_max_position_embeddings": 64})),
    # Every bias a llama may have, one KV head, no tied head.
    "llama-bias": (LlamaForCausalLM, LlamaConfig(
        **{**SHAPE, "num_key_value_heads": 1}, num_hidden_layers=2, attention_bias=True, mlp_bias=True,
        tie_word_embeddings=False)),
    # Qwen's biases, and windows on the upper layers.
    "qwen2-window": (Qwen2ForCausalLM, Qwen2Config(
        **SHAPE, num_hidden_layers=3, use_sliding_window=True, sliding_window=11, max_window_layers=1,
        rope_parameters={"rope_type": "default", "rope_theta": 1e6})),
    # YaRN as Qwen 2.5 describes it for long contexts.
    "qwen2-yarn": (Qwen2ForCausalLM, Qwen2Config(
        **SHAPE, num_hidden_layers=2, tie_word_embeddings=True,
        rope_parameters={"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0,
                         "original_max_position_embeddings": 64})),
    # Norms on q and k, a head size that is not hidden / heads, biases everywhere but in the feed-forward layer.
    "qwen3": (Qwen3ForCausalLM, Qwen3Config(
        **SHAPE, num_hidden_layers=2, head_dim=32, attention_bias=True,
        rope_parameters={"rope_type": "default", "rope_theta": 1e6})),
    # Four norms, windows on every other layer, caps low enough to matter.
    "gemma2": (Gemma2ForCausalLM, Gemma2Config(
        **SHAPE, num_hidden_layers=3, head_dim=32, query_pre_attn_scalar=20, sliding_window=9,
        attn_logit_softcapping=5.0, final_logit_softcapping=4.0,
        rope_parameters={"rope_type": "default", "rope_theta": 1e4})),
    # A window on all layers.
    "mistral": (MistralForCausalLM, MistralConfig(
        **SHAPE, num_hidden_layers=2, sliding_window=13,
        rope_parameters={"rope_type": "default", "rope_theta": 1e4})),
    # Fused q + k + v and gate + up; all tokens within the training context: the short divisors.
    "phi3-short": (Phi3ForCausalLM, Phi3Config(
        **PHI3, original_max_position_embeddings=128, rope_parameters=longrope(128))),
    # The same beyond the training context: the long divisors.
    "phi3-long": (Phi3ForCausalLM, Phi3Config(
        **PHI3, original_max_position_embeddings=32, rope_parameters=longrope(32))),
}


def main(out, wanted):
    for index, (name, (model_class, config)) in enumerate(CASES.items()):
        if wanted and name not in wanted:
            continue
        torch.manual_seed(100 + index)
        config._attn_implementation = "eager"
        model = model_class(config).eval()
        with torch.no_grad():
            for key, weight in model.named_parameters():
                # Large enough that attention is not flat and norms matter.
                spread = 0.3 if "norm" in key else 0.6 if "bias" in key else 1.5 / weight.shape[-1] ** 0.5
                base = 1.0 if "norm" in key and not name.startswith("gemma") else 0.0
                weight.copy_((base + spread * torch.randn_like(weight)).to(torch.bfloat16).float())
        tokens = torch.randint(3, config.vocab_size, (1, 45), generator=torch.Generator().manual_seed(index))
        with torch.no_grad():
            logits = model(tokens).logits[0].float().numpy()
            sequence = tokens
            for _ in range(16):
                sequence = torch.cat([sequence, model(sequence).logits[:, -1:].argmax(-1)], 1)
        folder = Path(out) / name
        model.to(torch.bfloat16).save_pretrained(folder)
        np.save(folder / "tokens.npy", tokens[0].numpy())
        np.save(folder / "logits.npy", logits.astype(np.float32))
        np.save(folder / "greedy.npy", sequence[0, 45:].numpy())
        print(name, logits.min(), logits.max())


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
