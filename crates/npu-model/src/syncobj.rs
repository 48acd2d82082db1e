//! Syncobj timelines: a context's commands, counted.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::bytes::{get_u32, get_u64, put_u32, u32_at, u64_at};
use crate::errno::Errno;
use crate::state::{Shared, State};
use crate::user;

/// How far a context has come. Commands of a context end in order.
#[derive(Default)]
pub(crate) struct Timeline {
    /// Commands submitted; the next one's point.
    submitted: AtomicU64,
    /// Commands that ended.
    ended: AtomicU64,
}

impl Timeline {
    /// The point of a new command.
    pub(crate) fn submit(&self) -> u64 {
        self.submitted.fetch_add(1, Ordering::Relaxed)
    }

    pub(crate) fn end(&self) {
        self.ended.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn submitted(&self) -> u64 {
        self.submitted.load(Ordering::Relaxed)
    }

    pub(crate) fn ended(&self) -> u64 {
        self.ended.load(Ordering::Relaxed)
    }

    /// Commands that have to end before `point` counts as reached. Point zero stands for the last
    /// command so far. `None` where it was not submitted yet.
    fn needed(&self, point: u64) -> Option<u64> {
        let submitted = self.submitted();
        let needed = if point == 0 { submitted } else { point.checked_add(1)? };
        (needed != 0 && needed <= submitted).then_some(needed)
    }
}

const WAIT_ALL: u32 = 1;
const WAIT_FOR_SUBMIT: u32 = 2;
const WAIT_AVAILABLE: u32 = 4;
const WAIT_DEADLINE: u32 = 8;
/// More handles than any driver waits for at once.
const MAX_HANDLES: u32 = 4096;

/// `SYNCOBJ_DESTROY`: handle @0, pad @4.
pub(crate) fn destroy(state: &mut State, fd: i32, argument: &[u8]) -> Result<(), Errno> {
    if u32_at(argument, 4) != 0 {
        return Err(Errno::EINVAL);
    }
    let handle = u32_at(argument, 0);
    state.client(fd)?.timelines.remove(&handle).map(drop).ok_or(Errno::EINVAL)
}

/// `SYNCOBJ_TIMELINE_WAIT`: handles @0, points @8, absolute time in ns @16, count @24, flags @28,
/// first signalled @32 (out), pad @36, deadline hint @40.
pub(crate) fn wait(shared: &Shared, fd: i32, argument: &mut [u8]) -> Result<(), Errno> {
    let (count, flags) = (u32_at(argument, 24), u32_at(argument, 28));
    let known = WAIT_ALL | WAIT_FOR_SUBMIT | WAIT_AVAILABLE | WAIT_DEADLINE;
    if flags & !known != 0 || u32_at(argument, 36) != 0 || count > MAX_HANDLES {
        return Err(Errno::EINVAL);
    }
    if count == 0 {
        return Ok(());
    }
    let handles = user::read(u64_at(argument, 0), 4 * count as usize)?;
    let points = user::read(u64_at(argument, 8), 8 * count as usize)?;
    let mut state = shared.lock();
    let mut targets = Vec::new();
    for index in 0..count as usize {
        let handle = get_u32(&handles, 4 * index).unwrap_or(0);
        let timeline = state.client(fd)?.timelines.get(&handle).ok_or(Errno::ENOENT)?.clone();
        targets.push(Target {
            timeline,
            point: get_u64(&points, 8 * index).unwrap_or(0),
            needed: None,
        });
    }
    let deadline = u64_at(argument, 16) as i64;
    loop {
        state.client(fd)?;
        let mut reached = Vec::new();
        for target in &mut targets {
            reached.push(target.reached(flags)?);
        }
        let first = reached.iter().position(|reached| *reached);
        let all = reached.iter().all(|reached| *reached);
        if let Some(first) = first.filter(|_| all || flags & WAIT_ALL == 0) {
            put_u32(argument, 32, first as u32);
            return Ok(());
        }
        let left = deadline.saturating_sub(user::monotonic());
        if left <= 0 {
            return Err(Errno::ETIME);
        }
        // A bound, since a wake-up is only sent when something ends.
        let left = Duration::from_nanos(left as u64).min(Duration::from_secs(3600));
        state = shared.sleep(state, left);
    }
}

/// A point that is waited for.
struct Target {
    timeline: Arc<Timeline>,
    point: u64,
    /// Known once the point was submitted.
    needed: Option<u64>,
}

impl Target {
    fn reached(&mut self, flags: u32) -> Result<bool, Errno> {
        self.needed = self.needed.or_else(|| self.timeline.needed(self.point));
        match self.needed {
            None if flags & (WAIT_FOR_SUBMIT | WAIT_AVAILABLE) == 0 => Err(Errno::EINVAL),
            None => Ok(false),
            Some(_) if flags & WAIT_AVAILABLE != 0 => Ok(true),
            Some(needed) => Ok(self.timeline.ended() >= needed),
        }
    }
}
