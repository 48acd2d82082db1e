//! Placement: which device runs each kernel, which weights it reads, what crosses over.
//!
//! A model is cut once: its first layers, with the embedding before them, run on the processor, the
//! rest and the head on the GPU. So a step passes from one device to the other a single time.

use crate::fuse::Kernel;
use crate::graph::{Graph, Op, WeightId};
use crate::kv::KvSlot;
use crate::plan::{DeviceKind, Layout, Plan, PlanOp, PlanOptions, Segment, tensors_of};
use crate::weight::{WeightShape, WeightSpec};

/// The layer that each kernel belongs to; none for what stands behind the last layer. What has no
/// layer's name goes with the layer before it, and before all layers with the first.
fn layers_of(names: &[&str]) -> Vec<Option<usize>> {
    let named = |name: &&str| -> Option<usize> {
        name.strip_prefix("blk.")?.split_once('.')?.0.parse().ok()
    };
    let end = names.iter().rposition(|name| named(name).is_some()).map_or(0, |last| last + 1);
    let mut layer = 0;
    let place = |(index, name): (usize, &&str)| {
        layer = named(name).unwrap_or(layer);
        (index < end).then_some(layer)
    };
    names.iter().enumerate().map(place).collect()
}

/// Where each kernel runs.
pub(crate) fn devices(names: &[&str], options: &PlanOptions) -> Vec<DeviceKind> {
    let on_cpu = |layer: &Option<usize>| layer.is_some_and(|layer| layer < options.cpu_layers);
    let layers = layers_of(names);
    let place = |layer| if on_cpu(layer) { DeviceKind::Cpu } else { options.device };
    layers.iter().map(place).collect()
}

/// Runs of kernels on one device, each waiting for the one before.
pub(crate) fn segments(
    graph: &Graph,
    ops: &[PlanOp],
    buffer_of: &dyn Fn(usize) -> usize,
) -> Vec<Segment> {
    let mut starts: Vec<usize> =
        (1..ops.len()).filter(|&op| ops[op].device != ops[op - 1].device).collect();
    starts.insert(0, 0);
    let ends: Vec<usize> = starts[1..].iter().copied().chain([ops.len()]).collect();
    let last = starts.len() - 1;
    let runs = starts.into_iter().zip(ends).enumerate();
    let segment = |(index, (start, end)): (usize, (usize, usize))| Segment {
        device: ops[start].device,
        ops: start..end,
        waits: if index > 0 { vec![index - 1] } else { vec![] },
        signals: if index < last { vec![index + 1] } else { vec![] },
        receives: crossing(graph, ops, start..end, buffer_of),
    };
    runs.map(segment).collect()
}

/// Buffers that kernels `run` read and kernels of another device wrote before.
fn crossing(
    graph: &Graph,
    ops: &[PlanOp],
    run: std::ops::Range<usize>,
    buffer_of: &dyn Fn(usize) -> usize,
) -> Vec<usize> {
    let foreign = ops[..run.start].iter().filter(|op| op.device != ops[run.start].device);
    let written: Vec<usize> =
        foreign.flat_map(|op| tensors_of(graph, &op.kernel).1).map(|id| id.0).collect();
    let read = ops[run].iter().flat_map(|op| tensors_of(graph, &op.kernel).0);
    let mut buffers: Vec<usize> =
        read.filter(|id| written.contains(&id.0)).map(|id| buffer_of(id.0)).collect();
    buffers.sort_unstable();
    buffers.dedup();
    buffers
}

/// For each weight, the devices that read it and how they keep it.
pub(crate) fn layouts(graph: &Graph, ops: &[PlanOp]) -> Vec<Vec<(DeviceKind, Layout)>> {
    let mut all = vec![Vec::new(); graph.weights.len()];
    for op in ops {
        for id in op.nodes.iter().flat_map(|&node| weights_of(&graph.nodes[node].op)) {
            let kept = (op.device, layout_of(graph.weight(id), op.device));
            if !all[id.0].contains(&kept) {
                all[id.0].push(kept);
            }
        }
    }
    all
}

fn weights_of(op: &Op) -> Vec<WeightId> {
    match *op {
        Op::Embed { table, .. } => vec![table],
        Op::RmsNorm { weight, .. } => vec![weight],
        Op::MatMul { weight, bias } => [Some(weight), bias].into_iter().flatten().collect(),
        _ => Vec::new(),
    }
}

fn layout_of(weight: &WeightSpec, device: DeviceKind) -> Layout {
    match (weight.shape, device) {
        (WeightShape::Vector { .. }, _) => Layout::Vector,
        (WeightShape::Matrix { .. }, DeviceKind::Cpu) => Layout::Tiles16,
        (WeightShape::Matrix { .. }, DeviceKind::Vulkan) => Layout::Planes,
    }
}

/// Bytes for people.
pub fn size_text(bytes: u64) -> String {
    match bytes {
        0..1_000_000_000 => format!("{:.1} MB", bytes as f64 / 1e6),
        _ => format!("{:.1} GB", bytes as f64 / 1e9),
    }
}

