//! Architectures: from a model file's configuration to a [`pianola_plan::Graph`].
//!
//! ```text
//! GGUF metadata ─► gguf ──────────┐
//!                                 ├─► Config ─► llama | qwen2 | gemma3 ─► Graph
//! config.json ──► hugging_face ───┘
//! ```
//!
//! An architecture file says what the model *is* and nothing else: no numbers of its own (they
//! come from the configuration), no device, no memory. Whatever a configuration asks for and this
//! crate does not do is an error that names the key; nothing is ignored that would change a result.

#![forbid(unsafe_code)]

mod build;
mod config;
mod error;
mod file;
mod gemma3;
mod gguf;
mod hugging_face;
mod llama;
mod names;
mod qwen2;
mod random;
mod rope;
mod shapes;

pub use build::graph;
pub use config::{Architecture, Config, Dialect, RopeConfig, RopeScaling};
pub use error::ModelError;
pub use file::ModelFile;
pub use random::RandomWeights;
pub use shapes::{SHAPES, Shape, shape};
