//! AMD's XDNA NPU.
pub mod amdxdna;
mod bytes;
pub mod instructions;
pub mod xclbin;
pub mod package;
pub mod runner;
