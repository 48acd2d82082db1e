//! Queries of a plan: its layers, what each device has of it, what runs for a step.

use crate::cost::{Cost, Work};
use crate::device::{Device, SLOTS};
use crate::fuse::Kernel;
use crate::graph::{Op, RowSet, TensorId};
use crate::kv::KvSlot;
use crate::lay_out::tensors_of;
use crate::placement::DeviceId;
use crate::plan::{Plan, PlanOp};
use crate::segment::{Segment, Segmentation};
use crate::statistics::Ceilings;
use crate::step::Step;
use crate::units::{part_text, size_text};
use std::ops::Range;
use std::sync::Arc;

impl Plan {
    /// Devices by id, in order.
    pub fn device_ids(&self) -> impl Iterator<Item = DeviceId> + use<> {
        (0..self.devices.len()).map(DeviceId)
    }

    /// The plan's devices, by their ids, out of those it was made for.
    ///
    /// # Panics
    /// If one is not among them.
    pub fn devices_among(&self, devices: &[Arc<dyn Device>]) -> Vec<Arc<dyn Device>> {
        let named = |name: &str| devices.iter().find(|device| device.spec().name == name);
        let find = |name: &str| named(name).expect("a plan has devices it was made for").clone();
        self.devices.iter().map(|spec| find(&spec.name)).collect()
    }

    /// Arenas that each device has: one for each slot where plays pass from device to device, so
    /// that two may be in flight; elsewhere one, because a device plays in order.
    pub fn arenas(&self) -> usize {
        if self.segments.len() > 1 { SLOTS } else { 1 }
    }

    /// Segments of the first segmentation.
    pub fn placed_segments(&self) -> impl Iterator<Item = &Segment> {
        self.segments[self.segmentations[0].segments.clone()].iter()
    }

    /// Whether a device computes a kernel, in the first segmentation or in another.
    pub fn runs_on(&self, op: usize, device: DeviceId) -> bool {
        let mut mine = self.segments.iter().filter(|segment| segment.device == device);
        mine.any(|segment| segment.ops.contains(&op))
    }

    /// Layers of the model.
    pub fn layers(&self) -> usize {
        self.graph.layers
    }

    /// Layers that run on a device: all between the first and the last of them.
    pub fn layers_on(&self, device: DeviceId) -> Range<usize> {
        let mine = self.ops.iter().filter(|op| op.device == device);
        let layers: Vec<usize> = mine.filter_map(|op| op.layer).collect();
        match (layers.iter().min(), layers.iter().max()) {
            (Some(&first), Some(&last)) => first..last + 1,
            _ => 0..0,
        }
    }

    /// Whether a device has some kernels of its layers only.
    pub fn shares_layers(&self, device: DeviceId) -> bool {
        let layers = self.layers_on(device);
        let inside = |op: &&PlanOp| op.layer.is_some_and(|layer| layers.contains(&layer));
        self.ops.iter().filter(inside).any(|op| op.device != device)
    }

    /// The device that computes the logits.
    pub fn head_device(&self) -> DeviceId {
        self.tensor_device(self.graph.logits.expect("checked by the planner"))
    }

    /// Whether a device only computes products in place of others.
    pub fn is_accelerator(&self, device: DeviceId) -> bool {
        !self.ops.iter().any(|op| op.device == device)
    }

    /// A device's part of the model, in words.
    pub fn part_text(&self, device: DeviceId) -> String {
        let (layers, head) = (self.layers_on(device), device == self.head_device());
        match (self.is_accelerator(device), layers.is_empty() && !head) {
            (true, _) => "products of prompts".to_string(),
            (_, true) => "the embedding".to_string(),
            _ => {
                let what = part_text(layers, self.layers(), head);
                if self.shares_layers(device) { format!("parts of {what}") } else { what }
            }
        }
    }

    /// In words: the layers on each device, and the bytes of weights that each reads.
    pub fn placement_text(&self) -> String {
        let part = |id: DeviceId| {
            let (what, name) = (self.part_text(id), &self.devices[id.0].name);
            match self.is_accelerator(id) {
                true => format!("{what} on {name}"),
                false => {
                    let weights = size_text(self.weight_bytes_on(id));
                    format!("{what} on {name}, {weights} of weights")
                }
            }
        };
        self.device_ids().map(part).collect::<Vec<String>>().join("; ")
    }

    /// Whether a kernel that runs on `device` reads a weight.
    pub fn reads(&self, device: DeviceId, weight: usize) -> bool {
        self.readers[weight].contains(&device)
    }

