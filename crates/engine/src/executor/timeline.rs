//! When each device worked on which segment, as the host sees it: from the submission, or the end of what
//! the device did before, until the host finds it done.

use std::time::Instant;

/// A segment's time on its device.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Span {
    /// Device id in the plan.
    pub device: usize,
    /// Index in [`pianola_plan::Plan::segments`].
    pub segment: usize,
    /// The step, counted from the first that was played.
    pub step: u64,
    /// Slot that its play ran in: each half of a step has its own.
    pub slot: usize,
    /// Rows of its play.
    pub rows: usize,
    /// Tokens that the last of them sees.
    pub context: usize,
    /// Seconds since the plan was recorded.
    pub start: f64,
    /// The same.
    pub end: f64,
}

/// Spans of all devices.
pub(crate) struct Timeline {
    origin: Instant,
    open: Vec<Span>,
    /// Spans that ended since they were last taken.
    closed: Vec<Span>,
    /// Spans of a profile, where one is taken.
    pub kept: Option<Vec<Span>>,
    /// Seconds that each device was busy.
    pub busy: Vec<f64>,
    /// When each device was last found done.
    last: Vec<f64>,
    /// The step that is played.
    pub step: u64,
}

impl Timeline {
    pub fn new(devices: usize) -> Timeline {
        Timeline {
            origin: Instant::now(),
            open: Vec::new(),
            closed: Vec::new(),
            kept: None,
            busy: vec![0.0; devices],
            last: vec![0.0; devices],
            step: 0,
        }
    }

    fn now(&self) -> f64 {
        self.origin.elapsed().as_secs_f64()
    }

    /// A segment is about to be submitted.
    pub fn begin(
        &mut self,
        device: usize,
        slot: usize,
        segment: usize,
        (rows, context): (usize, usize),
    ) {
        let (start, step) = (self.now(), self.step);
        self.open.push(Span { device, segment, step, slot, rows, context, start, end: start });
    }

    /// All that was submitted to a device for a slot is done.
    pub fn end(&mut self, device: usize, slot: usize) {
        if self.open.is_empty() {
            return;
        }
        let now = self.now();
        let Timeline { open, closed, kept, busy, last, .. } = self;
        open.retain(|span| {
            if (span.device, span.slot) != (device, slot) {
                return true;
            }
            let start = span.start.max(last[device]);
            let span = Span { start, end: now, ..*span };
            busy[device] += now - start;
            last[device] = now;
            closed.push(span);
            kept.iter_mut().for_each(|kept| kept.push(span));
            false
        });
    }

    /// Forgets what was submitted and failed.
    pub fn abandon(&mut self) {
        self.open.clear();
    }

    /// Spans that ended since the last call.
    pub fn take_closed(&mut self, each: &mut dyn FnMut(Span)) {
        self.closed.drain(..).for_each(each);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_busy_once_at_a_time() {
        let mut timeline = Timeline::new(2);
        timeline.kept = Some(Vec::new());
        timeline.begin(0, 0, 0, (4, 4));
        timeline.begin(0, 1, 0, (4, 8));
        timeline.begin(1, 0, 1, (4, 4));
        for (device, slot) in [(0, 0), (0, 1), (1, 0)] {
            timeline.end(device, slot);
        }
        let mut closed = Vec::new();
        timeline.take_closed(&mut |span| closed.push(span));
        assert_eq!(Some(&closed), timeline.kept.as_ref());
        assert_eq!(closed.len(), 3);
        // The second of the first device starts where the first ends.
        assert_eq!(closed[1].start, closed[0].end);
        assert!((timeline.busy[0] - (closed[1].end - closed[0].start)).abs() < 1e-9);
        timeline.end(0, 0);
        timeline.take_closed(&mut |_| panic!("nothing ended"));
    }
}
