//! The command line of Pianola.

// Until the commands call them.
#![allow(dead_code)]

mod catalogue;
mod progress;
mod pull;
mod store;

fn main() {}
