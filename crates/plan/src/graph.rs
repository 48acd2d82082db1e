//! The graph: operations on named tensors, symbolic in the number of rows.

use crate::kv::{KvGroup, KvSlot, KvType};
use crate::weight::{WeightShape, WeightSpec};

/// Index of an activation tensor in [`Graph::tensors`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub struct TensorId(pub usize);

/// Index of a weight in [`Graph::weights`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub struct WeightId(pub usize);

/// How many rows a tensor has in a play of T rows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RowSet {
    /// One per row of the step.
    All,
    /// One per row that wants logits.
    Logits,
}

/// An activation, `[rows, width]` in f32.
#[derive(Clone, PartialEq, Debug)]
pub struct TensorSpec {
    /// Name for printing, such as `blk.3.attn_q`.
    pub name: String,
    /// Number of rows, symbolic.
    pub rows: RowSet,
    /// Columns.
    pub width: usize,
}

/// Which two values of a head a rotation pairs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RopePairing {
    /// `i` with `i + head_dim / 2`: Hugging Face's order.
    Halves,
    /// `2 i` with `2 i + 1`: the order of GGUF files of the llama architecture.
    Adjacent,
}

/// A table of rotary angles; layers that share one share its per-step cosines.
#[derive(Clone, PartialEq, Debug)]
pub struct RopeSpec {
    /// Radians per position for each of the `head_dim / 2` pairs.
    pub frequencies: Vec<f32>,
    /// Multiplies cosines and sines (the attention factor of YaRN and Phi 3; 1 elsewhere).
    pub magnitude: f32,
    /// Pairing of values.
    pub pairing: RopePairing,
    /// What replaces `frequencies` where a long context is planned (Phi 3); none in a plan.
    pub long: Option<LongFrequencies>,
}

/// Frequencies for contexts that are longer than the training context.
#[derive(Clone, PartialEq, Debug)]
pub struct LongFrequencies {
    /// They replace the others in plans for more tokens of context than this.
    pub beyond: usize,
    /// Radians per position for each pair.
    pub frequencies: Vec<f32>,
}

impl RopeSpec {
    /// Keeps the frequencies that a plan for `context` tokens uses. They are chosen once and not by
    /// the length of a sequence, because keys that are already stored cannot be rotated anew.
    pub(crate) fn settle(&mut self, context: usize) {
        if let Some(long) = self.long.take().filter(|long| context > long.beyond) {
            self.frequencies = long.frequencies;
        }
    }
}

/// The non-linearity of a gated feed-forward layer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Activation {
    /// `x * sigmoid(x)`
    Silu,
    /// `x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3)))`
    GeluTanh,
}

/// Causal attention of one layer over its KV pages.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct AttentionSpec {
    /// Where this layer's keys and values live.
    pub kv: KvSlot,
    /// Query heads; a multiple of `kv_heads`.
    pub heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Values in a head.
    pub head_dim: usize,
    /// Multiplies `q . k`.
    pub scale: f32,
    /// A row sees itself and the `window - 1` positions before it.
    pub window: Option<usize>,
    /// `cap * tanh(score / cap)` on scores.
    pub soft_cap: Option<f32>,
}

