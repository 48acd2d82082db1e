//! The plan: the graph placed, fused, laid out in memory and ordered.

use crate::arena::Arena;
use crate::cost::{Cost, cost_of};
use crate::fuse::{Fused, Kernel, fuse};
use crate::graph::{Graph, Op, RowSet, TensorId, WeightId};
use crate::hazard::{Access, Range, Space, barriers};
use crate::kv::{KvDemand, KvSlot, kv_bytes};
use crate::lay_out::{buffer_bytes, kernel_name, lay_out, materialise, rows_in, tensors_of};
use crate::options::{BUCKETS, PlanError, PlanOptions};
use crate::placement::{DeviceId, DeviceSpec, Moved, Placement};
use crate::segment::{Segment, Segmentation, segments};
use crate::weight::WeightSpec;

/// A buffer in the arena, `[rows, width]` f32.
#[derive(Clone, PartialEq, Debug)]
pub struct Buffer {
    /// Name for printing.
    pub name: String,
    /// Number of rows, symbolic.
    pub rows: RowSet,
    /// Columns.
    pub width: usize,
}

/// Where a graph's tensor lies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct View {
    /// Index in [`Plan::buffers`].
    pub buffer: usize,
    /// First column.
    pub column: usize,
}

/// One kernel, placed.
#[derive(Clone, PartialEq, Debug)]
pub struct PlanOp {
    /// Name for printing, such as `blk.3.attn_q+attn_k+attn_v`.
    pub name: String,
    /// What to dispatch.
    pub kernel: Kernel,
    /// The graph's nodes that it computes, in order.
    pub nodes: Vec<usize>,
    /// Where.
    pub device: DeviceId,
    /// The layer it belongs to; none for embedding, head and shared tables.
    pub layer: Option<usize>,
    /// Memory that it accesses.
    pub access: Access,
    /// Whether it needs a barrier before it.
    pub barrier: bool,
    /// What it moves and computes.
    pub cost: Cost,
}

/// A graph ready to be recorded.
#[derive(Clone, PartialEq, Debug)]
pub struct Plan {
    /// The model.
    pub graph: Graph,
    /// The choices made.
    pub options: PlanOptions,
    /// Devices, which ops and segments name by [`DeviceId`].
    pub devices: Vec<DeviceSpec>,
    /// Nodes that run elsewhere than asked for, because their device has no kernel for them.
    pub moved: Vec<Moved>,
    /// What was considered and why it was not done, in words.
    pub remarks: Vec<String>,
    /// Kernels in order.
    pub ops: Vec<PlanOp>,
    /// Buffers of the arena.
    pub buffers: Vec<Buffer>,
    /// For each tensor of the graph, its place; none where fusion removed it.
    pub views: Vec<Option<View>>,
    /// Offsets of `buffers`.
    pub arena: Arena,
    /// For each weight, the devices that read it.
    pub readers: Vec<Vec<DeviceId>>,
    /// Segments of all segmentations, each in order.
    pub segments: Vec<Segment>,
    /// Ways to play the plan; in the first every kernel is where it was placed.
    pub segmentations: Vec<Segmentation>,
    /// Pages of each of the graph's KV groups.
    pub kv_pages: Vec<usize>,
}

impl Plan {
    /// Plans `graph` on the devices of `placement`, which has a device for each of its nodes.
    pub fn new(
        mut graph: Graph,
        options: PlanOptions,
        mut placement: Placement,
    ) -> Result<Plan, PlanError> {
        check_limits(&graph, &options)?;
        assert_eq!(placement.nodes.len(), graph.nodes.len(), "a device for each node");
        graph.kv_groups.iter_mut().for_each(|group| group.ty = options.kv_type());
        graph.ropes.iter_mut().for_each(|rope| rope.settle(options.context));
        let moved = placement.move_unsupported(&graph).map_err(PlanError::NoKernel)?;
        placement.share_tables(&mut graph);
        check_kv(&graph, &placement)?;
        let mut buffers = Vec::new();
        let mut views = vec![None; graph.tensors.len()];
        let mut ops: Vec<PlanOp> = Vec::new();
        for Fused { kernel, nodes } in fuse(&graph, &placement, options.fusion) {
            materialise(&graph, &kernel, &mut buffers, &mut views);
            let last = *nodes.last().expect("a kernel stands for some node");
            ops.push(PlanOp {
                name: kernel_name(&graph, &kernel),
                cost: cost_of(&graph, &kernel),
                kernel,
                device: placement.nodes[last],
                layer: graph.nodes[last].layer,
                nodes,
                access: Access::default(),
                barrier: false,
            });
        }
        let kv_pages = kv_pages(&graph, &options)?;
        let arena = lay_out(&graph, &options, &ops, &buffers, &views);
        let placed: Vec<DeviceId> = ops.iter().map(|op| op.device).collect();
        let segments = segments(&graph, &ops, &placed, 0);
        let names: Vec<&str> = placement.devices.iter().map(|spec| spec.name.as_str()).collect();
        let mut plan = Plan {
            readers: readers(&graph, &ops),
            segmentations: vec![Segmentation {
                name: names.join("+"),
                segments: 0..segments.len(),
            }],
            segments,
            graph,
            options,
            devices: placement.devices,
            moved,
            remarks: Vec::new(),
            ops,
            buffers,
            views,
            arena,
            kv_pages,
        };
        plan.find_hazards();
        Ok(plan)
    }

