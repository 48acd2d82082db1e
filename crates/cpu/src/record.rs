//! Recording: from a plan to stages with every pointer resolved.

use crate::kept::KeptPanels;
use crate::memory::Memory;
use crate::pack::BLOCK;
use crate::policy::{
    UNIT_PANELS, block_attention, refined_rows, rotated_rows, rotated_zero, rotation, vector_panels,
};
use crate::simd::Level;
use crate::simd::kernels::Attend;
use crate::simd::matrix_unit::{STRIP, STRIP_BLOCK_BYTES};
use crate::simd::product::{BlockMeta, FloatRows};
use crate::stage::{
    Activations, Angles, Attention, Embed, Norm, Plain, PlainOp, Product, Prologue, RotatedForm,
    Rotation, Slab, Stage, StoreKv, Weights,
};
use crate::weights::Weight;
use pianola_plan::{
    Attend as PlannedAttend, AttentionSpec, DeviceId, FusedNorm, Kernel, Node, Numeric, Op, Plan,
    Project, RowSet, TensorId, WeightId, WeightShape,
};

/// A stage, whether it waits for those before it, and the kernel it belongs to.
pub(crate) struct Recorded {
    pub stage: Stage,
    pub barrier: bool,
    pub op: usize,
}

/// The widest input of any product.
pub(crate) fn widest_input(plan: &Plan) -> usize {
    let columns = plan.graph.weights.iter().map(|weight| match weight.shape {
        WeightShape::Matrix { columns, .. } => columns,
        WeightShape::Vector { length } => length,
    });
    columns.max().unwrap_or(0)
}

/// Values that [`Activations`] have room for; rows with logits may be held twice.
fn activation_values(plan: &Plan) -> usize {
    let rows = plan.options.max_rows.max(2 * plan.options.max_logit_rows);
    // Whole strips for a matrix unit.
    rows.next_multiple_of(STRIP) * widest_input(plan)
}

/// Bytes of memory for [`Activations`].
pub(crate) fn activation_bytes(plan: &Plan) -> usize {
    let values = activation_values(plan);
    // f32, int8, and what is known of 32 of these.
    let rows = 4 * values + values + size_of::<BlockMeta>() * (values / BLOCK + 16);
    // The codes once more in strips; untouched, and no memory, where there is no matrix unit.
    rows + STRIP_BLOCK_BYTES * (values / BLOCK) + 512
}

pub(crate) struct Recorder<'a> {
    pub plan: &'a Plan,
    pub device: DeviceId,
    pub weights: &'a [Weight],
    pub kept: Option<&'a KeptPanels>,
    pub arena: &'a Memory,
    pub activations: &'a Memory,
    pub level: Level,
}

