//! The softmax of attention, taken page by page.

use super::lanes::Lanes;
use super::math;
use pianola_plan::PAGE_TOKENS;
use std::ops::Range;

/// A query's softmax over the pages so far.
pub(super) struct Softmax<'a> {
    /// Largest score.
    pub largest: &'a mut f32,
    /// Sum of the weights, under that score.
    pub sum: &'a mut f32,
    /// Sum of the weighted values.
    pub output: &'a mut [f32],
}

impl Softmax<'_> {
    /// Turns a page's scores into weights under the new largest score, and brings what the pages
    /// before left to that score. `scales` are those of the page's keys, then of its values.
    ///
    /// # Safety
    /// `row` has a page's tokens, `scales` twice as many.
    #[inline(always)]
    pub unsafe fn add_page<L: Lanes>(
        self,
        row: *mut f32,
        visible: Range<usize>,
        soft_cap: Option<f32>,
        scales: Option<*const f32>,
    ) {
        // SAFETY: by this function's promise.
        unsafe {
            if visible.is_empty() {
                std::slice::from_raw_parts_mut(row, PAGE_TOKENS).fill(0.0);
                return;
            }
            let old = *self.largest;
            if let Some(keys) = scales {
                scale::<L>(row, keys);
            }
            let sum = weights::<L>(row, visible.clone(), soft_cap, self.largest);
            if let Some(keys) = scales {
                scale::<L>(row, keys.add(PAGE_TOKENS));
                // Scales of tokens that this row does not see may be anything.
                hide(row, visible, 0.0);
            }
            // Most pages bring no larger score, and nothing is there before the first.
            if old == *self.largest {
                *self.sum += sum;
            } else if old == f32::NEG_INFINITY {
                *self.sum = sum;
            } else {
                let correction = (old - *self.largest).exp();
                *self.sum = *self.sum * correction + sum;
                for value in self.output {
                    *value *= correction;
                }
            }
        }
    }
}

/// Multiplies a page's scores or weights by their tokens' scales.
///
/// # Safety
/// Both have a page's tokens.
#[inline(always)]
pub(super) unsafe fn scale<L: Lanes>(row: *mut f32, scales: *const f32) {
    for at in (0..PAGE_TOKENS).step_by(16) {
        // SAFETY: by this function's promise.
        unsafe { L::store(row.add(at), L::mul(L::load(row.add(at)), L::load(scales.add(at)))) };
    }
}

/// Caps a page's scores.
///
/// # Safety
/// `row` has a page's tokens.
#[inline(always)]
pub(super) unsafe fn cap<L: Lanes>(row: *mut f32, cap: f32) {
    for at in (0..PAGE_TOKENS).step_by(16) {
        // SAFETY: by this function's promise.
        unsafe { L::store(row.add(at), math::soft_cap::<L>(L::load(row.add(at)), cap)) };
    }
}

/// Overwrites what is not visible.
///
/// # Safety
/// `row` has a page's tokens.
#[inline(always)]
unsafe fn hide(row: *mut f32, visible: Range<usize>, x: f32) {
    // SAFETY: by this function's promise.
    let row = unsafe { std::slice::from_raw_parts_mut(row, PAGE_TOKENS) };
    row[..visible.start].fill(x);
    row[visible.end..].fill(x);
}

/// Turns the visible scores into weights under the new maximum, all others into zero; returns
/// their sum.
///
/// # Safety
/// `row` has a page's tokens.
#[inline(always)]
unsafe fn weights<L: Lanes>(
    row: *mut f32,
    visible: Range<usize>,
    soft_cap: Option<f32>,
    largest: &mut f32,
) -> f32 {
    // SAFETY: by this function's promise.
    unsafe {
        let mut top = L::splat(f32::NEG_INFINITY);
        if let Some(soft_cap) = soft_cap {
            cap::<L>(row, soft_cap);
        }
        let whole = visible == (0..PAGE_TOKENS);
        if !whole {
            // Finite, and far below any score, so that no difference is NaN.
            hide(row, visible.clone(), f32::MIN);
        }
        for at in (0..PAGE_TOKENS).step_by(16) {
            top = L::max(top, L::load(row.add(at)));
        }
        *largest = largest.max(L::largest(top));
        let shift = L::splat(*largest);
        let mut sum = L::splat(0.0);
        for at in (0..PAGE_TOKENS).step_by(16) {
            let weights = math::exp::<L>(L::sub(L::load(row.add(at)), shift));
            L::store(row.add(at), weights);
            sum = L::add(sum, weights);
        }
        if !whole {
            hide(row, visible, 0.0);
            sum = L::splat(0.0);
            for at in (0..PAGE_TOKENS).step_by(16) {
                sum = L::add(sum, L::load(row.add(at)));
            }
        }
        L::sum(sum)
    }
}
