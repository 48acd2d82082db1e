//! All tests of the crate from outside, in one program: linking one for each file takes minutes.

mod block_attention;
mod faults;
mod kept;
mod kernels;
mod lone;
mod matrix_unit;
mod noise;
mod rotated;
mod support;
