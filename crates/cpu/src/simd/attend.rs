//! Attention over pages: a streaming softmax, page by page.

use super::lanes::Lanes;
use super::product::{Element, Matrix, Rows, float_block};
use super::softmax::Softmax;
use super::store::scales_of;
use pianola_plan::{KvType, PAGE_TOKENS};
use std::ops::Range;

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
    /// A page that a planted fault leaves out.
    #[cfg(any(test, feature = "test-hooks"))]
    pub lost_page: Option<usize>,
}

impl Queries<'_> {
    /// The first token that a query at `position` sees.
    fn first_visible(&self, position: u32) -> usize {
        self.window.map_or(0, |window| (position as usize + 1).saturating_sub(window))
    }

    /// Tokens that any query sees lie in here.
    pub fn seen(&self) -> Range<usize> {
        let firsts = self.positions.iter().map(|&position| self.first_visible(position));
        let ends = self.positions.iter().map(|&position| position as usize + 1);
        firsts.min().unwrap_or(0)..ends.max().unwrap_or(0)
    }

    /// What a query at `position` sees of the page whose tokens begin with `base`.
    pub fn visible(&self, position: u32, base: usize) -> Range<usize> {
        let within = |token: usize| token.saturating_sub(base).min(PAGE_TOKENS);
        within(self.first_visible(position))..within(position as usize + 1)
    }
}

/// A worker's room for [`attend`], for up to [`MAX_QUERIES`] queries.
pub(crate) struct Scratch {
    pub queries: Vec<f32>,
    pub positions: Vec<u32>,
    pub(super) scores: Vec<f32>,
    pub output: Vec<f32>,
    pub(super) keys: Vec<f32>,
    pub(super) values: Vec<f32>,
    pub(super) largest: Vec<f32>,
    pub(super) sums: Vec<f32>,
    /// For weights in bf16: the largest score of each query with the newest page, the factor of what the pages before
    /// left, and sums of weights by lanes.
    pub(super) newest: Vec<f32>,
    pub(super) factors: Vec<f32>,
    pub(super) lane_sums: Vec<f32>,
    /// Queries and weights as pairs of bf16.
    pub(super) pairs: Vec<u32>,
    pub(super) weights: Vec<u32>,
}

/// Up to this many queries, values are converted as they are read instead of a page at a time.
const DIRECT_QUERIES: usize = 8;

