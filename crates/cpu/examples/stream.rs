//! How fast tiles of q4_0 and q8_0 stream through a product with one row, with software prefetches at several
//! distances and without, beside a plain read of the same bytes: all settings take turns in one process, each
//! thread in a part of its own. The kernels are copies of those in `simd/product.rs` with the layout of `pack.rs`
//! (a line of scales before the two blocks that it is for), so that nothing but the prefetch differs.
//! usage: cargo run --release -p pianola-cpu --example stream THREADS,…     (needs AVX-512 with VNNI)

#![allow(unsafe_code, reason = "kernels")]

#[cfg(target_arch = "x86_64")]
mod tiles {
    use std::arch::x86_64::*;
    use std::time::{Duration, Instant};

    /// Bytes that threads share, far beyond the caches, and those that stay in a core's own.
    const FAR: usize = 768 << 20;
    const NEAR: usize = 192 << 10;
    /// How long a setting of a round runs, and rounds.
    const SLICE: Duration = Duration::from_millis(120);
    const ROUNDS: usize = 5;
    const LINE: usize = 64;
    /// Columns of a tile, and the blocks that a line of scales is for.
    const COLUMNS: usize = 2048;
    const UNIT_BLOCKS: usize = 2;

    /// Memory for tiles, on huge pages where the kernel grants them.
    struct Tiles {
        start: *mut u8,
        bytes: usize,
    }

    // SAFETY: only read after it is made.
    unsafe impl Sync for Tiles {}

    impl Tiles {
        fn new(bytes: usize) -> Tiles {
            const MADV_HUGEPAGE: i32 = 14;
            unsafe extern "C" {
                fn madvise(start: *mut u8, bytes: usize, advice: i32) -> i32;
            }
            let layout = std::alloc::Layout::from_size_align(bytes, 2 << 20).expect("a size");
            // SAFETY: fresh memory of this size, filled before it is read.
            unsafe {
                let start = std::alloc::alloc(layout);
                assert!(!start.is_null(), "memory for the tiles");
                madvise(start, bytes, MADV_HUGEPAGE);
                // Bytes that are finite as f16 scales.
                start.write_bytes(0x2c, bytes);
                Tiles { start, bytes }
            }
        }
    }

    #[derive(Clone, Copy, PartialEq)]
    enum Kind {
        Read,
        Q4,
        Q8,
    }

    /// Where a prefetch brings its line.
    #[derive(Clone, Copy, PartialEq)]
    enum Hint {
        None,
        First,
        Second,
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
    unsafe fn prefetch(hint: Hint, from: *const u8) {
        match hint {
            Hint::None => (),
            Hint::First => _mm_prefetch::<_MM_HINT_T0>(from.cast()),
            Hint::Second => _mm_prefetch::<_MM_HINT_T1>(from.cast()),
        }
    }

    /// Products of whole units at `from` with `row`; `distance` bytes ahead are asked for.
    #[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
    unsafe fn product<const WIDE: bool>(
        from: *const u8,
        bytes: usize,
        row: &[i32],
        hint: Hint,
        distance: usize,
    ) -> f32 {
        let codes = if WIDE { 512 } else { 256 };
        let unit = LINE + UNIT_BLOCKS * codes;
        let mut total = _mm512_setzero_ps();
        let nibble = _mm512_set1_epi8(15);
        let mut at = 0;
        while at + COLUMNS / 32 / UNIT_BLOCKS * unit <= bytes {
            let mut sum = _mm512_setzero_ps();
            for first in (0..COLUMNS / 32).step_by(UNIT_BLOCKS) {
                // SAFETY: the tile lies in the caller's bytes; the row has a tile's columns.
                unsafe {
                    let scales = from.add(at);
                    if hint != Hint::None {
                        for line in 0..unit / LINE {
                            prefetch(hint, scales.wrapping_add(distance + line * LINE));
                        }
                    }
                    for block in 0..UNIT_BLOCKS {
                        let codes_at = scales.add(LINE + block * codes);
                        let words = row.as_ptr().add((first + block) * 8);
                        let mut dots = _mm512_set1_epi32(0);
                        let load =
                            |index: usize| _mm512_loadu_si512(codes_at.add(64 * index).cast());
                        if WIDE {
                            for group in 0..8 {
                                let word = _mm512_set1_epi32(words.add(group).read());
                                dots = _mm512_dpbusd_epi32(dots, load(group), word);
                            }
                        } else {
                            for group in 0..4 {
                                let packed = load(group);
                                let low = _mm512_and_si512(packed, nibble);
                                let high = _mm512_and_si512(_mm512_srli_epi16::<4>(packed), nibble);
                                let word = _mm512_set1_epi32(words.add(group).read());
                                dots = _mm512_dpbusd_epi32(dots, low, word);
                                let word = _mm512_set1_epi32(words.add(4 + group).read());
                                dots = _mm512_dpbusd_epi32(dots, high, word);
                            }
                        }
                        let halves = _mm256_loadu_si256(scales.add(32 * block).cast());
                        sum =
                            _mm512_fmadd_ps(_mm512_cvtepi32_ps(dots), _mm512_cvtph_ps(halves), sum);
                    }
                }
                at += unit;
            }
            total = _mm512_add_ps(total, sum);
        }
        _mm512_reduce_add_ps(total)
    }

