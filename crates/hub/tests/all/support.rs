//! What tests of several crates share.

#[path = "../../../../tests/support/hub.rs"]
pub mod hub;
