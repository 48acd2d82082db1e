/// What to do about a file that holds more than is read of it.
const REMEDY: &str = "Without it the answers could be wrong. Use another model or a newer Pianola; \
    if the file names the wrong architecture, convert the original again";

/// Text of a file, fit for a message: what is not printed escaped, long text cut.
fn shown(text: &str) -> String {
    const LONGEST: usize = 80;
    let mut shown = String::new();
    for letter in text.chars().take(LONGEST) {
        match letter {
            '"' | '\'' | '\\' => shown.push(letter),
            _ => shown.extend(letter.escape_debug()),
        }
    }
    if text.chars().nth(LONGEST).is_some() {
        shown.push('…');
    }
    shown
}

fn and_others(others: usize) -> String {
    match others {
        0 => String::new(),
        _ => format!(" and {others} more"),
    }
}

/// Why a file cannot become a graph.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// The file itself.
    #[error(transparent)]
    Format(#[from] pianola_formats::Error),
    /// An architecture that is not built in.
    #[error("architecture '{found}' is not supported; supported: {}", crate::Family::names())]
    Architecture {
        /// Name in the file.
        found: String,
    },
    /// A key that the architecture needs.
    #[error("the configuration has no '{0}', which this architecture needs")]
    MissingKey(String),
    /// A key whose value cannot be.
    #[error("the configuration has {key} = {found}: {expected}")]
    Value {
        /// Key.
        key: String,
        /// Value found.
        found: String,
        /// What would be right.
        expected: String,
    },
    /// A tensor that the architecture needs.
    #[error(
        "tensor '{0}' is missing: the file is incomplete, or of another architecture than it says"
    )]
    MissingTensor(String),
    /// A tensor of another shape than the configuration says.
    #[error("tensor '{name}' has shape {found:?}, expected {expected:?} by the configuration")]
    Shape {
        /// Tensor.
        name: String,
        /// By the configuration.
        expected: Vec<usize>,
        /// In the file.
        found: Vec<usize>,
    },
    /// A key that nothing read, and that is not known to change no result.
    #[error(
        "the configuration has {} = {}: {meaning}, which is not supported for {family}. {REMEDY}",
        shown(key),
        shown(found)
    )]
    UnreadKey {
        /// Key.
        key: String,
        /// Value found, as JSON.
        found: String,
        /// What it probably means.
        meaning: &'static str,
        /// Family that the file names.
        family: &'static str,
    },
    /// A tensor that the graph does not read.
    #[error(
        "the file has tensor '{}'{}, which {family} does not read: {meaning}. {REMEDY}",
        shown(name), and_others(*others)
    )]
    UnreadTensor {
        /// The first of them.
        name: String,
        /// How many more there are.
        others: usize,
        /// What it probably means.
        meaning: String,
        /// Family that the file names.
        family: &'static str,
    },
    /// No such path, or neither a GGUF file nor a folder.
    #[error("{0}")]
    Path(String),
}

impl ModelError {
    pub(crate) fn value(key: &str, found: impl ToString, expected: impl ToString) -> ModelError {
        ModelError::Value {
            key: key.to_string(),
            found: found.to_string(),
            expected: expected.to_string(),
        }
    }
}
