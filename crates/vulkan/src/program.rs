//! From a plan to dispatches: which kernel, with which buffers and constants, in which order.
//!
//! A program is plain data; [`crate::record`] turns it into command buffers. The body of a play is
//! programmed for a number of rows (a bucket), the head for a number of rows with logits, so that a
//! prompt's chunk without logits reads no head.

use crate::memory::Region;
use crate::pipeline::{PUSH_BYTES, Shader, Variant};
use crate::policy::{self, Limits, attention, matrix, rows};
use crate::tuning::{RowsKey, Tuning};
use crate::weights::{Matrix, Slice, Weights};
use bytemuck::{Pod, Zeroable};
use pianola_formats::TensorType;
use pianola_plan::{
    Activation, Attend, DeviceError, DeviceKind, HeadNorm, Kernel, KvType, Numeric, Op,
    PAGE_TOKENS, Plan, Project, RopePairing, RowSet, TensorId,
};

/// One kernel launch.
#[derive(Clone, Debug)]
pub(crate) struct Dispatch {
    pub variant: Variant,
    /// Buffers of set 1, binding after binding.
    pub bindings: Vec<Region>,
    pub push: Vec<u8>,
    pub groups: [u32; 3],
    /// Whether it waits for those before it.
    pub barrier: bool,
    /// Kernel of the plan.
    pub op: usize,
    /// What [`crate::tune`] may cut otherwise.
    pub cut: Option<(RowsKey, rows::Product)>,
}

/// Device memory that kernels share.
pub(crate) struct Resources {
    pub arena: Region,
    /// Input rows of the product that comes next.
    pub operand: Region,
    pub metas: Region,
    /// Input rows that a kernel leaves for the next one, in plays of one row: codes and metas.
    pub handed: [(Region, Region); 2],
    /// Counts the workgroups of a kernel that have finished.
    pub finished: Region,
    /// What the parts of an attention leave for the last of them.
    pub partials: Region,
    pub arrivals: Region,
    /// Pages of each layer: `[group][layer]`.
    pub pages: Vec<Vec<Region>>,
    /// First entry of each group in the page tables, and entries a sequence.
    pub tables: Vec<u32>,
    pub entries: u32,
}

/// Bytes of the buffers in [`Resources`] that the plan does not place.
pub(crate) struct Scratch {
    pub operand: u64,
    pub metas: u64,
    pub handed: (u64, u64),
    pub partials: u64,
    pub arrivals: u64,
}

impl Scratch {
    pub fn of(plan: &Plan) -> Scratch {
        let options = &plan.options;
        let ops = || plan.ops.iter().filter(|op| op.device == DeviceKind::Vulkan);
        let widest = ops()
            .filter_map(|op| match &op.kernel {
                Kernel::Project(project) => Some(plan.graph.tensor(project.input).width),
                _ => None,
            })
            .max()
            .unwrap_or(0) as u64;
        // Tiles read whole tiles of rows; refined rows are two.
        let rows = (options.max_rows.max(2 * options.max_logit_rows) as u64).next_multiple_of(64);
        let pages = options.context.div_ceil(PAGE_TOKENS) as u32;
        let partials = ops().filter_map(|op| match &op.kernel {
            Kernel::Attend(attend) => Some(attend.spec),
            _ => None,
        });
        let partials = partials.flat_map(|spec| {
            [1, 8].map(|rows: u32| {
                u64::from(rows * attention::splits(rows, pages))
                    * (spec.heads * (spec.head_dim + 2)) as u64
            })
        });
        let heads = ops().filter_map(|op| match &op.kernel {
            Kernel::Attend(attend) => Some(attend.spec.heads),
            _ => None,
        });
        Scratch {
            operand: 4 * rows * widest,
            metas: 8 * rows * widest.div_ceil(32),
            handed: (widest, 8 * widest.div_ceil(32)),
            partials: 4 * partials.max().unwrap_or(0),
            arrivals: 4 * (options.max_rows * heads.max().unwrap_or(0)) as u64,
        }
    }
}

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable, Default)]
struct PrologueConstants {
    base_stride: u32,
    delta_stride: u32,
    norm: u32,
    delta_norm: u32,
    epsilon: f32,
    delta_epsilon: f32,
}

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable, Default)]
struct ProductConstants {
    part_rows: [u32; 3],
    part_group: [u32; 3],
    part_column: [u32; 3],
    part_bias: [u32; 3],
    flags: u32,
    output_stride: u32,
    cap: f32,
}

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct RowsConstants {
    product: ProductConstants,
    prologue: PrologueConstants,
}

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct HeadsConstants {
    query_stride: u32,
    query_column: u32,
    key_stride: u32,
    key_column: u32,
    value_stride: u32,
    value_column: u32,
    kv_heads: u32,
    query_norm: u32,
    key_norm: u32,
    query_epsilon: f32,
    key_epsilon: f32,
    table: u32,
    entries: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct AttentionConstants {
    heads: HeadsConstants,
    query_heads: u32,
    output_stride: u32,
    window: u32,
    scale: f32,
    cap: f32,
}

const NO_BIAS: u32 = u32::MAX;
/// The dispatch that writes the new residual stream.
const KEEP: u32 = 0x100;

/// Weights of one dispatch of a product: the same rows of up to three parts.
struct Group<'a> {
    parts: Vec<(usize, &'a Matrix, Slice)>,
    integer: bool,
}

/// How a product of few rows gets its operand.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Feed {
    /// Each workgroup forms it.
    Fused,
    /// A prologue before it did.
    Ready,
    /// The kernel before left it.
    Handed(Input),
}