/// Queries that a worker attends with at once.
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
            newest: vec![0.0; MAX_QUERIES],
            factors: vec![0.0; MAX_QUERIES],
            lane_sums: vec![0.0; 16 * MAX_QUERIES],
            pairs: vec![0; MAX_QUERIES * stride / 2 + 8],
            weights: vec![0; MAX_QUERIES * PAGE_TOKENS / 2],
        }
    }

    /// Makes ready for `count` queries whose results are `stride` apart; `least` is below any score.
    pub(super) fn start(&mut self, count: usize, stride: usize, least: f32) {
        self.output[..count * stride].fill(0.0);
        self.largest[..count].fill(least);
        self.sums[..count].fill(0.0);
    }

    /// Divides the results by the sums of their weights.
    pub(super) fn finish(&mut self, count: usize, stride: usize) {
        for (output, &sum) in self.output.chunks_exact_mut(stride).zip(&self.sums[..count]) {
            let inverse = 1.0 / sum;
            output.iter_mut().for_each(|value| *value *= inverse);
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
    let Queries { positions, head_dim, .. } = queries;
    let count = positions.len();
    let stride = head_dim.next_multiple_of(16);
    let Range { start, end } = queries.seen();
    scratch.start(count, stride, f32::NEG_INFINITY);
    for page in start / PAGE_TOKENS..end.div_ceil(PAGE_TOKENS) {
        #[cfg(any(test, feature = "test-hooks"))]
        if queries.lost_page == Some(page) {
            continue;
        }
        let base = page * PAGE_TOKENS;
        let used = (end - base).min(PAGE_TOKENS);
        // SAFETY: see the function's promise; scratch is sized for `head_dim`.
        unsafe {
            let stored = Stored::of::<L>(page_of(page), ty, head_dim, used, count, scratch);
            let scores = Matrix { start: scratch.scores.as_mut_ptr(), stride: PAGE_TOKENS };
            let rows = Matrix::read(queries.values, head_dim);
            stored.scores::<L>(rows, count, head_dim, scores);
            let scales = (ty == KvType::Q8).then(|| scales_of(page_of(page), head_dim));
            for (query, &position) in positions.iter().enumerate() {
                let row = scores.from(query, 0).start;
                let softmax = Softmax {
                    largest: &mut scratch.largest[query],
                    sum: &mut scratch.sums[query],
                    output: &mut scratch.output[query * stride..(query + 1) * stride],
                };
                let visible = queries.visible(position, base);
                softmax.add_page::<L>(row, visible, queries.soft_cap, scales);
            }
            let output = Matrix { start: scratch.output.as_mut_ptr(), stride };
            stored.add_values::<L>(scores, count, head_dim, used, output);
        }
    }
    scratch.finish(count, stride);
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
    /// For few queries it is faster to convert values as they are read; for more the page is
    /// converted once.
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
        // SAFETY: by this function's promise; values follow the keys.
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

    /// Products of `count` queries with the page's keys.
    ///
    /// # Safety
    /// `queries` has `count` rows of `head_dim` values, `scores` `count` rows of a page's tokens.
    #[inline(always)]
    unsafe fn scores<L: Lanes>(
        &self,
        queries: Matrix,
        count: usize,
        head_dim: usize,
        scores: Matrix,
    ) {
        let stride = PAGE_TOKENS;
        // SAFETY: by this function's promise; the keys are `[head_dim][64]`.
        unsafe {
            match *self {
                Stored::Floats { keys: start, .. } => {
                    product::<L, _>(
                        queries,
                        count,
                        Rows { start, stride },
                        head_dim,
                        scores,
                        false,
                    );
                }
                Stored::Halves(start) => {
                    product::<L, _>(
                        queries,
                        count,
                        Rows { start, stride },
                        head_dim,
                        scores,
                        false,
                    );
                }
                Stored::Bytes(start) => {
                    product::<L, _>(
                        queries,
                        count,
                        Rows { start, stride },
                        head_dim,
                        scores,
                        false,
                    );
                }
            }
        }
    }

    /// Adds the `used` first values of the page, weighted, to the output of `count` queries.
    ///
    /// # Safety
    /// `weights` has `count` rows of a page's tokens, `output` `count` rows of `head_dim` values
    /// rounded up to 16.
    #[inline(always)]
    unsafe fn add_values<L: Lanes>(
        &self,
        weights: Matrix,
        count: usize,
        head_dim: usize,
        used: usize,
        output: Matrix,
    ) {
        let (keys, stride) = (head_dim * PAGE_TOKENS, head_dim.next_multiple_of(16));
        // SAFETY: by this function's promise; the values are `[64][stride]`, behind the keys.
        unsafe {
            match *self {
                Stored::Floats { values: start, .. } => {
                    product::<L, _>(weights, count, Rows { start, stride }, used, output, true);
                }
                Stored::Halves(start) => {
                    let values = Rows { start: start.add(keys), stride };
                    product::<L, _>(weights, count, values, used, output, true);
                }
                Stored::Bytes(start) => {
                    let values = Rows { start: start.add(keys), stride };
                    product::<L, _>(weights, count, values, used, output, true);
                }
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
        // SAFETY: the scratch has a page's keys of this width.
        unsafe { L::store(scratch.keys.as_mut_ptr().add(at), load(at)) };
    }
    for at in (0..used * head_dim.next_multiple_of(16)).step_by(16) {
        // SAFETY: the scratch has a page's values of this width.
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
            // SAFETY: by this function's promise, of a part of its rows and columns.
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
