//! Policy: how work is cut for the workers. Pure functions of shapes, apart from the kernels.

use crate::simd::Level;
use crate::simd::kernels::Attend;
use crate::simd::matrix_unit::STRIP;
use crate::simd::rotated::{CHUNK, UNSIGNED, chunk_columns};
use crate::topology::Processor;
use pianola_formats::TensorType;
use pianola_plan::{Numeric, PlanOptions};

/// Bytes of activations that stay in a core's own cache beside the weights streaming through.
const CACHED_ACTIVATIONS: usize = 512 << 10;

/// Most rows of a product in f32 that read a weight as it lies in memory, in registers. More rows share
/// a tile that was turned into f32 once; codes of a quantised type pay for that from two rows on.
pub(crate) fn direct_rows(ty: TensorType) -> usize {
    if ty.is_quantized() { 1 } else { 8 }
}

/// Most rows of a product whose time is that of reading its weights.
pub(crate) const STREAMING_ROWS: usize = 8;

/// Who asks memory for weights that a step reads once, and how many bytes ahead of their use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum StreamFetch {
    /// The hardware's prefetcher by itself.
    Hardware,
    /// Software, into the second-level cache.
    Cached(usize),
    /// Software, into the first-level cache only: what was used is dropped there, and takes no room and no
    /// transfers in the caches behind it.
    Once(usize),
}

impl StreamFetch {
    /// For `rows` rows. Row counts that are no power of two take several passes over a tile; a line fetched for one use
    /// would be gone by the second pass.
    pub fn for_rows(self, rows: usize) -> StreamFetch {
        match self {
            _ if rows > STREAMING_ROWS => StreamFetch::Hardware,
            StreamFetch::Once(ahead) if !rows.is_power_of_two() => StreamFetch::Cached(ahead),
            fetch => fetch,
        }
    }
}

/// How weights of few rows are asked for. Zen 4's prefetcher keeps up with a stream, and requests of software take its
/// buffers. Intel's (measured on Emerald Rapids) fetches half of what a plain read does and up to three quarters with
/// requests 8 KiB ahead, Zen 5's (family 26) three fifths and nine tenths (`bench/lab/CPU-NOTES.md`).
pub(crate) fn stream_fetch(processor: Processor) -> StreamFetch {
    match &processor.vendor {
        b"GenuineIntel" => StreamFetch::Cached(8 << 10),
        b"AuthenticAMD" if processor.family >= 26 => StreamFetch::Once(8 << 10),
        _ => StreamFetch::Hardware,
    }
}

/// Rows per job of a stage that is computed row by row. With many rows a job takes several neighbours, because two
/// workers writing neighbouring rows would contend for a cache line.
pub(crate) fn rows_of_job(rows: usize, workers: usize) -> usize {
    (rows / (4 * workers)).clamp(1, 16)
}

/// How a product is cut: a job is `tiles` tiles of weights against `rows` rows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ProductCut {
    pub tiles: usize,
    pub rows: usize,
}

/// Cuts a product of `tiles` tiles, `rows` rows of `row_bytes` bytes of activations each.
pub(crate) fn cut_product(
    tiles: usize,
    rows: usize,
    row_bytes: usize,
    workers: usize,
) -> ProductCut {
    let cached = (CACHED_ACTIVATIONS / row_bytes.max(1)).max(8) / 8 * 8;
    let rows = if rows <= cached { rows } else { cached };
    // Enough jobs to even out a slow core: about six a worker where weights stream, more where a tile
    // takes its time.
    let jobs = if rows <= STREAMING_ROWS { 6 } else { 24 };
    let tiles = (tiles / (jobs * workers)).clamp(1, 64);
    ProductCut { tiles, rows: rows.max(1) }
}

/// Least rows of a product in int8 for a matrix unit, which takes 16 at a time: fewer are no slower without.
pub(crate) const UNIT_ROWS: usize = 32;
/// Most tiles and rows of a job on a matrix unit: their sums, a panel of each tile and its columns of the
/// rows stay in a core's own cache.
pub(crate) const UNIT_CUT: ProductCut = ProductCut { tiles: 8, rows: 256 };

