//! Products: their input rows, their parts, and the kernel that fits the number of rows.

use super::{Dispatch, InputFrom, Programmer, type_code};
use crate::memory::Region;
use crate::pipeline::{Shader, Variant};
use crate::policy::{self, Limits, fragments, matrix, rows};
use crate::tuning::RowsKey;
use crate::weights::{Matrix, Slice};
use bytemuck::{Pod, Zeroable};
use pianola_formats::TensorType;
use pianola_plan::{
    Activation, DeviceError, FusedNorm, Kernel, Numeric, Project, RowSet, TensorId,
};

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

const NO_BIAS: u32 = u32::MAX;
/// The dispatch that writes the new residual stream.
const KEEP: u32 = 0x100;

/// Weights of one dispatch of a product: the same rows of up to three parts.
pub(super) struct Group<'a> {
    pub parts: Vec<(usize, &'a Matrix, Slice)>,
    pub integer: bool,
}

impl Group<'_> {
    /// Weight rows of all parts.
    fn rows(&self) -> u32 {
        self.parts.iter().map(|part| part.2.rows as u32).sum()
    }
}

/// How a prologue leaves the rows of an operand: FORM of `prologue.comp`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum OperandForm {
    /// f32.
    Floats = 0,
    /// int8 with a step for 32.
    Codes = 1,
    /// Two int8: codes, and codes of what their rounding left out.
    Refined = 2,
    /// f16, each row scaled by a power of two.
    Halves = 3,
    /// The same in the order of [`ProductKernel::Fragments`].
    Fragments = 4,
}

/// The kernel that computes a product.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ProductKernel {
    /// `project_rows`: few rows.
    Rows,
    /// `project_fragments`: some rows, on matrix units.
    Fragments,
    /// `project_matrix`: many rows, on matrix units.
    Matrix,
    /// `project_tiles`: many rows, on any device.
    Tiles,
}

/// How a product of few rows gets its operand.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum OperandSource {
    /// Each workgroup forms it.
    Fused,
    /// A prologue before it did.
    Ready,
    /// The kernel before left it.
    Handed(InputFrom),
}

