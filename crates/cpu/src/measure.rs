//! Ceilings of this processor, measured on the spot.

use crate::device::CpuOptions;
use crate::memory::Memory;
use crate::pool::Pool;
use crate::simd::Level;
use crate::simd::kernels::PROBE_DOTS;
use pianola_plan::{Ceilings, Numeric};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

/// What `devices` prints of the processor.
pub struct CpuDescription {
    /// Model name as the system reports it.
    pub name: String,
    /// Cores this process may use; hardware threads of one core count once.
    pub cores: usize,
    /// Levels this processor has, best first.
    pub levels: Vec<Level>,
    /// Memory in bytes that this process may use, in all and available, where the system reports
    /// it: the machine's, or less where a control group has a limit.
    pub memory: Option<(u64, u64)>,
}

/// Describes this machine's processor.
pub fn describe() -> CpuDescription {
    let field = |file: &str, key: &str| {
        let text = std::fs::read_to_string(file).ok()?;
        let line = text.lines().find(|line| line.starts_with(key))?;
        Some(line.split_once(':')?.1.trim().to_string())
    };
    CpuDescription {
        name: field("/proc/cpuinfo", "model name")
            .unwrap_or_else(|| std::env::consts::ARCH.to_string()),
        cores: CpuOptions::default().threads,
        levels: Level::ALL.into_iter().filter(|level| level.available()).collect(),
        memory: crate::available::memory(),
    }
}

/// Measures what `options` can read and compute at best: a plain read of a block larger than the
/// caches, and chains of the multiply-adds that `numeric` rests on. Takes about a tenth of a second, a second where the caches are large.
pub fn measure(options: CpuOptions, numeric: Numeric) -> Option<Ceilings> {
    if !options.level.available() {
        return None;
    }
    let pool = Pool::new(options.threads.max(1)).ok()?;
    let bytes = block_bytes();
    let mut block = Memory::zeroed(bytes)?;
    // Touched, or every page would be the one page of zeros.
    block.bytes_mut().iter_mut().step_by(64).for_each(|byte| *byte = 1);
    Some(measure_with(&pool, options.level, &block.bytes()[..bytes], numeric))
}

/// Most bytes that are read: what takes a second, in a few rounds.
const MOST_BLOCK: usize = 1 << 30;

/// Bytes that are read where there are no weights: many times the last-level cache, which would serve its share of them.
fn block_bytes() -> usize {
    const LEAST: usize = 128 << 20;
    let times = |bytes: usize| bytes.saturating_mul(8).clamp(LEAST, MOST_BLOCK);
    crate::topology::last_cache().map_or(LEAST, times)
}

/// Weights of this size serve as well.
pub(crate) const LEAST_BLOCK: usize = 64 << 20;

/// [`measure`] with a block of at least a mebibyte that is in memory, and workers that are there. All of it is read round after round, as
/// generation reads weights (of a small model a part stays in the last-level cache); of a block that is too large for
/// that, another gibibyte each round. The processor has the instructions of the level.
pub(crate) fn measure_with(pool: &Pool, level: Level, block: &[u8], numeric: Numeric) -> Ceilings {
    const SLICE: usize = 1 << 20;
    let kernels = level.kernels();
    let bytes = block.len().min(MOST_BLOCK) / SLICE * SLICE;
    let next = AtomicUsize::new(0);
    // Best of a few rounds: what disturbs a round is not the processor's limit. Work is told the round.
    let best = |work: &(dyn Fn(usize) + Sync)| {
        let time = |round: usize| {
            next.store(0, Ordering::Relaxed);
            let start = Instant::now();
            pool.run(&|_| work(round));
            start.elapsed().as_secs_f64()
        };
        (0..4).map(time).fold(f64::INFINITY, f64::min)
    };
    let parts = block.len() / bytes.max(1);
    let read = best(&|round| {
        let part = &block[round % parts * bytes..][..bytes];
        loop {
            let at = next.fetch_add(SLICE, Ordering::Relaxed);
            if at >= bytes {
                break;
            }
            // SAFETY: inside the part; the level was found available.
            std::hint::black_box(unsafe { (kernels.probe_read)(part.as_ptr().add(at), SLICE) });
        }
    });
    let (seconds, operations) = match (numeric, level.unit_kernels()) {
        (Numeric::Fast, Some(unit)) => {
            const PRODUCTS: usize = 50_000;
            // SAFETY: as above.
            let seconds = best(&|_| unsafe { (unit.probe)(PRODUCTS) });
            (seconds, 2 * 16 * 16 * 64 * PRODUCTS)
        }
        _ => {
            const ROUNDS: usize = 500_000;
            // SAFETY: as above.
            let seconds = best(&|_| unsafe {
                std::hint::black_box(match numeric {
                    Numeric::Fast => (kernels.probe_dots)(ROUNDS),
                    Numeric::Exact => (kernels.probe_fmas)(ROUNDS),
                });
            });
            // A dot instruction is 16 lanes of 4 multiply-adds, an FMA 16 lanes of one; each is 2
            // operations.
            let each = 2 * 16 * PROBE_DOTS * if numeric == Numeric::Fast { 4 } else { 1 };
            (seconds, each * ROUNDS)
        }
    };
    Ceilings {
        bytes_per_second: bytes as f64 / read,
        operations_per_second: (operations * pool.workers()) as f64 / seconds,
    }
}
