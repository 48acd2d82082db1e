//! Fusion: from single operations to the kernels a device dispatches.
//!
//! A transformer layer becomes four products and one attention: norms, residual sums and row
//! selection move into the prologue of the product that reads them, products of one input become
//! one, gates and caps become epilogues, head norms, rotations and the KV write become
//! attention's prologue. What fits no pattern stays a kernel of its own, and a product with nothing
//! around it is a product with an empty prologue. No kernel spans two devices.

use crate::graph::{Activation, AttentionSpec, Graph, Node, Op, TensorId, WeightId};
use crate::placement::Placement;

/// An RMS norm absorbed by a kernel.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct FusedNorm {
    /// Scale vector.
    pub weight: WeightId,
    /// Added to the mean square.
    pub epsilon: f32,
}

/// `output = base + norm(delta)`, computed in a product's prologue.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Residual {
    /// The residual stream so far.
    pub base: TensorId,
    /// What a layer adds to it.
    pub delta: TensorId,
    /// Norm of `delta` before the sum (Gemma).
    pub norm: Option<FusedNorm>,
    /// The new residual stream.
    pub output: TensorId,
    /// Whether a later kernel reads `output`, so that it has to be written.
    pub kept: bool,
}

/// One weight of a product.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Part {
    /// `[output, input]`
    pub weight: WeightId,
    /// `[output]`
    pub bias: Option<WeightId>,
    /// The graph's tensor that this part alone would give.
    pub output: TensorId,
}

/// Products of one input: prologue, one or more weights side by side, epilogue.
#[derive(Clone, PartialEq, Debug)]
pub struct Project {
    /// The tensor read, unless `residual` says otherwise.
    pub input: TensorId,
    /// Residual sum that forms the input.
    pub residual: Option<Residual>,
    /// Only rows that want logits go on.
    pub select: bool,
    /// Norm of the input.
    pub norm: Option<FusedNorm>,
    /// Weights, in column order of the output.
    pub parts: Vec<Part>,
    /// `activation(part 0) * part 1` instead of both.
    pub gate: Option<(Activation, TensorId)>,
    /// Soft cap on the result.
    pub soft_cap: Option<(f32, TensorId)>,
}

/// Head norms, rotation, KV write and attention of one layer.
#[derive(Clone, PartialEq, Debug)]
pub struct Attend {
    /// Geometry.
    pub spec: AttentionSpec,
    /// Queries, keys and values as the projection left them.
    pub query: TensorId,
    /// See `query`.
    pub key: TensorId,
    /// See `query`.
    pub value: TensorId,
    /// Norm of each query head.
    pub query_norm: Option<FusedNorm>,
    /// Norm of each key head.
    pub key_norm: Option<FusedNorm>,
    /// Rotary table and its angles of this step.
    pub rope: Option<(usize, TensorId)>,
    /// Result.
    pub output: TensorId,
}

/// What a device dispatches.
#[derive(Clone, PartialEq, Debug)]
pub enum Kernel {
    /// A node of the graph by itself.
    Single(usize),
    /// A fused product.
    Project(Project),
    /// A fused attention.
    Attend(Attend),
}

/// A kernel with the nodes that it computes, in execution order.
#[derive(Clone, PartialEq, Debug)]
pub struct Fused {
    /// The kernel.
    pub kernel: Kernel,
    /// Indices into [`Graph::nodes`].
    pub nodes: Vec<usize>,
}

/// Fuses `graph`, on each device by itself. Every node is in exactly one of the results. Where
/// fusion is off, or a device has no fused kernels, each node is a kernel of its own.
pub(crate) fn fuse(graph: &Graph, placement: &Placement, fusion: bool) -> Vec<Fused> {
    let fuser = Fuser::new(graph, placement, fusion);
    let mut owner: Vec<Option<usize>> = vec![None; graph.nodes.len()];
    let mut fused: Vec<(usize, Fused)> = Vec::new();
    for (index, node) in graph.nodes.iter().enumerate() {
        if owner[index].is_some() {
            continue;
        }
        let found = match node.op {
            Op::MatMul { .. } => fuser.project(index),
            Op::Attention(spec) => fuser.attend(index, spec),
            _ => None,
        };
        if let Some(found) = found {
            for &member in &found.nodes {
                owner[member] = Some(fused.len());
            }
            fused.push((index, found));
        }
    }
    let alone = owner.iter().enumerate().filter(|(_, owner)| owner.is_none());
    fused
        .extend(alone.map(|(index, _)| {
            (index, Fused { kernel: Kernel::Single(index), nodes: vec![index] })
        }));
    fused.sort_by_key(|&(position, _)| position);
    fused.into_iter().map(|(_, fused)| fused).collect()
}

