//! Who runs: requests get a slot and pages, or make room for others.

use super::{Running, Scheduler};
use crate::lane::Lane;
use crate::request::RequestId;
use std::cmp::Reverse;

/// How often a request is overtaken before it is ranked one priority higher.
pub(super) const OVERTAKES_PER_LEVEL: u32 = 4;

/// A request's place among the others: the smallest is served first.
fn rank(lane: &Lane) -> (Reverse<i64>, RequestId) {
    let aged = i64::from(lane.overtaken / OVERTAKES_PER_LEVEL);
    (Reverse(i64::from(lane.request.priority) + aged), lane.id)
}

impl Scheduler {
    /// Gives waiting requests a slot, the best ranked first, while there is room for all of their
    /// tokens.
    pub(super) fn admit(&mut self) {
        while let Some(&slot) = self.free.last().or(self.fed.as_ref()) {
            let best = self.waiting.iter().enumerate().min_by_key(|(_, lane)| rank(lane));
            let Some((at, lane)) = best else { return };
            let running = self.running.len();
            // A page for each that runs is left, or the new one would soon have to go again. Alone
            // it always finds room.
            let tenant = lane.pooled.is_none().then_some(lane.request.tenant);
            let chunk = self.options.max_rows;
            if running > 0 && !self.cache.has_room(tenant, &lane.tokens, chunk, running) {
                return;
            }
            if self.fed == Some(slot) {
                self.cache.forget(slot);
                self.fed = None;
            } else {
                self.free.pop();
            }
            let mut lane = self.waiting.swap_remove(at);
            let older = |waiting: &&mut Lane| waiting.id < lane.id;
            self.waiting.iter_mut().filter(older).for_each(|waiting| waiting.overtaken += 1);
            let first_time = lane.generated().is_empty() && lane.usage.preemptions == 0;
            // An embedding needs the hidden values of all rows, and those are not kept.
            let cached = match &mut lane.pooled {
                Some(pooled) => {
                    pooled.clear();
                    0
                }
                None => self.cache.attach(slot, lane.request.tenant, &lane.tokens),
            };
            lane.admit(cached);
            if first_time {
                self.counters.cached_tokens += cached as u64;
            }
            let place = self.running.partition_point(|other| rank(&other.lane) < rank(&lane));
            self.running.insert(place, Running::new(lane, slot));
        }
    }

    /// Finds pages for every row of `plays` plays, the best ranked request first. Where there are
    /// none, first what is not needed gives way: the fed sequence, further plays, guesses; then the
    /// worst ranked request. Returns how many plays there are pages for.
    pub(super) fn reserve(&mut self, mut plays: usize) -> usize {
        let mut at = 0;
        while at < self.running.len() {
            let Running { slot, share, .. } = self.running[at];
            let end = self.cache.len(slot) + share.pending + share.drafts + plays - 1;
            if self.cache.reserve(slot, end).is_ok() {
                at += 1;
            } else if self.fed.is_some() {
                self.reset_fed();
            } else if plays > 1 {
                plays = 1;
            } else if share.drafts > 0 {
                self.running[at].share.drafts = 0;
            } else {
                self.preempt();
            }
        }
        plays
    }

    /// The worst ranked request that runs goes back to the queue; what it computed is kept while
    /// there is room.
    fn preempt(&mut self) {
        let Some(last) = self.running.len().checked_sub(1) else { return };
        let mut lane = self.end(last);
        lane.usage.preemptions += 1;
        lane.overtaken += 1;
        self.counters.preemptions += 1;
        self.waiting.push(lane);
    }

    /// Takes a request out of its slot; what it computed is kept while there is room.
    pub(super) fn end(&mut self, at: usize) -> Lane {
        self.cache.release(self.running[at].slot);
        self.vacate(at)
    }

    /// The same, but nothing of its unfinished page is kept.
    pub(super) fn discard(&mut self, at: usize) -> Lane {
        self.cache.forget(self.running[at].slot);
        self.vacate(at)
    }

    fn vacate(&mut self, at: usize) -> Lane {
        let Running { lane, slot, .. } = self.running.remove(at);
        self.free.push(slot);
        self.vacated.push(slot);
        lane
    }

    /// All requests that run go back to the queue: the device is lost, and their pages with it.
    pub(super) fn requeue_running(&mut self) {
        while let Some(last) = self.running.len().checked_sub(1) {
            let lane = self.discard(last);
            self.waiting.push(lane);
        }
    }
}
