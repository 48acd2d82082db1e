//! The plan: the graph fused, placed, laid out in memory and ordered.

use crate::arena::{Arena, Lifetime};
use crate::cost::{Cost, cost_of};
use crate::fuse::{Kernel, fuse};
use crate::graph::{Graph, Op, RowSet, TensorId, WeightSpec};
use crate::hazard::{Access, Range, Space, barriers};
use crate::kv::{KvDemand, KvSlot, KvType, kv_bytes};
use crate::place;

/// Row counts that a play is rounded up to where a device records per count.
pub const BUCKETS: [usize; 10] = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512];

/// The smallest bucket that holds `rows`.
pub fn bucket(rows: usize) -> Option<usize> {
    BUCKETS.into_iter().find(|&bucket| rows <= bucket)
}

/// A kind of device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DeviceKind {
    /// The processor.
    Cpu,
    /// A GPU through Vulkan.
    Vulkan,
}

impl std::fmt::Display for DeviceKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            DeviceKind::Cpu => "cpu",
            DeviceKind::Vulkan => "vulkan",
        })
    }
}

/// How activations meet weights.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Numeric {
    /// f32 activations, weights dequantised, f32 KV.
    Exact,
    /// int8 activations against quantised weights (two int8 for the head), f16 KV.
    Fast,
}

impl std::fmt::Display for Numeric {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Numeric::Exact => "exact",
            Numeric::Fast => "fast",
        })
    }
}

/// How a device keeps a weight.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Layout {
    /// f32 values in order: norms and biases.
    Vector,
    /// 16 rows interleaved, four columns of each at a time, scales apart.
    Tiles16,
    /// Rows in order; codes, upper bits and scales in planes of their own.
    Planes,
}

impl std::fmt::Display for Layout {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Layout::Vector => "vector",
            Layout::Tiles16 => "tiles16",
            Layout::Planes => "planes",
        })
    }
}

/// What the planner may choose.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PlanOptions {
    /// Where everything runs, but for `cpu_layers`.
    pub device: DeviceKind,
    /// Numeric mode.
    pub numeric: Numeric,
    /// Type of keys and values; by default that of the numeric mode.
    pub kv_type: Option<KvType>,
    /// Most rows in one play.
    pub max_rows: usize,
    /// Most rows with logits in one play.
    pub max_logit_rows: usize,
    /// Tokens a sequence may grow to; at most the model's context.
    pub context: usize,
    /// Sequences with page tables.
    pub sequences: usize,
    /// Most bytes of KV pages; none: all that so many sequences can use.
    pub kv_bytes: Option<u64>,
    /// So many of the first layers run on the processor although `device` is a GPU, and what
    /// stands before them too. The head never does.
    pub cpu_layers: usize,
}

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
    /// The graph's nodes it stands for, in order.
    pub nodes: Vec<usize>,
    /// Where.
    pub device: DeviceKind,
    /// What it touches.
    pub access: Access,
    /// Whether a barrier stands before it.
    pub barrier: bool,
    /// What it moves and computes.
    pub cost: Cost,
}

/// A run of kernels on one device; the unit that is submitted, waited for and signalled.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Segment {
    /// Where.
    pub device: DeviceKind,
    /// Kernels, as indices into [`Plan::ops`].
    pub ops: std::ops::Range<usize>,
    /// Segments that must have signalled.
    pub waits: Vec<usize>,
    /// Segments that wait for this one.
    pub signals: Vec<usize>,
    /// Buffers that it reads and another device wrote: they are copied over before it starts, to
    /// the same place in this device's arena.
    pub receives: Vec<usize>,
}

/// A graph ready to be recorded.
#[derive(Clone, PartialEq, Debug)]
pub struct Plan {
    /// The model.
    pub graph: Graph,
    /// The choices made.
    pub options: PlanOptions,
    /// Kernels in order.
    pub ops: Vec<PlanOp>,
    /// Buffers of the arena.
    pub buffers: Vec<Buffer>,
    /// For each tensor of the graph, its place; none where fusion removed it.
    pub views: Vec<Option<View>>,
    /// Offsets of `buffers`.
    pub arena: Arena,
    /// For each weight, the devices that read it and how they keep it.
    pub layouts: Vec<Vec<(DeviceKind, Layout)>>,
    /// Segments in order.
    pub segments: Vec<Segment>,
    /// Pages of each of the graph's KV groups.
    pub kv_pages: Vec<usize>,
}

