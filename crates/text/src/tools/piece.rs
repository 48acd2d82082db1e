//! What an answer is made of, and what to look for in it.

/// A part of an answer. Neighbouring pieces of one kind belong together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece {
    /// Words for the user.
    Text(String),
    /// Reasoning before the answer, without its tags.
    Reasoning(String),
    /// A call of this tool begins.
    CallStart {
        /// The tool.
        name: String,
    },
    /// More of the arguments of the call that began last: JSON as the model wrote it.
    CallArguments(String),
    /// The call that began last is complete, or the answer ended in it.
    CallEnd,
}

/// Where an answer may have reasoning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReasoningMode {
    /// `<think>` is text.
    Off,
    /// `<think>…</think>` at the very start.
    #[default]
    Tagged,
    /// The prompt ended with `<think>`, so that the answer begins with reasoning.
    Open,
}

impl ReasoningMode {
    /// The mode for answers to a prompt.
    pub fn of_prompt(prompt: &str) -> ReasoningMode {
        if prompt.trim_end().ends_with(THINK) { ReasoningMode::Open } else { ReasoningMode::Tagged }
    }
}

/// What an [`OutputParser`](super::OutputParser) looks for.
#[derive(Clone, Debug, Default)]
pub struct ParserOptions {
    /// Names of the tools the model may call; without any there are no calls.
    pub tools: Vec<String>,
    /// Whether calls after the first are calls; else they are text.
    pub parallel_calls: bool,
    /// Whether the answer is JSON unless it begins with a marker of calls: then nothing inside of the
    /// JSON is a call.
    pub json_answer: bool,
    /// Whether the answer can be nothing but calls, because the model is forced to write them: then
    /// there is no text or reasoning, and what is left of a call that was cut off is not text either.
    pub only_calls: bool,
    /// Where there may be reasoning.
    pub reasoning: ReasoningMode,
}

pub(super) const THINK: &str = "<think>";
pub(super) const END_THINK: &str = "</think>";