/// Cuts a product for a matrix unit.
pub(crate) fn cut_unit_product(tiles: usize, rows: usize, workers: usize) -> ProductCut {
    cut_evenly(UNIT_CUT, tiles, rows, workers)
}

/// Tiles of which a worker makes panels before it multiplies them with all rows, and chunks of each.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct PanelGroup {
    pub tiles: usize,
    pub chunks: usize,
}

/// By vectors: the panels of two tiles stay in the first-level cache with the columns of some rows. Groups of a tile's
/// `columns` columns are alike, as far as that goes.
pub(crate) fn vector_panels(columns: usize, chunk: usize) -> PanelGroup {
    /// Most columns of a panel.
    const MOST: usize = 5 * CHUNK;
    let chunks = columns / chunk;
    PanelGroup { tiles: 2, chunks: chunks.div_ceil(columns.div_ceil(MOST)) }
}

/// On a matrix unit: two strips' columns stay in the first-level cache for all tiles, beside their panels.
pub(crate) const UNIT_PANELS: PanelGroup = PanelGroup { tiles: 8, chunks: 2 };
/// Most chunks of a group's panels.
pub(crate) const MOST_PANEL_CHUNKS: usize = UNIT_PANELS.tiles * UNIT_PANELS.chunks;

/// Most tiles and rows of a job in rotated form. All rows of a step: a tile is rotated once for them.
pub(crate) const ROTATED_CUT: ProductCut = ProductCut { tiles: 8, rows: 512 };
/// Sums of rows that a worker has room for.
pub(crate) const MOST_ROTATED_ROWS: usize = ROTATED_CUT.tiles * sums_stride(ROTATED_CUT.rows);

/// Rows from one tile's sums to the next's, where a job has `rows`: those of two tiles of the same rows must
/// not begin whole pages of 64 lines apart, which would put them in the same places of a cache.
pub(crate) const fn sums_stride(rows: usize) -> usize {
    rows.next_multiple_of(64) + 32
}

/// Whether each of a few workers computes rows of its own, from stage to stage: what they hand on then stays in its own
/// cache, where products cut by tiles would read half of it from another's. Only where weights are kept in rotated
/// form: each worker would make all panels. `largest` is the number of weights of the largest product of a layer.
pub(crate) fn rows_by_worker(rows: usize, workers: usize, largest: usize) -> bool {
    /// Least rows of a worker, and most workers: each reads all weights.
    const ROWS: usize = 64;
    const WORKERS: usize = 4;
    /// Most weights, a byte each, that come from the cache that all share.
    const SHARED: usize = 4 << 20;
    workers <= WORKERS && rows >= ROWS * workers && largest <= SHARED
}

/// Cuts a product in rotated form.
pub(crate) fn cut_rotated_product(tiles: usize, rows: usize, workers: usize) -> ProductCut {
    cut_evenly(ROTATED_CUT, tiles, rows, workers)
}

/// Cuts a product in rotated form so that each worker has rows of its own.
pub(crate) fn cut_rows_by_worker(tiles: usize, rows: usize, workers: usize) -> ProductCut {
    let rows = rows.div_ceil(workers).next_multiple_of(STRIP).min(ROTATED_CUT.rows);
    ProductCut { rows, ..cut_evenly(ROTATED_CUT, tiles, rows, 1) }
}

/// Cuts a product into jobs of at most `most` so that workers finish together; what a job reads but for
/// its tiles costs about as much as half a tile.
fn cut_evenly(most: ProductCut, tiles: usize, rows: usize, workers: usize) -> ProductCut {
    let row_jobs = rows.div_ceil(most.rows).max(1);
    let rows = rows.div_ceil(row_jobs).next_multiple_of(STRIP);
    let cost = |each: &usize| {
        let jobs = tiles.div_ceil(*each) * row_jobs;
        jobs.div_ceil(workers) * (2 * each + 1)
    };
    let tiles = (1..=most.tiles).min_by_key(cost).unwrap_or(1);
    ProductCut { tiles, rows }
}

/// Least rows of a product in rotated form whose weights are rotated as they are read: fewer do not make up for it.
pub(crate) const ROTATED_ROWS: usize = 192;
/// Least rows of a product whose weights are kept in rotated form. They are a byte each, more to read than the file's,
/// and a step of fewer rows is done before they have come: with two cores at 30 GB/s those of up to 10 rows, with eight
/// at 60 up to 19. One number for all, so that a row's bits do not depend on the number of threads.
pub(crate) const KEPT_PANEL_ROWS: usize = 16;

