//! Heads before attention: norm and rotations, and keys and values stored in a page.

use super::lanes::Lanes;
use super::rows;
use pianola_plan::{KvType, PAGE_TOKENS, RopePairing};

/// Norm weight and epsilon of one head.
pub(crate) type Norm = Option<(*const f32, f32)>;

/// What turns a projected head into one that attends: norm, then rotation by its position, then that of
/// all keys.
#[derive(Clone, Copy)]
pub(crate) struct HeadPrologue {
    pub norm: Norm,
    /// Angles of the row, and how they pair.
    pub rope: Option<(*const f32, RopePairing)>,
    /// See `KvGroup::key_rotation`.
    pub key_rotation: usize,
}

/// Copies a head to `out` and applies its prologue there.
///
/// # Safety
/// `head` has `head_dim` values, `out` room for them up to the next multiple of 16; norm and angles
/// are those of a head of this width.
#[inline(always)]
pub(crate) unsafe fn prepare<L: Lanes>(
    head: *const f32,
    head_dim: usize,
    prologue: &HeadPrologue,
    out: *mut f32,
) {
    // SAFETY: by this function's promise.
    unsafe {
        std::ptr::copy_nonoverlapping(head, out, head_dim);
        if let Some((weight, epsilon)) = prologue.norm {
            rows::rms_norm::<L>(out, weight, epsilon, head_dim, out);
        }
        if let Some((angles, pairing)) = prologue.rope {
            rows::rotate(out, angles, head_dim, pairing);
        }
        if prologue.key_rotation > 1 {
            rows::hadamard(std::slice::from_raw_parts_mut(out, head_dim), prologue.key_rotation);
        }
    }
}

/// Stores one key (already prepared) and one value at `slot` of a page's head.
///
/// # Safety
/// `page` is the head's part of a page of type `ty`; `key` and `value` have `head_dim` values
/// and room to read up to the next multiple of 16.
#[inline(always)]
pub(crate) unsafe fn store<L: Lanes>(
    page: *mut u8,
    ty: KvType,
    slot: usize,
    head_dim: usize,
    key: *const f32,
    value: *const f32,
) {
    let value_stride = head_dim.next_multiple_of(16);
    let values_at = head_dim * PAGE_TOKENS + slot * value_stride;
    // SAFETY: by this function's promise; `slot` is below a page's tokens.
    unsafe {
        match ty {
            KvType::F32 => {
                let page = page.cast::<f32>();
                for at in 0..head_dim {
                    *page.add(at * PAGE_TOKENS + slot) = *key.add(at);
                    *page.add(values_at + at) = *value.add(at);
                }
            }
            KvType::F16 => {
                let page = page.cast::<u16>();
                let mut halves = [0u16; 16];
                // What f16 cannot hold is cut at its largest value: an infinity would
                // become NaN even in rows that do not see it.
                let within = |x: L::F| L::max(L::splat(-65504.0), L::min(L::splat(65504.0), x));
                for at in (0..head_dim).step_by(16) {
                    L::store_f16(halves.as_mut_ptr(), within(L::load(key.add(at))));
                    for (lane, &half) in halves.iter().enumerate().take(head_dim - at) {
                        *page.add((at + lane) * PAGE_TOKENS + slot) = half;
                    }
                    L::store_f16(halves.as_mut_ptr(), within(L::load(value.add(at))));
                    for (lane, &half) in halves.iter().enumerate().take(head_dim - at) {
                        *page.add(values_at + at + lane) = half;
                    }
                }
            }
            KvType::Q8 => {
                let scales = scales_of(page, head_dim).cast_mut();
                let codes = page.cast::<i8>();
                *scales.add(slot) = quantize::<L>(key, head_dim, |at, code| {
                    *codes.add(at * PAGE_TOKENS + slot) = code;
                });
                *scales.add(PAGE_TOKENS + slot) =
                    quantize::<L>(value, head_dim, |at, code| *codes.add(values_at + at) = code);
            }
        }
    }
}

/// Scales of the keys, then of the values, of an int8 page's head.
///
/// # Safety
/// `page` is a head's part of a page of that type.
#[inline(always)]
pub(super) unsafe fn scales_of(page: *const u8, head_dim: usize) -> *const f32 {
    let values = (head_dim + head_dim.next_multiple_of(16)) * PAGE_TOKENS;
    // SAFETY: they follow keys and values, see `KvGroup::head_bytes`.
    unsafe { page.add(values).cast() }
}

/// Hands each value's code to `put` and returns the scale of all: not-a-number if a value is, or
/// is infinite.
///
/// # Safety
/// `x` has `width` values.
#[inline(always)]
unsafe fn quantize<L: Lanes>(x: *const f32, width: usize, mut put: impl FnMut(usize, i8)) -> f32 {
    // SAFETY: by this function's promise.
    unsafe {
        // Values after the head must not count.
        let load = |at: usize| {
            let mut lanes = [0.0f32; 16];
            std::ptr::copy_nonoverlapping(x.add(at), lanes.as_mut_ptr(), (width - at).min(16));
            L::load(lanes.as_ptr())
        };
        let mut largest = L::splat(0.0);
        for at in (0..width).step_by(16) {
            largest = L::max(largest, L::abs(load(at)));
        }
        let largest = L::largest(largest);
        // Below this the inverse would overflow; such values are rounded to zero.
        let inverse = L::splat(if largest > 1e-30 { 127.0 / largest } else { 0.0 });
        let mut total = L::splat(0.0);
        for at in (0..width).step_by(16) {
            let rounded = L::round(L::mul(load(at), inverse));
            total = L::add(total, rounded);
            let mut codes = [0i8; 16];
            L::store_i8(codes.as_mut_ptr(), rounded);
            codes.into_iter().take(width - at).enumerate().for_each(|(k, code)| put(at + k, code));
        }
        // Sums of integers this small are exact; anything else makes them not-a-number.
        if L::sum(total).is_nan() { f32::NAN } else { largest / 127.0 }
    }
}
