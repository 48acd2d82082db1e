//! What tests of several crates share.

#[path = "../../../../tests/support/held.rs"]
pub mod held;
