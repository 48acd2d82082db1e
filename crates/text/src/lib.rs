//! Tokenisers, chat templates, tool calls and streaming detokenisation.
//!
//! ```text
//! conversation ─► ChatTemplate ─► text ─► added tokens ─► normalise ─► split ─► merge ─► ids
//!                                                                                         │
//!  text, reasoning, calls ◄─ OutputParser ◄─ text ◄─ Decoder (whole characters only) ◄─────┘
//! ```
//!
//! A conversation with tools goes through [`ToolFormat::adapt`] first.
//!
//! A [`Tokenizer`] comes from a GGUF file or a tokenizer.json and agrees, token
//! for token, with Hugging Face's `tokenizers`. The crate never runs a model,
//! never touches the network, and never trains a vocabulary. Whatever is in a
//! file or a text, it returns an error or U+FFFD and does not panic.

#![forbid(unsafe_code)]

mod added;
mod alphabet;
mod decode;
mod error;
mod hash;
mod jinja;
mod load;
mod model;
mod normalise;
mod pattern;
mod split;
mod template;
mod tokenizer;
mod tools;
mod vocabulary;

pub use decode::Decoder;
pub use error::Error;
pub use load::VocabularySource;
pub use template::{ChatTemplate, Conversation, Message, TemplateOrigin};
pub use tokenizer::{SpecialTokens, Tokenizer};
pub use tools::{CallSyntax, OutputParser, ParserOptions, Piece, ReasoningMode, ToolFormat};
