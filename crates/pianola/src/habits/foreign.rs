//! Options and commands of llama.cpp, Ollama and vLLM that do not exist here, and what to use instead.
//!
//! A row answers only for commands without an option of that name. To add one, add it to [`OPTIONS`] or
//! [`COMMANDS`]; a test looks up every option and command that an answer names.

/// What is said of something that another program has.
#[derive(Clone, Copy, Debug)]
pub enum Answer {
    /// There is nothing like it.
    NotOffered(&'static str),
    /// It is done anyway, or nothing has to be done.
    NotNeeded(&'static str),
    /// Something else does it.
    Use(&'static str),
}

use Answer::{NotNeeded, NotOffered, Use};

impl Answer {
    /// The sentence about what is called `name`.
    pub fn about(self, name: &str) -> String {
        match self {
            NotOffered(why) => format!("{name} is not offered: {why}"),
            NotNeeded(why) => format!("{name} is not needed: {why}"),
            Use(instead) => format!("there is no {name} here: {instead}"),
        }
    }
}

type Row = (&'static [&'static str], Answer);

/// What is known of an option without its value, as in `--lora`.
pub fn option(name: &str) -> Option<Answer> {
    find(&OPTIONS, name)
}

/// What is known of a command.
pub fn command(name: &str) -> Option<Answer> {
    find(&COMMANDS, name)
}

fn find(rows: &[Row], name: &str) -> Option<Answer> {
    rows.iter().find(|(names, _)| names.contains(&name)).map(|(_, answer)| *answer)
}

/// The model's own template, or none.
const TEMPLATES: Answer =
    NotOffered("the model's own chat template is used; `pianola run --raw` goes without");
const ROTATION: Answer =
    NotOffered("positions are encoded as the model's file says; --context sets the length");
const SAMPLERS: Answer = NotOffered(
    "tokens are sampled by --temp, --top-k, --top-p, --min-p, --repeat-penalty, --presence-penalty and \
     --frequency-penalty",
);
const THREADS: Answer = NotOffered("--threads is the one choice about the processor's cores");
const MEMORY_MAP: Answer =
    NotOffered("a file is mapped, and its weights are kept in the form that the kernels read");
const BATCHES: Answer =
    NotNeeded("the plan chooses how many rows a step has; `pianola plan --rows N` shows one");
const PICTURES: Answer = NotOffered("models read text only");
const ADAPTERS: Answer = NotOffered(
    "adapters are not applied to a model; merge the adapter into the weights, then give the result to -m",
);
const DEVICES: Answer = Use(
    "--device vulkan:0,vulkan:1 fills GPUs in turn, and --place puts parts of a model on a device",
);
const ALWAYS: Answer = NotNeeded("`pianola serve` always does it");
const KEPT: Answer =
    NotNeeded("`pianola serve` keeps prompts that begin alike, and `chat` what was said");

const OPTIONS: [Row; 58] = [
    // Models and their parts.
    (&["--lora", "--lora-scaled", "--lora-base", "--lora-modules", "--enable-lora"], ADAPTERS),
    (&["--adapter", "--lora-init-without-apply"], ADAPTERS),
    (
        &["--control-vector", "--control-vector-scaled", "--control-vector-layer-range"],
        NotOffered("vectors are not added to a model's layers"),
    ),
    (&["--mmproj", "--mmproj-url", "--no-mmproj", "--image", "--audio"], PICTURES),
    (&["--override-kv"], NotOffered("a file is read as it is; change the key in the file")),
    (&["--model-url"], Use("-m takes an https address")),
    (&["--hf-repo"], Use("-m takes owner/name[:QUANT or FILE] of the hub")),
    (&["--hf-file"], Use("-m takes owner/name:FILE of the hub")),
    (&["--hf-token"], Use("the variable HF_TOKEN holds it")),
    (&["--model-draft", "--hf-repo-draft", "--spec-draft-model"], Use("--draft takes the model")),
    (
        &["--draft-max", "--draft-min", "--draft-p-min", "--draft-n", "--spec-draft-n-max"],
        NotNeeded("how far --draft and --speculate guess is adjusted to what they win"),
    ),
    (&["--insecure"], NotOffered("certificates are always checked")),
    (&["--trust-remote-code"], NotNeeded("no code that comes with a model is ever run")),
    (&["--quantization", "--dtype"], Use("--quantize q8_0 or q4_0 quantises weights at load")),
    (&["--served-model-name"], Use("`pianola serve --alias NAME` adds a name")),
    (&["--tokenizer", "--vocab-only"], NotOffered("a model brings its own tokeniser")),
    // Prompts and what becomes of them.
    (&["--chat-template", "--chat-template-file", "--chat-template-kwargs"], TEMPLATES),
    (&["--template"], TEMPLATES),
    (&["--jinja", "--no-jinja"], NotNeeded("chat templates are always read as Jinja")),
    (&["--system-prompt-file"], Use("--system \"$(cat FILE)\" takes the text of a file")),
    (&["--binary-file"], Use("--tokens-file takes token ids")),
    (&["--escape", "--no-escape"], NotOffered("a shell writes a line break as $'\\n'")),
    (&["--in-prefix", "--in-suffix", "--in-prefix-bos"], TEMPLATES),
    (&["--reverse-prompt"], Use("--stop TEXT ends an answer before that text")),
    (
        &["--multiline-input"],
        NotNeeded("in a chat \"\"\" begins and ends a message of several lines"),
    ),
    (&["--single-turn"], Use("`pianola run` answers once")),
    (&["--prompt-cache", "--prompt-cache-all", "--prompt-cache-ro"], KEPT),
    (
        &["--keep", "--context-shift", "--no-context-shift"],
        NotOffered("a chat leaves its oldest turns out when its context is full, and says so"),
    ),
    (
        &["--think", "--hidethinking", "--reasoning-budget", "--reasoning-format"],
        NotOffered("thoughts are part of the answer; `pianola serve` sends them apart from it"),
    ),
    (&["--format"], Use("--json prints a result as JSON")),
    // Sampling.
    (&["--mirostat", "--mirostat-lr", "--mirostat-ent", "--typical", "--typical-p"], SAMPLERS),
    (&["--xtc-probability", "--xtc-threshold", "--dynatemp-range", "--dynatemp-exp"], SAMPLERS),
    (&["--dry-multiplier", "--dry-base", "--dry-allowed-length", "--dry-penalty-last-n"], SAMPLERS),
    (&["--dry-sequence-breaker", "--top-nsigma", "--top-n-sigma"], SAMPLERS),
    (&["--samplers", "--sampler-seq", "--sampling-seq"], SAMPLERS),
    // Positions, memory and devices.
    (&["--rope-scaling", "--rope-scale", "--rope-freq-base", "--rope-freq-scale"], ROTATION),
    (&["--yarn-orig-ctx", "--yarn-ext-factor", "--yarn-attn-factor"], ROTATION),
    (&["--yarn-beta-slow", "--yarn-beta-fast", "--grp-attn-n", "--grp-attn-w"], ROTATION),
    (&["--max-model-len"], Use("--context N is the number of tokens")),
    (&["--gpu-memory-utilization"], Use("--gpu-memory BYTES is the most to use, as in 12GiB")),
    (&["--batch-size", "--ubatch-size", "--max-num-batched-tokens"], BATCHES),
    (&["--flash-attn", "--no-flash-attn"], NotNeeded("the plan chooses the attention kernels")),
    (
        &["--cache-type-k", "--cache-type-v", "--kv-cache-dtype"],
        Use("--kv-type f32, f16 or q8_0 is the type of keys and values"),
    ),
    (
        &["--no-kv-offload", "--kv-unified", "--kv-offload"],
        NotOffered("keys and values are kept on the device that computes their layer"),
    ),
    (&["--mlock", "--no-mmap", "--mmap", "--check-tensors", "--no-repack"], MEMORY_MAP),
    (&["--numa", "--prio", "--poll", "--cpu-mask", "--cpu-range", "--cpu-strict"], THREADS),
    (&["--threads-batch", "--threads-http"], THREADS),
    (&["--split-mode", "--tensor-split", "--main-gpu", "--tensor-parallel-size"], DEVICES),
    (&["--override-tensor", "--cpu-moe", "--n-cpu-moe", "--no-op-offload"], DEVICES),
    (&["--list-devices"], Use("`pianola devices` lists them")),
    // The server.
    (
        &["--parallel", "--max-num-seqs"],
        Use("`pianola serve --lanes N` is how many requests run at once"),
    ),
    (&["--cont-batching", "--metrics", "--slots", "--props", "--enable-prefix-caching"], ALWAYS),
    (&["--embedding", "--embeddings", "--enable-auto-tool-choice", "--tool-call-parser"], ALWAYS),
    (&["--cache-reuse", "--slot-save-path", "--slot-prompt-similarity"], KEPT),
    (&["--api-key"], Use("--api-key-file FILE or the variable PIANOLA_API_KEYS has the keys")),
    (&["--ssl-key-file", "--ssl-cert-file"], Use("--tls-key and --tls-cert take the files")),
    (
        &["--keepalive"],
        Use("`pianola serve --keep-alive SECONDS` says how long a model stays loaded"),
    ),
    // What is shown.
    (
        &[
            "--no-display-prompt",
            "--color",
            "--no-warmup",
            "--simple-io",
            "--nowordwrap",
            "--no-perf",
        ],
        NotNeeded("nothing of the kind is done here"),
    ),
];

const COMMANDS: [Row; 14] = [
    (
        &["create", "edit"],
        NotOffered(
            "a model is a file; `pianola chat --system TEXT` and the sampling options take the place of a \
         Modelfile",
        ),
    ),
    (&["push", "publish", "upload"], NotOffered("models are fetched, not published")),
    (
        &["signin", "signout", "login", "logout"],
        NotOffered("there are no accounts; HF_TOKEN is the hub's"),
    ),
    (
        &["cp", "copy", "mv", "rename"],
        NotOffered(
            "a model is one file; copy it with `cp`, or add a name with `pianola serve --alias NAME`",
        ),
    ),
    (
        &["quantize", "convert"],
        NotOffered(
            "no files of weights are written; --quantize q8_0 or q4_0 quantises weights at load",
        ),
    ),
    (
        &["ps", "stop", "unload"],
        Use(
            "no model stays loaded when a command ends; `pianola list` shows those on disk, and a running \
         `pianola serve` lists the loaded ones at /api/ps",
        ),
    ),
    (&["launch"], Use("start `pianola serve`, then point the program at its address")),
    (&["download", "fetch", "get", "install"], Use("`pianola pull NAME` fetches a model")),
    (&["delete", "remove", "uninstall"], Use("`pianola rm NAME` removes a model")),
    (&["generate", "complete", "ask", "prompt", "completion"], Use("`pianola run PROMPT` answers")),
    (&["server", "start", "api"], Use("`pianola serve` is the server")),
    (&["info"], Use("`pianola inspect NAME` shows what is in a model")),
    (&["models", "search"], Use("`pianola list --all` shows what can be fetched by name")),
    (&["version"], Use("`pianola --version` prints it")),
];

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use clap::CommandFactory;

    use super::*;
    use crate::cli::Cli;

    fn text(answer: Answer) -> &'static str {
        match answer {
            NotOffered(text) | NotNeeded(text) | Use(text) => text,
        }
    }

