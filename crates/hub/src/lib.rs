//! Where models come from: packages, Hugging Face's hub, an address, the folders of other programs; and the
//! store that keeps them.
//!
//! ```text
//! family:size ────► catalogue ─┬─► packages ─► pip ─► join and check ──► store path
//!                              └─► a file of the hub, as below
//! owner/name[:quant] ─► name ─► repository (API) ─► choose ─► cache ─► download ─► snapshot path
//! https://…/file.gguf ─► name ───────────────────────────────────────► download ─► store path
//! Ollama, llama.cpp, LM Studio, the hub's own cache ─► local ─► path
//! ```
//!
//! The cache is the one that `huggingface_hub` keeps, in the same layout and with the same locks, so
//! that nothing is fetched twice. A file gets its name there, and in the store, only when its size and its
//! sum are right. A download is a list of blocks, several of which are fetched at once; a table on disk
//! says how far each has come, so that it continues after any kind of end.
//!
//! The crate never runs a model and prints nothing: whoever asks hands in a [`Progress`]. It never sends
//! the token to another host than the hub's, and never touches the unfinished files of other programs.

#![forbid(unsafe_code)]

mod bound;
mod cache;
pub mod catalogue;
mod choose;
mod client;
mod disk;
mod download;
mod error;
mod fetch;
mod folder;
mod leftovers;
mod local;
mod name;
pub mod obtain;
mod packages;
mod progress_table;
mod repository;
mod settings;
mod store;
mod sum;
mod url;

pub use bound::launch;
pub use disk::{free_space, size_of};
pub use error::HubError;
pub use fetch::{Fetched, Hub, Offer, Progress};
pub use folder::{SeveralFiles, holds_models, model_at};
pub use leftovers::{Leftover, LeftoverKind, leftovers};
pub use local::{LocalModel, LocalModels, Program};
pub use name::{Reference, Repository};
pub use obtain::{Located, ObtainError};
pub use packages::{PullError, check_pip};
pub use settings::{Pace, Settings};
pub use store::{Listed, Resolved, State, Store, StoreError};