/// Layers in words: `layers 3 to 5`, `all 6 layers`.
pub fn layer_range(layers: std::ops::Range<usize>, all: usize) -> String {
    match layers.len() {
        0 => "no layer".to_string(),
        count if count == all => format!("all {all} layers"),
        1 => format!("layer {}", layers.start),
        _ => format!("layers {} to {}", layers.start, layers.end - 1),
    }
}

impl Plan {
    /// Layers of the model.
    pub fn layers(&self) -> usize {
        let names: Vec<&str> = self.ops.iter().map(|op| op.name.as_str()).collect();
        layers_of(&names).into_iter().flatten().max().map_or(0, |last| last + 1)
    }

    /// Layers that run on a device, the first and the number behind the last.
    pub fn layers_on(&self, device: DeviceKind) -> std::ops::Range<usize> {
        match (device == self.options.device, device) {
            (true, DeviceKind::Cpu) => 0..self.layers(),
            (true, DeviceKind::Vulkan) => self.options.cpu_layers..self.layers(),
            (false, DeviceKind::Cpu) => 0..self.options.cpu_layers,
            (false, DeviceKind::Vulkan) => 0..0,
        }
    }

    /// In words: the layers on each device, and the bytes of weights that each reads.
    pub fn placement(&self) -> String {
        let weights = |device| size_text(self.weight_bytes_on(device));
        let device = self.options.device;
        let rest = format!(
            "{} and the head on {device}, {} of weights",
            layer_range(self.layers_on(device), self.layers()),
            weights(device)
        );
        match self.options.cpu_layers {
            0 => rest,
            _ => format!(
                "{} on cpu, {} of weights; {rest}",
                layer_range(self.layers_on(DeviceKind::Cpu), self.layers()),
                weights(DeviceKind::Cpu)
            ),
        }
    }

    /// Whether a kernel that runs on `device` reads a weight.
    pub fn reads(&self, device: DeviceKind, weight: usize) -> bool {
        self.layouts[weight].iter().any(|kept| kept.0 == device)
    }

    /// Bytes of the weights that a device reads, in their types.
    pub fn weight_bytes_on(&self, device: DeviceKind) -> u64 {
        let weights = self.graph.weights.iter().enumerate();
        weights.filter(|(index, _)| self.reads(device, *index)).map(|(_, spec)| spec.bytes()).sum()
    }

    /// The device that keeps a layer's keys and values: the one that attends to them.
    pub fn kv_device(&self, slot: KvSlot) -> DeviceKind {
        let attends = |op: &&PlanOp| match &op.kernel {
            Kernel::Attend(attend) => attend.spec.kv == slot,
            Kernel::Single(node) => match self.graph.nodes[*node].op {
                Op::Attention(spec) => spec.kv == slot,
                _ => false,
            },
            Kernel::Project(_) => false,
        };
        self.ops.iter().find(attends).map_or(self.options.device, |op| op.device)
    }

    /// The device whose kernel writes a tensor.
    pub fn tensor_device(&self, tensor: crate::TensorId) -> DeviceKind {
        let writes = |op: &&PlanOp| tensors_of(&self.graph, &op.kernel).1.contains(&tensor);
        self.ops.iter().find(writes).map_or(self.options.device, |op| op.device)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Numeric;

    const NAMES: [&str; 7] = [
        "embedding",
        "blk.0.attn_q+attn_k+attn_v",
        "blk.0.angles.0",
        "blk.0.attention",
        "blk.1.attn_q+attn_k+attn_v",
        "blk.10.ffn_down",
        "logits",
    ];

    #[test]
    fn kernels_belong_to_layers_by_their_names() {
        let layers = [Some(0), Some(0), Some(0), Some(0), Some(1), Some(10), None];
        assert_eq!(layers_of(&NAMES), layers);
        assert_eq!(layers_of(&["embedding", "logits"]), [None, None]);
    }

    #[test]
    fn the_head_stays_on_the_gpu() {
        let on_cpu = |cpu_layers: usize, device: DeviceKind| {
            let options = PlanOptions {
                device,
                numeric: Numeric::Fast,
                kv_type: None,
                max_rows: 1,
                max_logit_rows: 1,
                context: 1,
                sequences: 1,
                kv_bytes: None,
                cpu_layers,
            };
            let devices = devices(&NAMES, &options);
            devices.iter().take_while(|&&device| device == DeviceKind::Cpu).count()
        };
        assert_eq!(on_cpu(0, DeviceKind::Vulkan), 0);
        assert_eq!(on_cpu(1, DeviceKind::Vulkan), 4);
        assert_eq!(on_cpu(2, DeviceKind::Vulkan), 5);
        assert_eq!(on_cpu(11, DeviceKind::Vulkan), 6);
        assert_eq!(on_cpu(0, DeviceKind::Cpu), 7);
    }
}
