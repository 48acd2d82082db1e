//! All tests of the crate from outside, in one program: linking one for each file takes minutes.

mod kernels;
mod lone;
mod noise;
mod support;
