//! Attention of many rows on dot products of bf16: two multiply-adds a lane where f32 has one.
//!
//! Queries, keys, weights and values are rounded to eight bits; scores, the softmax and all sums stay f32. Keys
//! and values of a page are turned into pairs once for all queries of a job.

use super::attend::{Queries, Scratch};
use super::avx512::Avx512;
use super::lanes::Lanes;
use super::limit::{self, Limit};
use super::store::scales_of;
use super::{math, softmax};
use pianola_plan::{KvType, PAGE_TOKENS};
use std::arch::x86_64::*;
use std::ops::Range;

/// Whether this processor has the instructions.
pub(crate) fn available() -> bool {
    limit::allows(Limit::Avx512Bf16)
        && super::Level::Avx512.available()
        && is_x86_feature_detected!("avx512bf16")
}

/// Words of a matrix's rows, `stride` apart: two bf16 each, the first in the lower half.
#[derive(Clone, Copy)]
struct Pairs {
    start: *const u32,
    stride: usize,
}

/// Two vectors of f32 as pairs, rounded to the nearest bf16.
#[inline(always)]
unsafe fn pairs(first: __m512, second: __m512) -> __m512i {
    // SAFETY: works on registers.
    unsafe {
        // SAFETY: 64 bytes of either type.
        let both: __m512i = std::mem::transmute(_mm512_cvtne2ps_pbh(second, first));
        // Lane by lane a value of the first, then one of the second. Ties have to go to even: of halves one value
        // in eight is a tie, and away from zero all of them would grow.
        let lanes = _mm512_set_epi16(
            31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6, 21, 5, 20,
            4, 19, 3, 18, 2, 17, 1, 16, 0,
        );
        _mm512_permutexvar_epi16(lanes, both)
    }
}

/// Where the rows of a product go, `stride` apart.
#[derive(Clone, Copy)]
struct Output {
    start: *mut f32,
    stride: usize,
    /// A factor for each row of what is there already, to which the products are added; none where they replace it.
    factors: Option<*const f32>,
}

/// `out[row][..16 * N] = a[row] . b[..16 * N] (+ factors[row] * out[row][..16 * N])`, `R` rows and `inner` pairs.
#[inline(always)]
unsafe fn block<const R: usize, const N: usize>(a: Pairs, b: Pairs, inner: usize, out: Output) {
    let Output { start: out, stride, factors } = out;
    // SAFETY: by the promise of `product`.
    unsafe {
        let mut sums = [[_mm512_setzero_ps(); N]; R];
        if let Some(factors) = factors {
            for (row, sums) in sums.iter_mut().enumerate() {
                let factor = _mm512_set1_ps(*factors.add(row));
                for (column, sum) in sums.iter_mut().enumerate() {
                    let before = _mm512_loadu_ps(out.add(row * stride + 16 * column));
                    *sum = _mm512_mul_ps(before, factor);
                }
            }
        }
        for k in 0..inner {
            let mut right = [_mm512_setzero_si512(); N];
            for (column, right) in right.iter_mut().enumerate() {
                *right = _mm512_loadu_si512(b.start.add(k * b.stride + 16 * column).cast());
            }
            for (row, sums) in sums.iter_mut().enumerate() {
                let left = _mm512_set1_epi32(*a.start.add(row * a.stride + k) as i32);
                for (sum, right) in sums.iter_mut().zip(right) {
                    // SAFETY: 64 bytes of either type.
                    let left = std::mem::transmute::<__m512i, __m512bh>(left);
                    // SAFETY: likewise.
                    let right = std::mem::transmute::<__m512i, __m512bh>(right);
                    *sum = _mm512_dpbf16_ps(*sum, left, right);
                }
            }
        }
        for (row, sums) in sums.into_iter().enumerate() {
            for (column, sum) in sums.into_iter().enumerate() {
                _mm512_storeu_ps(out.add(row * stride + 16 * column), sum);
            }
        }
    }
}

/// `out[rows][columns] = a[rows][inner] . b[inner][columns]`, in pairs, and what [`Output`] says of what is there;
/// `columns` are those of `b`, a multiple of 16.
///
/// # Safety
/// The matrices have these rows and columns, and the processor the instructions.
#[inline(always)]
unsafe fn product(a: Pairs, rows: usize, b: Pairs, inner: usize, out: Output) {
    let mut column = 0;
    while column < b.stride {
        let wide = b.stride - column >= 64;
        let mut row = 0;
        while row < rows {
            // SAFETY: a part of the caller's rows and columns.
            unsafe {
                let a = Pairs { start: a.start.add(row * a.stride), ..a };
                let b = Pairs { start: b.start.add(column), ..b };
                let out = Output {
                    start: out.start.add(row * out.stride + column),
                    factors: out.factors.map(|factors| factors.add(row)),
                    ..out
                };
                row += match (wide, rows - row) {
                    (true, 6..) => {
                        block::<6, 4>(a, b, inner, out);
                        6
                    }
                    (true, 4..) => {
                        block::<4, 4>(a, b, inner, out);
                        4
                    }
                    (true, 2..) => {
                        block::<2, 4>(a, b, inner, out);
                        2
                    }
                    (true, _) => {
                        block::<1, 4>(a, b, inner, out);
                        1
                    }
                    (false, _) => {
                        block::<1, 1>(a, b, inner, out);
                        1
                    }
                };
            }
        }
        column += if wide { 64 } else { 16 };
    }
}

