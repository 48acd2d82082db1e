//! Constraints from JSON schemas, tool definitions and grammars.
//!
//! ```text
//! JSON schema ─► normalise ─► own references only, keywords checked ─┐
//! tools ───────► frame of the model's call syntax ───────────────────┼─► llguidance ─► parser
//! grammar in Lark's notation ────────────────────────────────────────┘                   │
//! tokeniser ─► trie of token bytes ────────────────────────────────────────────► GrammarConstraint
//!                                                                                        │
//!                                          engine: fill_mask, advance, rollback ◄────────┘
//! ```
//!
//! [`Grammars`] holds one model's vocabulary and compiles grammars over it; what it returns is the
//! engine's [`Constraint`](pianola_engine::Constraint). Answers are valid by their schema unless they
//! are cut by length: what a grammar cannot enforce is an error, or relaxed where
//! [`SchemaStrictness`] says so. A hostile schema ends in a [`GrammarError`].
//!
//! The crate never runs a model, never fetches a schema, and never looks at an answer's text.

#![forbid(unsafe_code)]

mod calls;
mod compiler;
mod constraint;
mod error;
mod grammars;
mod lark;
mod schema;
mod text;
mod vocabulary;

pub use calls::ToolSchema;
pub use error::GrammarError;
pub use grammars::{Grammars, JsonAnswer};
pub use schema::SchemaStrictness;
