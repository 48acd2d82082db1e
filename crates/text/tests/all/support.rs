//! What tests of several crates share.

#[path = "../../../../tests/support/skip.rs"]
pub mod skip;
#[path = "../../../../tests/support/work.rs"]
pub mod work;
