//! Products on a unit beside those by vectors.

use super::*;
use crate::pack::packed;
use crate::simd::Level;
use crate::simd::product::QuantizedRows;
use crate::skip;

/// Numbers of a fixed sequence.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        self.0 >> 33
    }
}

const COLUMNS: usize = 1280;

/// Rows as a prologue leaves them, for vectors and in strips.
struct Activations {
    codes: Vec<i8>,
    metas: Vec<BlockMeta>,
    strip_codes: Vec<i8>,
    strip_metas: Vec<f32>,
}

fn activations(level: Level, rows: usize) -> Activations {
    let mut random = Random(rows as u64);
    let (strips, blocks) = (rows.div_ceil(STRIP), COLUMNS / BLOCK);
    let zero = BlockMeta { step: 0.0, value_sum: 0.0, low: 0, high: 0 };
    let mut all = Activations {
        codes: vec![0; rows * COLUMNS],
        metas: vec![zero; rows * blocks],
        strip_codes: vec![0; strips * STRIP * COLUMNS],
        strip_metas: vec![f32::NAN; strips * blocks * STRIP_METAS],
    };
    for row in 0..rows {
        let x: Vec<f32> = (0..COLUMNS).map(|_| random.next() as f32 * 1e-9 - 1.0).collect();
        let codes = &mut all.codes[row * COLUMNS..][..COLUMNS];
        let metas = &mut all.metas[row * blocks..][..blocks];
        let strips = (all.strip_codes.as_mut_ptr(), all.strip_metas.as_mut_ptr());
        // SAFETY: all have room for the row, and the level is available.
        unsafe {
            (level.kernels().quantize)(x.as_ptr(), COLUMNS, codes.as_mut_ptr(), metas.as_mut_ptr());
            put_row(row, (codes, metas), strips.0, strips.1);
        }
    }
    all
}

/// Sums of two tiles with rows by vectors and by a unit, panel by panel.
fn both(level: Level, ty: TensorType, rows: usize) -> [Vec<f32>; 2] {
    let mut random = Random(7);
    let bytes = 2 * TILE * ty.row_bytes(COLUMNS).unwrap();
    // Scales are finite: the exponent's top bit is cleared wherever it may lie.
    let file: Vec<u8> = (0..bytes).map(|_| random.next() as u8 & 0xbf).collect();
    let matrix = packed(ty, COLUMNS, &file);
    let all = activations(level, rows);
    let plain = QuantizedRows {
        fetch: crate::policy::StreamFetch::Hardware,
        codes: all.codes.as_ptr(),
        metas: all.metas.as_ptr(),
        columns: COLUMNS,
        fault: None,
    };
    let (codes, metas) = (all.strip_codes.as_ptr(), all.strip_metas.as_ptr());
    let strips = Strips { codes, metas, columns: COLUMNS };
    let tiles = UnitTiles {
        start: matrix.tile(0).as_ptr(),
        stride: matrix.tile_stride,
        count: 2,
        fault: None,
    };
    let padded = rows.next_multiple_of(STRIP) * TILE;
    let (mut expected, mut found) = (vec![0.0; 2 * padded], vec![f32::NAN; 2 * padded]);
    let mut panels = vec![PanelBlock::ZERO; PANELS * PANEL_BLOCKS];
    let product = (level.kernels().product)(ty).unwrap();
    let unit = (level.unit_kernels().unwrap().product)(ty).unwrap();
    // SAFETY: the level is available; tiles, rows and sums are those that the kernels take.
    unsafe {
        for (tile, expected) in expected.chunks_exact_mut(padded).enumerate() {
            product(matrix.tile(tile).as_ptr(), &plain, 0, rows, expected.as_mut_ptr());
        }
        for start in (0..COLUMNS / BLOCK).step_by(PANEL_BLOCKS) {
            let blocks = start..(COLUMNS / BLOCK).min(start + PANEL_BLOCKS);
            unit(&tiles, &strips, 0, blocks, &mut panels, &mut found);
        }
    }
    // What is beyond the rows is nobody's.
    for sums in found.chunks_exact_mut(padded) {
        sums[rows * TILE..].fill(0.0);
    }
    [expected, found]
}

#[test]
fn a_unit_gives_the_bits_of_vectors() {
    let levels = [Level::EmulatedUnit, Level::Amx];
    for level in levels.into_iter().filter(|level| skip::has(level, level.available())) {
        let has_kernel = |ty: &&TensorType| (level.unit_kernels().unwrap().product)(**ty).is_some();
        for &ty in TensorType::ALL.iter().filter(has_kernel) {
            for rows in [16, 1, 37] {
                let [expected, found] = both(level, ty, rows);
                let bits = |values: &[f32]| values.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
                assert!(expected.iter().any(|sum| *sum != 0.0));
                assert_eq!(bits(&expected), bits(&found), "{ty} on {level}, {rows} rows");
            }
        }
    }
}