/// 16 values of a page from index `at` on.
#[inline(always)]
unsafe fn load(page: *const u8, ty: KvType, at: usize) -> __m512 {
    // SAFETY: by the promise of `attend`.
    unsafe {
        match ty {
            KvType::F32 => Avx512::load(page.cast::<f32>().add(at)),
            KvType::F16 => Avx512::load_f16(page.cast::<u16>().add(at)),
            KvType::Q8 => Avx512::load_i8(page.add(at)),
        }
    }
}

/// As [`super::attend::attend`], for heads of an even width.
///
/// # Safety
/// As there; and the processor has the instructions ([`available`]).
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx512bf16,avx2,fma,f16c")]
pub(crate) unsafe fn attend(
    queries: Queries<'_>,
    ty: KvType,
    page_of: &dyn Fn(usize) -> *const u8,
    scratch: &mut Scratch,
) {
    let Queries { positions, head_dim, .. } = queries;
    let (count, stride) = (positions.len(), head_dim.next_multiple_of(16));
    let seen = queries.seen();
    // Finite, and far below any score, so that no difference is NaN.
    scratch.start(count, stride, f32::MIN);
    scratch.lane_sums[..16 * count].fill(0.0);
    let asked = Pairs { start: scratch.pairs.as_ptr(), stride: head_dim / 2 };
    // SAFETY: by this function's promise; queries and pairs have room for whole vectors.
    unsafe { round_queries(queries.values, count * head_dim, scratch.pairs.as_mut_ptr()) };
    for page in seen.start / PAGE_TOKENS..seen.end.div_ceil(PAGE_TOKENS) {
        #[cfg(any(test, feature = "test-hooks"))]
        if queries.lost_page == Some(page) {
            continue;
        }
        let base = page * PAGE_TOKENS;
        let used = (seen.end - base).min(PAGE_TOKENS);
        let stored = page_of(page);
        // SAFETY: by this function's promise; the scratch is for heads of this width.
        unsafe {
            let keys = scratch.keys.as_mut_ptr().cast::<u32>();
            for pair in 0..head_dim / 2 {
                for token in (0..PAGE_TOKENS).step_by(16) {
                    let key = |at: usize| load(stored, ty, at * PAGE_TOKENS + token);
                    let both = pairs(key(2 * pair), key(2 * pair + 1));
                    _mm512_storeu_si512(keys.add(pair * PAGE_TOKENS + token).cast(), both);
                }
            }
            let keys = Pairs { start: keys, stride: PAGE_TOKENS };
            let scores =
                Output { start: scratch.scores.as_mut_ptr(), stride: PAGE_TOKENS, factors: None };
            product(asked, count, keys, head_dim / 2, scores);
            let scales = (ty == KvType::Q8).then(|| scales_of(stored, head_dim));
            add_page(&queries, base, scales, scratch);
            let values = scratch.values.as_mut_ptr().cast::<u32>();
            let first = head_dim * PAGE_TOKENS;
            for pair in 0..used.div_ceil(2) {
                for at in (0..stride).step_by(16) {
                    let value = |token: usize| load(stored, ty, first + token * stride + at);
                    // What lies behind the last token may be anything.
                    let second = match 2 * pair + 1 < used {
                        true => value(2 * pair + 1),
                        false => _mm512_setzero_ps(),
                    };
                    let both = pairs(value(2 * pair), second);
                    _mm512_storeu_si512(values.add(pair * stride + at).cast(), both);
                }
            }
            let weights = Pairs { start: scratch.weights.as_ptr(), stride: PAGE_TOKENS / 2 };
            let values = Pairs { start: values, stride };
            let output = Output {
                start: scratch.output.as_mut_ptr(),
                stride,
                factors: Some(scratch.factors.as_ptr()),
            };
            product(weights, count, values, used.div_ceil(2), output);
        }
    }
    for (sum, lanes) in scratch.sums.iter_mut().zip(scratch.lane_sums.as_chunks::<16>().0) {
        let mut lanes = *lanes;
        for half in [8, 4, 2, 1] {
            for lane in 0..half {
                lanes[lane] += lanes[lane + half];
            }
        }
        *sum = lanes[0];
    }
    scratch.finish(count, stride);
}

