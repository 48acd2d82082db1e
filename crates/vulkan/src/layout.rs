//! Weights as the kernels read them: planes of codes, upper bits and scales, row after row.
//!
//! `shaders/include/weights.glsl` has the picture; this file and that one change together. Codes
//! keep the bits they have in the file. What is reordered serves two ends: every plane is aligned,
//! and lanes that stand side by side read 16 bytes that lie side by side.
//!
//! What a type has in its planes follows from its [`Quantization`]; nothing here knows one by name.

use pianola_formats::{Block, Format, FormatVisitor, Quantization, TensorType};

/// Columns of a block.
pub(crate) const BLOCK: usize = 32;
/// Most planes a type has.
pub(crate) const PLANES: usize = 4;
/// Blocks that share the f16 scales that their integer scales stand under.
const SUPER: usize = 8;

/// Bytes a row takes in each plane, in the order the planes lie in.
pub(crate) fn row_planes(ty: TensorType, columns: usize) -> [usize; PLANES] {
    let blocks = columns / BLOCK;
    let Some(quantization) = ty.quantization() else {
        return [ty.block_bytes() * columns, 0, 0, 0];
    };
    let upper = if quantization.code_bits == 8 { 0 } else { quantization.code_bits - 4 };
    let codes = [BLOCK * (quantization.code_bits - upper) / 8 * blocks, BLOCK * upper / 8 * blocks];
    let halves = 2 * quantization.halves();
    match block_integers(quantization) {
        0 => [codes[0], codes[1], halves * blocks, 0],
        integers => [codes[0], codes[1], integers * blocks, halves * (blocks / SUPER)],
    }
}

/// Integer scales and minimums of a block; 0 where scales are f16.
#[inline(always)]
fn block_integers(quantization: &Quantization) -> usize {
    match quantization.scale_bits {
        0 => 0,
        _ => BLOCK / quantization.sub_block + usize::from(quantization.has_minimum()),
    }
}

/// Bytes of a matrix.
pub(crate) fn matrix_bytes(ty: TensorType, rows: usize, columns: usize) -> usize {
    rows * row_planes(ty, columns).iter().sum::<usize>()
}

/// Packs one row of the file into its place in each plane.
pub(crate) fn pack_row(ty: TensorType, columns: usize, row: &[u8], planes: [&mut [u8]; PLANES]) {
    let blocks = columns / BLOCK;
    if ty.is_quantized() {
        ty.visit(PackRow { blocks, row, planes });
        return;
    }
    let [values, ..] = planes;
    let vectors = ty.block_bytes() * BLOCK / 16;
    for (at, vector) in row.chunks_exact(16).enumerate() {
        let place = (at % vectors * blocks + at / vectors) * 16;
        values[place..place + 16].copy_from_slice(vector);
    }
}

struct PackRow<'a> {
    blocks: usize,
    row: &'a [u8],
    planes: [&'a mut [u8]; PLANES],
}

impl FormatVisitor for PackRow<'_> {
    type Output = ();
    fn visit<F: Format>(self) {
        let quantization = &F::QUANTIZATION;
        let [codes, upper, scales, supers] = self.planes;
        let per_file_block = quantization.block_len / BLOCK;
        let integers = block_integers(quantization);
        let mut block = Block::zeroed();
        for (index, file_block) in self.row.chunks_exact(quantization.block_bytes).enumerate() {
            quantization.decode(file_block, &mut block);
            let first = index * per_file_block;
            let parts = block.codes.as_chunks::<BLOCK>().0.iter().take(per_file_block);
            for (b, block_codes) in (first..).zip(parts) {
                if quantization.code_bits == 8 {
                    put_signed(quantization, block_codes, codes, [b, self.blocks + b]);
                    continue;
                }
                let packed = match quantization.codebook {
                    Some(_) => bit_planes(block_codes),
                    None => nibbles(block_codes),
                };
                codes[16 * b..][..16].copy_from_slice(&packed);
                match quantization.code_bits {
                    5 => upper[4 * b..][..4].copy_from_slice(&fifths(block_codes)),
                    6 => upper[8 * b..][..8].copy_from_slice(&pairs(block_codes)),
                    _ => {}
                }
            }
            let halves = if integers > 0 { &mut *supers } else { &mut *scales };
            let halves = &mut halves[2 * quantization.halves() * index..];
            halves[..2].copy_from_slice(&block.scale.to_le_bytes());
            if quantization.has_minimum() {
                halves[2..4].copy_from_slice(&block.minimum.to_le_bytes());
            }
            if integers > 0 {
                let scales = &mut scales[integers * first..][..integers * SUPER];
                put_integers(quantization, &block, scales);
            }
        }
    }
}

