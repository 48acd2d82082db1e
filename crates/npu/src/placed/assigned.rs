//! The kernels of a plan that a device plays.

use std::collections::BTreeSet;

use pianola_plan::{
    AttentionSpec, DeviceError, DeviceId, Kernel, KvSlot, Op, Plan, WeightId, WeightShape,
};

/// What segments of a device hold. A kernel may be in segments of several devices.
pub(super) struct Assigned {
    /// Kernels, by their place in [`Plan::ops`].
    pub ops: Vec<usize>,
    /// Weights that they read.
    pub weights: Vec<WeightId>,
    /// Attentions among them.
    pub attentions: Vec<AttentionSpec>,
}

/// Operations that stay on the processor's own device: they read tables, not matrices.
pub(super) const LACKS: [&str; 3] = ["embed", "rope_angles", "select_rows"];

impl Assigned {
    pub fn new(plan: &Plan, id: DeviceId) -> Assigned {
        let segments = plan.segments.iter().filter(|segment| segment.device == id);
        let ops: BTreeSet<usize> = segments.flat_map(|segment| segment.ops.clone()).collect();
        let (mut weights, mut attentions) = (BTreeSet::new(), Vec::new());
        for &op in &ops {
            let op = &plan.ops[op];
            let nodes = op.nodes.iter().map(|&node| &plan.graph.nodes[node].op);
            for node in nodes {
                weights.extend(node.weights());
                if let Op::Attention(spec) = node {
                    attentions.push(*spec);
                }
            }
        }
        let (ops, weights) = (ops.into_iter().collect(), weights.into_iter().collect());
        Assigned { ops, weights, attentions }
    }

    /// Whether there are kernels for all of it.
    pub fn check(&self, plan: &Plan) -> Result<(), DeviceError> {
        for &op in &self.ops {
            if let Kernel::Single(node) = plan.ops[op].kernel {
                let name = plan.graph.nodes[node].op.name();
                if LACKS.contains(&name) {
                    return Err(DeviceError::Unsupported(format!(
                        "the NPU has no kernel for '{name}': place it on another device"
                    )));
                }
            }
        }
        Ok(())
    }

    /// Layers whose keys and values are kept here.
    pub fn slots(&self) -> Vec<KvSlot> {
        self.attentions.iter().map(|spec| spec.kv).collect()
    }

    /// Matrices among the weights, with their rows and columns.
    pub fn matrices<'a>(
        &'a self,
        plan: &'a Plan,
    ) -> impl Iterator<Item = (WeightId, usize, usize)> + 'a {
        self.weights.iter().filter_map(|&id| match plan.graph.weight(id).shape {
            WeightShape::Matrix { rows, columns } => Some((id, rows, columns)),
            WeightShape::Vector { .. } => None,
        })
    }
}