/// Least rows of a product in rotated form, where its weights are kept in it or not.
pub(crate) fn rotated_rows(level: Level, kept: bool) -> usize {
    match (kept, level.unit_kernels()) {
        (false, _) => ROTATED_ROWS,
        (true, None) => KEPT_PANEL_ROWS,
        (true, Some(_)) => UNIT_ROWS,
    }
}

/// What is added to codes of rotated weights: dot products of vectors take unsigned ones.
pub(crate) fn rotated_zero(level: Level) -> u8 {
    if level.unit_kernels().is_some() { 0 } else { UNSIGNED }
}

/// What the choice to keep weights in rotated form rests on, bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KeptBudget {
    pub form: u64,
    /// Everything else that stays in memory.
    pub others: u64,
    /// What the system has available before any of it is there, where it says so.
    pub available: Option<u64>,
}

/// Sequences of a plan from which on its steps are expected to have [`KEPT_PANEL_ROWS`] rows.
const MANY_SEQUENCES: usize = 8;
/// Most bytes of a form that every plan keeps: with two cores it is made in about a tenth of a second.
const SMALL_FORM: u64 = 2 << 30;

/// Whether a plan keeps weights in rotated form by itself: one for many sequences where the form takes no more than
/// a quarter of the memory, any where it takes little. Either way half of the memory is left for pages, and for
/// others.
pub(crate) fn keeps_panels(options: &PlanOptions, budget: KeptBudget) -> bool {
    let KeptBudget { form, others, available } = budget;
    let Some(available) = available else { return false };
    let many = options.sequences >= MANY_SEQUENCES && form <= available / 4;
    let little = form <= SMALL_FORM && form <= available / 12;
    form > 0 && (many || little) && others + form <= available / 2
}

/// Most rows of the head whose input is refined: so many cost nothing, because the head's weights take longer to
/// come than twice their products.
const REFINED_ROWS: usize = 4;

/// Most rows of a head in int8 whose input is refined. A reproducible plan computes all rows alike.
pub(crate) fn refined_rows(options: &PlanOptions) -> usize {
    if options.reproducible { usize::MAX } else { REFINED_ROWS }
}

/// Columns that share a scale where products of `columns` columns are computed in rotated form
/// from [`rotated_rows`] rows on. A reproducible plan computes all rows alike.
pub(crate) fn rotation(options: &PlanOptions, level: Level, columns: usize) -> Option<usize> {
    let allowed = options.numeric == Numeric::Fast && !options.reproducible && level.rotates();
    chunk_columns(columns).filter(|_| allowed)
}

/// Least rows of a step whose attention is computed in bf16: those of [`ROTATED_ROWS`], so that layers change at one
/// number of rows where weights are not kept in rotated form.
pub(crate) const BLOCK_ATTENTION_ROWS: usize = ROTATED_ROWS;

/// The kernel for attention of [`BLOCK_ATTENTION_ROWS`] rows and more with heads of `head_dim`, where it is another
/// than that of fewer. A reproducible plan computes all rows alike.
pub(crate) fn block_attention(
    options: &PlanOptions,
    level: Level,
    head_dim: usize,
) -> Option<Attend> {
    let allowed = options.numeric == Numeric::Fast && !options.reproducible;
    level.block_attention().filter(|_| allowed && head_dim.is_multiple_of(2))
}

/// How attention is cut: a job is `rows` rows of `heads` of the query heads of one KV head.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct AttendCut {
    pub rows: usize,
    pub heads: usize,
}

