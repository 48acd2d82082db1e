//! What tests of several crates share.

#[path = "../../../../tests/support/held.rs"]
pub mod held;
#[path = "../../../../tests/support/skip.rs"]
pub mod skip;
