//! Nothing but dependencies: `Cargo.toml` names the features of crates of others that some part of the
//! workspace needs.
//!
//! Cargo builds a crate once for each set of features. The program, one crate and the tests of another
//! would each ask for their own, and build nearly everything anew. The shipped program has the features
//! that tests need, too; they add functions that nobody calls.

#![forbid(unsafe_code)]
