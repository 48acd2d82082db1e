//! All tests of the crate from outside, in one program: linking one for each file takes minutes.

mod decode;
mod faults;
mod kernels;
mod lone;
mod matrix_units;
mod noise;
mod phoenix;
mod pipelines;
mod range;
mod reproducible;
mod shared_memory;
mod spirv;
mod statistics;
mod support;
mod tune;
mod validation;
