//! Weights as the kernels read them: planes of codes, upper bits and scales, row after row.
//!
//! `shaders/include/weights.glsl` has the picture; this file and that one change together. Codes
//! keep the bits they have in the file. What is reordered serves two ends: every plane is aligned,
//! and lanes that stand side by side read 16 bytes that lie side by side.

use pianola_formats::{TensorType, unpack_k_scales};

/// Columns of a block.
pub(crate) const BLOCK: usize = 32;
/// Most planes a type has.
pub(crate) const PLANES: usize = 4;

/// Bytes a row takes in each plane, in the order the planes lie in.
pub(crate) fn row_planes(ty: TensorType, columns: usize) -> [usize; PLANES] {
    let blocks = columns / BLOCK;
    match ty {
        TensorType::F32 => [4 * columns, 0, 0, 0],
        TensorType::F16 | TensorType::BF16 => [2 * columns, 0, 0, 0],
        TensorType::Q4_0 => [16 * blocks, 0, 2 * blocks, 0],
        TensorType::Q4_1 => [16 * blocks, 0, 4 * blocks, 0],
        TensorType::Q5_0 => [16 * blocks, 4 * blocks, 2 * blocks, 0],
        TensorType::Q5_1 => [16 * blocks, 4 * blocks, 4 * blocks, 0],
        TensorType::Q8_0 => [32 * blocks, 0, 2 * blocks, 0],
        TensorType::Q4K => [16 * blocks, 0, 2 * blocks, blocks / 8 * 4],
        TensorType::Q5K => [16 * blocks, 4 * blocks, 2 * blocks, blocks / 8 * 4],
        TensorType::Q6K => [16 * blocks, 8 * blocks, 2 * blocks, blocks / 8 * 2],
    }
}

/// Bytes of a matrix.
pub(crate) fn matrix_bytes(ty: TensorType, rows: usize, columns: usize) -> usize {
    rows * row_planes(ty, columns).iter().sum::<usize>()
}

/// Packs one row of the file into its place in each plane.
pub(crate) fn pack_row(ty: TensorType, columns: usize, row: &[u8], planes: [&mut [u8]; PLANES]) {
    let [codes, upper, scales, supers] = planes;
    let blocks = columns / BLOCK;
    match ty {
        TensorType::F32 | TensorType::F16 | TensorType::BF16 => {
            let vectors = ty.block_bytes() * BLOCK / 16;
            for (at, vector) in row.chunks_exact(16).enumerate() {
                let place = (at % vectors * blocks + at / vectors) * 16;
                codes[place..place + 16].copy_from_slice(vector);
            }
        }
        TensorType::Q8_0 => {
            for (b, block) in row.chunks_exact(34).enumerate() {
                scales[2 * b..2 * b + 2].copy_from_slice(&block[..2]);
                codes[16 * b..16 * b + 16].copy_from_slice(&block[2..18]);
                codes[16 * (blocks + b)..][..16].copy_from_slice(&block[18..]);
            }
        }
        TensorType::Q4_0 | TensorType::Q4_1 | TensorType::Q5_0 | TensorType::Q5_1 => {
            let head = if matches!(ty, TensorType::Q4_0 | TensorType::Q5_0) { 2 } else { 4 };
            let fifths = if matches!(ty, TensorType::Q5_0 | TensorType::Q5_1) { 4 } else { 0 };
            for (b, block) in row.chunks_exact(ty.block_bytes()).enumerate() {
                scales[head * b..][..head].copy_from_slice(&block[..head]);
                upper[fifths * b..][..fifths].copy_from_slice(&block[head..head + fifths]);
                codes[16 * b..][..16].copy_from_slice(&block[head + fifths..]);
            }
        }
        TensorType::Q4K | TensorType::Q5K => {
            let fifths = if ty == TensorType::Q5K { 32 } else { 0 };
            for (s, block) in row.chunks_exact(ty.block_bytes()).enumerate() {
                supers[4 * s..4 * s + 4].copy_from_slice(&block[..4]);
                let (factors, minimums) =
                    unpack_k_scales(block[4..16].try_into().expect("twelve bytes"));
                let bits = &block[16..16 + fifths];
                let nibbles = &block[16 + fifths..];
                for j in 0..8 {
                    let b = 8 * s + j;
                    scales[2 * b] = factors[j];
                    scales[2 * b + 1] = minimums[j];
                    let nibble = |i: usize| nibbles[j / 2 * 32 + i] >> (j % 2 * 4) & 15;
                    for i in 0..16 {
                        codes[16 * b + i] = nibble(i) | nibble(i + 16) << 4;
                    }
                    if fifths > 0 {
                        let word =
                            (0..32).fold(0u32, |word, i| word | u32::from(bits[i] >> j & 1) << i);
                        upper[4 * b..4 * b + 4].copy_from_slice(&word.to_le_bytes());
                    }
                }
            }
        }
        TensorType::Q6K => {
            for (s, block) in row.chunks_exact(ty.block_bytes()).enumerate() {
                supers[2 * s..2 * s + 2].copy_from_slice(&block[208..]);
                for j in 0..8 {
                    let b = 8 * s + j;
                    scales[2 * b..2 * b + 2].copy_from_slice(&block[192 + 2 * j..][..2]);
                    let (half, quarter) = (j / 4, j % 4);
                    let nibble = |i: usize| {
                        block[half * 64 + quarter % 2 * 32 + i] >> (quarter / 2 * 4) & 15
                    };
                    let pair = |i: usize| block[128 + half * 32 + i] >> (quarter * 2) & 3;
                    for i in 0..16 {
                        codes[16 * b + i] = nibble(i) | nibble(i + 16) << 4;
                    }
                    // Pair k of byte j is weight 4 k + j of its half.
                    for byte in 0..8 {
                        let first = byte / 4 * 16 + byte % 4;
                        upper[8 * b + byte] =
                            (0..4).fold(0, |bits, k| bits | pair(first + 4 * k) << (2 * k));
                    }
                }
            }
        }
    }
}