    /// Adds a segmentation in which another device computes the kernels that `moves` says. Returns
    /// false, and adds nothing, where it says none.
    ///
    /// # Panics
    /// If a kernel that attends would move: its keys and values stay where they were placed.
    pub fn add_segmentation(
        &mut self,
        name: String,
        device: &DeviceSpec,
        moves: &dyn Fn(usize, &PlanOp) -> bool,
    ) -> bool {
        let moved: Vec<usize> =
            (0..self.ops.len()).filter(|&op| moves(op, &self.ops[op])).collect();
        if moved.is_empty() {
            return false;
        }
        let id = self.device_id(device);
        let mut devices: Vec<DeviceId> = self.ops.iter().map(|op| op.device).collect();
        for &op in &moved {
            assert!(matches!(self.ops[op].kernel, Kernel::Project(_)), "only products move");
            devices[op] = id;
            for weight in weights_of(&self.graph, &self.ops[op]) {
                let readers = &mut self.readers[weight.0];
                if !readers.contains(&id) {
                    readers.push(id);
                }
            }
        }
        let first = self.segments.len();
        self.segments.extend(segments(&self.graph, &self.ops, &devices, first));
        self.segmentations.push(Segmentation { name, segments: first..self.segments.len() });
        true
    }

    /// The same plan with the first segmentation only, and the devices that this needs.
    pub fn without_takeovers(mut self) -> Plan {
        let needed = self.ops.iter().map(|op| op.device.0 + 1).max().unwrap_or(0);
        self.devices.truncate(needed);
        self.segmentations.truncate(1);
        self.segments.truncate(self.segmentations[0].segments.end);
        self.readers = readers(&self.graph, &self.ops);
        self
    }

    /// The id of a device of the plan, which it becomes if it is none yet.
    fn device_id(&mut self, device: &DeviceSpec) -> DeviceId {
        let known = self.devices.iter().position(|spec| spec.name == device.name);
        DeviceId(known.unwrap_or_else(|| {
            self.devices.push(device.clone());
            self.devices.len() - 1
        }))
    }

    /// Rows of a buffer or tensor in the largest play.
    pub fn max_rows(&self, rows: RowSet) -> usize {
        rows_in(&self.options, rows)
    }

    /// Where a tensor lies.
    ///
    /// # Panics
    /// If fusion removed it: a kernel that reads or writes a tensor always has its place.
    pub fn view(&self, tensor: TensorId) -> View {
        self.views[tensor.0].expect("a materialised tensor")
    }

    /// Bytes of all KV pages.
    pub fn kv_bytes(&self) -> u64 {
        kv_bytes(&self.graph.kv_groups, &self.kv_pages) as u64
    }

    /// Bytes of all weights in their types.
    pub fn weight_bytes(&self) -> u64 {
        self.graph.weights.iter().map(WeightSpec::bytes).sum()
    }