struct Fuser<'a> {
    graph: &'a Graph,
    placement: &'a Placement,
    fusion: bool,
    /// Node that writes each tensor.
    producer: Vec<Option<usize>>,
    /// Nodes that read each tensor.
    readers: Vec<Vec<usize>>,
}

impl<'a> Fuser<'a> {
    fn new(graph: &'a Graph, placement: &'a Placement, fusion: bool) -> Self {
        let mut producer = vec![None; graph.tensors.len()];
        let mut readers = vec![Vec::new(); graph.tensors.len()];
        for (index, node) in graph.nodes.iter().enumerate() {
            if let Some(output) = node.output {
                producer[output.0] = Some(index);
            }
            for input in &node.inputs {
                readers[input.0].push(index);
            }
        }
        Fuser { graph, placement, fusion, producer, readers }
    }

    /// Whether two nodes may be in one kernel.
    fn joins(&self, one: usize, other: usize) -> bool {
        let device = self.placement.nodes[one];
        let fuses = self.fusion && self.placement.devices[device.0].fuses;
        fuses && device == self.placement.nodes[other]
    }

    /// The node that writes `tensor`, where it may be in one kernel with node `with`.
    fn producer_of(&self, tensor: TensorId, with: usize) -> Option<usize> {
        self.producer[tensor.0].filter(|&index| self.joins(index, with))
    }