/// Values of one packed row: the kernels' reading of the planes in plain code, for tests.
#[cfg(test)]
fn unpack_row(ty: TensorType, columns: usize, planes: &[Vec<u8>; PLANES]) -> Vec<f32> {
    use half::f16;
    let [codes, upper, scales, supers] = planes;
    let blocks = columns / BLOCK;
    let half_of =
        |bytes: &[u8], at: usize| f16::from_le_bytes([bytes[2 * at], bytes[2 * at + 1]]).to_f32();
    let value = |column: usize| -> f32 {
        let (b, i) = (column / BLOCK, column % BLOCK);
        match ty {
            TensorType::F32 => {
                let at = (i / 4 * blocks + b) * 16 + i % 4 * 4;
                f32::from_le_bytes(codes[at..at + 4].try_into().unwrap())
            }
            TensorType::F16 | TensorType::BF16 => {
                let at = (i / 8 * blocks + b) * 16 + i % 8 * 2;
                let bits = [codes[at], codes[at + 1]];
                match ty {
                    TensorType::F16 => f16::from_le_bytes(bits).to_f32(),
                    _ => half::bf16::from_le_bytes(bits).to_f32(),
                }
            }
            TensorType::Q8_0 => {
                half_of(scales, b) * f32::from(codes[(i / 16 * blocks + b) * 16 + i % 16] as i8)
            }
            _ => {
                let nibble = codes[16 * b + i % 16] >> (i / 16 * 4) & 15;
                let high = match ty {
                    TensorType::Q5_0 | TensorType::Q5_1 | TensorType::Q5K => {
                        upper[4 * b + i / 8] >> (i % 8) & 1
                    }
                    TensorType::Q6K => upper[8 * b + i / 16 * 4 + i % 4] >> (i % 16 / 4 * 2) & 3,
                    _ => 0,
                };
                let q = f32::from(nibble | high << 4);
                match ty {
                    TensorType::Q4_0 => half_of(scales, b) * (q - 8.0),
                    TensorType::Q5_0 => half_of(scales, b) * (q - 16.0),
                    TensorType::Q4_1 | TensorType::Q5_1 => {
                        half_of(scales, 2 * b) * q + half_of(scales, 2 * b + 1)
                    }
                    TensorType::Q6K => {
                        let factor = f32::from(scales[2 * b + i / 16] as i8);
                        half_of(supers, b / 8) * factor * (q - 32.0)
                    }
                    _ => {
                        let (factor, minimum) = (scales[2 * b], scales[2 * b + 1]);
                        half_of(supers, b / 8 * 2) * f32::from(factor) * q
                            - half_of(supers, b / 8 * 2 + 1) * f32::from(minimum)
                    }
                }
            }
        }
    };
    (0..columns).map(value).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use pianola_formats::{dequantize_row, quantize_row};

    #[test]
    fn packed_rows_hold_the_files_values() {
        for &ty in TensorType::ALL {
            let columns = 512;
            let values: Vec<f32> =
                (0..columns).map(|i| ((i * 37 + 11) % 101) as f32 / 50.0 - 1.0).collect();
            let mut row = vec![0; ty.row_bytes(columns).unwrap()];
            quantize_row(ty, &values, &mut row);
            let mut expected = vec![0.0; columns];
            dequantize_row(ty, &row, &mut expected);
            let mut planes = row_planes(ty, columns).map(|bytes| vec![0xee; bytes]);
            let [a, b, c, d] = &mut planes;
            pack_row(ty, columns, &row, [a, b, c, d]);
            assert_eq!(unpack_row(ty, columns, &planes), expected, "{ty}");
        }
    }

    #[test]
    fn planes_are_hardly_larger_than_the_file() {
        for &ty in TensorType::ALL {
            let packed = matrix_bytes(ty, 3, 1024);
            let stored = 3 * ty.row_bytes(1024).unwrap();
            assert!(packed >= stored && packed <= stored * 103 / 100, "{ty}: {packed} {stored}");
        }
    }
}
