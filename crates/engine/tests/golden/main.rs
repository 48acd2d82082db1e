//! Golden cases on the processor, with nothing but what the project brings.

mod cases;
mod dialects;
mod support;
mod truncated;
