//! Architectures: from a model file's configuration to a [`pianola_plan::Graph`].
//!
//! ```text
//!                  family ─ one row a family
//!                    │
//! GGUF metadata ─► gguf ──────────┐
//!                                 ├─► Config ─► llama | gemma3 ─► Graph
//! config.json ──► hugging_face ───┘
//! ```
//!
//! A family is a file and a row of the table in `family`: names, conventions and defaults as data, and
//! a forward pass where no other family has the same. A forward pass says what the model *is* and
//! nothing else: no numbers of its own (they come from the configuration), no device, no memory.
//!
//! Nothing in a file is ignored that would change a result. Readers record the keys that they look at, and the
//! weights of a family are known by name. `unread` refuses every other key of the model and every other
//! tensor by its name, but for those in `gguf/keys.rs` and `hugging_face/keys.rs` that change nothing.

#![forbid(unsafe_code)]

mod build;
mod config;
mod error;
mod family;
mod file;
mod gemma2;
mod gemma3;
mod gguf;
mod hugging_face;
mod llama;
mod mistral;
mod mixture;
mod phi3;
mod qwen2;
mod qwen3;
mod random;
mod role;
mod rope;
mod shapes;
mod subset;
mod unread;

pub use build::graph;
pub use config::{Config, Dialect, RopeConfig, RopeScaling};
pub use error::ModelError;
pub use family::Family;
pub use file::{ModelFile, VisionTensors};
pub use mixture::Mixture;
pub use random::RandomWeights;
pub use shapes::{SHAPES, Shape, shape};
pub use subset::{ModelSubset, distinct_layers};