impl Recorder<'_> {
    /// All stages of the plan's kernels for this device, or the name of an operation that has no
    /// stage.
    pub fn record(&self) -> Result<Vec<Recorded>, &'static str> {
        let mut stages = Vec::new();
        let ops = self.plan.ops.iter().enumerate();
        for (op, planned) in ops.filter(|(op, _)| self.plan.runs_on(*op, self.device)) {
            let mut barrier = planned.barrier;
            let mut push = |stage: Stage| {
                stages.push(Recorded { stage, barrier, op });
                barrier = true;
            };
            match &planned.kernel {
                Kernel::Project(project) => {
                    let (prologue, product) = self.project(project);
                    // All prologues leave their rows in one place, which the plan does not see.
                    barrier |= prologue.is_some();
                    let mut push = |stage: Stage| {
                        stages.push(Recorded { stage, barrier, op });
                        barrier = true;
                    };
                    prologue.map(Stage::Prologue).into_iter().for_each(&mut push);
                    push(Stage::Product(product));
                }
                Kernel::Attend(attend) => {
                    push(Stage::StoreKv(self.store_kv(attend)));
                    push(Stage::Attend(self.attention(attend)));
                }
                Kernel::Single(node) => push(self.single(*node)?),
            }
        }
        Ok(stages)
    }

    /// The stage of a lone operation, or its name if it has none: a product never stands alone, it
    /// is a [`Kernel::Project`] without prologue and epilogue.
    fn single(&self, node: usize) -> Result<Stage, &'static str> {
        let node = &self.plan.graph.nodes[node];
        let output = || self.slab(node.output.expect("all but KvWrite have one"));
        let input = |index: usize| self.slab(node.inputs[index]);
        let plain = |op: PlainOp| Ok(Stage::Plain(self.plain(node, op)));
        match node.op {
            Op::Embed { table, scale } => Ok(Stage::Embed(Embed {
                table: self.weights[table.0].matrix(),
                scale,
                output: output(),
            })),
            Op::RopeAngles { rope } => Ok(Stage::Angles(Angles {
                rope: self.plan.graph.ropes[rope].clone(),
                output: output(),
            })),
            Op::RmsNorm { weight, epsilon, .. } => {
                plain(PlainOp::RmsNorm { weight: self.weights[weight.0].vector(), epsilon })
            }
            Op::Rope { rope, heads } => {
                let pairing = self.plan.graph.ropes[rope].pairing;
                plain(PlainOp::Rope { angles: input(1), heads, pairing })
            }
            Op::KvWrite { kv } => {
                let (key, value) = (input(0), input(1));
                Ok(Stage::StoreKv(StoreKv { kv, key, value, norm: None, rope: None }))
            }
            Op::Attention(spec) => {
                let (query, output) = (input(0), output());
                Ok(Stage::Attend(Attention {
                    spec,
                    query,
                    norm: None,
                    rope: None,
                    output,
                    blocks: self.block_attention(&spec),
                }))
            }
            Op::Gate { activation } => plain(PlainOp::Gate { up: input(1), activation }),
            Op::Add => plain(PlainOp::Add { other: input(1) }),
            Op::SelectRows => plain(PlainOp::SelectRows),
            Op::SoftCap { cap } => plain(PlainOp::SoftCap { cap }),
            Op::MatMul { .. } => Err(node.op.name()),
        }
    }

    fn plain(&self, node: &Node, op: PlainOp) -> Plain {
        let output = node.output.expect("all but KvWrite have one");
        let spec = self.plan.graph.tensor(output);
        Plain {
            op,
            input: self.slab(node.inputs[0]),
            output: self.slab(output),
            width: spec.width,
            rows: spec.rows,
        }
    }

    fn slab(&self, tensor: TensorId) -> Slab {
        let view = self.plan.view(tensor);
        let offset = self.plan.arena.offsets[view.buffer] + 4 * view.column;
        assert!(offset < self.arena.len());
        // SAFETY: the planner laid the buffer inside the arena.
        let start = unsafe { self.arena.start().add(offset).cast() };
        Slab { start, stride: self.plan.buffers[view.buffer].width }
    }

    fn norm(&self, norm: FusedNorm) -> Norm {
        (self.vector(norm.weight), norm.epsilon)
    }

    fn vector(&self, weight: WeightId) -> *const f32 {
        self.weights[weight.0].vector().as_ptr()
    }

    fn activations(&self) -> Activations {
        let values = activation_values(self.plan);
        let aligned = |bytes: usize| bytes.next_multiple_of(64);
        let codes = aligned(4 * values);
        let metas = codes + aligned(values);
        let strips = metas + aligned(size_of::<BlockMeta>() * (values / BLOCK));
        let strip_metas = strips + aligned(values);
        assert!(strips + STRIP_BLOCK_BYTES * (values / BLOCK) + 64 <= self.activations.len());
        let start = self.activations.start();
        // SAFETY: the arrays lie inside the memory, one behind another.
        unsafe {
            Activations {
                floats: start.cast(),
                codes: start.add(codes).cast(),
                metas: start.add(metas).cast(),
                strips: start.add(strips).cast(),
                strip_metas: start.add(strip_metas).cast(),
            }
        }
    }

    fn project(&self, project: &Project) -> (Option<Prologue>, Product) {
        let graph = &self.plan.graph;
        let input = self.slab(project.residual.map_or(project.input, |residual| residual.base));
        let width = graph.tensor(project.input).width;
        let (kernels, unit_kernels) = (self.level.kernels(), self.level.unit_kernels());
        let mut parts = Vec::new();
        let mut first_tile = 0;
        for part in &project.parts {
            let matrix = self.weights[part.weight.0].matrix();
            let quantized = match self.plan.options.numeric {
                Numeric::Fast if width.is_multiple_of(BLOCK) => (kernels.product)(matrix.ty),
                _ => None,
            };
            let epilogue = project.gate.map(|gate| gate.1).or(project.soft_cap.map(|cap| cap.1));
            parts.push(Weights {
                matrix,
                bias: part.bias.map(|bias| self.vector(bias)),
                quantized,
                dequantize: (kernels.dequantize)(matrix.ty),
                direct: (kernels.direct)(matrix.ty),
                unit: quantized.and_then(|_| (unit_kernels?.product)(matrix.ty)),
                fill_panel: quantized.and_then(|_| (kernels.fill_panel)(matrix.ty)),
                kept: self.kept.and_then(|kept| kept.of(part.weight.0)),
                output: self.slab(epilogue.unwrap_or(part.output)),
                first_tile,
            });
            // The two parts of a gate are walked side by side.
            first_tile += if project.gate.is_some() { 0 } else { matrix.tiles() };
        }
        let quantized = parts.iter().any(|part| part.quantized.is_some());
        let floats = parts.iter().any(|part| part.quantized.is_none());
        let unit = parts.iter().any(|part| part.unit.is_some());
        let logits = graph.tensor(project.parts[0].output).rows == RowSet::Logits;
        // Nothing behind the head evens out its rounding.
        let refined = if logits && quantized { refined_rows(&self.plan.options) } else { 0 };
        // A head has rows with logits only, too few to make panels for.
        let kept = parts.iter().any(|part| part.kept.is_some());
        let rotates = quantized && (!logits || kept);
        let rotated = if rotates { self.rotated_form(width) } else { None };
        let bare = project.residual.is_none() && project.norm.is_none() && !project.select;
        let activations = self.activations();
        let direct = bare && !quantized;
        let prologue = (!direct).then(|| Prologue {
            input,
            residual: project.residual.map(|residual| {
                (
                    self.slab(residual.delta),
                    residual.norm.map(|norm| self.norm(norm)),
                    residual.kept.then(|| self.slab(residual.output)),
                )
            }),
            select: project.select,
            logits,
            norm: project.norm.map(|norm| self.norm(norm)),
            width,
            floats,
            quantized,
            refined,
            unit,
            rotated,
            activations,
        });
        let floats = match direct {
            true => FloatRows { values: input.start, stride: input.stride },
            false => FloatRows { values: activations.floats, stride: width },
        };
        let product = Product {
            parts,
            gate: project.gate.map(|gate| gate.0),
            soft_cap: project.soft_cap.map(|cap| cap.0),
            logits,
            refined,
            rotated,
            columns: width,
            floats,
            activations,
        };
        (prologue, product)
    }

    /// How products of many rows with `columns` columns are computed.
    fn rotated_form(&self, columns: usize) -> Option<RotatedForm> {
        let chunk = rotation(&self.plan.options, self.level, columns)?;
        let vectors = RotatedForm {
            chunk,
            capacity: self.plan.options.max_rows.next_multiple_of(STRIP),
            least_rows: rotated_rows(self.level, self.kept.is_some()),
            group: vector_panels(columns, chunk),
            multiply: self.level.kernels().multiply_panels,
            zero: rotated_zero(self.level),
        };
        Some(match self.level.unit_kernels() {
            Some(unit) => {
                RotatedForm { group: UNIT_PANELS, multiply: unit.multiply_panels, ..vectors }
            }
            None => vectors,
        })
    }

    fn rotation(&self, attend: &PlannedAttend) -> Rotation {
        let pairing = |rope: usize| self.plan.graph.ropes[rope].pairing;
        attend.rope.map(|(rope, angles)| (self.slab(angles), pairing(rope)))
    }

    fn store_kv(&self, attend: &PlannedAttend) -> StoreKv {
        StoreKv {
            kv: attend.spec.kv,
            key: self.slab(attend.key),
            value: self.slab(attend.value),
            norm: attend.key_norm.map(|norm| self.norm(norm)),
            rope: self.rotation(attend),
        }
    }

    fn attention(&self, attend: &PlannedAttend) -> Attention {
        Attention {
            spec: attend.spec,
            query: self.slab(attend.query),
            norm: attend.query_norm.map(|norm| self.norm(norm)),
            rope: self.rotation(attend),
            output: self.slab(attend.output),
            blocks: self.block_attention(&attend.spec),
        }
    }

    fn block_attention(&self, spec: &AttentionSpec) -> Option<Attend> {
        block_attention(&self.plan.options, self.level, spec.head_dim)
    }
}
