//! A recording's link to the device: what fails ends it, and after a while it is made again.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pianola_plan::DeviceError;

use super::options::{Clock, Fallback};
use super::packages::Kernels;
use super::session::{Needs, Session, Source};
use super::status::{Failure, Status};
use crate::runner::RunError;

/// The link. All of its driver's objects live in one thread.
pub(super) struct Link {
    source: Source,
    pub kernels: Arc<Kernels>,
    needs: Needs,
    session: Option<Session>,
    fallback: Fallback,
    clock: Arc<dyn Clock>,
    status: Arc<Mutex<Status>>,
    device: String,
}

/// What makes a link.
pub(super) struct LinkParts {
    pub source: Source,
    pub kernels: Arc<Kernels>,
    pub needs: Needs,
    pub fallback: Fallback,
    pub clock: Arc<dyn Clock>,
    /// The device's name.
    pub device: String,
}

impl Link {
    /// Loads and tests the packages. Where they do not load, plays compute on the processor from the
    /// start, if they may.
    pub fn open(parts: LinkParts) -> Result<Link, DeviceError> {
        let LinkParts { source, kernels, needs, fallback, clock, device } = parts;
        let (session, status) = (None, Arc::default());
        let mut link = Link { source, kernels, needs, session, fallback, clock, status, device };
        if let Err(error) = link.load() {
            let failure = link.fail("loading its kernels", &error);
            if fallback == Fallback::Report {
                return Err(failure.error());
            }
        }
        Ok(link)
    }

    fn load(&mut self) -> Result<(), RunError> {
        self.session = Some(Session::open(&self.source, &self.kernels, &self.needs)?);
        Ok(())
    }

    /// What the recording reads, too.
    pub fn status(&self) -> Arc<Mutex<Status>> {
        self.status.clone()
    }

    fn lock(&self) -> MutexGuard<'_, Status> {
        lock(&self.status)
    }

    /// Before a play: a device that failed is tried again if its wait is over.
    pub fn begin(&mut self) -> Result<(), DeviceError> {
        if self.session.is_some() {
            return Ok(());
        }
        if self.lock().blocked(self.clock.now()).is_none() {
            match self.load() {
                Ok(()) => self.lock().reopened(),
                Err(error) => drop(self.fail("loading its kernels again", &error)),
            }
        }
        let failure = self.lock().failure().map(Failure::error);
        match (self.fallback, failure) {
            (Fallback::Report, Some(error)) => Err(error),
            _ => Ok(()),
        }
    }

    /// After a play that ended well: whether by the device alone.
    pub fn end(&mut self) {
        if self.session.is_some() {
            self.lock().succeeded();
        }
    }

    /// Computes something on the device. `Ok(false)` says that the caller has to do it instead.
    pub fn run(
        &mut self,
        during: &str,
        compute: impl FnOnce(&mut Session) -> Result<(), RunError>,
    ) -> Result<bool, DeviceError> {
        if let Some(session) = &mut self.session {
            match compute(session) {
                Ok(()) => {
                    self.lock().counters.on_device += 1;
                    return Ok(true);
                }
                Err(error) => drop(self.fail(during, &error)),
            }
        }
        let mut status = lock(&self.status);
        if let (Fallback::Report, Some(failure)) = (self.fallback, status.failure()) {
            return Err(failure.error());
        }
        status.counters.on_host += 1;
        Ok(false)
    }

    /// Gives the device up until it is tried again: with it go the contexts, whatever their state.
    fn fail(&mut self, during: &str, error: &RunError) -> Failure {
        self.session = None;
        let failure = Failure::new(&self.device, during, error);
        let now = self.clock.now();
        self.lock().fail(failure.clone(), now);
        failure
    }
}

/// The status, whoever panicked with it: it is whole at any time.
pub(super) fn lock(status: &Mutex<Status>) -> MutexGuard<'_, Status> {
    status.lock().unwrap_or_else(PoisonError::into_inner)
}
