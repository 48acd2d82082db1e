//! What is checked: a model's shape and weights, from a file or random.

use super::steps::{CONTEXT, LONGEST_WINDOW};
use crate::error::EngineError;
use crate::load::random_weights;
use pianola_formats::{TensorSource, TensorType};
use pianola_model::{Config, ModelFile, RandomWeights, Shape};
use std::path::Path;

/// A model whose kernels are checked.
pub struct CheckSubject {
    name: String,
    /// As the model's, but with room for a check's steps.
    pub(super) config: Config,
    /// Whether a window is longer in the model than in `config`.
    pub(super) shortened: bool,
    weights: Weights,
    /// Type that unquantised matrices are converted to at load.
    pub(super) quantize: Option<TensorType>,
}

enum Weights {
    File(ModelFile),
    Random(RandomWeights, TensorType),
}

impl CheckSubject {
    /// A model in a file or folder, with its own weights.
    pub fn file(
        name: String,
        path: &Path,
        quantize: Option<TensorType>,
    ) -> Result<CheckSubject, EngineError> {
        let file = ModelFile::open(path)?;
        let (config, shortened) = adapted(file.config()?);
        Ok(CheckSubject { name, config, shortened, weights: Weights::File(file), quantize })
    }

    /// Random weights of a type in the shape of a known model.
    pub fn shape(shape: &Shape, ty: TensorType) -> CheckSubject {
        CheckSubject::random(format!("{} {ty} (random weights)", shape.name), shape.config(), ty)
    }

    /// Random weights of a type for any configuration.
    pub fn random(name: String, config: Config, ty: TensorType) -> CheckSubject {
        let weights = Weights::Random(random_weights(&config, ty), ty);
        let (config, shortened) = adapted(config);
        CheckSubject { name, config, shortened, weights, quantize: None }
    }

    /// Its name, in words.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The type that random weights were asked for in.
    pub(super) fn random_type(&self) -> Option<TensorType> {
        match self.weights {
            Weights::File(_) => None,
            Weights::Random(_, ty) => Some(ty),
        }
    }

    pub(super) fn source(&self) -> &dyn TensorSource {
        match &self.weights {
            Weights::File(file) => file.source(),
            Weights::Random(weights, _) => weights,
        }
    }
}

/// Positions beyond the model's context compute like any others, and kernels know a window as a
/// number only. Returns whether a window was shortened, too.
fn adapted(mut config: Config) -> (Config, bool) {
    config.context = config.context.max(CONTEXT);
    let mut shortened = false;
    for window in config.windows.iter_mut().flatten() {
        shortened |= *window > LONGEST_WINDOW;
        *window = (*window).min(LONGEST_WINDOW);
    }
    (config, shortened)
}