/// Why a graph cannot be planned.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum PlanError {
    /// A limit of zero, or beyond the model's.
    #[error("{what} must be between 1 and {most}, not {found}")]
    Limit {
        /// Which option.
        what: &'static str,
        /// Largest value.
        most: usize,
        /// Value asked for.
        found: usize,
    },
    /// Keys and values of the whole context are more than can be addressed.
    #[error(
        "the KV pages of a context of {context} tokens are too large to address; ask for a smaller context"
    )]
    KvSize {
        /// Tokens asked for.
        context: usize,
    },
    /// The budget for keys and values holds no whole sequence.
    #[error(
        "{} for keys and values hold no sequence of {context} tokens, which takes {}; give them more memory{}",
        crate::size_text(*bytes),
        crate::size_text(*needed),
        if *context > crate::PAGE_TOKENS { ", or ask for a smaller context" } else { "" }
    )]
    KvBudget {
        /// Bytes there are.
        bytes: u64,
        /// Bytes of one sequence.
        needed: u64,
        /// Its tokens.
        context: usize,
    },
    /// The graph names no result.
    #[error("the graph of {0} has no logits")]
    NoLogits(String),
}

impl Plan {
    /// Plans `graph`.
    pub fn new(mut graph: Graph, options: PlanOptions) -> Result<Plan, PlanError> {
        let largest = BUCKETS[BUCKETS.len() - 1];
        limit("rows per play", options.max_rows, largest)?;
        limit("logit rows per play", options.max_logit_rows, options.max_rows)?;
        limit("the context length", options.context, graph.context)?;
        limit("the number of sequences", options.sequences, 1 << 16)?;
        if graph.logits.is_none() {
            return Err(PlanError::NoLogits(graph.architecture));
        }
        let kv_type = options.kv_type.unwrap_or(match options.numeric {
            Numeric::Exact => KvType::F32,
            Numeric::Fast => KvType::F16,
        });
        graph.kv_groups.iter_mut().for_each(|group| group.ty = kv_type);
        let mut buffers = Vec::new();
        let mut views = vec![None; graph.tensors.len()];
        let mut ops: Vec<PlanOp> = Vec::new();
        let kernels = fuse(&graph);
        let names: Vec<String> =
            kernels.iter().map(|fused| kernel_name(&graph, &fused.kernel)).collect();
        let borrowed: Vec<&str> = names.iter().map(String::as_str).collect();
        let devices = place::devices(&borrowed, &options);
        for ((fused, name), device) in kernels.into_iter().zip(names).zip(devices) {
            materialise(&graph, &fused.kernel, &mut buffers, &mut views);
            ops.push(PlanOp {
                name,
                cost: cost_of(&graph, &fused.kernel),
                kernel: fused.kernel,
                nodes: fused.nodes,
                device,
                access: Access::default(),
                barrier: false,
            });
        }
        let kv_pages = kv_pages(&graph, &options)?;
        let arena = lay_out(&graph, &options, &ops, &buffers, &views);
        let buffer_of = |tensor: usize| views[tensor].expect("a materialised tensor").buffer;
        let mut plan = Plan {
            layouts: place::layouts(&graph, &ops),
            segments: place::segments(&graph, &ops, &buffer_of),
            graph,
            options,
            ops,
            buffers,
            views,
            arena,
            kv_pages,
        };
        let most = if options.device == DeviceKind::Cpu { 0 } else { plan.layers() };
        if options.cpu_layers > most {
            let (what, found) = ("the number of layers on the processor", options.cpu_layers);
            return Err(PlanError::Limit { what, most, found });
        }
        plan.find_hazards();
        Ok(plan)
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
        let accesses: Vec<Access> = self.ops.iter().map(|op| op.access.clone()).collect();
        for (op, barrier) in self.ops.iter_mut().zip(barriers(&accesses)) {
            op.barrier = barrier;
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

fn limit(what: &'static str, found: usize, most: usize) -> Result<(), PlanError> {
    if found == 0 || found > most { Err(PlanError::Limit { what, most, found }) } else { Ok(()) }
}

fn rows_in(options: &PlanOptions, rows: RowSet) -> usize {
    match rows {
        RowSet::All => options.max_rows,
        RowSet::Logits => options.max_logit_rows,
    }
}

fn buffer_bytes(options: &PlanOptions, buffer: &Buffer) -> usize {
    rows_in(options, buffer.rows) * buffer.width * 4
}

/// Gives the tensors that `kernel` writes a buffer.
fn materialise(
    graph: &Graph,
    kernel: &Kernel,
    buffers: &mut Vec<Buffer>,
    views: &mut [Option<View>],
) {
    let mut place = |ids: &[TensorId], name: &str| {
        let first = graph.tensor(ids[0]);
        let mut column = 0;
        for id in ids {
            views[id.0] = Some(View { buffer: buffers.len(), column });
            column += graph.tensor(*id).width;
        }
        buffers.push(Buffer { name: name.to_string(), rows: first.rows, width: column });
    };
    match kernel {
        Kernel::Single(node) => {
            if let Some(output) = graph.nodes[*node].output {
                place(&[output], &graph.tensor(output).name);
            }
        }
        Kernel::Attend(attend) => place(&[attend.output], &graph.tensor(attend.output).name),
        Kernel::Project(project) => {
            if let Some(residual) = project.residual.filter(|residual| residual.kept) {
                place(&[residual.output], &graph.tensor(residual.output).name);
            }
            let epilogue = project.gate.map(|gate| gate.1).or(project.soft_cap.map(|cap| cap.1));
            let outputs: Vec<TensorId> = match epilogue {
                Some(output) => vec![output],
                None => project.parts.iter().map(|part| part.output).collect(),
            };
            place(&outputs, &kernel_name(graph, kernel));
        }
    }
}

fn kernel_name(graph: &Graph, kernel: &Kernel) -> String {
    match kernel {
        Kernel::Single(node) => match graph.nodes[*node].output {
            Some(output) => graph.tensor(output).name.clone(),
            None => graph.nodes[*node].op.name().to_string(),
        },
        Kernel::Attend(attend) => graph.tensor(attend.output).name.clone(),
        Kernel::Project(project) => {
            let names: Vec<&str> =
                project.parts.iter().map(|part| graph.tensor(part.output).name.as_str()).collect();
            match names[..] {
                [only] => only.to_string(),
                [first, ..] => {
                    let short = |name: &str| name.rsplit('.').next().unwrap_or(name).to_string();
                    let rest: Vec<String> = names[1..].iter().map(|name| short(name)).collect();
                    format!("{first}+{}", rest.join("+"))
                }
                [] => String::new(),
            }
        }
    }
}

/// Tensors a kernel reads and writes in the arena.
pub(crate) fn tensors_of(graph: &Graph, kernel: &Kernel) -> (Vec<TensorId>, Vec<TensorId>) {
    match kernel {
        Kernel::Single(node) => {
            let node = &graph.nodes[*node];
            (node.inputs.clone(), node.output.into_iter().collect())
        }
        Kernel::Attend(attend) => {
            let mut reads = vec![attend.query, attend.key, attend.value];
            reads.extend(attend.rope.map(|rope| rope.1));
            (reads, vec![attend.output])
        }
        Kernel::Project(project) => {
            let mut writes = Vec::new();
            let reads = match project.residual {
                Some(residual) => {
                    writes.extend(residual.kept.then_some(residual.output));
                    vec![residual.base, residual.delta]
                }
                None => vec![project.input],
            };
            match (project.gate, project.soft_cap) {
                (Some((_, output)), _) | (_, Some((_, output))) => writes.push(output),
                _ => writes.extend(project.parts.iter().map(|part| part.output)),
            }
            (reads, writes)
        }
    }
}

fn lay_out(
    graph: &Graph,
    options: &PlanOptions,
    ops: &[PlanOp],
    buffers: &[Buffer],
    views: &[Option<View>],
) -> Arena {
    let mut lifetimes: Vec<Lifetime> = buffers
        .iter()
        .map(|buffer| Lifetime { bytes: buffer_bytes(options, buffer), first: usize::MAX, last: 0 })
        .collect();
    for (index, op) in ops.iter().enumerate() {
        let (reads, writes) = tensors_of(graph, &op.kernel);
        for id in reads.iter().chain(&writes) {
            let view = views[id.0].expect("a materialised tensor");
            let life = &mut lifetimes[view.buffer];
            life.first = life.first.min(index);
            life.last = life.last.max(index);
        }
    }
    // The logits are read after the play.
    if let Some(view) = graph.logits.and_then(|logits| views[logits.0]) {
        lifetimes[view.buffer].last = ops.len();
    }
    Arena::assign(&lifetimes)
}
