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
    check_ranges, read_logprobs, read_numbers, read_positive, read_sampler, read_stops,
    read_template_variables,
};
pub(crate) use tools::{
    add as add_tool, checked as checked_tools, read as read_tools, read_function_of,
};
