//! The graph: operations on named tensors, symbolic in the number of rows.

use crate::kv::{KvGroup, KvSlot};
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

/// A model as operations on named, shaped tensors, independent of any device.
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
    /// The weights that are matrices.
    pub fn matrices(&self) -> impl Iterator<Item = &WeightSpec> {
        self.weights.iter().filter(|weight| matches!(weight.shape, WeightShape::Matrix { .. }))
    }

    /// The tensor with this id.
    pub fn tensor(&self, id: TensorId) -> &TensorSpec {
        &self.tensors[id.0]
    }

    /// The weight with this id.
    pub fn weight(&self, id: WeightId) -> &WeightSpec {
        &self.weights[id.0]
    }

    /// Values in all matrices: the model's parameter count, as people quote it.
    pub fn parameters(&self) -> u64 {
        self.weights.iter().map(WeightSpec::elements).sum()
    }
}