/// An operation. Inputs and output are in the [`Node`], in the order given here.
#[derive(Clone, PartialEq, Debug)]
pub enum Op {
    /// `[] -> [T, columns]`: the token's row of the table, times `scale`.
    Embed {
        /// Vocabulary by hidden size.
        table: WeightId,
        /// Multiplies the row (Gemma: square root of the hidden size).
        scale: f32,
    },
    /// `[] -> [T, head_dim]`: cosines of all pairs' angles, then their sines.
    RopeAngles {
        /// Index in [`Graph::ropes`].
        rope: usize,
    },
    /// `x -> x / rms(x) * weight`, over each of `groups` equal parts of the row.
    RmsNorm {
        /// Scale, `[width / groups]`.
        weight: WeightId,
        /// Added to the mean square.
        epsilon: f32,
        /// Heads, where heads are normalised one by one; 1 elsewhere.
        groups: usize,
    },
    /// `x -> x . weight^T + bias`
    MatMul {
        /// `[output, input]`
        weight: WeightId,
        /// `[output]`
        bias: Option<WeightId>,
    },
    /// `(x, angles) -> x` with each head rotated.
    Rope {
        /// Index in [`Graph::ropes`].
        rope: usize,
        /// Heads in the row.
        heads: usize,
    },
    /// `(k, v) -> ()`: stored in the pages of each row's sequence.
    KvWrite {
        /// Destination.
        kv: KvSlot,
    },
    /// `q -> [T, heads * head_dim]`
    Attention(AttentionSpec),
    /// `(gate, up) -> activation(gate) * up`
    Gate {
        /// Non-linearity.
        activation: Activation,
    },
    /// `(a, b) -> a + b`
    Add,
    /// `x -> ` its rows that want logits.
    SelectRows,
    /// `x -> cap * tanh(x / cap)`
    SoftCap {
        /// Largest magnitude.
        cap: f32,
    },
}

impl Op {
    /// Weights that it reads.
    pub fn weights(&self) -> Vec<WeightId> {
        match *self {
            Op::Embed { table, .. } => vec![table],
            Op::RmsNorm { weight, .. } => vec![weight],
            Op::MatMul { weight, bias } => [Some(weight), bias].into_iter().flatten().collect(),
            _ => Vec::new(),
        }
    }

    /// The operation's one name: its reference, kernels and tests carry it too.
    pub fn name(&self) -> &'static str {
        match self {
            Op::Embed { .. } => "embed",
            Op::RopeAngles { .. } => "rope_angles",
            Op::RmsNorm { .. } => "rms_norm",
            Op::MatMul { .. } => "matmul",
            Op::Rope { .. } => "rope",
            Op::KvWrite { .. } => "kv_write",
            Op::Attention(_) => "attention",
            Op::Gate { .. } => "gate",
            Op::Add => "add",
            Op::SelectRows => "select_rows",
            Op::SoftCap { .. } => "soft_cap",
        }
    }
}

/// One operation with its tensors.
#[derive(Clone, PartialEq, Debug)]
pub struct Node {
    /// What to compute.
    pub op: Op,
    /// What it reads.
    pub inputs: Vec<TensorId>,
    /// What it writes; a [`Op::KvWrite`] writes pages only.
    pub output: Option<TensorId>,
    /// The layer of the model it belongs to; none for embedding, head and shared tables.
    pub layer: Option<usize>,
}

/// A model as operations on named, shaped tensors, with no device in sight.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Graph {
    /// Architecture, such as `gemma3`.
    pub architecture: String,
    /// Longest sequence the model was made for.
    pub context: usize,
    /// Entries of the vocabulary: width of the logits.
    pub vocabulary: usize,
    /// Activations.
    pub tensors: Vec<TensorSpec>,
    /// Weights.
    pub weights: Vec<WeightSpec>,
    /// Rotary tables.
    pub ropes: Vec<RopeSpec>,
    /// Layers that share page tables.
    pub kv_groups: Vec<KvGroup>,
    /// Layers of the model.
    pub layers: usize,
    /// Operations in execution order.
    pub nodes: Vec<Node>,
    /// The logits.
    pub logits: Option<TensorId>,
}

impl Graph {
    /// The tensor `id` stands for.
    pub fn tensor(&self, id: TensorId) -> &TensorSpec {
        &self.tensors[id.0]
    }

    /// The weight `id` stands for.
    pub fn weight(&self, id: WeightId) -> &WeightSpec {
        &self.weights[id.0]
    }

    /// Values in all matrices: the model's parameter count, as people quote it.
    pub fn parameters(&self) -> u64 {
        self.weights.iter().map(WeightSpec::elements).sum()
    }
}

