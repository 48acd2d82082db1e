//! One file a command.

pub mod bench;
pub mod chat;
pub mod check;
pub mod compare;
pub mod completions;
pub mod detokenize;
pub mod devices;
pub mod doctor;
pub mod embed;
mod generate;
pub mod help;
pub mod inspect;
pub mod list;
pub mod logits;
pub mod npu;
pub mod perplexity;
pub mod plan;
pub mod pull;
pub mod rm;
pub mod run;
pub mod serve;
pub mod tokenize;
pub mod tune;
