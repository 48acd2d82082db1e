//! What tests of several crates share.

#[path = "../../../../tests/support/case.rs"]
pub mod case;
#[path = "../../../../tests/support/golden.rs"]
pub mod golden;
#[path = "../../../../tests/support/gpu.rs"]
pub mod gpu;
#[path = "../../../../tests/support/logits.rs"]
pub mod logits;
#[path = "../../../../tests/support/npu.rs"]
pub mod npu;
#[path = "../../../../tests/support/remote.rs"]
pub mod remote;
#[path = "../../../../tests/support/skip.rs"]
pub mod skip;
#[path = "../../../../tests/support/tiny.rs"]
pub mod tiny;
#[path = "../../../../tests/support/tiny_model.rs"]
pub mod tiny_model;
#[path = "../../../../tests/support/validation.rs"]
pub mod validation;
