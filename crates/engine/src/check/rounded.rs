//! The noise of a device's roundings after all layers, simulated.

use super::sequences::Sequences;
use pianola_cpu::rounded;
use pianola_plan::{DeviceError, KvSlot, Op, Recording, Rounding, Step, WeightId};

/// The processor's exact mode, with the input of each product rounded as another device rounds it
/// before the product runs, and the queries of each attention that rounds them. Its distance from exact mode without roundings is the noise to expect
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
            let rounding = match node.op {
                Op::MatMul { weight: WeightId(weight), .. } => {
                    let quantised = plan.graph.weights[weight].ty.is_quantized();
                    Some(roundings.weights[weight].of_product(quantised))
                }
                // Weights of tokens are rounded, too: the bit less stands for both.
                Op::Attention(spec) => {
                    let rounded = roundings.attentions.iter().find(|rounded| rounded.0 == spec.kv);
                    rounded.map(|rounded| rounded.1)
                }
                _ => None,
            };
            let Some(rounding) = rounding else {
                recording.play_op(op, step)?;
                continue;
            };
            let input = node.inputs[0];
            let width = plan.graph.tensor(input).width;
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

/// How a device rounds in a step.
struct Roundings {
    /// For each weight the inputs of its product.
    weights: Vec<Rounding>,
    /// Layers whose attention rounds, and how.
    attentions: Vec<(KvSlot, Rounding)>,
}

fn roundings(device: &dyn Recording, step: &Step) -> Roundings {
    let plan = device.plan();
    let weights = vec![Rounding::None; plan.graph.weights.len()];
    let mut roundings = Roundings { weights, attentions: Vec::new() };
    for (op, planned) in plan.ops.iter().enumerate() {
        let rounding = device.rounding(op, step);
        for &node in &planned.nodes {
            match plan.graph.nodes[node].op {
                Op::MatMul { weight: WeightId(weight), .. } => roundings.weights[weight] = rounding,
                Op::Attention(spec) if rounding != Rounding::None => {
                    roundings.attentions.push((spec.kv, rounding));
                }
                _ => {}
            }
        }
    }
    roundings
}
