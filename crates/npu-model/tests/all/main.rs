//! Each rule of the kernel is kept and broken here, by raw numbers and offsets.
#![allow(unsafe_code)]

mod buffers;
mod commands;
mod contexts;
mod faults;
mod hostile;
mod support;