    fn node(&self, index: usize) -> &'a Node {
        &self.graph.nodes[index]
    }

    fn output(&self, index: usize) -> TensorId {
        self.node(index).output.expect("node with an output")
    }

    /// The whole-row norm that writes `tensor`, if all its readers are among `readers`.
    fn norm_of(&self, tensor: TensorId, readers: &[usize]) -> Option<(usize, FusedNorm)> {
        let index = self.producer_of(tensor, *readers.first()?)?;
        match self.node(index).op {
            Op::RmsNorm { weight, epsilon, groups: 1 }
                if self.readers[tensor.0].iter().all(|reader| readers.contains(reader)) =>
            {
                Some((index, FusedNorm { weight, epsilon }))
            }
            _ => None,
        }
    }

    fn project(&self, first: usize) -> Option<Fused> {
        let x = self.node(first).inputs[0];
        let is_product = |&index: &usize| matches!(self.node(index).op, Op::MatMul { .. });
        let joined = |&index: &usize| index == first || self.joins(first, index);
        let products: Vec<usize> = self.readers[x.0]
            .iter()
            .copied()
            .filter(|index| is_product(index) && joined(index))
            .collect();
        let mut nodes = products.clone();
        let mut project = Project {
            input: x,
            residual: None,
            select: false,
            norm: None,
            parts: products.iter().map(|&index| self.part(index)).collect(),
            gate: None,
            soft_cap: None,
        };
        self.prologue(&mut project, &mut nodes, first);
        self.epilogue(&mut project, &mut nodes);
        nodes.sort_unstable();
        Some(Fused { kernel: Kernel::Project(project), nodes })
    }

    fn part(&self, index: usize) -> Part {
        let Op::MatMul { weight, bias } = self.node(index).op else { unreachable!("a product") };
        Part { weight, bias, output: self.output(index) }
    }

    fn prologue(&self, project: &mut Project, nodes: &mut Vec<usize>, first: usize) {
        if let Some((index, norm)) = self.norm_of(project.input, nodes) {
            nodes.push(index);
            project.norm = Some(norm);
            project.input = self.node(index).inputs[0];
        }
        if let Some(index) = self.producer_of(project.input, first)
            && self.node(index).op == Op::SelectRows
            && self.readers[project.input.0].iter().all(|reader| nodes.contains(reader))
        {
            nodes.push(index);
            project.select = true;
            project.input = self.node(index).inputs[0];
        }
        let Some(index) = self.producer_of(project.input, first) else { return };
        let readers = &self.readers[project.input.0];
        // A reader before this kernel would find the sum not yet formed.
        let early = readers.iter().any(|reader| !nodes.contains(reader) && *reader < first);
        if self.node(index).op != Op::Add || early {
            return;
        }
        let kept = readers.iter().any(|reader| !nodes.contains(reader));
        // With a selection only the selected rows pass through the prologue, so a residual
        // that goes on would be incomplete.
        if kept && project.select {
            return;
        }
        let [base, mut delta] = self.node(index).inputs[..] else { return };
        nodes.push(index);
        let mut norm = None;
        if let Some((inner, found)) = self.norm_of(delta, &[index]) {
            nodes.push(inner);
            norm = Some(found);
            delta = self.node(inner).inputs[0];
        }
        project.residual = Some(Residual { base, delta, norm, output: project.input, kept });
    }

    fn epilogue(&self, project: &mut Project, nodes: &mut Vec<usize>) {
        let first = nodes[0];
        let only_reader = |tensor: TensorId| match self.readers[tensor.0][..] {
            [reader] if self.joins(first, reader) => Some(reader),
            _ => None,
        };
        if let [first, second] = project.parts[..]
            && let Some(reader) = only_reader(first.output)
            && only_reader(second.output) == Some(reader)
            && let Op::Gate { activation } = self.node(reader).op
            && self.node(reader).inputs == [first.output, second.output]
        {
            nodes.push(reader);
            project.gate = Some((activation, self.output(reader)));
        } else if let [only] = project.parts[..]
            && let Some(reader) = only_reader(only.output)
            && let Op::SoftCap { cap } = self.node(reader).op
        {
            nodes.push(reader);
            project.soft_cap = Some((cap, self.output(reader)));
        }
    }

    fn attend(&self, index: usize, spec: AttentionSpec) -> Option<Fused> {
        let write = self.graph.nodes[..index]
            .iter()
            .rposition(|node| node.op == Op::KvWrite { kv: spec.kv })
            .filter(|&write| self.joins(write, index))?;
        let mut nodes = vec![write, index];
        let query = self.head(self.node(index).inputs[0], spec.heads, &mut nodes);
        let key = self.head(self.node(write).inputs[0], spec.kv_heads, &mut nodes);
        // One kernel rotates queries and keys alike; a model that does not is left unfused.
        if query.rope != key.rope {
            return None;
        }
        nodes.sort_unstable();
        let attend = Attend {
            spec,
            query: query.tensor,
            key: key.tensor,
            value: self.node(write).inputs[1],
            query_norm: query.norm,
            key_norm: key.norm,
            rope: query.rope,
            output: self.output(index),
        };
        Some(Fused { kernel: Kernel::Attend(attend), nodes })
    }

    /// Walks back over rotation and head norm, as far as nothing else reads in between.
    fn head(&self, tensor: TensorId, heads: usize, nodes: &mut Vec<usize>) -> Head {
        let mut head = Head { tensor, norm: None, rope: None };
        let single = |tensor: TensorId| self.readers[tensor.0].len() == 1;
        if let Some(index) = self.producer_of(head.tensor, nodes[0])
            && let Op::Rope { rope, .. } = self.node(index).op
            && single(head.tensor)
        {
            nodes.push(index);
            head.rope = Some((rope, self.node(index).inputs[1]));
            head.tensor = self.node(index).inputs[0];
        }
        if let Some(index) = self.producer_of(head.tensor, nodes[0])
            && let Op::RmsNorm { weight, epsilon, groups } = self.node(index).op
            && groups == heads
            && single(head.tensor)
        {
            nodes.push(index);
            head.norm = Some(FusedNorm { weight, epsilon });
            head.tensor = self.node(index).inputs[0];
        }
        head
    }
}

struct Head {
    tensor: TensorId,
    norm: Option<FusedNorm>,
    rope: Option<(usize, TensorId)>,
}
