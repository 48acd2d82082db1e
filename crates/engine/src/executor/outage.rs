//! Devices that failed and are left out for a while.

use pianola_plan::DeviceError;
use std::time::{Duration, Instant};

/// Shortest and longest time that a device is left out.
const SHORTEST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(64);

/// What is known of one device.
#[derive(Clone, Debug, Default)]
struct State {
    failures: u64,
    /// Whether somebody was told that its recording goes on without it.
    noticed: bool,
    /// Until when it is left out, and how long that is.
    out: Option<(Instant, Duration)>,
}

/// Failures of a plan's devices, by their ids.
#[derive(Clone, Debug)]
pub(crate) struct Outages {
    devices: Vec<State>,
}

impl Outages {
    pub fn new(devices: usize) -> Outages {
        Outages { devices: vec![State::default(); devices] }
    }

    /// Leaves a device out for a second, or twice as long as the last time. Returns whether it was
    /// used before, so that somebody should be told.
    pub fn fail(&mut self, device: usize, now: Instant) -> bool {
        let state = &mut self.devices[device];
        state.failures += 1;
        let first = state.out.is_none();
        let wait = state.out.map_or(SHORTEST, |(_, wait)| (2 * wait).min(LONGEST));
        state.out = Some((now + wait, wait));
        first
    }

    /// Whether a device is left out now.
    pub fn is_out(&self, device: usize, now: Instant) -> bool {
        self.devices[device].out.is_some_and(|(until, _)| now < until)
    }

    /// A device did what it was asked. Returns whether it was left out before.
    pub fn succeed(&mut self, device: usize) -> bool {
        self.devices[device].out.take().is_some()
    }

    /// Whether a device's recording goes on without it for the first time.
    pub fn notice(&mut self, device: usize) -> bool {
        !std::mem::replace(&mut self.devices[device].noticed, true)
    }

    /// How often a device failed.
    pub fn failures(&self, device: usize) -> u64 {
        self.devices[device].failures
    }

    /// Lets a device be tried again at once.
    #[cfg(test)]
    pub fn forget_time(&mut self, device: usize) {
        let state = &mut self.devices[device];
        state.out = state.out.map(|(_, wait)| (Instant::now(), wait));
    }

    /// Whether a device failed last and has not been used since.
    pub fn is_failed(&self, device: usize) -> bool {
        self.devices[device].out.is_some()
    }
}

/// Whether a step that failed so may be played elsewhere: not where the step itself was wrong or was
/// given up on purpose.
pub(crate) fn can_replay(error: &DeviceError) -> bool {
    !matches!(error, DeviceError::Interrupted | DeviceError::BadStep(_))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_that_fails_again_is_left_out_for_longer() {
        let mut outages = Outages::new(2);
        let start = Instant::now();
        assert!(!outages.is_out(1, start));
        assert!(outages.fail(1, start), "the first failure is told");
        let mut now = start;
        for seconds in [1, 2, 4, 8, 16, 32, 64, 64] {
            assert!(
                outages.is_out(1, now + Duration::from_secs(seconds) - Duration::from_millis(1))
            );
            now += Duration::from_secs(seconds);
            assert!(!outages.is_out(1, now), "tried again after {seconds} s");
            assert!(!outages.fail(1, now), "the second is not");
        }
        assert!(outages.succeed(1) && !outages.succeed(1));
        assert!(!outages.is_out(1, now) && !outages.is_failed(1));
        assert_eq!((outages.failures(0), outages.failures(1)), (0, 9));
        assert!(outages.fail(1, now) && !outages.is_out(1, now + SHORTEST));
    }
}
