//! Pianola over HTTP: the APIs of OpenAI, Anthropic and Ollama, a web page, metrics.
//!
//! ```text
//! connection ─► route: gate, body ─► openai / anthropic / ollama: Generation
//!                                                     │
//!   SSE, JSON ◄─ the API's writer ◄─ updates ◄─ Running ◄─ engine's thread
//! ```
//!
//! Every API reads its requests into a [`generation::Generation`] and writes the updates of a
//! [`running::Running`] in its own form; nothing else knows more than one of them. One thread does all of
//! HTTP: it waits, and the engine's threads compute. What takes long (templates, tokenisers, schemas,
//! loading) runs on further threads.
//!
//! The crate knows no catalogue and no command line: models come from a [`ModelSource`].

#![forbid(unsafe_code)]

mod answer_sink;
mod anthropic;
mod block_stream;
mod blocks;
mod body;
mod call;
mod client_stream;
mod docs;
mod embedding;
mod error;
mod fields;
mod gate;
mod generation;
mod held_tokens;
mod hub;
mod listen;
mod log;
mod metrics;
mod model;
mod ollama;
mod openai;
mod operation;
mod options;
mod output;
mod page;
mod parts;
mod path;
mod reply;
mod route;
mod running;
mod source;
mod stall;
mod state;
mod status;
mod tls;

pub use hub::KeepOptions;
pub use listen::{ServerError, serve};
pub use log::{LogFormat, timestamp};
pub use options::{ApiKey, HttpLimits, ServerOptions, TlsFiles};
pub use source::{
    LoadFailure, LoadFailureKind, ModelCard, ModelFacts, ModelSource, PullProgress, PullStage,
};
