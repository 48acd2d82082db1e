//! Measured costs of plays, and the ceilings of devices.

/// Physical ceilings of a device, measured on the spot.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Ceilings {
    /// Bytes per second that a plain read of memory reaches.
    pub bytes_per_second: f64,
    /// Operations per second of the arithmetic that the plan's mode uses.
    pub operations_per_second: f64,
}

impl Ceilings {
    /// Of a device that has no speed of its own, as one that is emulated: every prediction with it is
    /// not a number.
    pub const UNKNOWN: Ceilings =
        Ceilings { bytes_per_second: f64::NAN, operations_per_second: f64::NAN };

    /// Whether something was measured.
    pub fn is_known(&self) -> bool {
        !self.operations_per_second.is_nan()
    }

    /// Takes the higher values of another measurement: what disturbs one only lowers it.
    pub fn raise(&mut self, found: Ceilings) {
        self.bytes_per_second = self.bytes_per_second.max(found.bytes_per_second);
        self.operations_per_second = self.operations_per_second.max(found.operations_per_second);
    }

    /// Shortest time, in seconds, that the work can take.
    pub fn seconds(&self, work: crate::Work) -> f64 {
        let memory = work.bytes as f64 / self.bytes_per_second;
        memory.max(work.operations as f64 / self.operations_per_second)
    }
}

/// What playing cost so far.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct PlayStatistics {
    /// Plays.
    pub plays: u64,
    /// Wall-clock seconds inside plays.
    pub seconds: f64,
    /// Seconds of `seconds` that the host had nothing of its own to do: it waited for the device, or
    /// was itself one of the workers that compute.
    pub waited_seconds: f64,
    /// Seconds that the device computed, while [`crate::Recording::measure_busy`] was on: the time in
    /// kernels of all workers, divided by their number; on a GPU from the start of a submission to
    /// its end by the device's own clock, gaps between its kernels included.
    pub busy_seconds: f64,
    /// Submissions to a queue.
    pub submits: u64,
    /// Kernels launched by them.
    pub dispatches: u64,
    /// Device memory allocated while playing; none, unless an experiment asks for it.
    pub allocations: u64,
    /// Bytes of them.
    pub allocated_bytes: u64,
}

impl std::ops::Sub for PlayStatistics {
    type Output = PlayStatistics;
    fn sub(self, before: PlayStatistics) -> PlayStatistics {
        PlayStatistics {
            plays: self.plays - before.plays,
            seconds: self.seconds - before.seconds,
            waited_seconds: self.waited_seconds - before.waited_seconds,
            busy_seconds: self.busy_seconds - before.busy_seconds,
            submits: self.submits - before.submits,
            dispatches: self.dispatches - before.dispatches,
            allocations: self.allocations - before.allocations,
            allocated_bytes: self.allocated_bytes - before.allocated_bytes,
        }
    }
}

impl std::ops::AddAssign for PlayStatistics {
    fn add_assign(&mut self, more: PlayStatistics) {
        self.plays += more.plays;
        self.seconds += more.seconds;
        self.waited_seconds += more.waited_seconds;
        self.busy_seconds += more.busy_seconds;
        self.submits += more.submits;
        self.dispatches += more.dispatches;
        self.allocations += more.allocations;
        self.allocated_bytes += more.allocated_bytes;
    }
}