impl Programmer<'_> {
    /// Parts of a product that go into one dispatch: alike in how they meet the operand, of at
    /// most two types; a gate's parts always together.
    pub(super) fn groups(&self, project: &Project) -> Result<Vec<Group<'_>>, DeviceError> {
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

    pub(super) fn project(
        &self,
        op: usize,
        project: &Project,
        rows: u32,
        out: &mut Vec<Dispatch>,
    ) -> Result<(), DeviceError> {
        let graph = &self.plan.graph;
        let logits = self.is_head(project);
        let width = graph.tensor(project.input).width as u32;
        let groups = self.groups(project)?;
        let input = self.input(op, rows);
        match input {
            InputFrom::Own => {}
            InputFrom::Fragments => {
                out.push(self.fragments_product(op, project, &groups[0], rows));
                return Ok(());
            }
            InputFrom::Codes | InputFrom::Tail => {
                let feed = OperandSource::Handed(input);
                out.push(self.rows_product(op, project, &groups[0], rows, feed, false)?);
                return Ok(());
            }
        }
        let mut keep = project.residual.is_some_and(|residual| residual.kept);
        // Operand forms that lie ready, for groups that share one.
        let mut ready = None;
        for group in &groups {
            let way = self.way(rows, logits, group.integer);
            let refined = logits
                && group.integer
                && matches!(way, ProductKernel::Rows | ProductKernel::Tiles);
            let count = if refined { 2 * rows } else { rows };
            let blocks = width / 32;
            let form = match way {
                ProductKernel::Fragments => OperandForm::Fragments,
                ProductKernel::Matrix => OperandForm::Halves,
                _ if refined => OperandForm::Refined,
                _ if group.integer => OperandForm::Codes,
                _ => OperandForm::Floats,
            };
            let shared = 40 * blocks * count + 1024;
            let fused = rows == 1 && group.integer && shared <= self.limits.shared_memory;
            if !fused && ready != Some(form) {
                out.push(self.prologue(op, project, rows, form, keep)?);
                keep = false;
                ready = Some(form);
            }
            let product = match way {
                ProductKernel::Rows => {
                    let feed = if fused { OperandSource::Fused } else { OperandSource::Ready };
                    self.rows_product(op, project, group, count, feed, keep)?
                }
                ProductKernel::Fragments => self.fragments_product(op, project, group, count),
                ProductKernel::Matrix => self.matrix_product(op, project, group, count),
                ProductKernel::Tiles => self.tiles_product(op, project, group, count),
            };
            keep &= !fused;
            out.push(Dispatch { barrier: !fused, ..product });
        }
        Ok(())
    }

    /// The kernel for a product of `rows` rows, with weights that meet them as integers or not.
    pub(super) fn way(&self, rows: u32, logits: bool, integer: bool) -> ProductKernel {
        let Limits { matrices, fragments, .. } = self.limits;
        let some = fragments::LEAST_ROWS..=fragments::MOST_ROWS;
        if integer && fragments.is_some() && some.contains(&rows) {
            return ProductKernel::Fragments;
        }
        // Refined rows are two.
        if rows * if logits && integer { 2 } else { 1 } <= 8 {
            return ProductKernel::Rows;
        }
        if integer && matrices > 0 { ProductKernel::Matrix } else { ProductKernel::Tiles }
    }

    /// Whether a product works on the rows with logits only.
    pub(super) fn is_head(&self, project: &Project) -> bool {
        self.plan.graph.tensor(project.parts[0].output).rows == RowSet::Logits
    }

    /// Blocks of 32 columns of a product's input.
    fn blocks(&self, project: &Project) -> u32 {
        (self.plan.graph.tensor(project.input).width / 32) as u32
    }

    fn prologue_constants(
        &self,
        project: &Project,
    ) -> Result<(Vec<Region>, PrologueConstants, u32), DeviceError> {
        let vector = |norm: FusedNorm| self.weights.vector(norm.weight) / 4;
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
        form: OperandForm,
        keep: bool,
    ) -> Result<Dispatch, DeviceError> {
        let logits = self.is_head(project);
        let (mut bindings, prologue, sum) = self.prologue_constants(project)?;
        bindings.extend([self.weights.vectors, self.resources.operand, self.resources.metas]);
        let workgroup = policy::prologue_workgroup(&self.limits, self.blocks(project) * 32);
        let mut constants =
            vec![(0, workgroup), (1, form as u32), (2, u32::from(logits)), (3, u32::from(keep))];
        if form == OperandForm::Fragments {
            constants.push((4, fragment_rows(rows)));
            // Rows beyond the plan's have no place.
            let all = !logits && rows as usize <= self.plan.options.max_rows;
            constants.push((5, u32::from(all)));
        }
        constants.extend(self.prologue_specials(project, sum, workgroup));
        let variant = Variant { shader: Shader::Prologue, constants };
        let push = bytemuck::bytes_of(&prologue);
        // All operands pass through one buffer, which the plan does not see.
        Ok(Dispatch { barrier: true, ..Dispatch::new(variant, bindings, push, [rows, 1, 1], op) })
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
        let epilogue = epilogue(project);
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
        self.tensor(epilogue(project).unwrap_or(project.parts[0].output)).0
    }

    fn rows_product(
        &self,
        op: usize,
        project: &Project,
        group: &Group<'_>,
        count: u32,
        feed: OperandSource,
        keep: bool,
    ) -> Result<Dispatch, DeviceError> {
        let logits = self.is_head(project);
        let blocks = self.blocks(project);
        let refined = logits && group.integer;
        let fused = feed == OperandSource::Fused;
        let single = count == 1 && !logits;
        let next = if single { self.output_for_next(op, 1) } else { InputFrom::Own };
        let (codes, tail) = (next == InputFrom::Codes, next == InputFrom::Tail);
        let rows = match project.gate {
            Some(_) => group.parts[0].2.rows as u32,
            None => group.rows(),
        };
        let cut = rows::Product { rows, blocks, count, codes, tail, fused };
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
            OperandSource::Handed(input) => self.handed(input),
            OperandSource::Fused | OperandSource::Ready => {
                (self.resources.operand, self.resources.metas)
            }
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
        let variant = Variant { shader: Shader::ProjectRows, constants };
        let push = RowsConstants { product, prologue };
        let push = bytemuck::bytes_of(&push);
        let launch = Dispatch::new(variant, bindings, push, [workgroups, 1, 1], op);
        Ok(Dispatch { cut: Some((key, cut)), ..launch })
    }

    /// How a product of few rows is cut: as measured, or as the policy guesses.
    fn shape(&self, key: &RowsKey, product: &rows::Product) -> rows::RowsShape {
        let measured = self.tuning.rows.get(key).copied();
        let allowed =
            |shape: &rows::RowsShape| rows::candidates(&self.limits, product).contains(shape);
        measured.filter(allowed).unwrap_or_else(|| rows::choose(&self.limits, product))
    }

    /// Where rows are handed from one kernel to the next. A single row's codes and tails lie one_row_per_sequence,
    /// because a kernel reads the one while it writes the other; attention reads neither.
    pub(super) fn handed(&self, input: InputFrom) -> (Region, Region) {
        match input {
            InputFrom::Fragments => (self.resources.operand, self.resources.metas),
            InputFrom::Tail => self.resources.handed[1],
            InputFrom::Codes | InputFrom::Own => self.resources.handed[0],
        }
    }

    /// As [`Self::product`], with the other buffers of both products of many rows.
    fn product_of_many(
        &self,
        project: &Project,
        group: &Group<'_>,
        tile: u32,
    ) -> (Vec<Region>, ProductConstants, [u32; 2], u32) {
        let (mut bindings, product, types, workgroups) = self.product(project, group, tile);
        bindings.extend([self.weights.vectors, self.output(project)]);
        bindings.extend([self.resources.operand, self.resources.metas]);
        (bindings, product, types, workgroups)
    }

    fn tiles_product(
        &self,
        op: usize,
        project: &Project,
        group: &Group<'_>,
        count: u32,
    ) -> Dispatch {
        let logits = self.is_head(project);
        let (bindings, product, types, workgroups) = self.product_of_many(project, group, 64);
        let tokens = policy::tile_tokens(count);
        let constants = vec![
            (0, types[0]),
            (1, types[1]),
            (2, tokens),
            (3, gate_code(project)),
            (4, u32::from(group.integer)),
            (5, u32::from(logits && group.integer)),
            (6, u32::from(logits)),
            (7, self.blocks(project)),
        ];
        let variant = Variant { shader: Shader::ProjectTiles, constants };
        let groups = [workgroups, count.div_ceil(tokens), 1];
        Dispatch::new(variant, bindings, bytemuck::bytes_of(&product), groups, op)
    }

    /// Constants that `include/matrix.glsl` declares, but for the tile's.
    fn unit_specials(&self, project: &Project, types: [u32; 2], workgroup: u32) -> Vec<(u32, u32)> {
        vec![
            (0, workgroup),
            (1, types[0]),
            (2, types[1]),
            (3, gate_code(project)),
            (4, self.blocks(project)),
            (14, u32::from(self.is_head(project))),
        ]
    }

    fn matrix_product(
        &self,
        op: usize,
        project: &Project,
        group: &Group<'_>,
        count: u32,
    ) -> Dispatch {
        let shape = matrix::choose(&self.limits, group.rows(), count);
        // A gate's tile holds as many rows of each part as it has outputs.
        let outputs = if project.gate.is_some() { shape.rows() / 2 } else { shape.rows() };
        let (bindings, product, types, workgroups) = self.product_of_many(project, group, outputs);
        let mut constants = self.unit_specials(project, types, shape.workgroup(&self.limits));
        constants.extend(shape.constants(&self.limits));
        let variant = Variant { shader: Shader::ProjectMatrix, constants };
        let groups = [count.div_ceil(shape.tokens()), workgroups, 1];
        Dispatch::new(variant, bindings, bytemuck::bytes_of(&product), groups, op)
    }

    fn fragments_product(
        &self,
        op: usize,
        project: &Project,
        group: &Group<'_>,
        count: u32,
    ) -> Dispatch {
        let gate = project.gate.is_some();
        let shape = fragments::choose(&self.limits, group.rows(), count, gate);
        let outputs = if gate { shape.rows_each / 2 } else { shape.rows_each };
        let (bindings, product, types, workgroups) = self.product_of_many(project, group, outputs);
        let order = self.limits.fragments.expect("the way was chosen by it");
        let mut constants = self.unit_specials(project, types, shape.workgroup(&self.limits));
        constants.extend(shape.constants());
        constants.extend([
            (11, fragment_rows(count)),
            (12, u32::from(order.operand_rows_first)),
            (13, u32::from(order.weights_rows_first)),
            (15, u32::from(shape.early)),
        ]);
        let variant = Variant { shader: Shader::ProjectFragments, constants };
        debug_assert!(count <= shape.tokens_each);
        Dispatch::new(variant, bindings, bytemuck::bytes_of(&product), [1, workgroups, 1], op)
    }
}

/// Rows that an operand in fragments has room for: halves of matrices.
pub(super) fn fragment_rows(rows: u32) -> u32 {
    rows.next_multiple_of(fragments::SIDE / 2)
}

/// The tensor that gate or cap leave instead of the parts'.
fn epilogue(project: &Project) -> Option<TensorId> {
    project.gate.map(|gate| gate.1).or(project.soft_cap.map(|cap| cap.1))
}

fn gate_code(project: &Project) -> u32 {
    match project.gate {
        None => 0,
        Some((Activation::Silu, _)) => 1,
        Some((Activation::GeluTanh, _)) => 2,
    }
}
