//! What a recording's device is up to: counters, and the wait after a failure.

use std::time::Duration;

use pianola_plan::DeviceError;

use crate::amdxdna::DriverError;
use crate::runner::RunError;

/// What was computed where, and what failed.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct NpuCounters {
    /// Products and attentions that the device computed.
    pub on_device: u64,
    /// Products and attentions that the processor computed in the device's place, after a failure.
    pub on_host: u64,
    /// Failures of the device.
    pub failures: u64,
    /// The last of them, in words.
    pub last_failure: Option<String>,
    /// Times that the packages were loaded and tested again after a failure.
    pub reopened: u64,
}

/// A failure that can be reported again and again.
#[derive(Clone, Debug)]
pub(super) struct Failure {
    device: String,
    during: String,
    reason: String,
    kind: FailureKind,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum FailureKind {
    Timeout(Duration),
    Lost,
    Failed,
}

impl Failure {
    /// `during` names the kernel, or what else was done.
    pub fn new(device: &str, during: &str, error: &RunError) -> Failure {
        let kind = match error {
            RunError::Driver(DriverError::Timeout { after }) => FailureKind::Timeout(*after),
            RunError::Driver(DriverError::ContextLost { .. } | DriverError::DeviceLost { .. }) => {
                FailureKind::Lost
            }
            _ => FailureKind::Failed,
        };
        let (device, during) = (device.to_string(), during.to_string());
        Failure { device, during, reason: error.to_string(), kind }
    }

    pub fn error(&self) -> DeviceError {
        let Failure { device, during, reason, kind } = self.clone();
        match kind {
            FailureKind::Timeout(after) => {
                DeviceError::Timeout { device, during, seconds: after.as_secs().max(1) }
            }
            FailureKind::Lost => {
                DeviceError::Lost { device, during: format!("{during} ({reason})") }
            }
            FailureKind::Failed => DeviceError::Failed { device, what: during, reason },
        }
    }

    pub fn text(&self) -> String {
        format!("{}: {}", self.during, self.reason)
    }
}

/// The shortest and the longest wait before a device that failed is tried again.
const FIRST_WAIT: Duration = Duration::from_secs(1);
const LONGEST_WAIT: Duration = Duration::from_secs(64);

/// What the worker and the recording share.
#[derive(Debug, Default)]
pub(super) struct Status {
    pub counters: NpuCounters,
    /// The last failure, and when the device is tried again; none where it works.
    waiting: Option<(Failure, Duration)>,
    /// The wait after the next failure; it doubles with each one in a row.
    next_wait: Option<Duration>,
}

impl Status {
    /// Notes a failure at a time of the clock.
    pub fn fail(&mut self, failure: Failure, now: Duration) {
        self.counters.failures += 1;
        self.counters.last_failure = Some(failure.text());
        let wait = self.next_wait.unwrap_or(FIRST_WAIT);
        self.next_wait = Some((wait * 2).min(LONGEST_WAIT));
        self.waiting = Some((failure, now + wait));
    }

    /// Notes that the packages are loaded again.
    pub fn reopened(&mut self) {
        self.counters.reopened += 1;
        self.waiting = None;
    }

    /// Notes a play without a failure: the next wait is the shortest again.
    pub fn succeeded(&mut self) {
        self.next_wait = None;
    }

    /// The failure after which the device is not yet tried again.
    pub fn blocked(&self, now: Duration) -> Option<&Failure> {
        self.waiting.as_ref().filter(|(_, until)| now < *until).map(|(failure, _)| failure)
    }

    /// The failure after which the packages have not been loaded again.
    pub fn failure(&self) -> Option<&Failure> {
        self.waiting.as_ref().map(|(failure, _)| failure)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_a_minute_and_start_anew() {
        let error = RunError::Driver(DriverError::DeviceLost { call: "EXEC_CMD" });
        let failure = Failure::new("npu", "blk.0.attn_q", &error);
        let mut status = Status::default();
        let mut now = Duration::from_secs(100);
        for seconds in [1, 2, 4, 8, 16, 32, 64, 64] {
            status.fail(failure.clone(), now);
            let end = now + Duration::from_secs(seconds);
            assert!(status.blocked(end - Duration::from_nanos(1)).is_some());
            assert!(status.blocked(end).is_none() && status.failure().is_some());
            now = end;
        }
        status.reopened();
        status.succeeded();
        assert!(status.failure().is_none());
        status.fail(failure, now);
        assert!(status.blocked(now + FIRST_WAIT).is_none());
        assert_eq!((status.counters.failures, status.counters.reopened), (9, 1));
        let error = status.failure().unwrap().error().to_string();
        assert!(error.contains("blk.0.attn_q") && error.contains("EXEC_CMD"), "{error}");
    }
}
