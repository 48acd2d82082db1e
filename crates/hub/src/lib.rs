//! Models by name: from Hugging Face's hub, from an address, and from the folders of other programs.
//!
//! ```text
//! owner/name[:quant] ─► name ─► repository (API) ─► choose ─► cache ─► download ─► snapshot path
//! https://…/file.gguf ─► name ───────────────────────────────────────► download ─► store path
//! Ollama, llama.cpp, LM Studio, the hub's own cache ─► local ─► path
//! ```
//!
//! The cache is the one that `huggingface_hub` keeps, in the same layout and with the same locks, so
//! that nothing is fetched twice. A file gets its name there only when its size and its sum are right.
//! A download is a list of blocks, several of which are fetched at once; a table on disk says how far
//! each has come, so that it continues after any kind of end.
//!
//! The crate never runs a model, never sends the token to another host than the hub's, and never
//! touches the unfinished files of other programs.

#![forbid(unsafe_code)]

mod cache;
mod choose;
mod client;
mod download;
mod error;
mod fetch;
mod leftovers;
mod local;
mod name;
mod progress_table;
mod repository;
mod settings;
mod sum;
mod url;

pub use error::HubError;
pub use fetch::{Fetched, Hub, Offer, Progress};
pub use leftovers::{Leftover, LeftoverKind, leftovers};
pub use local::{LocalModel, LocalModels, Program};
pub use name::{Reference, Repository};
pub use settings::{Pace, Settings};
