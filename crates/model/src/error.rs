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
