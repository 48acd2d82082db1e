//! The prologue of a product: what its input goes through, row by row.

use super::{Activations, Norm, Play, RotatedForm, Slab, WorkerScratch};
use crate::pack::BLOCK;
use crate::policy::UNIT_ROWS;
use crate::simd::matrix_unit::put_row;

/// Residual sum, norm and quantisation of a product's input, row by row.
pub(crate) struct Prologue {
    pub input: Slab,
    /// What is added to the input, its norm, and where the sum goes if it is kept.
    pub residual: Option<(Slab, Option<Norm>, Option<Slab>)>,
    /// The input has a row for each of the step, of which those with logits are taken.
    pub select: bool,
    /// The product has a row for each with logits, selected here or before.
    pub logits: bool,
    pub norm: Option<Norm>,
    pub width: usize,
    /// Whether products want f32 rows, int8 rows, or both.
    pub floats: bool,
    pub quantized: bool,
    /// Where there are at most so many rows, each in int8 is followed by one of what its rounding left out: 15 bits
    /// in all.
    pub refined: usize,
    /// Many int8 rows are left in strips, too, for a matrix unit.
    pub unit: bool,
    /// From some number of rows on, rotated int8 rows in place of these.
    pub rotated: Option<RotatedForm>,
    pub activations: Activations,
}

impl Prologue {
    pub fn rows(&self, play: &Play<'_>) -> usize {
        if self.logits { play.logits.len() } else { play.rows.len() }
    }

    /// Whether int8 rows come in pairs.
    fn is_refined(&self, play: &Play<'_>) -> bool {
        self.rows(play) <= self.refined
    }

    pub unsafe fn run(&self, play: &Play<'_>, job: usize, scratch: &mut WorkerScratch) {
        let row = if self.select { play.logits[job] as usize } else { job };
        let (kernels, width) = (play.kernels, self.width);
        let [sum, normed] = &mut scratch.rows;
        // SAFETY: by the promise of `Stage::run`; the scratch rows hold the widest input.
        unsafe {
            let mut x: *const f32 = self.input.row(row);
            if let Some((delta, norm, kept)) = self.residual {
                let mut delta: *const f32 = delta.row(row);
                if let Some((weight, epsilon)) = norm {
                    (kernels.rms_norm)(delta, weight, epsilon, width, normed.as_mut_ptr());
                    delta = normed.as_ptr();
                }
                let out = kept.map_or(sum.as_mut_ptr(), |kept| kept.row(row));
                (kernels.add)(x, delta, width, out);
                x = out;
            }
            let floats = self.activations.floats.add(job * width);
            if let Some((weight, epsilon)) = self.norm {
                let out = if self.floats { floats } else { normed.as_mut_ptr() };
                (kernels.rms_norm)(x, weight, epsilon, width, out);
                x = out;
            } else if self.floats {
                std::ptr::copy_nonoverlapping(x, floats, width);
            }
            if self.quantized {
                let refined = self.is_refined(play);
                let job = if refined { 2 * job } else { job };
                self.quantize(play, x, job);
                if refined {
                    self.left_out(x, job, sum.as_mut_ptr());
                    self.quantize(play, sum.as_ptr(), job + 1);
                }
            }
        }
    }

    unsafe fn quantize(&self, play: &Play<'_>, x: *const f32, row: usize) {
        let Activations { codes, metas, strips, strip_metas, .. } = self.activations;
        let (width, blocks) = (self.width, self.width / BLOCK);
        let rows = self.rows(play) * if self.is_refined(play) { 2 } else { 1 };
        // SAFETY: the activations have room for every row of a play.
        unsafe {
            if let Some(form) = self.rotated.filter(|form| rows >= form.least_rows) {
                (play.kernels.rotate_row)(x, width, &form.rows(&self.activations), row);
                return;
            }
            let (codes, metas) = (codes.add(row * width), metas.add(row * blocks));
            (play.kernels.quantize)(x, width, codes, metas);
            if self.unit && rows >= UNIT_ROWS {
                let codes = std::slice::from_raw_parts(codes, width);
                let metas = std::slice::from_raw_parts(metas, blocks);
                put_row(row, (codes, metas), strips, strip_metas);
            }
        }
    }

    /// `x` less what row `row` of the int8 rows holds of it.
    unsafe fn left_out(&self, x: *const f32, row: usize, out: *mut f32) {
        let blocks = self.width / BLOCK;
        for at in 0..self.width {
            // SAFETY: as in `quantize`, which wrote them.
            unsafe {
                let code = f32::from(*self.activations.codes.add(row * self.width + at));
                let step = (*self.activations.metas.add(row * blocks + at / BLOCK)).step;
                *out.add(at) = *x.add(at) - code * step;
            }
        }
    }
}
