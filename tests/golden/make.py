#!/usr/bin/env python3
"""Makes the golden cases in this folder: tiny models with random weights, the logits that Hugging
Face transformers computes for them in float32, and the tokens it picks greedily.

usage: make.py OUT        (needs torch and transformers 5)

Each case is a folder as transformers saves it, with tokens.npy, logits.npy (one row a position) and
greedy.npy (the next 16 tokens). Weights are random draws, rounded to bf16 so that the files stay
small; nothing here comes from a trained model.
"""
import sys
from pathlib import Path

import numpy as np
import torch
from transformers import (
    Gemma3ForCausalLM, Gemma3TextConfig, LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM,
)

SHAPE = dict(vocab_size=200, hidden_size=64, intermediate_size=96, num_attention_heads=4,
             num_key_value_heads=2, max_position_embeddings=256)

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
}


def main(out):
    for index, (name, (model_class, config)) in enumerate(CASES.items()):
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
    main(sys.argv[1])
