//! All tests of the crate from outside, in one program: linking one for each file takes minutes.

mod engine;
mod refusals;
mod support;
mod walks;
#[path = "../../../../tests/support/work.rs"]
mod work;
