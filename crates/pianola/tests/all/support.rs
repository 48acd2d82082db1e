//! What tests of several crates share.

#[path = "../../../../tests/support/hub.rs"]
pub mod hub;
#[path = "../../../../tests/support/skip.rs"]
pub mod skip;
