//! All tests of the crate from outside, in one program: linking one for each file takes minutes.

mod hostile;
mod plans;
mod real_keys;
mod small;
mod stretched;
mod unread;
