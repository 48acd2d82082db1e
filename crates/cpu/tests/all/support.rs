//! What tests of several crates share.

#[path = "../../../../tests/support/case.rs"]
pub mod case;
#[path = "../../../../tests/support/lone.rs"]
pub mod lone;
#[path = "../../../../tests/support/noise.rs"]
pub mod noise;
#[path = "../../../../tests/support/skip.rs"]
pub mod skip;
