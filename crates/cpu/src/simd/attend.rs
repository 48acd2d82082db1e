//! Attention over pages: K/V write and a streaming softmax, page by page.

use super::lanes::Lanes;
use super::math;
use super::product::{Element, Matrix, Rows, float_block};
use super::rows;
use pianola_plan::{KvType, PAGE_TOKENS, RopePairing};

/// Norm weight and epsilon of one head.
pub(crate) type Norm = Option<(*const f32, f32)>;

/// What turns a projected head into one that attends: norm, then rotation.
#[derive(Clone, Copy)]
pub(crate) struct HeadPrologue {
    pub norm: Norm,
    /// Angles of the row, and how they pair.
    pub rope: Option<(*const f32, RopePairing)>,
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
    unsafe {
        std::ptr::copy_nonoverlapping(head, out, head_dim);
        if let Some((weight, epsilon)) = prologue.norm {
            rows::rms_norm::<L>(out, weight, epsilon, head_dim, out);
        }
        if let Some((angles, pairing)) = prologue.rope {
            rows::rotate(out, angles, head_dim, pairing);
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
                // What f16 cannot hold is cut at its largest value: an infinity would turn into
                // NaN for rows that do not even see it.
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
unsafe fn scales_of(page: *const u8, head_dim: usize) -> *const f32 {
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
    unsafe {
        // What lies behind the head must not count.
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
        // Below this the inverse would overflow; such values are as good as zero.
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

/// Queries that attend to one KV head of one sequence together.
#[derive(Clone, Copy)]
pub(crate) struct Queries<'a> {
    /// `[count][head_dim]`, prepared and scaled.
    pub values: *const f32,
    /// Position of each query.
    pub positions: &'a [u32],
    pub head_dim: usize,
    pub window: Option<usize>,
    pub soft_cap: Option<f32>,
}

/// A worker's room for [`attend`], for up to [`MAX_QUERIES`] queries.
pub(crate) struct Scratch {
    pub queries: Vec<f32>,
    pub positions: Vec<u32>,
    scores: Vec<f32>,
    pub output: Vec<f32>,
    keys: Vec<f32>,
    values: Vec<f32>,
    largest: Vec<f32>,
    sums: Vec<f32>,
}

/// Queries for which a page is not worth converting as a whole.
const DIRECT_QUERIES: usize = 4;

/// Queries a worker takes on at once.
pub(crate) const MAX_QUERIES: usize = 32;

impl Scratch {
    pub fn new(head_dim: usize) -> Scratch {
        let stride = head_dim.next_multiple_of(16);
        Scratch {
            queries: vec![0.0; MAX_QUERIES * stride + 16],
            positions: Vec::with_capacity(MAX_QUERIES),
            scores: vec![0.0; MAX_QUERIES * PAGE_TOKENS],
            output: vec![0.0; MAX_QUERIES * stride],
            keys: vec![0.0; head_dim * PAGE_TOKENS],
            values: vec![0.0; stride * PAGE_TOKENS],
            largest: vec![0.0; MAX_QUERIES],
            sums: vec![0.0; MAX_QUERIES],
        }
    }
}

/// Attends with all queries of `scratch.queries`; the result is `scratch.output`,
/// `[count][head_dim rounded up to 16]`.
///
/// # Safety
/// `page_of(index)` gives the head's part of the page that holds tokens
/// `index * PAGE_TOKENS ..`, for every page any query sees.
#[inline(always)]
pub(crate) unsafe fn attend<L: Lanes>(
    queries: Queries<'_>,
    ty: KvType,
    page_of: &dyn Fn(usize) -> *const u8,
    scratch: &mut Scratch,
) {
    let Queries { positions, head_dim, window, .. } = queries;
    let count = positions.len();
    let stride = head_dim.next_multiple_of(16);
    let first_visible =
        |position: u32| window.map_or(0, |window| (position as usize + 1).saturating_sub(window));
    let start = positions.iter().map(|&position| first_visible(position)).min().unwrap_or(0);
    let end = positions.iter().map(|&position| position as usize + 1).max().unwrap_or(0);
    scratch.output[..count * stride].fill(0.0);
    scratch.largest[..count].fill(f32::NEG_INFINITY);
    scratch.sums[..count].fill(0.0);
    for page in start / PAGE_TOKENS..end.div_ceil(PAGE_TOKENS) {
        let base = page * PAGE_TOKENS;
        let used = (end - base).min(PAGE_TOKENS);
        // SAFETY: see the function's promise; scratch is sized for `head_dim`.
        unsafe {
            let stored = Stored::of::<L>(page_of(page), ty, head_dim, used, count, scratch);
            let scores = Matrix { start: scratch.scores.as_mut_ptr(), stride: PAGE_TOKENS };
            let rows = Matrix::read(queries.values, head_dim);
            match stored {
                Stored::Floats { keys, .. } => {
                    let keys = Rows { start: keys, stride: PAGE_TOKENS };
                    product::<L, _>(rows, count, keys, head_dim, scores, false);
                }
                Stored::Halves(start) => {
                    let keys = Rows { start, stride: PAGE_TOKENS };
                    product::<L, _>(rows, count, keys, head_dim, scores, false);
                }
                Stored::Bytes(start) => {
                    let keys = Rows { start, stride: PAGE_TOKENS };
                    product::<L, _>(rows, count, keys, head_dim, scores, false);
                }
            }
            let scales = (ty == KvType::Q8).then(|| scales_of(page_of(page), head_dim));
            for (query, &position) in positions.iter().enumerate() {
                let row = scores.from(query, 0).start;
                let visible = first_visible(position).saturating_sub(base).min(PAGE_TOKENS)
                    ..(position as usize + 1).saturating_sub(base).min(PAGE_TOKENS);
                if visible.is_empty() {
                    std::slice::from_raw_parts_mut(row, PAGE_TOKENS).fill(0.0);
                    continue;
                }
                let largest = &mut scratch.largest[query];
                let old = *largest;
                if let Some(keys) = scales {
                    scale::<L>(row, keys);
                }
                let sum = softmax::<L>(row, visible.clone(), queries.soft_cap, largest);
                if let Some(keys) = scales {
                    scale::<L>(row, keys.add(PAGE_TOKENS));
                    // Scales of tokens that this row does not see may be anything.
                    hide(row, visible, 0.0);
                }
                let correction = (old - *largest).exp();
                scratch.sums[query] = scratch.sums[query] * correction + sum;
                if correction != 1.0 {
                    for value in &mut scratch.output[query * stride..(query + 1) * stride] {
                        *value *= correction;
                    }
                }
            }
            let output = Matrix { start: scratch.output.as_mut_ptr(), stride };
            let keys = head_dim * PAGE_TOKENS;
            match stored {
                Stored::Floats { values, .. } => {
                    product::<L, _>(
                        scores,
                        count,
                        Rows { start: values, stride },
                        used,
                        output,
                        true,
                    );
                }
                Stored::Halves(start) => {
                    let values = Rows { start: start.add(keys), stride };
                    product::<L, _>(scores, count, values, used, output, true);
                }
                Stored::Bytes(start) => {
                    let values = Rows { start: start.add(keys), stride };
                    product::<L, _>(scores, count, values, used, output, true);
                }
            }
        }
    }
    for (query, &sum) in scratch.sums[..count].iter().enumerate() {
        let inverse = 1.0 / sum;
        for value in &mut scratch.output[query * stride..(query + 1) * stride] {
            *value *= inverse;
        }
    }
}

/// Multiplies a page's scores or weights by their tokens' scales.
///
/// # Safety
/// Both have a page's tokens.
#[inline(always)]
unsafe fn scale<L: Lanes>(row: *mut f32, scales: *const f32) {
    for at in (0..PAGE_TOKENS).step_by(16) {
        unsafe { L::store(row.add(at), L::mul(L::load(row.add(at)), L::load(scales.add(at)))) };
    }
}

/// Overwrites what is not visible.
///
/// # Safety
/// `row` has a page's tokens.
#[inline(always)]
unsafe fn hide(row: *mut f32, visible: std::ops::Range<usize>, x: f32) {
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
unsafe fn softmax<L: Lanes>(
    row: *mut f32,
    visible: std::ops::Range<usize>,
    soft_cap: Option<f32>,
    largest: &mut f32,
) -> f32 {
    unsafe {
        let mut top = L::splat(f32::NEG_INFINITY);
        if let Some(cap) = soft_cap {
            for at in (0..PAGE_TOKENS).step_by(16) {
                L::store(row.add(at), math::soft_cap::<L>(L::load(row.add(at)), cap));
            }
        }
        // Finite, and far below any score, so that no difference is NaN.
        hide(row, visible.clone(), f32::MIN);
        for at in (0..PAGE_TOKENS).step_by(16) {
            top = L::max(top, L::load(row.add(at)));
        }
        *largest = largest.max(L::largest(top));
        let shift = L::splat(*largest);
        for at in (0..PAGE_TOKENS).step_by(16) {
            L::store(row.add(at), math::exp::<L>(L::sub(L::load(row.add(at)), shift)));
        }
        hide(row, visible, 0.0);
        let mut sum = L::splat(0.0);
        for at in (0..PAGE_TOKENS).step_by(16) {
            sum = L::add(sum, L::load(row.add(at)));
        }
        L::sum(sum)
    }
}

/// A head's keys `[head_dim][64]` and values `[64][stride]` of a page, in units of their scales.
enum Stored {
    /// As they lie in the page, or converted in the scratch.
    Floats { keys: *const f32, values: *const f32 },
    /// In the page, the values behind the keys.
    Halves(*const u16),
    /// Likewise.
    Bytes(*const u8),
}

impl Stored {
    /// Few queries are done sooner with values that are converted as they are met; for more the
    /// page is converted once.
    ///
    /// # Safety
    /// `page` is the head's part of a page of type `ty`; the scratch is for heads of this width.
    #[inline(always)]
    unsafe fn of<L: Lanes>(
        page: *const u8,
        ty: KvType,
        head_dim: usize,
        used: usize,
        queries: usize,
        scratch: &mut Scratch,
    ) -> Stored {
        let few = queries <= DIRECT_QUERIES;
        let (floats, halves) = (page.cast::<f32>(), page.cast::<u16>());
        unsafe {
            match ty {
                KvType::F32 => {
                    Stored::Floats { keys: floats, values: floats.add(head_dim * PAGE_TOKENS) }
                }
                KvType::F16 if few => Stored::Halves(halves),
                KvType::Q8 if few => Stored::Bytes(page),
                KvType::F16 => {
                    convert::<L>(head_dim, used, scratch, |at| L::load_f16(halves.add(at)))
                }
                KvType::Q8 => convert::<L>(head_dim, used, scratch, |at| L::load_i8(page.add(at))),
            }
        }
    }
}

/// Fills the scratch from a page whose values 16 from an index on `load` gives.
///
/// # Safety
/// The scratch is for heads of this width.
#[inline(always)]
unsafe fn convert<L: Lanes>(
    head_dim: usize,
    used: usize,
    scratch: &mut Scratch,
    load: impl Fn(usize) -> L::F,
) -> Stored {
    let keys = head_dim * PAGE_TOKENS;
    for at in (0..keys).step_by(16) {
        unsafe { L::store(scratch.keys.as_mut_ptr().add(at), load(at)) };
    }
    for at in (0..used * head_dim.next_multiple_of(16)).step_by(16) {
        unsafe { L::store(scratch.values.as_mut_ptr().add(at), load(keys + at)) };
    }
    Stored::Floats { keys: scratch.keys.as_ptr(), values: scratch.values.as_ptr() }
}

/// `out[rows][columns] (+)= a[rows][inner] . b[inner][columns]`, `columns` being those of `b` and a
/// multiple of 16.
///
/// # Safety
/// As of [`float_block`].
#[inline(always)]
unsafe fn product<L: Lanes, T: Element>(
    a: Matrix,
    rows: usize,
    b: Rows<T>,
    inner: usize,
    out: Matrix,
    add: bool,
) {
    let columns = b.stride;
    let mut column = 0;
    while column < columns {
        let wide = columns - column >= 64;
        let b = b.behind(column);
        let mut row = 0;
        while row < rows {
            let (a, out) = (a.from(row, 0), out.from(row, column));
            unsafe {
                row += match (wide, rows - row) {
                    (true, 4..) => {
                        float_block::<L, T, 4, 4>(a, b, inner, out, add);
                        4
                    }
                    (true, 3) => {
                        float_block::<L, T, 3, 4>(a, b, inner, out, add);
                        3
                    }
                    (true, 2) => {
                        float_block::<L, T, 2, 4>(a, b, inner, out, add);
                        2
                    }
                    (true, _) => {
                        float_block::<L, T, 1, 4>(a, b, inner, out, add);
                        1
                    }
                    (false, _) => {
                        float_block::<L, T, 1, 1>(a, b, inner, out, add);
                        1
                    }
                };
            }
        }
        column += if wide { 64 } else { 16 };
    }
}