/// Writes a [`Graph`] in the order a paper would describe it.
///
/// Shapes are the caller's promise: a product of mismatched shapes panics here, at build time,
/// so the architecture files check their configuration and the weights' shapes first.
#[derive(Default)]
pub struct GraphBuilder {
    graph: Graph,
    angles: Vec<TensorId>,
    prefix: String,
    layer: Option<usize>,
}

impl GraphBuilder {
    /// An empty graph.
    pub fn new(architecture: &str, context: usize, vocabulary: usize) -> Self {
        let graph = Graph {
            architecture: architecture.to_string(),
            context,
            vocabulary,
            ..Graph::default()
        };
        GraphBuilder { graph, ..GraphBuilder::default() }
    }

    /// What follows belongs to `layer`, and its tensors' names start with it; none leaves the
    /// layers.
    pub fn set_layer(&mut self, layer: Option<usize>) {
        self.layer = layer;
        self.prefix = layer.map_or(String::new(), |layer| format!("blk.{layer}."));
        self.graph.layers = self.graph.layers.max(layer.map_or(0, |layer| layer + 1));
    }

    /// Declares a weight. The same values declared twice are one weight (a tied head).
    pub fn weight(&mut self, spec: WeightSpec) -> WeightId {
        let known = self.graph.weights.iter().position(|weight| weight.same_values(&spec));
        WeightId(known.unwrap_or_else(|| {
            self.graph.weights.push(spec);
            self.graph.weights.len() - 1
        }))
    }

    /// Declares a KV group of layers with one geometry; layers are added by [`Self::kv_layer`].
    pub fn kv_group(
        &mut self,
        name: &str,
        window: Option<usize>,
        kv_heads: usize,
        head_dim: usize,
    ) -> usize {
        let known = self.graph.kv_groups.iter().position(|group| group.name == name);
        known.unwrap_or_else(|| {
            self.graph.kv_groups.push(KvGroup {
                name: name.to_string(),
                window,
                kv_heads,
                head_dim,
                layers: 0,
                ty: KvType::F32,
            });
            self.graph.kv_groups.len() - 1
        })
    }

    /// The next layer's slot in a group.
    pub fn kv_layer(&mut self, group: usize) -> KvSlot {
        let layer = self.graph.kv_groups[group].layers;
        self.graph.kv_groups[group].layers += 1;
        KvSlot { group, layer }
    }

    fn tensor(&mut self, name: &str, rows: RowSet, width: usize) -> TensorId {
        self.graph.tensors.push(TensorSpec { name: format!("{}{name}", self.prefix), rows, width });
        TensorId(self.graph.tensors.len() - 1)
    }

    fn push(
        &mut self,
        name: &str,
        op: Op,
        inputs: Vec<TensorId>,
        rows: RowSet,
        width: usize,
    ) -> TensorId {
        let output = self.tensor(name, rows, width);
        self.graph.nodes.push(Node { op, inputs, output: Some(output), layer: self.layer });
        output
    }

    fn matrix(&self, id: WeightId) -> (usize, usize) {
        match self.graph.weight(id).shape {
            WeightShape::Matrix { rows, columns } => (rows, columns),
            WeightShape::Vector { length } => (1, length),
        }
    }

    /// Token embeddings.
    pub fn embed(&mut self, table: WeightId, scale: f32) -> TensorId {
        let (_, width) = self.matrix(table);
        self.push("embedding", Op::Embed { table, scale }, vec![], RowSet::All, width)
    }

    /// A rotary table; its angles are computed once a step.
    pub fn rope_table(&mut self, spec: RopeSpec) -> usize {
        if let Some(known) = self.graph.ropes.iter().position(|rope| *rope == spec) {
            return known;
        }
        let width = 2 * spec.frequencies.len();
        let rope = self.graph.ropes.len();
        self.graph.ropes.push(spec);
        let name = format!("angles.{rope}");
        // Layers share it, so it belongs to none.
        let outside = (self.layer.take(), std::mem::take(&mut self.prefix));
        let angles = self.push(&name, Op::RopeAngles { rope }, vec![], RowSet::All, width);
        (self.layer, self.prefix) = outside;
        self.angles.push(angles);
        rope
    }

