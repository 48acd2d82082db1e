//! Builds a [`Graph`], operation by operation.

use crate::graph::{
    Activation, AttentionSpec, Graph, Node, Op, RopeSpec, RowSet, TensorId, TensorSpec, WeightId,
};
use crate::kv::{KvGroup, KvSlot, KvType};
use crate::weight::{WeightShape, WeightSpec};

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
