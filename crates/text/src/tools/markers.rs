//! What stands around calls, besides nothing at all.

use super::ToolFormat;

/// What stands around calls.
#[derive(Debug)]
pub(super) struct Marker {
    pub(super) open: &'static str,
    pub(super) close: &'static str,
    pub(super) kind: MarkerKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MarkerKind {
    /// JSON follows.
    Tag,
    /// A word and the end of the line follow, then JSON.
    Fence,
    /// JSON follows, or a bare name and `[ARGS]`.
    Named,
}

const BLOCK: Marker = Marker { open: "<tool_call>", close: "</tool_call>", kind: MarkerKind::Tag };
const FENCE: Marker = Marker { open: "```", close: "```", kind: MarkerKind::Fence };
const PYTHON: Marker = Marker { open: "<|python_tag|>", close: "", kind: MarkerKind::Tag };
const TOOL_CALLS: Marker = Marker { open: "[TOOL_CALLS]", close: "", kind: MarkerKind::Named };

/// Words after a fence that a call may follow.
pub(super) const FENCE_WORDS: [&str; 4] = ["", "json", "tool_code", "tool_call"];

/// The markers that a model of the format may write.
pub(super) fn markers(format: ToolFormat) -> &'static [Marker] {
    match format {
        ToolFormat::SmolLm => &[BLOCK],
        ToolFormat::Llama3 => &[PYTHON],
        ToolFormat::Mistral => &[TOOL_CALLS],
        ToolFormat::Gemma => &[FENCE],
        // Qwen 2.5 Coder writes fences, whatever its template asks for.
        ToolFormat::Hermes | ToolFormat::Generic => &[BLOCK, FENCE],
    }
}