    /// The words of an answer that begin so, without the marks around them.
    fn words<'a>(answer: &'a str, begin: &'a str) -> impl Iterator<Item = &'a str> {
        let marks = |c: char| !c.is_ascii_alphanumeric() && c != '-';
        answer
            .split_whitespace()
            .map(move |word| word.trim_matches(marks))
            .filter(move |word| word.starts_with(begin) && word.len() > begin.len())
    }

    #[test]
    fn every_name_has_one_answer_and_is_unknown_somewhere() {
        let cli = Cli::command();
        let mut seen = HashSet::new();
        for (name, answer) in
            OPTIONS.iter().flat_map(|(names, a)| names.iter().map(move |n| (n, a)))
        {
            assert!(seen.insert(name), "{name} occurs twice");
            assert!(option(name).unwrap().about(name).contains(*name), "{answer:?}");
            let long = name.strip_prefix("--").expect(name);
            let knows = |command: &clap::Command| {
                command.get_arguments().any(|argument| argument.get_long() == Some(long))
            };
            assert!(!cli.get_subcommands().all(knows), "{name} exists everywhere");
        }
        for name in COMMANDS.iter().flat_map(|(names, _)| names.iter()) {
            assert!(seen.insert(name) && command(name).is_some(), "{name} occurs twice");
            assert!(cli.find_subcommand(name).is_none(), "{name} exists");
        }
        assert!(option("--lor").is_none() && command("").is_none());
    }

    #[test]
    fn answers_name_what_exists() {
        let cli = Cli::command();
        let options: HashSet<&str> = cli
            .get_subcommands()
            .chain([&cli])
            .flat_map(|command| command.get_arguments().filter_map(|argument| argument.get_long()))
            .chain(["version"])
            .collect();
        let mut named = 0;
        for answer in OPTIONS.iter().chain(&COMMANDS).map(|(_, answer)| text(*answer)) {
            for option in words(answer, "--") {
                assert!(options.contains(&option[2..]), "{option} in: {answer}");
                named += 1;
            }
            for (_, rest) in
                answer.match_indices("`pianola ").map(|(at, _)| answer.split_at(at + 9))
            {
                let word = rest.split([' ', '`']).next().unwrap_or_default();
                assert!(
                    word.starts_with("--") || cli.find_subcommand(word).is_some(),
                    "{word}: {answer}"
                );
                named += 1;
            }
        }
        assert!(named > 40, "{named}");
    }
}
