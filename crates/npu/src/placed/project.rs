//! Fused products: the prologue and the epilogue here, the product on the array.

use pianola_plan::{DeviceError, Project, Residual, Step, WeightId};

use super::arena::Arena;
use super::encode::{Encoded, Pieces, Values};
use super::link::Link;
use super::parallel::each_row;
use super::rows;
use super::twin;
use super::worker::Worker;
use crate::package::Shape;
use crate::runner::{Factor, Order, RunError};

/// Operations that an activation or a norm takes for a value, roughly.
const WORK: usize = 16;

impl Worker {
    /// Plays a fused product.
    pub(super) fn project(
        &mut self,
        name: &str,
        project: &Project,
        arena: &mut Arena,
        step: &Step,
    ) -> Result<(), DeviceError> {
        let rows: Vec<usize> = match project.select {
            true => step.logits.iter().map(|&row| row as usize).collect(),
            false => (0..self.plan.rows(project.parts[0].output, step)).collect(),
        };
        if rows.is_empty() {
            return Ok(());
        }
        let mut x = self.input(project, &rows, arena);
        let (form, columns) = (self.weights.form, x.len() / rows.len());
        let mut input = Encoded::new(form, rows.len(), columns);
        input.set(form, 0, &mut x);
        let mut outputs = Vec::new();
        for part in &project.parts {
            let weight = self.weights.matrix(part.weight);
            let mut out = vec![0.0; rows.len() * weight.rows];
            product(&mut self.link, name, &input, weight, &mut out)?;
            self.add_bias(part.bias, &mut out);
            outputs.push(out);
        }
        self.finish(project, outputs, arena);
        Ok(())
    }

    /// The product's input, without gaps; a residual stream that goes on is written.
    fn input(&self, project: &Project, rows: &[usize], arena: &mut Arena) -> Vec<f32> {
        let mut x = match project.residual {
            None => arena.gather(project.input, rows.iter().copied()),
            Some(residual) => self.residual(residual, rows, arena),
        };
        if let Some(norm) = project.norm {
            let weight = self.weights.vector(norm.weight);
            let work = WORK * x.len();
            each_row(&mut x, weight.len(), work, |_, row| {
                rows::rms_norm(row, weight, norm.epsilon);
            });
        }
        x
    }

    fn residual(&self, residual: Residual, rows: &[usize], arena: &mut Arena) -> Vec<f32> {
        let mut x = arena.gather(residual.delta, rows.iter().copied());
        let width = arena.width(residual.delta);
        let norm = residual.norm.map(|norm| (self.weights.vector(norm.weight), norm.epsilon));
        let work = WORK * x.len();
        let base = &*arena;
        each_row(&mut x, width, work, |row, x| {
            if let Some((weight, epsilon)) = norm {
                rows::rms_norm(x, weight, epsilon);
            }
            rows::add(x, base.row(residual.base, rows[row]));
        });
        if residual.kept {
            arena.scatter(residual.output, &x);
        }
        x
    }

    fn add_bias(&self, bias: Option<WeightId>, out: &mut [f32]) {
        if let Some(bias) = bias.map(|id| self.weights.vector(id)) {
            out.chunks_exact_mut(bias.len()).for_each(|row| rows::add(row, bias));
        }
    }

    /// Applies the epilogue and writes the result.
    fn finish(&self, project: &Project, mut outputs: Vec<Vec<f32>>, arena: &mut Arena) {
        if let (Some((activation, output)), [gate, up]) = (project.gate, &mut outputs[..]) {
            let (width, work) = (arena.width(output), WORK * gate.len());
            let up = &*up;
            each_row(gate, width, work, |row, gate| {
                rows::gate(gate, &up[row * width..][..width], activation);
            });
            arena.scatter(output, gate);
        } else if let (Some((cap, output)), [only]) = (project.soft_cap, &mut outputs[..]) {
            let (width, work) = (arena.width(output), WORK * only.len());
            each_row(only, width, work, |_, row| rows::soft_cap(row, cap));
            arena.scatter(output, only);
        } else {
            for (part, out) in project.parts.iter().zip(outputs) {
                arena.scatter(part.output, &out);
            }
        }
    }
}

/// `out = input weight^T`, on the device or in its place.
fn product(
    link: &mut Link,
    name: &str,
    input: &Encoded,
    weight: &Encoded,
    out: &mut [f32],
) -> Result<(), DeviceError> {
    match (&input.values, &weight.values) {
        (Values::Int8(x), Values::Int8(w)) => {
            let rows = (input.rows, weight.rows);
            let on_device = link.run(name, |session| {
                multiply_pieces(rows, (x, w), out, |shape, a, values, sums| {
                    let factor = Factor { values, order: Order::ColumnMajor };
                    session.products().matmul_i8(shape, a, factor, sums)
                })
            })?;
            if !on_device {
                let twin = multiply_pieces(rows, (x, w), out, |shape, a, values, sums| {
                    twin::matmul_i8(shape, a, values, sums);
                    Ok(())
                });
                twin.expect("the processor does not fail");
            }
        }
        (Values::Bf16(x), Values::Bf16(w)) => {
            let shape = Shape { m: input.rows, k: input.columns, n: weight.rows };
            let factor = Factor { values: w, order: Order::ColumnMajor };
            let on_device =
                link.run(name, |session| session.products().matmul_bf16(shape, x, factor, out))?;
            if !on_device {
                twin::matmul_bf16(link.kernels.product_spec(), shape, x, factor, out);
            }
        }
        _ => unreachable!("inputs and weights have one form"),
    }
    Ok(())
}

/// Multiplies piece by piece with `multiply`, and adds the scaled sums in the order of the pieces.
fn multiply_pieces(
    (m, n): (usize, usize),
    (x, w): (&Pieces, &Pieces),
    out: &mut [f32],
    mut multiply: impl FnMut(Shape, &[i8], &[i8], &mut [i32]) -> Result<(), RunError>,
) -> Result<(), RunError> {
    out.fill(0.0);
    let mut sums = vec![0; m * n];
    for piece in 0..x.count() {
        let shape = Shape { m, k: x.width(piece), n };
        multiply(shape, x.codes(piece), w.codes(piece), &mut sums)?;
        let (left, right, sums) = (x.scales(piece), w.scales(piece), &sums);
        each_row(out, n, 2 * m * n, |row, out| {
            let sums = &sums[row * n..][..n];
            for ((out, &sum), right) in out.iter_mut().zip(sums).zip(right) {
                *out += sum as f32 * (left[row] * right);
            }
        });
    }
    Ok(())
}
