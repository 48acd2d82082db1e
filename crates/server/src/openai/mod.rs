//! OpenAI's API.

pub(crate) mod chat;
pub(crate) mod completions;
pub(crate) mod embeddings;
pub(crate) mod models;
mod refused;
pub(crate) mod responses;
mod sampling;
mod tools;

pub(crate) use sampling::{
    MAX_LOGPROBS, check_ranges, read_numbers, read_positive, read_sampler, read_stops,
    read_template_variables,
};
pub(crate) use tools::{checked as checked_tools, read as read_tools, read_function_of};
