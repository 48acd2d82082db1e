//! All tests of the crate from outside, in one program: linking one for each file takes minutes.

mod common;
mod distortion;
mod folder;
mod gguf;
mod hostile;
mod npy;
mod support;
