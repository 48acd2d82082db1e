//! Qwen 2 and 2.5: Llama's layer with biases on queries, keys and values.
//!
//! Yang et al. 2024, <https://arxiv.org/abs/2407.10671>. The biases, and the windows that some
//! configurations ask for, come with the configuration; the layer is the same.

use crate::build::Build;
use crate::error::ModelError;
use pianola_plan::TensorId;

pub(crate) fn forward(model: &mut Build<'_>) -> Result<TensorId, ModelError> {
    crate::llama::forward(model)
}
