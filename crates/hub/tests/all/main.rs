//! All tests of the crate from outside, in one program: linking one for each file takes minutes.

mod fetch;
mod support;
