//! Model files: what is in them, whether they can be trusted, and what the weights are worth.
//!
//! This crate opens GGUF files and Hugging Face folders of safetensors, knows the block-quantised
//! tensor types bit by bit, quantises, measures what quantising cost, and reads and writes the
//! few `.npy` arrays that tests exchange with Python.
//!
//! ```text
//! model.gguf ──► Gguf ──────────────┐
//!                                   ├─► TensorSource ─► Tensor (type, shape, mapped bytes)
//! folder/ ────► HuggingFaceFolder ──┘                        │
//!                                                            ├─► Block (codes and scales)
//!                                                 dequantize_row ─► f32
//! f32 ─► quantize_row ─► GgufWriter ─► model.gguf
//! ```
//!
//! A file is hostile until checked: every length, count and offset is compared with the size of
//! the file before it is used, and nothing is allocated that the file's own size does not justify.
//! A bad file is an [`Error`] that names the file, the tensor or key, and what to do; never a panic.
//!
//! The crate never computes with weights, never guesses a model's architecture, never touches the
//! network, and never writes in place: writers fill a temporary file and rename it.

mod blocks;
mod blocks_32;
mod blocks_codebook;
mod blocks_k;
mod distortion;
mod error;
mod fit;
mod folder;
mod gguf;
mod json;
// The one module that may map files; its SAFETY comments say what that relies on.
#[allow(unsafe_code)]
mod map;
pub mod npy;
pub mod quantization;
mod replace;
mod safetensors;
mod sniff;
mod tensor;
mod types;

pub use blocks::{convert_row, dequantize_row, quantize_row};
pub use blocks_codebook::IQ4_VALUES;
pub use distortion::Distortion;
pub use error::{Error, ErrorKind};
pub use folder::HuggingFaceFolder;
pub use gguf::survey::{GgufSurvey, SurveyedTensor};
pub use gguf::value::{Array, Value};
pub use gguf::write::{GgufStream, GgufWriter};
pub use gguf::{Gguf, is_gguf};
pub use quantization::{Block, Format, FormatVisitor, Minimum, Quantization};
pub use safetensors::Safetensors;
pub use tensor::{Tensor, TensorInfo, TensorSource};
pub use types::{TensorType, UnknownTensorType};