/// Where a product's input row comes from, in a play of one row.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Input {
    /// It forms it itself, or a launch before it does.
    Own,
    /// The kernel before left its outputs as codes.
    Codes,
    /// The kernel before formed it in its tail.
    Tail,
}

/// Writes programs for one plan.
pub(crate) struct Programmer<'a> {
    pub plan: &'a Plan,
    pub weights: &'a Weights,
    pub resources: &'a Resources,
    pub limits: Limits,
    pub tuning: &'a Tuning,
}

impl Programmer<'_> {
    /// Whether a kernel works on the rows with logits only.
    pub fn in_head(&self, op: usize) -> bool {
        match &self.plan.ops[op].kernel {
            Kernel::Project(project) => {
                self.plan.graph.tensor(project.parts[0].output).rows == RowSet::Logits
            }
            Kernel::Attend(_) => false,
            Kernel::Single(node) => {
                let output = self.plan.graph.nodes[*node].output;
                output.is_some_and(|id| self.plan.graph.tensor(id).rows == RowSet::Logits)
            }
        }
    }

    /// Everything but the head, for plays of at most `rows` rows.
    pub fn body(&self, rows: u32) -> Result<Vec<Dispatch>, DeviceError> {
        self.program(rows, false)
    }

    /// The head, for at most `logits` rows.
    pub fn head(&self, logits: u32) -> Result<Vec<Dispatch>, DeviceError> {
        self.program(logits, true)
    }

    fn program(&self, rows: u32, head: bool) -> Result<Vec<Dispatch>, DeviceError> {
        let mut dispatches = Vec::new();
        let mine = |op: &usize| self.plan.ops[*op].device == DeviceKind::Vulkan;
        let ops = (0..self.plan.ops.len()).filter(mine);
        for op in ops.filter(|&op| self.in_head(op) == head) {
            let start = dispatches.len();
            match &self.plan.ops[op].kernel {
                Kernel::Project(project) => self.project(op, project, rows, &mut dispatches)?,
                Kernel::Attend(attend) => self.attend(op, attend, rows, &mut dispatches),
                Kernel::Single(node) => self.single(op, *node, rows, &mut dispatches)?,
            }
            // The head waits for the body; the body for the play before, which may still be under
            // way in the same arena.
            dispatches[start].barrier |= self.plan.ops[op].barrier || start == 0;
        }
        debug_assert!(dispatches.iter().all(|d| d.push.len() <= PUSH_BYTES as usize));
        Ok(dispatches)
    }

    /// Where kernel `op` finds its input row in a play of `rows` rows. A single row is handed on
    /// by the kernel before wherever that is one launch and this one meets it in integers.
    fn input(&self, op: usize, rows: u32) -> Input {
        let Kernel::Project(project) = &self.plan.ops[op].kernel else { return Input::Own };
        // What another device computed comes as it is.
        if op == 0 || self.plan.ops[op - 1].device != DeviceKind::Vulkan {
            return Input::Own;
        }
        let alone = |project: &Project| match self.groups(project) {
            Ok(groups) if groups.len() == 1 => groups.into_iter().next(),
            _ => None,
        };
        let integer = alone(project).is_some_and(|group| group.integer);
        if rows != 1 || project.select || !integer {
            return Input::Own;
        }
        let bare = project.residual.is_none() && project.norm.is_none();
        match &self.plan.ops[op - 1].kernel {
            Kernel::Attend(attend) => {
                let whole = attend.spec.head_dim.is_multiple_of(32);
                if bare && attend.output == project.input && whole {
                    Input::Codes
                } else {
                    Input::Own
                }
            }
            Kernel::Project(before) => {
                let Some(group) = alone(before) else { return Input::Own };
                let rows = group.parts[0].2.rows;
                if let Some((_, output)) = before.gate {
                    let whole = rows.is_multiple_of(32);
                    return if bare && output == project.input && whole {
                        Input::Codes
                    } else {
                        Input::Own
                    };
                }
                let fed = project.residual.is_some_and(|residual| {
                    before.parts.len() == 1
                        && before.soft_cap.is_none()
                        && residual.delta == before.parts[0].output
                });
                // One launch has the constants of one prologue: of its own input, or of its tail.
                let fused = group.integer && self.input(op - 1, 1) == Input::Own;
                if fed && !fused { Input::Tail } else { Input::Own }
            }
            Kernel::Single(_) => Input::Own,
        }
    }

    /// What kernel `op` leaves for the next one.
    fn output_for_next(&self, op: usize, rows: u32) -> Input {
        if op + 1 < self.plan.ops.len() { self.input(op + 1, rows) } else { Input::Own }
    }

    /// The buffer a tensor lies in, and its stride and first column in floats.
    fn tensor(&self, id: TensorId) -> (Region, u32, u32) {
        let view = self.plan.view(id);
        let buffer = &self.plan.buffers[view.buffer];
        let rows = self.plan.max_rows(buffer.rows);
        let offset = self.plan.arena.offsets[view.buffer] as u64;
        let region = self.resources.arena.slice(offset, (rows * buffer.width * 4) as u64);
        (region, buffer.width as u32, view.column as u32)
    }

    /// As [`Self::tensor`], for a tensor that has a buffer to itself.
    fn whole(&self, id: TensorId) -> Result<(Region, u32), DeviceError> {
        let (region, stride, column) = self.tensor(id);
        if column != 0 || stride % 4 != 0 {
            let name = &self.plan.graph.tensor(id).name;
            return Err(DeviceError::Unsupported(format!(
                "the Vulkan kernels cannot read '{name}' from column {column} of rows of {stride}: use --device cpu"
            )));
        }
        Ok((region, stride / 4))
    }

    fn single(
        &self,
        op: usize,
        node: usize,
        rows: u32,
        out: &mut Vec<Dispatch>,
    ) -> Result<(), DeviceError> {
        let node = &self.plan.graph.nodes[node];
        let output = node.output.map(|output| self.tensor(output).0);
        match (&node.op, output) {
            (Op::Embed { table, scale }, Some(output)) => {
                let matrix = self.weights.matrix(*table);
                for slice in &matrix.slices {
                    let blocks = (matrix.columns / 32) as u32;
                    let mut bindings = vec![slice.region; 9];
                    bindings.push(output);
                    let push: [u32; 4] =
                        [slice.rows as u32, blocks, slice.first_row as u32, scale.to_bits()];
                    out.push(Dispatch {
                        variant: Variant {
                            shader: Shader::Embed,
                            constants: vec![(0, type_code(matrix.ty))],
                        },
                        bindings,
                        push: bytemuck::cast_slice(&push).to_vec(),
                        groups: [rows, 1, 1],
                        barrier: false,
                        op,
                        cut: None,
                    });
                }
                Ok(())
            }
            (Op::RopeAngles { rope }, Some(output)) => {
                let spec = &self.plan.graph.ropes[*rope];
                let push: [u32; 3] = [
                    spec.frequencies.len() as u32,
                    self.weights.frequencies[*rope],
                    spec.magnitude.to_bits(),
                ];
                out.push(Dispatch {
                    variant: Variant { shader: Shader::RopeAngles, constants: vec![] },
                    bindings: vec![self.weights.vectors, output],
                    push: bytemuck::cast_slice(&push).to_vec(),
                    groups: [rows, 1, 1],
                    barrier: false,
                    op,
                    cut: None,
                });
                Ok(())
            }
            (op, _) => Err(DeviceError::Unsupported(format!(
                "the Vulkan device has no kernel for a lone '{}': use --device cpu",
                op.name()
            ))),
        }
    }

    /// Parts of a product that go into one dispatch: alike in how they meet the operand, of at
    /// most two types; a gate's parts always together.
    fn groups(&self, project: &Project) -> Result<Vec<Group<'_>>, DeviceError> {
        let fast = self.plan.options.numeric == Numeric::Fast;
        let integer = |matrix: &Matrix| fast && matrix.ty.is_quantized();
        let matrices: Vec<&Matrix> =
            project.parts.iter().map(|part| self.weights.matrix(part.weight)).collect();
        if project.gate.is_some() {
            let [gate, up] = matrices[..] else { unreachable!("a gate has two parts") };
            let same = gate.slices.len() == up.slices.len()
                && gate.slices.iter().zip(&up.slices).all(|(a, b)| a.rows == b.rows);
            if !same {
                return Err(DeviceError::Unsupported(
                    "gate and up have different types and exceed a binding of this device: use --device cpu"
                        .to_string(),
                ));
            }
            let integer = integer(gate) && integer(up);
            let pairs = gate.slices.iter().zip(&up.slices);
            return Ok(pairs
                .map(|(&a, &b)| Group { parts: vec![(0, gate, a), (1, up, b)], integer })
                .collect());
        }
        let mut groups: Vec<Group<'_>> = Vec::new();
        for (part, &matrix) in matrices.iter().enumerate() {
            for &slice in &matrix.slices {
                let integer = integer(matrix);
                let fits = |group: &Group<'_>| {
                    let mut types: Vec<TensorType> = group.parts.iter().map(|p| p.1.ty).collect();
                    types.push(matrix.ty);
                    types.sort_unstable();
                    types.dedup();
                    group.integer == integer && group.parts.len() < 3 && types.len() <= 2
                };
                match groups.iter_mut().find(|group| fits(group)) {
                    Some(group) => group.parts.push((part, matrix, slice)),
                    None => groups.push(Group { parts: vec![(part, matrix, slice)], integer }),
                }
            }
        }
        Ok(groups)
    }

    fn project(
        &self,
        op: usize,
        project: &Project,
        rows: u32,
        out: &mut Vec<Dispatch>,
    ) -> Result<(), DeviceError> {
        let graph = &self.plan.graph;
        let logits = graph.tensor(project.parts[0].output).rows == RowSet::Logits;
        let width = graph.tensor(project.input).width as u32;
        let groups = self.groups(project)?;
        let input = self.input(op, rows);
        if input != Input::Own {
            out.push(self.rows_product(
                op,
                project,
                &groups[0],
                rows,
                Feed::Handed(input),
                false,
            )?);
            return Ok(());
        }
        let mut keep = project.residual.is_some_and(|residual| residual.kept);
        // Operand forms that lie ready, for groups that share one.
        let mut ready = None;
        let first = out.len();
        for group in &groups {
            let refined = logits && group.integer;
            let count = if refined { 2 * rows } else { rows };
            let blocks = width / 32;
            let matrices = self.limits.matrices > 0 && group.integer && !logits && count > 8;
            let form = match (group.integer, refined) {
                (false, _) => 0,
                (true, false) => {
                    if matrices {
                        3
                    } else {
                        1
                    }
                }
                (true, true) => 2,
            };
            let shared = 40 * blocks * count + 1024;
            let fused = rows == 1 && group.integer && shared <= self.limits.shared_memory;
            if !fused && ready != Some(form) {
                // All operands pass through one buffer, which the plan does not see.
                let barrier = out.len() > first || !out.is_empty();
                out.push(self.prologue(op, project, rows, form, keep, barrier)?);
                keep = false;
                ready = Some(form);
            }
            let product = if count <= 8 {
                self.rows_product(
                    op,
                    project,
                    group,
                    count,
                    if fused { Feed::Fused } else { Feed::Ready },
                    keep,
                )?
            } else if matrices {
                self.matrix_product(op, project, group, count)
            } else {
                self.tiles_product(op, project, group, count)
            };
            keep &= !fused;
            out.push(Dispatch { barrier: !fused, ..product });
        }
        Ok(())
    }

    fn prologue_constants(
        &self,
        project: &Project,
    ) -> Result<(Vec<Region>, PrologueConstants, u32), DeviceError> {
        let vector = |norm: HeadNorm| self.weights.vector(norm.weight) / 4;
        let residual = project.residual;
        let input = residual.map_or(project.input, |residual| residual.base);
        let (base, base_stride) = self.whole(input)?;
        let (delta, delta_stride) = match residual {
            Some(residual) => self.whole(residual.delta)?,
            None => (base, 0),
        };
        let kept = match residual {
            Some(residual) if residual.kept => self.whole(residual.output)?.0,
            // Bound, never written.
            _ => self.resources.metas,
        };
        let delta_norm = residual.and_then(|residual| residual.norm);
        let sum = match (residual, delta_norm) {
            (None, _) => 0,
            (Some(_), None) => 1,
            (Some(_), Some(_)) => 2,
        };
        let constants = PrologueConstants {
            base_stride,
            delta_stride,
            norm: project.norm.map_or(0, vector),
            delta_norm: delta_norm.map_or(0, vector),
            epsilon: project.norm.map_or(0.0, |norm| norm.epsilon),
            delta_epsilon: delta_norm.map_or(0.0, |norm| norm.epsilon),
        };
        Ok((vec![base, delta, kept], constants, sum))
    }

    /// Constants that `include/prologue.glsl` declares.
    fn prologue_specials(&self, project: &Project, sum: u32, workgroup: u32) -> [(u32, u32); 6] {
        let width = self.plan.graph.tensor(project.input).width as u32;
        [
            (10, width),
            (11, (width / 4).div_ceil(workgroup)),
            (12, sum),
            (13, u32::from(project.norm.is_some())),
            (14, u32::from(project.select)),
            (21, self.limits.subgroup),
        ]
    }

    fn prologue(
        &self,
        op: usize,
        project: &Project,
        rows: u32,
        form: u32,
        keep: bool,
        barrier: bool,
    ) -> Result<Dispatch, DeviceError> {
        let graph = &self.plan.graph;
        let logits = graph.tensor(project.parts[0].output).rows == RowSet::Logits;
        let (mut bindings, prologue, sum) = self.prologue_constants(project)?;
        bindings.extend([self.weights.vectors, self.resources.operand, self.resources.metas]);
        let workgroup = policy::prologue_workgroup(graph.tensor(project.input).width as u32);
        let mut constants =
            vec![(0, workgroup), (1, form), (2, u32::from(logits)), (3, u32::from(keep))];
        constants.extend(self.prologue_specials(project, sum, workgroup));
        Ok(Dispatch {
            variant: Variant { shader: Shader::Prologue, constants },
            bindings,
            push: bytemuck::bytes_of(&prologue).to_vec(),
            groups: [rows, 1, 1],
            barrier,
            op,
            cut: None,
        })
    }

    /// Weight bindings, constants and types that both products share; `tile` is the number of
    /// weight rows of a workgroup. Also returns the number of workgroups.
    fn product(
        &self,
        project: &Project,
        group: &Group<'_>,
        tile: u32,
    ) -> (Vec<Region>, ProductConstants, [u32; 2], u32) {
        let mut types: Vec<TensorType> = group.parts.iter().map(|part| part.1.ty).collect();
        let first_type = types[0];
        types.retain(|&ty| ty != first_type);
        let second_type = types.first().copied().unwrap_or(first_type);
        let epilogue = project.gate.map(|gate| gate.1).or(project.soft_cap.map(|cap| cap.1));
        let (_, output_stride, _) = self.tensor(epilogue.unwrap_or(project.parts[0].output));
        let mut constants = ProductConstants {
            part_group: [u32::MAX; 3],
            part_bias: [NO_BIAS; 3],
            output_stride,
            cap: project.soft_cap.map_or(0.0, |cap| cap.0),
            ..ProductConstants::default()
        };
        let mut regions = [group.parts[0].2.region; 3];
        let mut workgroups = 0;
        for (index, &(part, matrix, slice)) in group.parts.iter().enumerate() {
            let planned = &project.parts[part];
            let column = self.tensor(epilogue.unwrap_or(planned.output)).2;
            regions[index] = slice.region;
            constants.part_rows[index] = slice.rows as u32;
            constants.part_column[index] = column + slice.first_row as u32;
            if let Some(bias) = planned.bias {
                constants.part_bias[index] = self.weights.vector(bias) + slice.first_row as u32;
            }
            if matrix.ty != first_type {
                constants.flags |= 1 << index;
            }
            if project.gate.is_some() {
                constants.part_group[index] = 0;
                workgroups = (slice.rows as u32).div_ceil(tile);
            } else {
                constants.part_group[index] = workgroups;
                workgroups += (slice.rows as u32).div_ceil(tile);
            }
        }
        let bindings = regions.iter().chain(&regions).chain(&regions).copied().collect();
        (bindings, constants, [type_code(first_type), type_code(second_type)], workgroups)
    }

    fn output(&self, project: &Project) -> Region {
        let epilogue = project.gate.map(|gate| gate.1).or(project.soft_cap.map(|cap| cap.1));
        self.tensor(epilogue.unwrap_or(project.parts[0].output)).0
    }

    fn rows_product(
        &self,
        op: usize,
        project: &Project,
        group: &Group<'_>,
        count: u32,
        feed: Feed,
        keep: bool,
    ) -> Result<Dispatch, DeviceError> {
        let graph = &self.plan.graph;
        let logits = graph.tensor(project.parts[0].output).rows == RowSet::Logits;
        let blocks = (graph.tensor(project.input).width / 32) as u32;
        let refined = logits && group.integer;
        let fused = feed == Feed::Fused;
        let single = count == 1 && !logits;
        let next = if single { self.output_for_next(op, 1) } else { Input::Own };
        let (codes, tail) = (next == Input::Codes, next == Input::Tail);
        let rows: usize = match project.gate {
            Some(_) => group.parts[0].2.rows,
            None => group.parts.iter().map(|part| part.2.rows).sum(),
        };
        let cut = rows::Product { rows: rows as u32, blocks, count, codes, tail, fused };
        let key = RowsKey { ty: group.parts[0].1.ty, rows: cut.rows, blocks, count };
        let shape = self.shape(&key, &cut);
        let (mut bindings, mut product, types, workgroups) =
            self.product(project, group, shape.rows());
        // The prologue in this launch: its own, or in its tail the next product's.
        let formed = match &self.plan.ops[if tail { op + 1 } else { op }].kernel {
            Kernel::Project(formed) => formed,
            _ => unreachable!("tails form the input of products"),
        };
        let (prologue_bindings, prologue, sum) = self.prologue_constants(formed)?;
        if (fused && keep) || (tail && formed.residual.is_some_and(|residual| residual.kept)) {
            product.flags |= KEEP;
        }
        let vectors = self.weights.vectors;
        let (operand, metas) = match feed {
            Feed::Handed(input) => self.handed(input),
            Feed::Fused | Feed::Ready => (self.resources.operand, self.resources.metas),
        };
        let (next_operand, next_metas) = self.handed(next);
        bindings.extend([vectors, vectors, self.output(project), operand, metas]);
        bindings.extend(prologue_bindings);
        bindings.extend([next_operand, next_metas, self.resources.finished]);
        let mut constants = vec![
            (0, shape.workgroup),
            (1, types[0]),
            (2, types[1]),
            (3, shape.lanes),
            (4, shape.height),
            (5, count),
            (6, u32::from(fused)),
            (7, gate_code(project)),
            (8, u32::from(group.integer)),
            (9, u32::from(refined)),
        ];
        if fused || tail {
            constants.extend(self.prologue_specials(formed, sum, shape.workgroup));
        }
        constants.extend([
            (15, u32::from(logits)),
            (16, if fused { blocks * count } else { 1 }),
            (17, blocks),
            (18, u32::from(codes)),
            (19, u32::from(tail)),
            (20, shape.unroll),
        ]);
        let push = RowsConstants { product, prologue };
        Ok(Dispatch {
            variant: Variant { shader: Shader::ProjectRows, constants },
            bindings,
            push: bytemuck::bytes_of(&push).to_vec(),
            groups: [workgroups, 1, 1],
            barrier: false,
            op,
            cut: Some((key, cut)),
        })
    }

    /// How a product of few rows is cut: as measured, or as the policy guesses.
    fn shape(&self, key: &RowsKey, product: &rows::Product) -> rows::RowsShape {
        let measured = self.tuning.rows.get(key).copied();
        let allowed =
            |shape: &rows::RowsShape| rows::candidates(&self.limits, product).contains(shape);
        measured.filter(allowed).unwrap_or_else(|| rows::choose(&self.limits, product))
    }

    /// Where a single row is handed from one kernel to the next. Codes and tails lie apart,
    /// because a kernel reads the one while it writes the other.
    fn handed(&self, input: Input) -> (Region, Region) {
        self.resources.handed[usize::from(input == Input::Tail)]
    }

    fn tiles_product(
        &self,
        op: usize,
        project: &Project,
        group: &Group<'_>,
        count: u32,
    ) -> Dispatch {
        let graph = &self.plan.graph;
        let logits = graph.tensor(project.parts[0].output).rows == RowSet::Logits;
        let blocks = (graph.tensor(project.input).width / 32) as u32;
        let (mut bindings, product, types, workgroups) = self.product(project, group, 64);
        bindings.extend([self.weights.vectors, self.output(project)]);
        bindings.extend([self.resources.operand, self.resources.metas]);
        let tokens = policy::tile_tokens(count);
        Dispatch {
            variant: Variant {
                shader: Shader::ProjectTiles,
                constants: vec![
                    (0, types[0]),
                    (1, types[1]),
                    (2, tokens),
                    (3, gate_code(project)),
                    (4, u32::from(group.integer)),
                    (5, u32::from(logits && group.integer)),
                    (6, u32::from(logits)),
                    (7, blocks),
                ],
            },
            bindings,
            push: bytemuck::bytes_of(&product).to_vec(),
            groups: [workgroups, count.div_ceil(tokens), 1],
            barrier: false,
            op,
            cut: None,
        }
    }

    fn matrix_product(
        &self,
        op: usize,
        project: &Project,
        group: &Group<'_>,
        count: u32,
    ) -> Dispatch {
        let blocks = (self.plan.graph.tensor(project.input).width / 32) as u32;
        let rows: usize = group.parts.iter().map(|part| part.2.rows).sum();
        let shape = matrix::choose(&self.limits, rows as u32, count);
        // A gate's tile holds as many rows of each part as it has outputs.
        let outputs = if project.gate.is_some() { shape.rows() / 2 } else { shape.rows() };
        let (mut bindings, product, types, workgroups) = self.product(project, group, outputs);
        bindings.extend([self.weights.vectors, self.output(project)]);
        bindings.extend([self.resources.operand, self.resources.metas]);
        let mut constants = vec![
            (0, shape.workgroup(&self.limits)),
            (1, types[0]),
            (2, types[1]),
            (3, gate_code(project)),
            (4, blocks),
        ];
        constants.extend(shape.constants(&self.limits));
        Dispatch {
            variant: Variant { shader: Shader::ProjectMatrix, constants },
            bindings,
            push: bytemuck::bytes_of(&product).to_vec(),
            groups: [count.div_ceil(shape.tokens()), workgroups, 1],
            barrier: false,
            op,
            cut: None,
        }
    }

    fn attend(&self, op: usize, attend: &Attend, rows: u32, out: &mut Vec<Dispatch>) {
        let spec = &attend.spec;
        let group = &self.plan.graph.kv_groups[spec.kv.group];
        let (query, query_stride, query_column) = self.tensor(attend.query);
        let (key, key_stride, key_column) = self.tensor(attend.key);
        let (value, value_stride, value_column) = self.tensor(attend.value);
        let (output, output_stride, _) = self.tensor(attend.output);
        let vectors = self.weights.vectors;
        let angles = attend.rope.map_or(vectors, |(_, angles)| self.tensor(angles).0);
        let norm = |norm: Option<HeadNorm>| norm.map_or(0, |norm| self.weights.vector(norm.weight));
        let epsilon = |norm: Option<HeadNorm>| norm.map_or(0.0, |norm| norm.epsilon);
        let heads = HeadsConstants {
            query_stride,
            query_column,
            key_stride,
            key_column,
            value_stride,
            value_column,
            kv_heads: spec.kv_heads as u32,
            query_norm: norm(attend.query_norm),
            key_norm: norm(attend.key_norm),
            query_epsilon: epsilon(attend.query_norm),
            key_epsilon: epsilon(attend.key_norm),
            table: self.resources.tables[spec.kv.group],
            entries: self.resources.entries,
        };
        let rope = attend.rope.map_or(0, |(rope, _)| match self.plan.graph.ropes[rope].pairing {
            RopePairing::Halves => 1,
            RopePairing::Adjacent => 2,
        });
        let pages = self.resources.pages[spec.kv.group][spec.kv.layer];
        let mut constants = vec![
            (1, spec.head_dim as u32),
            (2, u32::from(group.ty == KvType::F16)),
            (3, u32::from(attend.query_norm.is_some())),
            (4, u32::from(attend.key_norm.is_some())),
            (5, rope),
            (11, self.limits.subgroup),
        ];
        let bindings = vec![query, key, value, angles, vectors, pages];
        let fused = rows == 1;
        if !fused {
            out.push(Dispatch {
                variant: Variant { shader: Shader::KvWrite, constants: constants.clone() },
                bindings: bindings.clone(),
                push: bytemuck::bytes_of(&heads).to_vec(),
                groups: [rows, spec.kv_heads as u32, 1],
                barrier: false,
                op,
                cut: None,
            });
        }
        let queries = attention::heads(&self.limits, rows, (spec.heads / spec.kv_heads) as u32);
        let codes = self.output_for_next(op, rows) == Input::Codes;
        let (next_operand, next_metas) = self.handed(Input::Codes);
        let splits = attention::splits(rows, self.resources.entries);
        constants.extend([
            (6, queries),
            (7, splits),
            (8, u32::from(fused)),
            (9, u32::from(codes)),
            (10, u32::from(attention::early(&self.limits, rows))),
        ]);
        let mut bindings = bindings;
        bindings.extend([output, self.resources.partials, self.resources.arrivals]);
        bindings.extend([next_operand, next_metas]);
        let push = AttentionConstants {
            heads,
            query_heads: spec.heads as u32,
            output_stride,
            window: spec.window.map_or(0, |window| window as u32),
            scale: spec.scale,
            cap: spec.soft_cap.unwrap_or(0.0),
        };
        out.push(Dispatch {
            variant: Variant { shader: Shader::Attention, constants },
            bindings,
            push: bytemuck::bytes_of(&push).to_vec(),
            groups: [rows, spec.heads as u32 / queries, splits],
            barrier: !fused,
            op,
            cut: None,
        });
    }
}

/// Place of a type in `TensorType::ALL`, as `include/weights.glsl` counts them.
pub(crate) fn type_code(ty: TensorType) -> u32 {
    TensorType::ALL.iter().position(|&other| other == ty).expect("all types are listed") as u32
}

fn gate_code(project: &Project) -> u32 {
    match project.gate {
        None => 0,
        Some((Activation::Silu, _)) => 1,
        Some((Activation::GeluTanh, _)) => 2,
    }
}
