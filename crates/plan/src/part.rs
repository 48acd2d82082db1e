//! Parts of a model that can be placed by name: attention on one device, feed-forward on another.

use crate::graph::{Graph, Op, TensorId};
use crate::placement::{DeviceId, DeviceSpec, Placement};
use crate::plan::{Plan, PlanOp};
use std::fmt::{self, Display, Formatter};
use std::str::FromStr;

/// A part of a model.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ModelPart {
    /// The table of tokens, and rotary angles.
    Embedding,
    /// The products before and behind attention, with the norms before them.
    Projections,
    /// Attention itself, and the keys and values that it reads.
    Attention,
    /// The feed-forward products, with what stands around them.
    Ffn,
    /// The last norm and the product that gives logits.
    Head,
}

impl ModelPart {
    /// All of them.
    pub const ALL: [ModelPart; 5] = [
        ModelPart::Embedding,
        ModelPart::Projections,
        ModelPart::Attention,
        ModelPart::Ffn,
        ModelPart::Head,
    ];

    /// As users write it.
    pub fn name(self) -> &'static str {
        match self {
            ModelPart::Embedding => "embedding",
            ModelPart::Projections => "projections",
            ModelPart::Attention => "attention",
            ModelPart::Ffn => "ffn",
            ModelPart::Head => "head",
        }
    }
}

impl Display for ModelPart {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for ModelPart {
    type Err = String;
    fn from_str(text: &str) -> Result<ModelPart, String> {
        let names = || ModelPart::ALL.map(ModelPart::name).join(", ");
        let found = ModelPart::ALL.into_iter().find(|part| part.name() == text);
        found.ok_or_else(|| format!("'{text}' is no part of a model; parts are {}", names()))
    }
}

impl Graph {
    /// The part that each node belongs to: products and attention by where they stand, everything
    /// else with the node that reads it first.
    pub fn parts(&self) -> Vec<ModelPart> {
        let mut parts: Vec<Option<ModelPart>> = vec![None; self.nodes.len()];
        let attention = |layer: Option<usize>| {
            let attends = |op: &Op| matches!(op, Op::Attention(_));
            self.nodes.iter().position(|node| node.layer == layer && attends(&node.op))
        };
        for index in (0..self.nodes.len()).rev() {
            let node = &self.nodes[index];
            parts[index] = Some(match node.op {
                Op::Embed { .. } | Op::RopeAngles { .. } => ModelPart::Embedding,
                Op::Attention(_) | Op::KvWrite { .. } => ModelPart::Attention,
                Op::MatMul { .. } if node.layer.is_none() => ModelPart::Head,
                Op::MatMul { .. } => {
                    let at = attention(node.layer);
                    let reads = at.and_then(|at| self.nodes[at].output) == Some(node.inputs[0]);
                    let before = at.is_some_and(|at| index < at);
                    if reads || before { ModelPart::Projections } else { ModelPart::Ffn }
                }
                _ => {
                    let reader = node.output.and_then(|output| self.first_reader(output, index));
                    reader.and_then(|reader| parts[reader]).unwrap_or(ModelPart::Head)
                }
            });
        }
        parts.into_iter().flatten().collect()
    }

    /// The first node behind `after` that reads a tensor.
    fn first_reader(&self, tensor: TensorId, after: usize) -> Option<usize> {
        let reads = |index: &usize| self.nodes[*index].inputs.contains(&tensor);
        (after + 1..self.nodes.len()).find(reads)
    }
}

impl Placement {
    /// Moves parts of the model to other devices, in all layers.
    pub fn place_parts(&mut self, graph: &Graph, asked: &[(ModelPart, DeviceSpec)]) {
        for (index, part) in graph.parts().into_iter().enumerate() {
            let Some((_, spec)) = asked.iter().rev().find(|(of, _)| *of == part) else { continue };
            let known = self.devices.iter().position(|device| device.name == spec.name);
            let device = known.unwrap_or_else(|| {
                self.devices.push(spec.clone());
                self.devices.len() - 1
            });
            self.nodes[index] = DeviceId(device);
        }
        self.drop_unused();
    }

    /// Forgets devices that run nothing.
    fn drop_unused(&mut self) {
        let used: Vec<usize> =
            (0..self.devices.len()).filter(|&at| self.nodes.contains(&DeviceId(at))).collect();
        let id = |old: DeviceId| used.iter().position(|&at| at == old.0).map(DeviceId);
        self.nodes = self.nodes.iter().map(|&old| id(old).expect("used by a node")).collect();
        self.devices = used.iter().map(|&at| self.devices[at].clone()).collect();
    }
}

impl Plan {
    /// The part of the model that a kernel computes.
    pub fn part_of(&self, parts: &[ModelPart], op: &PlanOp) -> ModelPart {
        let product = |node: &&usize| {
            matches!(self.graph.nodes[**node].op, Op::MatMul { .. } | Op::Attention(_))
        };
        let node = op.nodes.iter().rfind(product).or(op.nodes.last());
        node.map_or(ModelPart::Head, |&node| parts[node])
    }
}
