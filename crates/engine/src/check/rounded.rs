//! The noise of a device's roundings after all layers, simulated.

use super::sequences::Sequences;
use pianola_cpu::rounded;
use pianola_plan::{DeviceError, Op, Recording, Rounding, Step, WeightId};

/// The processor's exact mode, with the input of each product rounded as another device rounds it
/// before the product runs. Its distance from exact mode without roundings is the noise to expect
/// of that device: real inputs, real layers, and no assumption about how errors grow.
pub(super) struct RoundedModel {
    recording: Box<dyn Recording>,
}

impl RoundedModel {
    /// `recording` is of exact mode without fused kernels, with the device's type of keys and values.
    pub fn new(recording: Box<dyn Recording>) -> RoundedModel {
        RoundedModel { recording }
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
