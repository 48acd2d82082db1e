//! What a service and its engine's thread tell one another beside commands.

use super::info::Report;
use crate::error::EngineError;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, OnceLock};

/// The state of an engine's thread.
#[derive(Debug, Default)]
pub(super) struct Status {
    /// Why the device is lost, once it is lost for good.
    lost: OnceLock<String>,
    /// The thread was asked to end.
    stopping: AtomicBool,
    /// The thread has ended, or will without another step.
    ended: AtomicBool,
    ceiling_asked: AtomicBool,
    /// See [`super::Service::ceiling`].
    ceiling: OnceLock<Option<f64>>,
    /// As of the last step; see [`super::Service::snapshot`].
    report: Mutex<Report>,
}

impl Status {
    /// The device is lost for good. Returns why, as it was said first.
    pub fn lose(&self, reason: String) -> &str {
        self.lost.get_or_init(|| reason)
    }

    /// Asks the thread to end.
    pub fn stop(&self) {
        self.stopping.store(true, Ordering::SeqCst);
    }

    pub fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::SeqCst)
    }

    /// The thread ends.
    pub fn end(&self) {
        self.ended.store(true, Ordering::SeqCst);
    }

    /// An error where no request can be served any more.
    pub fn check(&self) -> Result<(), EngineError> {
        match self.lost.get() {
            Some(reason) => Err(EngineError::DeviceLost(reason.clone())),
            None if self.is_stopping() || self.ended.load(Ordering::SeqCst) => {
                Err(EngineError::Stopped)
            }
            None => Ok(()),
        }
    }

    /// Why no request can be served any more.
    pub fn reason(&self) -> Option<String> {
        self.check().err().map(|error| error.to_string())
    }

    /// Asks for the ceiling. False if it was asked for before.
    pub fn ask_for_ceiling(&self) -> bool {
        !self.ceiling_asked.swap(true, Ordering::SeqCst)
    }

    /// Whether the ceiling was asked for and is not known.
    pub fn wants_ceiling(&self) -> bool {
        self.ceiling_asked.load(Ordering::SeqCst) && self.ceiling.get().is_none()
    }

    pub fn set_ceiling(&self, ceiling: Option<f64>) {
        // Only the engine's thread sets it, and only once.
        let _ = self.ceiling.set(ceiling);
    }

    pub fn ceiling(&self) -> Option<f64> {
        self.ceiling.get().copied().flatten()
    }

    /// The engine's thread tells how it is doing.
    pub fn publish(&self, report: Report) {
        *self.report.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) = report;
    }

    /// What was published last.
    pub fn published(&self) -> Report {
        *self.report.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}
