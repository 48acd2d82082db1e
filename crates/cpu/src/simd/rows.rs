//! Work on single rows: norms, residual sums, quantisation, rotation, activation.
//!
//! # Safety
//! Of every function here: rows have `width` values (`head_dim`, or 16 where neither is given), codes
//! as many bytes, and metas an entry for each block of them.

use super::lanes::Lanes;
use super::math;
use super::product::BlockMeta;
use crate::pack::BLOCK;
use pianola_plan::{Activation, RopePairing};

/// `1 / sqrt(mean(x^2) + epsilon)`
#[inline(always)]
pub(crate) unsafe fn inverse_rms<L: Lanes>(x: *const f32, width: usize, epsilon: f32) -> f32 {
    // SAFETY: by the module's promise.
    unsafe {
        let mut squares = L::splat(0.0);
        let whole = width / 16 * 16;
        for at in (0..whole).step_by(16) {
            let lanes = L::load(x.add(at));
            squares = L::fma(lanes, lanes, squares);
        }
        let mut sum = L::sum(squares);
        for at in whole..width {
            sum += *x.add(at) * *x.add(at);
        }
        1.0 / (sum / width as f32 + epsilon).sqrt()
    }
}

/// `out = x * factor * weight`
#[inline(always)]
pub(crate) unsafe fn scale_by(
    x: *const f32,
    factor: f32,
    weight: *const f32,
    width: usize,
    out: *mut f32,
) {
    for at in 0..width {
        // SAFETY: by the module's promise.
        unsafe { *out.add(at) = *x.add(at) * factor * *weight.add(at) };
    }
}

/// RMS norm of one row; `out` may be `x`.
#[inline(always)]
pub(crate) unsafe fn rms_norm<L: Lanes>(
    x: *const f32,
    weight: *const f32,
    epsilon: f32,
    width: usize,
    out: *mut f32,
) {
    // SAFETY: by the module's promise.
    unsafe {
        let factor = inverse_rms::<L>(x, width, epsilon);
        scale_by(x, factor, weight, width, out);
    }
}

/// `out = base + delta`
#[inline(always)]
pub(crate) unsafe fn add(base: *const f32, delta: *const f32, width: usize, out: *mut f32) {
    for at in 0..width {
        // SAFETY: by the module's promise.
        unsafe { *out.add(at) = *base.add(at) + *delta.add(at) };
    }
}

/// Quantises a row to int8, 32 columns to a scale. `width` is a multiple of 32.
#[inline(always)]
pub(crate) unsafe fn quantize<L: Lanes>(
    x: *const f32,
    width: usize,
    codes: *mut i8,
    metas: *mut BlockMeta,
) {
    // SAFETY: by the module's promise.
    unsafe {
        for block in 0..width / BLOCK {
            let from = x.add(block * BLOCK);
            let (low, high) = (L::load(from), L::load(from.add(16)));
            let largest = L::largest(L::max(L::abs(low), L::abs(high)));
            let step = largest / 127.0;
            // Below this the inverse would overflow; such values are rounded to zero.
            let inverse = if largest > 1e-30 { 127.0 / largest } else { 0.0 };
            let (low, high) = (
                L::round(L::mul(low, L::splat(inverse))),
                L::round(L::mul(high, L::splat(inverse))),
            );
            let to = codes.add(block * BLOCK);
            L::store_i8(to, low);
            L::store_i8(to.add(16), high);
            // Sums of integers this small are exact in f32; NaN anywhere makes them NaN, and the
            // scale carries it on.
            let (low, high) = (L::sum(low), L::sum(high));
            let step = if (low + high).is_nan() { f32::NAN } else { step };
            let value_sum = step * (low + high);
            *metas.add(block) = BlockMeta { step, value_sum, low: low as i32, high: high as i32 };
        }
    }
}

