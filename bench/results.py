"""The sections of RESULTS.md: a heading, a sentence or two, and the tables below them."""

HEAD = """# Results

Every table here and in the README is made from raw files in `bench/runs` by `bench/tables`.
[METHOD.md](METHOD.md) has the meaning of the columns and the command behind each table. Speeds are
tokens per second. Compare ratios within a table: machines differ between tables, and so do builds.
"""

PARTS = [
    ("On the processor", [
        ("Beside llama.cpp and ik_llama.cpp", "cpu",
         "Two cores of Zen 5. The plain reads beside the runs had 52 to 95 GB/s."),
        ("The same on Zen 4", "cpu-zen4",
         "Other machines used the same memory, so single rounds differ widely."),
        ("What several users get", "serve-users",
         "guidellm drives each server in turn with the same prompts and the same model file."),
        ("Many requests at once", "cpu-lanes",
         "Tokens of all requests, without HTTP. Pianola starts generating before the last prompt is read."
         " `pp+tg` counts everything from the first token to the last."),
        ("After a long context", "cpu-depth",
         "The ceiling counts the keys and values that are read."),
        ("By type and instruction set", "cpu-types",
         "Random weights in one shape. The plain read beside each run is the fastest of several."),
        ("Unquantised weights", "floats",
         "The files are the catalogue's models turned into floats by `llama-quantize`."),
        ("Loading", "load",
         "From the start of the process to its end with one token generated. The file is in the page"
         " cache, and its mapped pages count as memory."),
        ("Many cores, and AMX", "many-cores",
         "Random weights. llama.cpp ran on another day on a machine of the same kind, with random weights"
         " in the same shape."),
        ("The cost of HTTP", "serve",
         "Conversations of `bench --scenario chat`, played by the engine alone and through `serve`. The"
         " server had eight of the machine's cores."),
    ]),
    ("On an NVIDIA H200, through Vulkan", [
        ("Prompts and generation", "h200-decode",
         "Random weights in the shapes of known models. A prompt's ceiling is that of f16 matrix units;"
         " int8 products use units that are about twice as fast."),
        ("Beside llama.cpp with CUDA", "h200",
         "An older build of Pianola and llama.cpp in one run, on files of the same shapes."),
        ("Many requests at once", "h200-lanes lanes",
         "Prompts of 64 tokens, then 64 tokens of each request."),
        ("Long contexts", "h200-contexts",
         "The ceilings count the keys and values that are visible."),
        ("By type of weight", "h200-types",
         "Bytes of a token are those of the plan: weights, keys and values, activations."),
        ("Tokens in one submission", "h200-submits",
         "More tokens in a submission mean fewer waits for the host."),
        ("From start to first token", "h200-load",
         "A file of random weights. Without kept pipelines, neither Pianola's nor the driver's were there."),
        ("A model larger than the card's memory", "tandem",
         "Gemma 3 12B in Q4_0 with `--gpu-memory 4GiB`, measured with an older build."),
        ("What `--reproducible` costs", "h200 reproducible", "Measured with an older build."),
        ("What recording is worth", "h200 ablate",
         "The same tokens with commands recorded for every token, then also with a buffer allocated for"
         " every kernel."),
        ("Sampling on the device", "h200 sampling", "Time to sample one token of each row."),
    ]),
    ("Quality", [
        ("Perplexity beside llama.cpp, and the cost of fast mode", "quality",
         "Two texts in windows of 512 tokens, the second half of each scored."),
        ("Types of keys and values", "quality-kv", "Fast mode on the processor."),
        ("A GPU beside the processor", "h200-quality",
         "The GPL version 3 in windows of 512 tokens. The first six rows have int8 weights for prompts;"
         " models as small as Gemma 3 270M no longer keep them."),
    ]),
]
