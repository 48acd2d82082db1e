"""Tables of predictions: perplexity, and divergence between modes and devices."""
import re

from raw import NAMES, name_of

FILES = {"gemma3-270m.gguf": "gemma3:270m", "qwen2.5-coder-1.5b.gguf": "qwen2.5-coder:1.5b"}


def final(call):
    """llama-perplexity's estimate, and its windows."""
    text = call["output"] + call["messages"]
    windows = re.search(r"over (\d+) chunks", text)
    return float(re.search(r"Final estimate: PPL = ([\d.]+)", text)[1]), int(windows[1])


def same_text(call):
    """What calls about the same model and the same bytes have in common."""
    return {key: call[key] for key in ("model", "text", "sha256")}


def in_order(call):
    """Models as in the catalogue, other files behind them."""
    names = list(NAMES)
    place = names.index(call["model"]) if call["model"] in names else len(names)
    return place, call["model"], call["text"]


def quality(run):
    lines = []
    for call in sorted(run.of(what="numeric"), key=in_order):
        theirs, windows = final(run.of("llama.cpp", what="perplexity", **same_text(call))[0])
        found = call["output"]
        exact, fast = found["perplexity_a"], found["perplexity_b"]
        lines.append([name_of(call["model"]), call["text"], windows, f"{theirs:.3f}", f"{exact:.3f}", f"{fast:.3f}",
                      f"{fast / exact - 1:+.2%}", f"{found['mean_kl']:.4f}", f"{found['top1_agreement']:.1%}"])
    head = ["model", "text", "windows", "llama.cpp", "exact", "fast", "fast over exact", "mean KL divergence",
            "same likeliest token"]
    return run.table(head, lines, f"llama.cpp {run.versions('llama.cpp')}")


def kv(run):
    lines = []
    for call in sorted(run.of(what="kv", ways=["kv-type=f32", "kv-type=f16"]), key=in_order):
        other = run.of(what="kv", ways=["kv-type=f16", "kv-type=q8_0"], **same_text(call))[0]["output"]
        found = call["output"]
        lines.append([name_of(call["model"]), call["text"], f"{found['perplexity_a']:.3f}",
                      f"{found['perplexity_b']:.3f}", f"{other['perplexity_b']:.3f}", f"{found['mean_kl']:.4f}",
                      f"{other['mean_kl']:.4f}", f"{other['top1_agreement']:.1%}"])
    head = ["model", "text", "f32", "f16", "q8_0", "KL of f16 from f32", "KL of q8_0 from f16",
            "same likeliest token, q8_0 and f16"]
    return run.table(head, lines)


def devices(run):
    """Predictions of a GPU beside the processor's; a row's commit stands in it."""
    lines = []
    for call in run.runs:
        found = call["output"]
        here, there = found["perplexity_a"], found["perplexity_b"]
        lines.append([name_of(FILES.get(found["model"], found["model"])), " and ".join(found["modes"]),
                      f"{found['positions']:,}", f"{here:.4f}", f"{there:.4f}", f"{there / here - 1:+.3%}",
                      f"{found['mean_kl']:.1e}", f"{found['top1_agreement']:.1%}", found["commit"]])
    head = ["model", "modes: processor and GPU", "positions", "processor", "GPU", "difference", "mean KL",
            "same likeliest token", "commit"]
    return run.table(head, lines)
