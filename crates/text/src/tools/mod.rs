//! Tool calls: which format a model writes them in, conversations in a form its template renders,
//! and calls found in its output while it is generated.
//!
//! ```text
//! template, vocabulary ──ToolFormat::of──► ToolFormat ──call_syntax──► CallSyntax (to force a call)
//!                                              │
//! Conversation (OpenAI's form) ──adapt─────────┤──► Conversation ──► ChatTemplate ──► prompt
//!                                              │
//! generated text ──OutputParser::push──────────┴──► Text │ Reasoning │ CallStart, CallArguments…, CallEnd
//! ```
//!
//! Nothing is lost on either way: what a template has no place for is moved to where it has one,
//! and output that looks like a call and is none comes out as text.

mod adapt;
mod content;
mod expected;
mod link;
mod markers;
mod object;
mod parser;
mod piece;
mod words;

pub use parser::OutputParser;
pub use piece::{ParserOptions, Piece, ReasoningMode};

use crate::template::ChatTemplate;
use crate::tokenizer::Tokenizer;

/// The form in which a model writes calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ToolFormat {
    /// Qwen 2.5, Qwen 3, Hermes: a `<tool_call>` block of JSON for each call.
    Hermes,
    /// SmolLM 2: one `<tool_call>` block with a list of calls.
    SmolLm,
    /// Llama 3: JSON alone, with `parameters`, perhaps after `<|python_tag|>`.
    Llama3,
    /// Mistral: `[TOOL_CALLS]` and a list; newer models write `[TOOL_CALLS]name[ARGS]{…}`.
    Mistral,
    /// Gemma 1 to 3: JSON alone or in a fence, with `parameters`.
    Gemma,
    /// Models without a format of their own, or with one that is not known here: they are told to
    /// write blocks like [`Hermes`](ToolFormat::Hermes).
    Generic,
}

/// The literal text around calls, for those who force a model to make one.
///
/// An answer of calls is `begin`, `[` if `list`, the calls with `separator` between them, `]` if
/// `list`, `end`. A call is `{"name": "…", "ARGUMENTS_KEY": {…}}`. [`OutputParser`] reads it back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallSyntax {
    /// Before the first call.
    pub begin: &'static str,
    /// Between two calls.
    pub separator: &'static str,
    /// After the last call.
    pub end: &'static str,
    /// The key of the arguments; that of the name is always `name`.
    pub arguments_key: &'static str,
    /// Whether the calls are the items of one JSON array.
    pub list: bool,
    /// Whether `begin` is a special token, to be forced as that token and not spelt.
    pub begin_special: bool,
}

impl ToolFormat {
    /// The format of a model, by its template and vocabulary.
    pub fn of(template: &ChatTemplate, tokenizer: &Tokenizer) -> ToolFormat {
        let source = template.source();
        let has = |text: &str| source.contains(text);
        let knows = |token: &str| tokenizer.id_of(token).is_some();
        let turns = |token: &str| has(token) && knows(token);
        match template.written_call() {
            Some(call) if call.contains("[TOOL_CALLS]") => ToolFormat::Mistral,
            Some(call) if call.contains("<tool_call>") && call.contains("\"arguments\":") => {
                ToolFormat::Hermes
            }
            Some(call) if call.contains("\"parameters\":") && turns("<|start_header_id|>") => {
                ToolFormat::Llama3
            }
            Some(_) => ToolFormat::Generic,
            None if knows("[TOOL_CALLS]") => ToolFormat::Mistral,
            None if has("SmolLM") => ToolFormat::SmolLm,
            None if turns("<|start_header_id|>") => ToolFormat::Llama3,
            None if turns("<start_of_turn>") => ToolFormat::Gemma,
            None => ToolFormat::Generic,
        }
    }

    /// Whether the model marks calls or reasoning by special tokens, so that the parser needs them in
    /// the text: a decoder leaves them out unless it is made to show them.
    pub fn needs_special_tokens(self, tokenizer: &Tokenizer) -> bool {
        let markers = markers::markers(self).iter().map(|marker| marker.open).chain([piece::THINK]);
        let mut ids = markers.filter_map(|marker| tokenizer.id_of(marker));
        ids.any(|id| tokenizer.is_special(id))
    }

    /// The literal text around calls where JSON of another kind may stand in their place: it begins
    /// with a marker that no JSON begins with.
    pub fn marked_call_syntax(self) -> CallSyntax {
        let bare = self.call_syntax();
        match self {
            ToolFormat::Llama3 => {
                CallSyntax { begin: "<|python_tag|>", begin_special: true, ..bare }
            }
            ToolFormat::Gemma => CallSyntax { begin: "```json\n", end: "\n```", ..bare },
            _ => bare,
        }
    }

    /// The literal text around calls.
    pub fn call_syntax(self) -> CallSyntax {
        const BLOCK: CallSyntax = CallSyntax {
            begin: "<tool_call>\n",
            separator: "\n</tool_call>\n<tool_call>\n",
            end: "\n</tool_call>",
            arguments_key: "arguments",
            list: false,
            begin_special: false,
        };
        const BARE: CallSyntax = CallSyntax {
            begin: "",
            separator: "\n",
            end: "",
            arguments_key: "parameters",
            list: false,
            begin_special: false,
        };
        let list = CallSyntax { separator: ", ", list: true, ..BLOCK };
        match self {
            ToolFormat::Hermes | ToolFormat::Generic => BLOCK,
            ToolFormat::SmolLm => CallSyntax { begin: "<tool_call>", end: "</tool_call>", ..list },
            ToolFormat::Llama3 => CallSyntax { separator: "; ", ..BARE },
            ToolFormat::Mistral => {
                CallSyntax { begin: "[TOOL_CALLS]", end: "", begin_special: true, ..list }
            }
            ToolFormat::Gemma => BARE,
        }
    }
}