    /// Bytes of the weights that a device reads, in their types.
    pub fn weight_bytes_on(&self, device: DeviceId) -> u64 {
        let weights = self.graph.weights.iter().enumerate();
        weights.filter(|(index, _)| self.reads(device, *index)).map(|(_, spec)| spec.bytes()).sum()
    }

    /// The layer whose kernels read a weight; none where several do, or what belongs to no layer.
    pub fn weight_layer(&self, weight: usize) -> Option<usize> {
        let mut layers = self.ops.iter().filter(|op| {
            let nodes = op.nodes.iter().map(|&node| &self.graph.nodes[node].op);
            nodes.flat_map(Op::weights).any(|id| id.0 == weight)
        });
        let first = layers.next()?.layer;
        layers.all(|op| op.layer == first).then_some(first).flatten()
    }

    /// The device that keeps a layer's keys and values: the one that attends to them.
    pub fn kv_device(&self, slot: KvSlot) -> DeviceId {
        self.attention_of(slot).map_or(self.head_device(), |op| op.device)
    }

    /// The layer of the model whose keys and values a slot holds.
    pub fn kv_layer(&self, slot: KvSlot) -> Option<usize> {
        self.attention_of(slot).and_then(|op| op.layer)
    }

    fn attention_of(&self, slot: KvSlot) -> Option<&PlanOp> {
        let attends = |op: &&PlanOp| match &op.kernel {
            Kernel::Attend(attend) => attend.spec.kv == slot,
            Kernel::Single(node) => match self.graph.nodes[*node].op {
                Op::Attention(spec) => spec.kv == slot,
                _ => false,
            },
            Kernel::Project(_) => false,
        };
        self.ops.iter().find(attends)
    }

    /// The device whose kernel writes a tensor.
    pub fn tensor_device(&self, tensor: TensorId) -> DeviceId {
        let writes = |op: &&PlanOp| tensors_of(&self.graph, &op.kernel).1.contains(&tensor);
        self.ops.iter().find(writes).map_or(DeviceId(0), |op| op.device)
    }

    /// Whether a kernel works on the rows with logits only.
    pub fn is_head(&self, op: usize) -> bool {
        let output = match &self.ops[op].kernel {
            Kernel::Single(node) => self.graph.nodes[*node].output,
            Kernel::Attend(attend) => Some(attend.output),
            Kernel::Project(project) => Some(project.parts[0].output),
        };
        output.is_some_and(|id| self.graph.tensor(id).rows == RowSet::Logits)
    }

    /// Whether a segment has nothing to do in a step: it is all head, and no row wants logits.
    pub fn is_idle(&self, segment: usize, step: &Step) -> bool {
        step.logits.is_empty() && self.segments[segment].ops.clone().all(|op| self.is_head(op))
    }

    /// Shortest time, in seconds, of a play in which each kernel does the work that `work` says, one
    /// after another, each under the ceilings of its device.
    pub fn best_seconds(&self, ceilings: &[Ceilings], work: &dyn Fn(&Cost) -> Work) -> f64 {
        let seconds = |op: &PlanOp| ceilings[op.device.0].seconds(work(&op.cost));
        self.ops.iter().map(seconds).sum()
    }

    /// Time, in seconds, that no play can be shorter than where several overlap, if each kernel does the
    /// work that `work` says: that of the busiest device, by the segmentation in which it is shortest. Not
    /// a number where a device's ceilings are not known.
    pub fn busiest_seconds(&self, ceilings: &[Ceilings], work: &dyn Fn(&Cost) -> Work) -> f64 {
        let busiest = |segmentation: &Segmentation| {
            let mut devices = vec![0.0; self.devices.len()];
            for segment in &self.segments[segmentation.segments.clone()] {
                let ceilings = ceilings[segment.device.0];
                let seconds = |op: usize| ceilings.seconds(work(&self.ops[op].cost));
                devices[segment.device.0] += segment.ops.clone().map(seconds).sum::<f64>();
            }
            devices.into_iter().max_by(f64::total_cmp).unwrap_or(f64::NAN)
        };
        self.segmentations.iter().map(busiest).min_by(f64::total_cmp).unwrap_or(f64::NAN)
    }

    /// Rows of a tensor in a step.
    pub fn rows(&self, tensor: TensorId, step: &Step) -> usize {
        match self.graph.tensor(tensor).rows {
            RowSet::All => step.rows.len(),
            RowSet::Logits => step.logits.len(),
        }
    }

    /// Tensors that a segment leaves for segments of other devices.
    pub fn sends(&self, segment: usize) -> impl Iterator<Item = TensorId> + '_ {
        let received = self.segments.iter().flat_map(|segment| &segment.receives);
        received.filter(move |transfer| transfer.from == segment).map(|transfer| transfer.tensor)
    }
}
