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
    #[error("the {what} has {found}, and at most {limit} are accepted; make it smaller or simpler")]
    TooLarge {
        /// Schema.
        what: &'static str,
        /// How large it is, with its unit.
        found: String,
        /// The limit.
        limit: usize,
    },
    /// Beyond the limit on the time to compile it.
    #[error("the {what} took longer to compile than {seconds} s; make it smaller or simpler")]
    TooSlow {
        /// Schema or tool definitions.
        what: &'static str,
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
    #[error("the {what} is empty: name at least one")]
    Empty {
        /// List of tools.
        what: &'static str,
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
