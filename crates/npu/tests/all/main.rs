//! All tests of the crate from outside, in one program: linking one for each file takes minutes.

mod common;
mod driver;
mod files;
mod model;
mod model_faults;
mod package;
mod placed;
mod placed_attention;
mod placed_faults;
mod placed_quality;
mod run;
mod streams;
mod support;