/// Rounds `count` values to bf16, side by side, and what follows them up to a whole vector.
///
/// # Safety
/// Both have room for whole vectors of 16 values; the processor has the instructions.
#[inline(always)]
unsafe fn round_queries(values: *const f32, count: usize, to: *mut u32) {
    for at in (0..count).step_by(16) {
        // SAFETY: by this function's promise; 32 bytes of either type.
        unsafe {
            let halves = _mm512_cvtneps_pbh(_mm512_loadu_ps(values.add(at)));
            let halves: __m256i = std::mem::transmute(halves);
            _mm256_storeu_si256(to.add(at / 2).cast(), halves);
        }
    }
}

/// Turns a page's scores into weights, in pairs, under each query's largest score so far; leaves the factors that bring
/// what the pages before left to that score.
///
/// Three passes over all queries, without a branch that depends on a score: a mispredicted branch would stall a whole
/// query.
///
/// # Safety
/// As of [`attend`]; the scratch holds the page's scores.
#[inline(always)]
unsafe fn add_page(
    queries: &Queries<'_>,
    base: usize,
    scales: Option<*const f32>,
    scratch: &mut Scratch,
) {
    let row_of = |scores: *mut f32, query: usize| scores.wrapping_add(query * PAGE_TOKENS);
    let scores = scratch.scores.as_mut_ptr();
    // SAFETY: by this function's promise.
    unsafe {
        let hidden = _mm512_set1_ps(f32::MIN);
        for (query, &position) in queries.positions.iter().enumerate() {
            let row = row_of(scores, query);
            if let Some(keys) = scales {
                softmax::scale::<Avx512>(row, keys);
            }
            if let Some(cap) = queries.soft_cap {
                softmax::cap::<Avx512>(row, cap);
            }
            let seen = Seen::of(queries.visible(position, base));
            let mut top = hidden;
            for at in (0..PAGE_TOKENS).step_by(16) {
                let scores = _mm512_mask_loadu_ps(hidden, seen.lanes(at), row.add(at));
                top = _mm512_max_ps(top, scores);
            }
            scratch.newest[query] = scratch.largest[query].max(_mm512_reduce_max_ps(top));
        }
        for first in (0..queries.positions.len()).step_by(16) {
            let largest = scratch.largest.as_mut_ptr().add(first);
            let newest = _mm512_loadu_ps(scratch.newest.as_ptr().add(first));
            let factors = math::exp::<Avx512>(_mm512_sub_ps(_mm512_loadu_ps(largest), newest));
            _mm512_storeu_ps(scratch.factors.as_mut_ptr().add(first), factors);
            _mm512_storeu_ps(largest, newest);
        }
        for (query, &position) in queries.positions.iter().enumerate() {
            let row = row_of(scores, query);
            let seen = Seen::of(queries.visible(position, base));
            let shift = _mm512_set1_ps(scratch.largest[query]);
            let sums = scratch.lane_sums.as_mut_ptr().add(16 * query);
            let mut sum =
                _mm512_mul_ps(_mm512_loadu_ps(sums), _mm512_set1_ps(scratch.factors[query]));
            let weights = scratch.weights.as_mut_ptr().add(query * PAGE_TOKENS / 2);
            for first in (0..PAGE_TOKENS).step_by(32) {
                let mut both = [_mm512_setzero_ps(); 2];
                for (half, weight) in both.iter_mut().enumerate() {
                    let at = first + 16 * half;
                    let score = _mm512_sub_ps(_mm512_loadu_ps(row.add(at)), shift);
                    *weight = _mm512_maskz_mov_ps(seen.lanes(at), math::exp::<Avx512>(score));
                    sum = _mm512_add_ps(sum, *weight);
                    if let Some(keys) = scales {
                        // Scales of tokens that this row does not see may be anything.
                        let values = _mm512_loadu_ps(keys.add(PAGE_TOKENS + at));
                        *weight = _mm512_maskz_mul_ps(seen.lanes(at), *weight, values);
                    }
                }
                // SAFETY: 64 bytes of either type.
                let both: __m512i = std::mem::transmute(_mm512_cvtne2ps_pbh(both[1], both[0]));
                _mm512_storeu_si512(weights.add(first / 2).cast(), both);
            }
            _mm512_storeu_ps(sums, sum);
        }
    }
}

/// Tokens of a page that a query sees, a bit each.
#[derive(Clone, Copy)]
struct Seen(u64);

impl Seen {
    fn of(visible: Range<usize>) -> Seen {
        let below = |token: usize| u64::MAX.checked_shr((PAGE_TOKENS - token) as u32).unwrap_or(0);
        Seen(below(visible.end) & !below(visible.start))
    }

    /// Those of 16 tokens.
    fn lanes(self, first: usize) -> __mmask16 {
        (self.0 >> first) as __mmask16
    }
}
