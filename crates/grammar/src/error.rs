//! What can be wrong with a schema, a tool definition, or a tokeniser.

use thiserror::Error;

/// Why there is no constraint. The messages are meant for whoever wrote the schema.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum GrammarError {
    /// A keyword that no grammar can enforce.
    #[error("the schema's keyword `{keyword}` at {place} cannot be enforced: {fix}")]
    Unsupported {
        /// Keyword, `uniqueItems`.
        keyword: String,
        /// Where it stands, `#/properties/tags`.
        place: String,
        /// What to do instead.
        fix: String,
    },
    /// Not a schema.
    #[error("the schema is wrong at {place}: {problem}")]
    Invalid {
        /// Where, `#/properties/tags`.
        place: String,
        /// What is wrong.
        problem: String,
    },
    /// Beyond a limit on time or memory.
    #[error("the schema has {found}, and at most {limit} are accepted; make it smaller or simpler")]
    TooLarge {
        /// How large it is, with its unit.
        found: String,
        /// The limit.
        limit: usize,
    },
    /// Beyond the limit on the time to compile all schemas of a request.
    #[error("the schemas took longer to compile than {seconds} s; make them smaller or simpler")]
    TooSlow {
        /// The limit.
        seconds: u64,
    },
    /// Grammars of other requests take all the threads that there are for compiling them.
    #[error("{compiling} grammars are being compiled already; try again in a moment")]
    Busy {
        /// How many.
        compiling: usize,
    },
    /// The compiler refused it.
    #[error("the {what} cannot be turned into a grammar: {reason}")]
    Refused {
        /// Schema or tool definitions.
        what: &'static str,
        /// What the compiler says.
        reason: String,
    },
    /// No tools.
    #[error("the list of tools is empty: name at least one")]
    NoTools,
    /// What is wrong with the schema of one tool.
    #[error("tool {name:?}: {error}")]
    Tool {
        /// The tool's name.
        name: String,
        /// Its schema's error.
        error: Box<GrammarError>,
    },
    /// What is wrong with the schema of an answer that is no call.
    #[error("{error}")]
    Answer {
        /// The schema's error.
        error: Box<GrammarError>,
    },
    /// A marker of tool calls that is no token of the model.
    #[error(
        "the model's vocabulary has no special token {token:?}, which its tool calls are to begin with; use the tool syntax of this model's family"
    )]
    MissingToken {
        /// Marker.
        token: String,
    },
    /// A tokeniser that no grammar can be built over.
    #[error("the tokeniser cannot be used with grammars: {reason}")]
    Tokenizer {
        /// Why.
        reason: String,
    },
}

impl GrammarError {
    /// Says which tool the error is about, if it is about a schema.
    pub(crate) fn of_tool(self, name: &str) -> GrammarError {
        match self.is_about_schema() {
            true => GrammarError::Tool { name: name.into(), error: Box::new(self) },
            false => self,
        }
    }

    /// Says that the error is about the schema of an answer, if it is about a schema.
    pub(crate) fn of_answer(self) -> GrammarError {
        match self.is_about_schema() {
            true => GrammarError::Answer { error: Box::new(self) },
            false => self,
        }
    }

    fn is_about_schema(&self) -> bool {
        matches!(
            self,
            GrammarError::Unsupported { .. }
                | GrammarError::Invalid { .. }
                | GrammarError::TooLarge { .. }
                | GrammarError::Refused { .. }
        )
    }
}