/// Cuts attention; `most` is how many queries a job may have.
pub(crate) fn cut_attend(
    heads: usize,
    kv_heads: usize,
    rows: usize,
    workers: usize,
    most: usize,
) -> AttendCut {
    let group = heads / kv_heads;
    // One row and few KV heads would leave workers idle: let them share a KV head's queries.
    let heads =
        if rows * kv_heads >= workers { group } else { group.div_ceil(workers.div_ceil(kv_heads)) };
    let heads = heads.clamp(1, most);
    AttendCut { rows: (most / heads).max(1), heads }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::rotated::{MOST_COLUMNS, SMALL_BLOCK, THREE_BLOCKS, chunk_bytes};

    #[test]
    fn products_stay_in_cache_and_balance() {
        assert_eq!(cut_product(96, 1, 600, 2), ProductCut { tiles: 8, rows: 1 });
        let cut = cut_product(96, 512, 9000, 2);
        assert!(
            cut.rows * 9000 <= CACHED_ACTIVATIONS && cut.rows.is_multiple_of(8) && cut.rows > 8
        );
        assert_eq!(cut_product(1, 512, 600, 2).tiles, 1);
    }

    #[test]
    fn few_rows_are_jobs_by_themselves() {
        assert_eq!((rows_of_job(0, 2), rows_of_job(1, 2), rows_of_job(8, 2)), (1, 1, 1));
        assert_eq!((rows_of_job(32, 2), rows_of_job(256, 2), rows_of_job(256, 16)), (4, 16, 4));
    }

    #[test]
    fn jobs_of_a_matrix_unit_end_together() {
        assert_eq!(cut_unit_product(240, 512, 16), ProductCut { tiles: 6, rows: 256 });
        assert_eq!(cut_unit_product(960, 512, 16).tiles, 8);
        assert_eq!(cut_unit_product(3, 20, 16), ProductCut { tiles: 1, rows: 32 });
    }

    #[test]
    fn jobs_in_rotated_form_end_together_and_fit_the_scratch() {
        for (tiles, rows) in [(240, 512), (960, 500), (37, 1100), (1, 192)] {
            let cut = cut_rotated_product(tiles, rows, 16);
            assert!(cut.tiles <= ROTATED_CUT.tiles);
            assert!(cut.tiles * sums_stride(cut.rows) <= MOST_ROTATED_ROWS);
        }
        // Three jobs a worker.
        assert_eq!(cut_rotated_product(240, 512, 16), ProductCut { tiles: 5, rows: 512 });
    }

    #[test]
    fn a_few_workers_keep_their_rows_where_all_can_read_the_weights() {
        // Gate and up of SmolLM2 135M, and of a model of 1.5 B parameters.
        let (small, large) = (2 * 1536 * 576, 2 * 8960 * 1536);
        assert!(rows_by_worker(256, 2, small) && !rows_by_worker(256, 2, large));
        assert!(!rows_by_worker(127, 2, small) && !rows_by_worker(512, 8, small));
        assert_eq!(cut_rows_by_worker(96, 256, 2).rows, 128);
        assert_eq!(cut_rows_by_worker(96, 250, 2).rows, 128);
        assert_eq!(cut_rows_by_worker(96, 4096, 2).rows, ROTATED_CUT.rows);
        assert_eq!(cut_rows_by_worker(96, 64, 1).rows, 64);
        for rows in [64, 250, 500, 2048] {
            let cut = cut_rows_by_worker(37, rows, 2);
            assert!(cut.tiles * sums_stride(cut.rows) <= MOST_ROTATED_ROWS);
        }
    }

    #[test]
    fn panels_of_vectors_are_alike_and_fit_the_scratch() {
        let chunks = |columns, chunk| vector_panels(columns, chunk).chunks;
        assert_eq!((chunks(576, 192), chunks(640, 128), chunks(1152, 128)), (3, 5, 5));
        assert_eq!((chunks(1536, 128), chunks(8960, 128), chunks(64, 64)), (4, 5, 1));
        for chunk in [SMALL_BLOCK, CHUNK, THREE_BLOCKS] {
            for columns in (chunk..20_000).step_by(chunk) {
                let group = vector_panels(columns, chunk);
                let bytes = group.tiles * group.chunks * chunk_bytes(chunk);
                assert!(bytes <= MOST_PANEL_CHUNKS * chunk_bytes(MOST_COLUMNS));
                assert!((1..=columns / chunk).contains(&group.chunks));
            }
        }
    }

    const OPTIONS: PlanOptions = PlanOptions {
        numeric: Numeric::Fast,
        max_rows: 512,
        max_logit_rows: 64,
        context: 512,
        sequences: 64,
        fusion: true,
        reproducible: false,
        kv_bytes: None,
        kv_type: None,
    };

    #[test]
    fn heads_of_few_rows_are_refined_and_all_of_a_reproducible_plan() {
        assert!((1..8).contains(&refined_rows(&OPTIONS)));
        assert_eq!(refined_rows(&PlanOptions { reproducible: true, ..OPTIONS }), usize::MAX);
    }

    #[test]
    fn panels_are_kept_for_many_sequences_or_if_they_are_small() {
        const GB: u64 = 1 << 30;
        let keeps = |sequences, form, others, available| {
            let options = PlanOptions { sequences, ..OPTIONS };
            keeps_panels(&options, KeptBudget { form, others, available })
        };
        // One chat: a twelfth of the memory, and never more than 2 GiB.
        assert!(keeps(1, GB, GB, Some(12 * GB)));
        assert!(!keeps(1, GB, GB, Some(12 * GB - 12)));
        assert!(keeps(1, SMALL_FORM, GB, Some(1024 * GB)));
        assert!(!keeps(1, SMALL_FORM + 1, GB, Some(1024 * GB)));
        // A model of 1.5 B weights on a laptop with 16 GB: a server keeps them, a chat does not.
        assert!(keeps(8, 3 * GB / 2, GB, Some(16 * GB)));
        assert!(keeps(32, 3 * GB / 2, GB, Some(16 * GB)));
        assert!(!keeps(1, 3 * GB / 2, GB, Some(16 * GB)));
        assert!(!keeps(7, 3 * GB / 2, GB, Some(16 * GB)));
        // More than a quarter, or more than half with the rest.
        assert!(!keeps(8, 3 * GB / 2, GB / 4, Some(5 * GB)));
        assert!(!keeps(8, 3 * GB / 2, 7 * GB, Some(16 * GB)));
        // A small one, unless memory is short, too.
        assert!(keeps(1, GB / 8, GB / 8, Some(16 * GB)));
        assert!(!keeps(1, GB / 8, GB / 8, Some(GB)));
        // Where the system does not say, and where there is nothing to keep.
        assert!(!keeps(8, GB / 8, GB / 8, None));
        assert!(!keeps(8, 0, GB, Some(16 * GB)));
    }

    #[test]
    fn weights_are_asked_for_ahead_where_the_hardware_does_not() {
        let of = |vendor: &[u8; 12], family| stream_fetch(Processor { vendor: *vendor, family });
        assert_eq!(of(b"GenuineIntel", 6), StreamFetch::Cached(8 << 10));
        // Zen 4 and Zen 5.
        assert_eq!(of(b"AuthenticAMD", 25), StreamFetch::Hardware);
        assert_eq!(of(b"AuthenticAMD", 26), StreamFetch::Once(8 << 10));
        assert_eq!(stream_fetch(Processor::default()), StreamFetch::Hardware);
    }

    #[test]
    fn what_is_read_again_stays_in_a_cache() {
        let once = StreamFetch::Once(8 << 10);
        for rows in [1, 2, 4, 8] {
            assert_eq!(once.for_rows(rows), once);
        }
        for rows in [3, 5, 6, 7] {
            assert_eq!(once.for_rows(rows), StreamFetch::Cached(8 << 10));
        }
        assert_eq!(once.for_rows(9), StreamFetch::Hardware);
        assert_eq!(StreamFetch::Cached(64).for_rows(3), StreamFetch::Cached(64));
    }

    #[test]
    fn kept_panels_serve_fewer_rows_than_panels_that_are_made() {
        for level in Level::ALL {
            assert_eq!(rotated_rows(level, false), ROTATED_ROWS);
            // Fewer stream the file's own weights.
            assert!((STREAMING_ROWS + 1..=UNIT_ROWS).contains(&rotated_rows(level, true)));
        }
    }

    #[test]
    fn few_kv_heads_are_shared_and_many_are_not() {
        assert_eq!(cut_attend(4, 1, 1, 2, 32).heads, 2);
        assert_eq!(cut_attend(9, 3, 1, 2, 32), AttendCut { rows: 10, heads: 3 });
        assert_eq!(cut_attend(4, 1, 256, 2, 32), AttendCut { rows: 8, heads: 4 });
        assert_eq!(cut_attend(64, 1, 8, 2, 32).heads, 32);
    }
}
