//! What tests of several crates share.

#[path = "../../../../tests/support/golden.rs"]
pub mod golden;
#[path = "../../../../tests/support/skip.rs"]
pub mod skip;
