//! Recordings with faults in their kernels, and on a matrix unit that is emulated: what the shipped crate has
//! not. Whole plans beside the reference are in `tests/`.

mod block_attention;
#[path = "../../../../tests/support/case.rs"]
mod case;
mod check;
mod faults;
mod kept;
mod matrix_unit;
#[path = "../../../../tests/support/faults.rs"]
mod planted;
mod rotated;
#[path = "../../../../tests/support/tiny_model.rs"]
mod tiny_model;
