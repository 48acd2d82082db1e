use std::path::PathBuf;

/// What can be wrong with a vocabulary, a tokenizer.json or a chat template.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The GGUF file holds weights but no tokeniser.
    #[error("the file has no vocabulary (tokenizer.ggml.model is {model})")]
    NoVocabulary {
        /// The value found, or "absent".
        model: String,
    },
    /// A component of the tokeniser that this crate does not implement.
    #[error("{component} {name:?} is not supported")]
    Unsupported {
        /// Which part of the file asked for it.
        component: &'static str,
        /// What it asked for.
        name: String,
    },
    /// A field that the tokeniser cannot do without.
    #[error("the tokeniser lacks {0}")]
    Missing(String),
    /// An array whose length is not the vocabulary's.
    #[error("{field} has {found} entries, the vocabulary has {expected}")]
    Length {
        /// The array's name.
        field: &'static str,
        /// Its length.
        found: usize,
        /// The number of tokens.
        expected: usize,
    },
    /// A field with a value of the wrong form.
    #[error("{field}: {problem}")]
    Invalid {
        /// The field's name.
        field: &'static str,
        /// What is wrong with it.
        problem: String,
    },
    /// A merge whose halves or whole are not tokens.
    #[error("merge {rank} ({merge:?}) names a token that is not in the vocabulary")]
    UnknownMerge {
        /// The merge's place in the list, from 0.
        rank: usize,
        /// The merge as written.
        merge: String,
    },
    /// JSON that cannot be read.
    #[error("{file}: {source}")]
    Json {
        /// The name of the file.
        file: &'static str,
        /// What the parser says.
        source: serde_json::Error,
    },
    /// A pre-tokeniser pattern that does not compile.
    #[error("the pattern {pattern:?} does not compile: {source}")]
    Pattern {
        /// The pattern as written.
        pattern: String,
        /// What the compiler says.
        source: Box<fancy_regex::Error>,
    },
    /// A pre-tokeniser pattern that cannot be matched against a text in reasonable time.
    #[error("the pattern {pattern:?} gives up on this text: {source}; other text may work")]
    PatternGaveUp {
        /// The pattern as written.
        pattern: String,
        /// What the matcher says.
        source: Box<fancy_regex::Error>,
    },
    /// A normaliser that would make a text many times as long.
    #[error("the normaliser would make more than {limit} bytes of a text of {length}")]
    Overgrown {
        /// Bytes of the text.
        length: usize,
        /// The most that may come of it.
        limit: usize,
    },
    /// A chat template that does not parse or whose rendering fails.
    #[error("chat template: {0}")]
    Template(String),
    /// A chat template that was stopped because it would have gone beyond what templates may take.
    #[error("chat template: stopped, because {0}")]
    TemplateLimit(String),
    /// The chat template refused the conversation by `raise_exception`.
    #[error("the chat template refuses the conversation: {0}")]
    Refused(String),
    /// A message spells a special token and the template rewrites contents,
    /// so that the two can not be told apart in its output.
    #[error(
        "a message contains the text of a special token, and the chat template alters contents"
    )]
    Inseparable,
    /// A file that cannot be read.
    #[error("{path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
}
