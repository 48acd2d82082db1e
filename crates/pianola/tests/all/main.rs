//! All tests of the crate from outside, in one program: linking one for each file takes minutes.

#[macro_use]
mod common;

mod bad_input;
mod catalogue;
mod chat;
mod doctor;
mod documents;
mod first_day;
mod form;
mod habits;
mod hostile;
mod hub;
mod machine;
mod models;
mod npu;
mod npu_run;
mod npu_serve;
mod npu_share;
mod pull;
mod run;
mod serve;
mod serve_http;
mod serve_models;
mod serve_requests;
mod support;
mod terminal;
mod tokens;
mod usage;
mod vulkan;
