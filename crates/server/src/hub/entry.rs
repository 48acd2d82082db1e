//! A model that was requested, and the state of its load.

use crate::error::{ApiError, ErrorKind};
use crate::model::LoadedModel;
use crate::source::{LoadFailure, LoadFailureKind};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// How long a failed load is reported before it is tried again, where that may succeed.
const RETRY_DELAY: Duration = Duration::from_secs(5);
/// The same where nothing was tried because other models were in use.
const IN_USE_RETRY_DELAY: Duration = Duration::from_millis(500);

/// The end of a load: the model, unless it failed. Whoever waits for the model holds it by this already, so
/// that it is not unloaded before the first request has it.
pub(super) type Loading = watch::Receiver<Option<Arc<LoadedModel>>>;

/// The state of a model that was requested.
pub(super) enum LoadState {
    Loading(Loading),
    Loaded(Arc<LoadedModel>),
    Failed {
        failure: LoadFailure,
        /// Of the files that could not be loaded; see [`crate::source::ModelSource::version`].
        version: u64,
    },
}

pub(super) struct Entry {
    pub state: LoadState,
    pub last_used: Instant,
    /// How long it stays when idle, where a request said so.
    pub idle: Option<Duration>,
}

impl Entry {
    pub fn new(state: LoadState) -> Entry {
        Entry { state, last_used: Instant::now(), idle: None }
    }

    /// Loaded, and a request holds it.
    pub fn is_used(&self) -> bool {
        matches!(&self.state, LoadState::Loaded(model) if Arc::strong_count(model) > 1)
    }

    /// Loaded, and no request holds it.
    pub fn is_idle(&self) -> bool {
        matches!(&self.state, LoadState::Loaded(model) if Arc::strong_count(model) == 1)
    }

    pub fn memory_bytes(&self) -> u64 {
        self.model().map_or(0, |model| model.memory_bytes())
    }

    /// The model, where it is loaded.
    pub fn model(&self) -> Option<&Arc<LoadedModel>> {
        match &self.state {
            LoadState::Loaded(model) => Some(model),
            LoadState::Loading(_) | LoadState::Failed { .. } => None,
        }
    }

    /// Whether the load failed in a way that only a change of the files mends.
    pub fn has_lasting_failure(&self) -> bool {
        matches!(&self.state, LoadState::Failed { failure, .. } if failure.is_lasting())
    }

    /// Why the load failed, until it is worth trying again. `now` is the version of the files, where it is
    /// known.
    pub fn failure(&self, now: Option<u64>) -> Option<&LoadFailure> {
        let LoadState::Failed { failure, version } = &self.state else { return None };
        let holds = match failure.is_lasting() {
            true => now.is_none_or(|now| now == *version),
            false => self.last_used.elapsed() < retry_delay(failure),
        };
        holds.then_some(failure)
    }
}

fn retry_delay(failure: &LoadFailure) -> Duration {
    if failure.kind == LoadFailureKind::InUse { IN_USE_RETRY_DELAY } else { RETRY_DELAY }
}

/// The error of requests for a model that could not be loaded.
pub(super) fn unavailable(id: &str, failure: &LoadFailure) -> ApiError {
    let message = format!("{id} cannot be loaded: {}", failure.message);
    let error = ApiError::new(ErrorKind::Unavailable, message);
    match failure.kind {
        _ if failure.is_lasting() => error,
        LoadFailureKind::InUse => error.retry_after(2),
        _ => error.retry_after(10),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failed(kind: LoadFailureKind) -> Entry {
        Entry::new(LoadState::Failed { failure: LoadFailure::new(kind, "broken"), version: 7 })
    }

    #[test]
    fn files_are_tried_again_once_they_change() {
        let entry = failed(LoadFailureKind::Files);
        assert!(entry.has_lasting_failure());
        assert!(entry.failure(Some(7)).is_some() && entry.failure(None).is_some());
        assert!(entry.failure(Some(8)).is_none());
    }

    #[test]
    fn other_failures_are_tried_again_after_a_while() {
        let mut entry = failed(LoadFailureKind::Temporary);
        assert!(!entry.has_lasting_failure());
        assert!(entry.failure(None).is_some());
        entry.last_used -= RETRY_DELAY;
        assert!(entry.failure(None).is_none());
    }
}
