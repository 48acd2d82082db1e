//! What the worker's thread owns, and the kernels that it plays.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pianola_plan::{DeviceError, Kernel, KvSlot, Node, Op, Part, Plan, Project, Row, Step};

use super::arena::Arena;
use super::kv::{self, KvMemory};
use super::link::Link;
use super::rows;
use super::weights::Weights;

/// Everything that a play needs.
pub(super) struct Worker {
    pub plan: Arc<Plan>,
    /// One for each slot, or one for all.
    pub arenas: Arc<Vec<Mutex<Arena>>>,
    pub kv: KvMemory,
    pub weights: Weights,
    pub link: Link,
    pub interrupt: Option<Arc<AtomicBool>>,
}

impl Worker {
    /// Plays a segment.
    pub fn play(&mut self, segment: usize, slot: usize, step: &Step) -> Result<(), DeviceError> {
        self.link.begin()?;
        let arenas = self.arenas.clone();
        let mut arena = lock(&arenas, slot);
        for op in self.plan.segments[segment].ops.clone() {
            if self.interrupt.as_ref().is_some_and(|flag| flag.load(Ordering::Relaxed)) {
                return Err(DeviceError::Interrupted);
            }
            self.kernel(op, &mut arena, step)?;
        }
        self.link.end();
        Ok(())
    }

    /// Plays a kernel by itself, in the first slot.
    pub fn play_op(&mut self, op: usize, step: &Step) -> Result<(), DeviceError> {
        self.link.begin()?;
        let arenas = self.arenas.clone();
        self.kernel(op, &mut lock(&arenas, 0), step)?;
        self.link.end();
        Ok(())
    }

    fn kernel(&mut self, op: usize, arena: &mut Arena, step: &Step) -> Result<(), DeviceError> {
        let plan = self.plan.clone();
        let op = &plan.ops[op];
        match &op.kernel {
            Kernel::Project(project) => self.project(&op.name, project, arena, step),
            Kernel::Attend(attend) => self.attend(&op.name, attend, arena, step),
            Kernel::Single(node) => self.single(&op.name, &plan.graph.nodes[*node], arena, step),
        }
    }

    /// A node by itself.
    fn single(
        &mut self,
        name: &str,
        node: &Node,
        arena: &mut Arena,
        step: &Step,
    ) -> Result<(), DeviceError> {
        let plan = self.plan.clone();
        let input = |index: usize| node.inputs[index];
        if let Op::KvWrite { kv } = node.op {
            for (index, row) in step.rows.iter().enumerate() {
                self.kv.store(kv, row, arena.row(input(0), index), arena.row(input(1), index));
            }
            return Ok(());
        }
        let Some(output) = node.output else { return Ok(()) };
        let rows = plan.rows(output, step);
        if let Op::MatMul { weight, bias } = node.op {
            return self.project(name, &plain(node, Part { weight, bias, output }), arena, step);
        }
        let mut x = arena.gather(input(0), 0..rows);
        let width = arena.width(input(0)).max(1);
        match node.op {
            Op::Attention(spec) => x = self.attention(name, &spec, &x, &step.rows)?,
            Op::RmsNorm { weight, epsilon, .. } => {
                rows::rms_norm(&mut x, self.weights.vector(weight), epsilon);
            }
            Op::SoftCap { cap } => rows::soft_cap(&mut x, cap),
            Op::Add => rows::add(&mut x, &arena.gather(input(1), 0..rows)),
            Op::Gate { activation } => {
                rows::gate(&mut x, &arena.gather(input(1), 0..rows), activation);
            }
            Op::Rope { rope, .. } => {
                let pairing = plan.graph.ropes[rope].pairing;
                for (row, x) in x.chunks_exact_mut(width).enumerate() {
                    rows::rope(x, arena.row(input(1), row), pairing);
                }
            }
            Op::Embed { .. }
            | Op::RopeAngles { .. }
            | Op::SelectRows
            | Op::MatMul { .. }
            | Op::KvWrite { .. } => unreachable!("refused when it was recorded, or done above"),
        }
        arena.scatter(output, &x);
        Ok(())
    }

    /// Stored keys and values of some rows.
    pub fn read_kv(&self, slot: KvSlot, rows: &[Row]) -> Result<[Vec<f32>; 2], DeviceError> {
        if !self.kv.has(slot) {
            let reason = format!("layer {} of group {} is not here", slot.layer, slot.group);
            return Err(DeviceError::BadStep(reason));
        }
        let (heads, head_dim) = self.kv.width(slot);
        let read = |part: kv::Part| {
            let mut all = vec![0.0; rows.len() * heads * head_dim];
            for (index, out) in all.chunks_exact_mut(head_dim).enumerate() {
                let row = &rows[index / heads];
                let token = (row.sequence as usize, row.position as usize);
                self.kv.load(slot, part, token, index % heads, out);
            }
            all
        };
        Ok([read(kv::Part::Key), read(kv::Part::Value)])
    }
}

/// A product with nothing around it.
fn plain(node: &Node, part: Part) -> Project {
    Project {
        input: node.inputs[0],
        residual: None,
        select: false,
        norm: None,
        parts: vec![part],
        gate: None,
        soft_cap: None,
    }
}

/// A slot's arena. Whoever panicked with it left numbers, which the next play overwrites.
pub(super) fn lock(arenas: &[Mutex<Arena>], slot: usize) -> MutexGuard<'_, Arena> {
    let arena = &arenas[slot.min(arenas.len() - 1)];
    arena.lock().unwrap_or_else(PoisonError::into_inner)
}
