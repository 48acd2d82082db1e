//! The parts of one request that the engine has: answers to generate, or texts to embed.
//!
//! A request is accepted if its first part is. The others are submitted as room comes, so that one request
//! of many parts neither fills the queue nor is refused halfway.

use crate::error::ApiError;
use crate::model::LoadedModel;
use pianola_engine::{EngineError, RequestId, Service};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

/// After how long a part that found the queue full is submitted again, unless another one ends before.
pub(crate) const RETRY: Duration = Duration::from_millis(50);

/// Parts that the engine has. Dropping it cancels them.
pub(crate) struct AdmittedParts {
    model: Arc<LoadedModel>,
    /// Those that have not ended, by their number in the request.
    open: HashMap<usize, RequestId>,
    /// Whether any was ever admitted.
    any: bool,
    /// Attempts that found the queue full and whose dropped sink has not been reported yet.
    refused: HashMap<usize, usize>,
    /// Most that are with the engine at once.
    most: usize,
}

impl AdmittedParts {
    pub fn new(model: Arc<LoadedModel>, most: usize) -> AdmittedParts {
        AdmittedParts { model, open: HashMap::new(), any: false, refused: HashMap::new(), most }
    }

    /// Whether a further part may be submitted.
    pub fn has_room(&self) -> bool {
        self.open.len() < self.most
    }

    /// Submits a part. False where the queue is full; for the first part that is an error.
    pub fn admit(
        &mut self,
        part: usize,
        submit: impl FnOnce(&Service) -> Result<RequestId, EngineError>,
    ) -> Result<bool, ApiError> {
        match submit(self.model.service()) {
            Ok(id) => {
                self.open.insert(part, id);
                self.any = true;
                Ok(true)
            }
            Err(EngineError::QueueFull { .. }) if self.any => {
                *self.refused.entry(part).or_default() += 1;
                Ok(false)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// A part has ended.
    pub fn end(&mut self, part: usize) {
        self.open.remove(&part);
    }

    /// A sink of this part was dropped without an end. True if the engine had accepted the part, and so
    /// has stopped; false if it was the sink of an attempt that found the queue full.
    pub fn is_lost(&mut self, part: usize) -> bool {
        match self.refused.get_mut(&part) {
            Some(attempts) if *attempts > 0 => {
                *attempts -= 1;
                false
            }
            _ => true,
        }
    }

    /// Cancels those that have not ended.
    pub fn cancel(&mut self) {
        self.open.drain().for_each(|(_, id)| self.model.service().cancel(id));
    }
}

impl Drop for AdmittedParts {
    fn drop(&mut self) {
        self.cancel();
    }
}
