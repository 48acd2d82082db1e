//! OpenAI's API.

pub(crate) mod chat;
pub(crate) mod completions;
pub(crate) mod embeddings;
pub(crate) mod models;
mod sampling;
mod tools;

pub(crate) use tools::read as read_tools;
