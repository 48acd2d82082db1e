//! Operations that no fusion took: a kernel each.

use super::attend::{HeadInputs, rope_code};
use super::{Dispatch, Programmer, type_code};
use crate::constants;
use crate::memory::Region;
use crate::pipeline::{Shader, Variant};
use pianola_plan::{Activation, DeviceError, Node, Op, RowSet, TensorId, WeightId};

/// Columns of a row that a workgroup takes.
const COLUMNS: u32 = 1024;

/// The number by which `gate.comp` knows an activation.
fn activation_code(activation: Activation) -> u32 {
    match activation {
        Activation::Silu => 1,
        Activation::GeluTanh => 2,
    }
}

fn output_of(node: &Node) -> TensorId {
    node.output.expect("all but KvWrite have one")
}

/// A launch in the making: what `include/plain.glsl` declares, then what the kernel adds to it.
struct Plain {
    shader: Shader,
    constants: Vec<(u32, u32)>,
    bindings: Vec<Region>,
    push: Vec<u32>,
    /// Workgroups of a row.
    across: u32,
}

impl Plain {
    /// Adds a tensor that is read beside the input.
    fn read(mut self, (region, stride, column): (Region, u32, u32)) -> Plain {
        self.bindings.push(region);
        self.push.extend([stride, column]);
        self
    }

    /// Adds a push constant.
    fn push(mut self, value: u32) -> Plain {
        self.push.push(value);
        self
    }

    /// Sets a specialisation constant of the kernel's own.
    fn constant(mut self, id: u32, value: u32) -> Plain {
        self.constants.push((id, value));
        self
    }

    fn dispatch(self, rows: u32, op: usize) -> Dispatch {
        let Plain { shader, constants, bindings, push, across } = self;
        let variant = Variant { shader, constants };
        Dispatch::new(variant, bindings, bytemuck::cast_slice(&push), [rows, across, 1], op)
    }
}

impl Programmer<'_> {
    /// The launches of a lone operation.
    pub(super) fn single(
        &self,
        op: usize,
        node: usize,
        rows: u32,
        out: &mut Vec<Dispatch>,
    ) -> Result<(), DeviceError> {
        let node = &self.plan.graph.nodes[node];
        let input = |index: usize| self.tensor(node.inputs[index]);
        let plain = |shader: Shader| self.plain(shader, node);
        let launch = match node.op {
            Op::Embed { table, scale } => {
                self.embed(op, node, (table, scale), rows, out);
                return Ok(());
            }
            Op::RopeAngles { rope } => self.rope_angles(op, node, rope, rows),
            Op::KvWrite { kv } => {
                let [key, value] = [node.inputs[0], node.inputs[1]];
                self.kv_write(op, &HeadInputs::bare(kv, [key, key, value]), rows)
            }
            Op::Attention(spec) => {
                let heads = HeadInputs::bare(spec.kv, [node.inputs[0]; 3]);
                let launch = self.attention(op, &heads, (&spec, output_of(node)), rows, false);
                // All attentions leave their parts in one buffer, which the plan does not see.
                Dispatch { barrier: true, ..launch }
            }
            Op::RmsNorm { weight, epsilon, groups } => {
                self.norm(node, weight, groups as u32).push(epsilon.to_bits()).dispatch(rows, op)
            }
            Op::Rope { rope, heads } => {
                let head_dim = self.plan.graph.tensor(output_of(node)).width / heads;
                let pairing = rope_code(self.plan.graph.ropes[rope].pairing);
                let plain = plain(Shader::Rope).read(input(1)).push(head_dim as u32);
                plain.constant(constants::rope::PAIRING, pairing).dispatch(rows, op)
            }
            Op::Gate { activation } => {
                let plain = plain(Shader::Gate).read(input(1));
                plain
                    .constant(constants::gate::ACTIVATION, activation_code(activation))
                    .dispatch(rows, op)
            }
            Op::Add => plain(Shader::Add).read(input(1)).dispatch(rows, op),
            Op::SelectRows => plain(Shader::SelectRows).dispatch(rows, op),
            Op::SoftCap { cap } => plain(Shader::SoftCap).push(cap.to_bits()).dispatch(rows, op),
            // A product is a `Kernel::Project`, without prologue and epilogue where it is alone.
            Op::MatMul { .. } => {
                return Err(DeviceError::Unsupported(format!(
                    "the Vulkan device has no kernel for a lone '{}': use another device",
                    node.op.name()
                )));
            }
        };
        out.push(launch);
        Ok(())
    }

    /// From a node's first input to its output, column by column.
    fn plain(&self, shader: Shader, node: &Node) -> Plain {
        let (from, from_stride, from_column) = self.tensor(node.inputs[0]);
        let (to, to_stride, to_column) = self.tensor(output_of(node));
        let spec = self.plan.graph.tensor(output_of(node));
        let width = spec.width as u32;
        Plain {
            shader,
            constants: vec![(constants::plain::LOGITS, u32::from(spec.rows == RowSet::Logits))],
            bindings: vec![from, to],
            push: vec![from_stride, from_column, to_stride, to_column, width],
            across: width.div_ceil(COLUMNS),
        }
    }

    /// A norm over each of `groups` equal parts of a row: a workgroup each.
    fn norm(&self, node: &Node, weight: WeightId, groups: u32) -> Plain {
        let mut plain = self.plain(Shader::RmsNorm, node);
        let width = plain.push.last_mut().expect("the width comes last");
        *width /= groups;
        plain.bindings.push(self.weights.vectors);
        Plain { across: groups, ..plain.push(self.weights.vector(weight)) }
    }

    fn embed(
        &self,
        op: usize,
        node: &Node,
        (table, scale): (WeightId, f32),
        rows: u32,
        out: &mut Vec<Dispatch>,
    ) {
        let matrix = self.weights.matrix(table);
        for slice in &matrix.slices {
            let blocks = (matrix.columns / 32) as u32;
            let mut bindings = vec![slice.region; 9];
            bindings.push(self.tensor(output_of(node)).0);
            let push: [u32; 4] =
                [slice.rows as u32, blocks, slice.first_row as u32, scale.to_bits()];
            let constants = vec![(constants::embed::TYPE, type_code(matrix.ty))];
            let variant = Variant { shader: Shader::Embed, constants };
            let push = bytemuck::cast_slice(&push);
            out.push(Dispatch::new(variant, bindings, push, [rows, 1, 1], op));
        }
    }

    fn rope_angles(&self, op: usize, node: &Node, rope: usize, rows: u32) -> Dispatch {
        let spec = &self.plan.graph.ropes[rope];
        let push: [u32; 3] = [
            spec.frequencies.len() as u32,
            self.weights.frequencies[rope],
            spec.magnitude.to_bits(),
        ];
        let variant = Variant { shader: Shader::RopeAngles, constants: vec![] };
        let bindings = vec![self.weights.vectors, self.tensor(output_of(node)).0];
        Dispatch::new(variant, bindings, bytemuck::cast_slice(&push), [rows, 1, 1], op)
    }
}