/// Codes of 8 bits, signed as dot products take them: either half into the vector `places` names.
#[inline(always)]
fn put_signed(q: &Quantization, codes: &[u8; BLOCK], to: &mut [u8], places: [usize; 2]) {
    for (half, place) in codes.as_chunks::<16>().0.iter().zip(places) {
        let signed = half.map(|code| code.wrapping_sub(q.zero));
        to[16 * place..][..16].copy_from_slice(&signed);
    }
}

/// The integer scales of a file's block, then the minimum, block by block.
#[inline(always)]
fn put_integers(quantization: &Quantization, block: &Block, scales: &mut [u8]) {
    let count = BLOCK / quantization.sub_block;
    let places = scales.chunks_exact_mut(block_integers(quantization));
    let parts = block.scales.chunks_exact(count).zip(block.minimums);
    for (place, (scales, minimum)) in places.zip(parts) {
        place[..count].copy_from_slice(bytemuck::cast_slice(scales));
        if quantization.has_minimum() {
            place[count] = minimum as u8;
        }
    }
}

// These are not inlined: by themselves they become a few vector instructions, inside the loop above
// they do not always (a third of the speed was measured).

/// Byte `i`: the lower four bits of code `i` low, of code `i + 16` high.
#[inline(never)]
fn nibbles(codes: &[u8; BLOCK]) -> [u8; 16] {
    std::array::from_fn(|i| codes[i] & 15 | codes[i + 16] << 4)
}

/// Bit `8 j + k` of word `b`: bit `b` of code `4 k + j`. Where codes are indices, kernels look up all
/// codes of a block at once, bit by bit.
#[inline(never)]
fn bit_planes(codes: &[u8; BLOCK]) -> [u8; 16] {
    let words = codes.as_chunks::<4>().0;
    let mut planes = [0; 16];
    for (b, plane) in planes.as_chunks_mut::<4>().0.iter_mut().enumerate() {
        let bits = |word: &[u8; 4]| u32::from_le_bytes(*word) >> b & 0x0101_0101;
        let word = words.iter().enumerate().fold(0, |sum, (k, word)| sum | bits(word) << k);
        *plane = word.to_le_bytes();
    }
    planes
}

/// Bit `i`: bit 4 of code `i`.
#[inline(never)]
fn fifths(codes: &[u8; BLOCK]) -> [u8; 4] {
    std::array::from_fn(|byte| {
        let eight = codes[8 * byte..][..8].try_into().expect("eight codes");
        let bits = u64::from_le_bytes(eight) >> 4 & 0x0101_0101_0101_0101;
        // Bit 0 of byte k comes to lie at bit 56 + k; no two products meet in one bit.
        (bits.wrapping_mul(0x0102_0408_1020_4080) >> 56) as u8
    })
}