    /// RMS norm over the whole row.
    pub fn rms_norm(
        &mut self,
        name: &str,
        x: TensorId,
        weight: WeightId,
        epsilon: f32,
    ) -> TensorId {
        self.rms_norm_heads(name, x, weight, epsilon, 1)
    }

    /// RMS norm over each of `groups` heads.
    pub fn rms_norm_heads(
        &mut self,
        name: &str,
        x: TensorId,
        weight: WeightId,
        epsilon: f32,
        groups: usize,
    ) -> TensorId {
        let TensorSpec { rows, width, .. } = *self.graph.tensor(x);
        assert_eq!(self.matrix(weight).1 * groups, width, "norm of {name}");
        self.push(name, Op::RmsNorm { weight, epsilon, groups }, vec![x], rows, width)
    }

    /// A linear layer.
    pub fn matmul(
        &mut self,
        name: &str,
        x: TensorId,
        weight: WeightId,
        bias: Option<WeightId>,
    ) -> TensorId {
        let (rows, columns) = self.matrix(weight);
        let input = self.graph.tensor(x);
        assert_eq!(input.width, columns, "product for {name}");
        let set = input.rows;
        self.push(name, Op::MatMul { weight, bias }, vec![x], set, rows)
    }

    /// Rotates every head of `x`.
    pub fn rope(&mut self, name: &str, x: TensorId, rope: usize, heads: usize) -> TensorId {
        let width = self.graph.tensor(x).width;
        assert_eq!(self.graph.ropes[rope].frequencies.len() * 2 * heads, width, "rope of {name}");
        let inputs = vec![x, self.angles[rope]];
        self.push(name, Op::Rope { rope, heads }, inputs, RowSet::All, width)
    }

    /// Stores `k` and `v` and attends with `q`.
    pub fn attention(
        &mut self,
        q: TensorId,
        k: TensorId,
        v: TensorId,
        spec: AttentionSpec,
    ) -> TensorId {
        self.graph.nodes.push(Node {
            op: Op::KvWrite { kv: spec.kv },
            inputs: vec![k, v],
            output: None,
            layer: self.layer,
        });
        let width = spec.heads * spec.head_dim;
        self.push("attention", Op::Attention(spec), vec![q], RowSet::All, width)
    }

    /// `activation(gate) * up`
    pub fn gate(&mut self, gate: TensorId, up: TensorId, activation: Activation) -> TensorId {
        let width = self.graph.tensor(gate).width;
        self.push("gated", Op::Gate { activation }, vec![gate, up], RowSet::All, width)
    }

    /// `a + b`
    pub fn add(&mut self, name: &str, a: TensorId, b: TensorId) -> TensorId {
        let TensorSpec { rows, width, .. } = *self.graph.tensor(a);
        self.push(name, Op::Add, vec![a, b], rows, width)
    }

    /// Keeps the rows that want logits.
    pub fn select_rows(&mut self, x: TensorId) -> TensorId {
        let width = self.graph.tensor(x).width;
        self.push("selected", Op::SelectRows, vec![x], RowSet::Logits, width)
    }

    /// `cap * tanh(x / cap)`
    pub fn soft_cap(&mut self, name: &str, x: TensorId, cap: f32) -> TensorId {
        let TensorSpec { rows, width, .. } = *self.graph.tensor(x);
        self.push(name, Op::SoftCap { cap }, vec![x], rows, width)
    }

    /// The finished graph, `logits` being its result.
    pub fn finish(mut self, logits: TensorId) -> Graph {
        self.graph.logits = Some(logits);
        self.graph
    }
}
