//! All tests of the crate from outside, in one program: linking one for each file takes minutes.

mod corpus;
mod golden;
mod hostile;
mod models;
mod oracle;
mod support;
mod templates;
mod tool_conversations;
mod tool_output;
mod tool_prompts;
mod vocabularies;
