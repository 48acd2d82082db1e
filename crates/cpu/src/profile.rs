//! Times of single kernels, where profiling is on.

use pianola_plan::{KernelTime, Plan, Step};
use std::time::Instant;

/// Keeps the times of kernels that are played one by one.
#[derive(Default)]
pub(crate) struct Profiler {
    first: Option<Instant>,
    times: Vec<KernelTime>,
    plays: usize,
    last_op: Option<usize>,
}

impl Profiler {
    /// Kernel `op` ran from `start` until now.
    pub fn add(&mut self, plan: &Plan, op: usize, step: &Step, start: Instant) {
        let seconds = start.elapsed().as_secs_f64();
        let first = *self.first.get_or_insert(start);
        // Kernels of a play come in rising order.
        if self.last_op.is_some_and(|last| op <= last) {
            self.plays += 1;
        }
        self.last_op = Some(op);
        let kernel = match &plan.ops[op].kernel {
            pianola_plan::Kernel::Project(_) => "project",
            pianola_plan::Kernel::Attend(_) => "attention",
            pianola_plan::Kernel::Single(node) => plan.graph.nodes[*node].op.name(),
        };
        self.times.push(KernelTime {
            op: Some(op),
            kernel: kernel.to_string(),
            play: self.plays,
            rows: step.rows.len(),
            logits: step.logits.len(),
            context: step.rows.last().map_or(0, |row| row.position as usize + 1),
            start: start.duration_since(first).as_secs_f64(),
            seconds,
        });
    }

    pub fn finish(self) -> Vec<KernelTime> {
        self.times
    }
}