    #[target_feature(enable = "avx512f")]
    unsafe fn read(from: *const u8, bytes: usize) -> f32 {
        let mut sums = [_mm512_setzero_ps(); 8];
        for at in (0..bytes / 512 * 512).step_by(512) {
            for (index, sum) in sums.iter_mut().enumerate() {
                // SAFETY: inside the caller's bytes.
                *sum = _mm512_add_ps(*sum, unsafe {
                    _mm512_loadu_ps(from.add(at + 64 * index).cast())
                });
            }
        }
        sums.into_iter().map(|sum| _mm512_reduce_add_ps(sum)).sum()
    }

    #[derive(Clone, Copy)]
    struct Setting {
        kind: Kind,
        hint: Hint,
        distance: usize,
        near: bool,
    }

    impl Setting {
        fn name(self) -> String {
            let kind = match self.kind {
                Kind::Read => "plain read",
                Kind::Q4 => "q4_0",
                Kind::Q8 => "q8_0",
            };
            let place = if self.near { "own cache" } else { "memory" };
            let level = match self.hint {
                Hint::None => return format!("{kind}, {place}, no prefetch"),
                Hint::First => 1,
                Hint::Second => 2,
            };
            format!("{kind}, {place}, {} bytes ahead into L{level}", self.distance)
        }

        /// GB/s of `threads` threads.
        fn measure(self, tiles: &Tiles, threads: usize) -> f64 {
            let row = vec![0x0102_0304i32; COLUMNS / 4];
            let share = if self.near { NEAR } else { tiles.bytes / threads / 4096 * 4096 };
            let piece = share.min(4 << 20);
            let gate = std::sync::Barrier::new(threads);
            let rates = std::thread::scope(|scope| {
                let workers: Vec<_> = (0..threads)
                    .map(|thread| {
                        let (row, gate) = (&row, &gate);
                        scope.spawn(move || {
                            // SAFETY: parts of the tiles; the caller has seen the instructions.
                            unsafe {
                                let start = tiles.start.add(thread * share);
                                gate.wait();
                                let begun = Instant::now();
                                let (mut done, mut kept) = (0, 0.0);
                                while begun.elapsed() < SLICE {
                                    let from = start.add(done % (share / piece * piece));
                                    kept += match self.kind {
                                        Kind::Read => read(from, piece),
                                        Kind::Q4 => product::<false>(
                                            from,
                                            piece,
                                            row,
                                            self.hint,
                                            self.distance,
                                        ),
                                        Kind::Q8 => product::<true>(
                                            from,
                                            piece,
                                            row,
                                            self.hint,
                                            self.distance,
                                        ),
                                    };
                                    done += piece;
                                }
                                std::hint::black_box(kept);
                                done as f64 / begun.elapsed().as_secs_f64()
                            }
                        })
                    })
                    .collect();
                workers.into_iter().map(|worker| worker.join().expect("a worker")).sum::<f64>()
            });
            rates / 1e9
        }
    }

    pub fn main() {
        assert!(
            is_x86_feature_detected!("avx512vnni") && is_x86_feature_detected!("avx512bw"),
            "needs AVX-512 with VNNI"
        );
        let threads = std::env::args().nth(1).unwrap_or("1,2".to_string());
        let tiles = Tiles::new(FAR);
        let none = Setting { kind: Kind::Read, hint: Hint::None, distance: 0, near: false };
        let mut settings = vec![none];
        for kind in [Kind::Q4, Kind::Q8] {
            settings.push(Setting { kind, near: true, ..none });
            settings.push(Setting { kind, ..none });
            for distance in [512, 1024, 2048, 4096, 8192, 16384] {
                settings.push(Setting { kind, hint: Hint::First, distance, near: false });
                settings.push(Setting { kind, hint: Hint::Second, distance, near: false });
            }
        }
        for threads in threads.split(',').map(|count| count.parse().expect("a number of threads")) {
            let mut rates = vec![Vec::new(); settings.len()];
            for _ in 0..ROUNDS {
                for (setting, rates) in settings.iter().zip(&mut rates) {
                    rates.push(setting.measure(&tiles, threads));
                }
            }
            for (setting, rates) in settings.iter().zip(&mut rates) {
                rates.sort_by(f64::total_cmp);
                println!("{threads} threads, {}: {:.1} GB/s", setting.name(), rates[ROUNDS / 2]);
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
fn main() {
    tiles::main();
}

#[cfg(not(target_arch = "x86_64"))]
fn main() {
    eprintln!("stream needs AVX-512 with VNNI");
}
