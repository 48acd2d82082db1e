//! What tests of several crates share.

#[path = "../../../../tests/support/work.rs"]
pub mod work;
