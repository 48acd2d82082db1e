//! The noise of a device's roundings after all layers, simulated.

use super::sequences::Sequences;
use crate::error::EngineError;
use pianola_cpu::CpuDevice;
use pianola_formats::TensorSource;
use pianola_plan::{
    Device, DeviceError, DeviceId, Op, Placement, Plan, PlanOptions, Recording, Rounding, Step,
    WeightId,
};
use std::sync::Arc;

/// Values that share a scale where inputs become int8.
const BLOCK: usize = 32;

/// The processor's exact mode, with the input of each product rounded as another device rounds it
/// before the product runs. Its distance from exact mode without roundings is the noise to expect
/// of that device: real inputs, real layers, and no assumption about how errors grow.
pub(super) struct RoundedModel {
    recording: Box<dyn Recording>,
}

impl RoundedModel {
    /// `exact` is the plan of exact mode with the device's type of keys and values.
    pub fn new(exact: &Plan, source: &dyn TensorSource) -> Result<RoundedModel, EngineError> {
        let cpu = CpuDevice::default();
        let graph = exact.graph.clone();
        let placement = Placement::single(&graph, cpu.spec());
        // Every node by itself, so that each product's input can be changed.
        let options = PlanOptions { fusion: false, ..exact.options };
        let plan = Arc::new(Plan::new(graph, options, placement)?);
        let mut recording = cpu.record(&plan, DeviceId(0), source, &mut |_, _| ())?;
        recording.poison_kv()?;
        Sequences::map_first(recording.as_mut());
        Ok(RoundedModel { recording })
    }

    /// Points the pages of the other sequences, as [`Sequences::map_branches`] does.
    pub fn map_branches(&mut self, branches: &[(usize, usize)]) {
        Sequences::map_branches(self.recording.as_mut(), branches);
    }

    /// Plays `step` with the roundings that `device` has in it.
    pub fn play(&mut self, device: &dyn Recording, step: &Step) -> Result<(), DeviceError> {
        let roundings = roundings(device, step);
        let recording = self.recording.as_mut();
        recording.begin(step)?;
        for op in 0..recording.plan().ops.len() {
            let plan = recording.plan();
            let [node] = plan.ops[op].nodes[..] else {
                unreachable!("the plan has no fused kernels")
            };
            let node = &plan.graph.nodes[node];
            let Op::MatMul { weight, .. } = node.op else {
                recording.play_op(op, step)?;
                continue;
            };
            let input = node.inputs[0];
            let width = plan.graph.tensor(input).width;
            let rounding = match plan.graph.weights[weight.0].ty.is_quantized() {
                true => roundings[weight.0],
                false => Rounding::None,
            };
            let rows = plan.rows(input, step);
            let values = recording.read_tensor(input, rows)?;
            recording.write_tensor(input, &rounded(rounding, &values, width))?;
            recording.play_op(op, step)?;
            // Another product may read it, too, and round it otherwise.
            recording.write_tensor(input, &values)?;
        }
        Ok(())
    }

    /// Logits of the `index`-th row that wanted them.
    pub fn logits(&mut self, index: usize) -> &[f32] {
        self.recording.logits(0, index)
    }
}

/// For each weight how a device rounds the inputs of its product in `step`.
fn roundings(device: &dyn Recording, step: &Step) -> Vec<Rounding> {
    let plan = device.plan();
    let mut roundings = vec![Rounding::None; plan.graph.weights.len()];
    for (op, planned) in plan.ops.iter().enumerate() {
        let weights = planned.nodes.iter().filter_map(|&node| match plan.graph.nodes[node].op {
            Op::MatMul { weight, .. } => Some(weight),
            _ => None,
        });
        for WeightId(weight) in weights {
            roundings[weight] = device.rounding(op, step);
        }
    }
    roundings
}

/// Rows of `width` values, rounded.
fn rounded(rounding: Rounding, values: &[f32], width: usize) -> Vec<f32> {
    match rounding {
        Rounding::None => {
            // A sum of `width` terms in f32 is off by about the root of their number: in bits, half
            // the logarithm.
            let bits = 24 - width.ilog2() / 2;
            values.iter().map(|&value| to_bits(value, bits)).collect()
        }
        // Inputs have 11 bits and so have weights: one less stands for both.
        Rounding::Halves => values.iter().map(|&value| to_bits(value, 10)).collect(),
        Rounding::Int8 => values.chunks(BLOCK).flat_map(to_int8).collect(),
        Rounding::Int8Twice => {
            let twice = |block: &[f32]| {
                let first = to_int8(block);
                let rest: Vec<f32> = block.iter().zip(&first).map(|(x, first)| x - first).collect();
                let second = to_int8(&rest);
                first.iter().zip(second).map(|(first, second)| first + second).collect::<Vec<_>>()
            };
            values.chunks(BLOCK).flat_map(twice).collect()
        }
    }
}

/// The nearest value with `bits` significant bits.
fn to_bits(value: f32, bits: u32) -> f32 {
    let dropped = 24 - bits;
    let half = (1u32 << dropped) >> 1;
    // What is not a number may have all bits set.
    f32::from_bits(value.to_bits().wrapping_add(half) & !((1 << dropped) - 1))
}

/// The nearest of 127 steps up to the largest of a block.
fn to_int8(block: &[f32]) -> Vec<f32> {
    let largest = block.iter().fold(0.0f32, |most, value| most.max(value.abs()));
    let step = largest / 127.0;
    let nearest = |&value: &f32| if step > 0.0 { step * (value / step).round() } else { 0.0 };
    block.iter().map(nearest).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roundings_are_off_by_half_a_step_at_most() {
        let values: Vec<f32> = (0..64).map(|n| ((n * 37 % 64) as f32 - 31.3) * 0.173).collect();
        let largest = values.iter().fold(0.0f32, |most, value| most.max(value.abs()));
        let off = |rounding| {
            let rounded = rounded(rounding, &values, 64);
            values.iter().zip(&rounded).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max) / largest
        };
        let range = |rounding, least: f32, most: f32| {
            let off = off(rounding);
            assert!(off > least && off <= most, "{rounding:?}: {off:e}");
        };
        range(Rounding::Int8, 0.3 / 127.0, 0.501 / 127.0);
        range(Rounding::Int8Twice, 0.0, 0.501 / 127.0 / 254.0);
        range(Rounding::Halves, 0.1 / 1024.0, 1.0 / 1024.0);
        // Sums of 64 terms: three bits of 24 are dropped.
        range(Rounding::None, 0.1 * f32::EPSILON, 4.0 * f32::EPSILON);
        assert_eq!(rounded(Rounding::Int8, &[0.0; 32], 32), [0.0; 32]);
    }
}