/// Rotates one head in place; `angles` holds the cosines, then the sines, of its pairs.
#[inline(always)]
pub(crate) unsafe fn rotate(
    head: *mut f32,
    angles: *const f32,
    head_dim: usize,
    pairing: RopePairing,
) {
    let pairs = head_dim / 2;
    // SAFETY: by the module's promise.
    unsafe {
        match pairing {
            RopePairing::Halves => {
                for pair in 0..pairs {
                    let (cosine, sine) = (*angles.add(pair), *angles.add(pairs + pair));
                    let (a, b) = (*head.add(pair), *head.add(pairs + pair));
                    *head.add(pair) = a * cosine - b * sine;
                    *head.add(pairs + pair) = b * cosine + a * sine;
                }
            }
            RopePairing::Adjacent => {
                for pair in 0..pairs {
                    let (cosine, sine) = (*angles.add(pair), *angles.add(pairs + pair));
                    let (a, b) = (*head.add(2 * pair), *head.add(2 * pair + 1));
                    *head.add(2 * pair) = a * cosine - b * sine;
                    *head.add(2 * pair + 1) = b * cosine + a * sine;
                }
            }
        }
    }
}

/// Blocks of `block` values, a power of two, times the orthonormal Hadamard matrix of that size.
#[inline(always)]
pub(crate) fn hadamard(values: &mut [f32], block: usize) {
    let mut distance = 1;
    while distance < block {
        for pair in values.chunks_exact_mut(2 * distance) {
            let (first, second) = pair.split_at_mut(distance);
            for (a, b) in first.iter_mut().zip(second) {
                (*a, *b) = (*a + *b, *a - *b);
            }
        }
        distance *= 2;
    }
    let factor = 1.0 / (block as f32).sqrt();
    values.iter_mut().for_each(|value| *value *= factor);
}

/// What becomes of the products of a whole tile, 16 values a row.
#[derive(Clone, Copy)]
pub(crate) struct TileEpilogue {
    /// `[rows][16]`, or with `refined` two of them for each row, whose sum counts.
    pub products: *const f32,
    pub rows: usize,
    pub refined: bool,
    pub bias: Option<*const f32>,
    /// The products are multiplied by the activation of what is in `out` already.
    pub gate: Option<Activation>,
    pub soft_cap: Option<f32>,
    /// Rows of 16 values, `stride` apart.
    pub out: *mut f32,
    pub stride: usize,
}

/// Puts a tile's products where they belong.
#[inline(always)]
pub(crate) unsafe fn put_tile<L: Lanes>(epilogue: &TileEpilogue) {
    let step = if epilogue.refined { 2 } else { 1 };
    // SAFETY: by the module's promise.
    unsafe {
        let bias = epilogue.bias.map(|bias| L::load(bias));
        for row in 0..epilogue.rows {
            let products = epilogue.products.add(row * step * 16);
            let out = epilogue.out.add(row * epilogue.stride);
            let mut x = L::load(products);
            if epilogue.refined {
                x = L::add(x, L::load(products.add(16)));
            }
            if let Some(bias) = bias {
                x = L::add(x, bias);
            }
            if let Some(activation) = epilogue.gate {
                x = L::mul(active::<L>(L::load(out), activation), x);
            }
            if let Some(cap) = epilogue.soft_cap {
                x = math::soft_cap::<L>(x, cap);
            }
            L::store(out, x);
        }
    }
}

#[inline(always)]
unsafe fn active<L: Lanes>(x: L::F, activation: Activation) -> L::F {
    // SAFETY: works on registers.
    unsafe {
        match activation {
            Activation::Silu => math::silu::<L>(x),
            Activation::GeluTanh => math::gelu_tanh::<L>(x),
        }
    }
}

/// `gate = activation(gate) * up` over 16 values.
#[inline(always)]
pub(crate) unsafe fn gate<L: Lanes>(gate: *mut f32, up: *const f32, activation: Activation) {
    // SAFETY: by the module's promise.
    unsafe {
        L::store(gate, L::mul(active::<L>(L::load(gate), activation), L::load(up)));
    }
}