    fn find_hazards(&mut self) {
        for index in 0..self.ops.len() {
            let op = &self.ops[index];
            let (reads, writes) = tensors_of(&self.graph, &op.kernel);
            let place = |ids: Vec<TensorId>| -> Vec<Range> {
                ids.into_iter().map(|id| self.byte_range(id)).collect()
            };
            let mut access = Access { reads: place(reads), writes: place(writes) };
            let kv = |slot: KvSlot| Range {
                space: Space::Kv(slot.group),
                start: slot.layer,
                end: slot.layer + 1,
            };
            match &op.kernel {
                Kernel::Attend(attend) => access.writes.push(kv(attend.spec.kv)),
                Kernel::Single(node) => match self.graph.nodes[*node].op {
                    Op::KvWrite { kv: slot } => access.writes.push(kv(slot)),
                    Op::Attention(spec) => access.reads.push(kv(spec.kv)),
                    _ => {}
                },
                Kernel::Project(_) => {}
            }
            self.ops[index].access = access;
        }
        // A segment starts when those before it are done. Those of other segmentations are parts of
        // these, which need no further barriers.
        for segment in &self.segments {
            let ops = &mut self.ops[segment.ops.clone()];
            let accesses: Vec<Access> = ops.iter().map(|op| op.access.clone()).collect();
            for (op, barrier) in ops.iter_mut().zip(barriers(&accesses)) {
                op.barrier = barrier;
            }
        }
    }

    /// The whole buffer a tensor lies in: rows of views interleave, so columns do not separate
    /// byte ranges.
    fn byte_range(&self, tensor: TensorId) -> Range {
        let view = self.view(tensor);
        let start = self.arena.offsets[view.buffer];
        let bytes = buffer_bytes(&self.options, &self.buffers[view.buffer]);
        Range { space: Space::Arena, start, end: start + bytes }
    }
}

/// For each weight, the devices whose kernels read it.
fn readers(graph: &Graph, ops: &[PlanOp]) -> Vec<Vec<DeviceId>> {
    let mut all = vec![Vec::new(); graph.weights.len()];
    for op in ops {
        for id in weights_of(graph, op) {
            if !all[id.0].contains(&op.device) {
                all[id.0].push(op.device);
            }
        }
    }
    all
}

/// Weights that a kernel reads.
fn weights_of<'a>(graph: &'a Graph, op: &'a PlanOp) -> impl Iterator<Item = WeightId> + 'a {
    op.nodes.iter().flat_map(|&node| graph.nodes[node].op.weights())
}

/// Pages of each group, within the budget and what can be addressed.
fn kv_pages(graph: &Graph, options: &PlanOptions) -> Result<Vec<usize>, PlanError> {
    let PlanOptions { sequences, context, max_rows, kv_bytes: budget, .. } = *options;
    let demand = KvDemand { sequences, context, chunk: max_rows };
    let groups = &graph.kv_groups;
    let bytes = |pages: &[usize]| kv_bytes(groups, pages);
    let pages = demand.pages(groups, budget).ok_or_else(|| {
        let one = KvDemand { sequences: 1, ..demand }.pages(groups, None).unwrap_or_default();
        let needed = u64::try_from(bytes(&one)).unwrap_or(u64::MAX);
        PlanError::KvBudget { bytes: budget.unwrap_or(0), needed, context }
    })?;
    // Half the address space is more than any machine has.
    if bytes(&pages) > 1 << 47 {
        return Err(PlanError::KvSize { context });
    }
    Ok(pages)
}

/// Refuses keys and values that one device stores and another would read.
fn check_kv(graph: &Graph, placement: &Placement) -> Result<(), PlanError> {
    let mut stored: Vec<(KvSlot, DeviceId)> = Vec::new();
    for (node, &device) in graph.nodes.iter().zip(&placement.nodes) {
        match node.op {
            Op::KvWrite { kv } => stored.push((kv, device)),
            Op::Attention(spec) if !stored.contains(&(spec.kv, device)) => {
                return Err(PlanError::KvApart { layer: node.layer.unwrap_or(0) });
            }
            _ => {}
        }
    }
    Ok(())
}

fn check_limits(graph: &Graph, options: &PlanOptions) -> Result<(), PlanError> {
    let largest = BUCKETS[BUCKETS.len() - 1];
    limit("rows per play", options.max_rows, largest)?;
    limit("logit rows per play", options.max_logit_rows, options.max_rows)?;
    limit("the context length", options.context, graph.context)?;
    limit("the number of sequences", options.sequences, 1 << 16)?;
    match graph.logits {
        Some(_) => Ok(()),
        None => Err(PlanError::NoLogits(graph.architecture.clone())),
    }
}

fn limit(what: &'static str, found: usize, most: usize) -> Result<(), PlanError> {
    if found == 0 || found > most { Err(PlanError::Limit { what, most, found }) } else { Ok(()) }
}