/// Pair `k` of byte `j`, of either four bytes: bits 4 and 5 of code `4 k + j` of its half.
#[inline(never)]
fn pairs(codes: &[u8; BLOCK]) -> [u8; 8] {
    std::array::from_fn(|byte| {
        let first = byte / 4 * 16 + byte % 4;
        (0..4).fold(0, |bits, k| bits | (codes[first + 4 * k] >> 4 & 3) << (2 * k))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use half::f16;
    use pianola_formats::{IQ4_VALUES, Minimum, dequantize_row, quantize_row};

    /// Values of one packed row: the kernels' reading of the planes in plain code, for tests.
    fn unpack_row(ty: TensorType, columns: usize, planes: &[Vec<u8>; PLANES]) -> Vec<f32> {
        let [codes, upper, scales, supers] = planes;
        let blocks = columns / BLOCK;
        let half_of = |bytes: &[u8], at: usize| {
            f16::from_le_bytes([bytes[2 * at], bytes[2 * at + 1]]).to_f32()
        };
        let quantized = |quantization: &Quantization, b: usize, i: usize| -> f32 {
            let halves = if quantization.scale_bits > 0 { supers } else { scales };
            let at = quantization.halves() * if quantization.scale_bits > 0 { b / 8 } else { b };
            let (integers, count) = (block_integers(quantization), BLOCK / quantization.sub_block);
            let integer = |k: usize| f32::from(scales[integers * b + k] as i8);
            let code = match quantization.code_bits {
                8 => codes[(i / 16 * blocks + b) * 16 + i % 16] ^ 0x80,
                _ if quantization.codebook.is_some() => (0..4).fold(0, |code, bit| {
                    code | (codes[16 * b + 4 * bit + i % 4] >> (i / 4) & 1) << bit
                }),
                bits => {
                    let high = match bits {
                        5 => upper[4 * b + i / 8] >> (i % 8) & 1,
                        6 => upper[8 * b + i / 16 * 4 + i % 4] >> (i % 16 / 4 * 2) & 3,
                        _ => 0,
                    };
                    codes[16 * b + i % 16] >> (i / 16 * 4) & 15 | high << 4
                }
            };
            let scale = if integers > 0 { integer(i / quantization.sub_block) } else { 1.0 };
            let value = half_of(halves, at) * scale * f32::from(quantization.value(code));
            match quantization.minimum {
                Minimum::None => value,
                Minimum::Added => value + half_of(halves, at + 1),
                Minimum::Subtracted => value - half_of(halves, at + 1) * integer(count),
            }
        };
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
                _ => quantized(ty.quantization().unwrap(), b, i),
            }
        };
        (0..columns).map(value).collect()
    }

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

    /// FNV-1a sums of the planes of a random row, so that a change of the layout is a decision.
    #[test]
    fn planes_keep_their_layout() {
        let expected = [
            (TensorType::F32, 0xcf1f_a5ac_07cd_53ba),
            (TensorType::F16, 0xdb74_198e_1e86_4914),
            (TensorType::BF16, 0xdb74_198e_1e86_4914),
            (TensorType::Q4_0, 0x5b8b_644a_007b_d7d0),
            (TensorType::Q4_1, 0x6e1a_078d_b9d5_f58a),
            (TensorType::Q5_0, 0x310c_70db_486d_ffd4),
            (TensorType::Q5_1, 0x4d61_4da3_659a_2a89),
            (TensorType::Q8_0, 0x4438_75d0_81c7_599e),
            (TensorType::Q4K, 0x42e1_596e_643f_dd3c),
            (TensorType::Q5K, 0xecea_e57b_f834_5f96),
            (TensorType::Q6K, 0xd33b_0b8d_a7e4_38d6),
        ];
        for (ty, expected) in expected {
            let mut state = 11u64;
            let next = |_| {
                state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                (state >> 56) as u8
            };
            let row: Vec<u8> = (0..ty.row_bytes(512).unwrap()).map(next).collect();
            let mut planes = row_planes(ty, 512).map(|bytes| vec![0xee; bytes]);
            let [a, b, c, d] = &mut planes;
            pack_row(ty, 512, &row, [a, b, c, d]);
            let sum = planes.iter().flatten().fold(0xcbf2_9ce4_8422_2325u64, |sum, &byte| {
                (sum ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
            });
            assert_eq!(sum, expected, "{ty}");
        }
    }

    #[test]
    fn shaders_have_the_codebook() {
        let source = include_str!("../shaders/include/weights.glsl");
        let word = |b: usize| {
            let bit = |n: usize| u32::from(IQ4_VALUES[n] as u8 >> b & 1) << n;
            format!("{:#06x}u", (0..16).map(bit).sum::<u32>())
        };
        let words = (0..8).map(word).collect::<Vec<_>>().join(", ");
        assert!(source.contains(&format!("const uint IQ4_BITS[8] = uint[8]({words});")), "{words}");
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
