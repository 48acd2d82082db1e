//! Matrix products with the array's arithmetic.

use half::bf16;

use crate::kernel::{Activation, Element, Layout, Matmul, Partial, Tile};

/// C of A and B, as bytes.
///
/// Products of i8 are summed in i32, which wraps. Products of bf16 are exact in f32 and summed there
/// one after another in the order of K; the order inside the eight lanes of a core is not documented.
pub(crate) fn run(matmul: &Matmul, a: &[u8], b: &[u8]) -> Vec<u8> {
    match matmul.input {
        Element::I8 => integers(matmul, a, b),
        _ => floats(matmul, a, b),
    }
}

/// Where element (k, n) of B lies.
fn index(matmul: &Matmul, k: usize, n: usize) -> usize {
    match matmul.layout {
        Layout::RowMajor => k * matmul.n + n,
        Layout::ColumnMajor => n * matmul.k + k,
        Layout::Packed => packed_index(matmul.tile, matmul.k, k, n),
    }
}

/// Rows and columns of a block of packed B.
const BLOCK: usize = 8;

fn packed_index(tile: Tile, rows: usize, k: usize, n: usize) -> usize {
    let column_block = n / tile.n;
    let slice = k / tile.k;
    let (group, column) = (n % tile.n / BLOCK, n % BLOCK);
    let (block, row) = (k % tile.k / BLOCK, k % BLOCK);
    let slices = column_block * (rows / tile.k) + slice;
    let blocks = (slices * (tile.n / BLOCK) + group) * (tile.k / BLOCK) + block;
    blocks * BLOCK * BLOCK + row * BLOCK + column
}

/// Packs a row-major K x N matrix of `element_bytes` into the order of [`Layout::Packed`].
pub fn pack(matrix: &[u8], (k, n): (usize, usize), tile: Tile, element_bytes: usize) -> Vec<u8> {
    let mut packed = vec![0; matrix.len()];
    for row in 0..k {
        for column in 0..n {
            let from = (row * n + column) * element_bytes;
            let to = packed_index(tile, k, row, column) * element_bytes;
            packed[to..to + element_bytes].copy_from_slice(&matrix[from..from + element_bytes]);
        }
    }
    packed
}

/// B as rows of N, so that the inner loop runs over neighbours.
fn rows_of_b<T: Copy>(matmul: &Matmul, element: impl Fn(usize) -> T) -> Vec<T> {
    let mut rows = Vec::with_capacity(matmul.k * matmul.n);
    for k in 0..matmul.k {
        rows.extend((0..matmul.n).map(|n| element(index(matmul, k, n))));
    }
    rows
}

fn integers(matmul: &Matmul, a: &[u8], b: &[u8]) -> Vec<u8> {
    let b = rows_of_b(matmul, |at| i32::from(b[at] as i8));
    let mut output = Vec::with_capacity(matmul.m * matmul.n * matmul.output.bytes());
    for a in a.chunks_exact(matmul.k) {
        let mut sums = vec![0i32; matmul.n];
        for (k, a) in a.iter().enumerate() {
            let a = i32::from(*a as i8);
            for (sum, b) in sums.iter_mut().zip(&b[k * matmul.n..]) {
                *sum = sum.wrapping_add(a * b);
            }
            if matmul.partial == Partial::Output && (k + 1) % matmul.tile.k == 0 {
                sums.iter_mut().for_each(|sum| *sum = narrow(matmul, *sum));
            }
        }
        for sum in sums {
            let value = match matmul.partial {
                Partial::Accumulator => narrow(matmul, sum),
                Partial::Output => sum,
            };
            match matmul.output {
                Element::I8 => output.push(value as u8),
                Element::I16 => output.extend((value as i16).to_le_bytes()),
                _ => output.extend(value.to_le_bytes()),
            }
        }
    }
    output
}

/// Shift, round, and saturate or wrap.
fn narrow(matmul: &Matmul, sum: i32) -> i32 {
    let shifted = matmul.rounding.shift(sum, matmul.shift);
    match (matmul.output, matmul.saturate) {
        (Element::I8, true) => shifted.clamp(i64::from(i8::MIN), i64::from(i8::MAX)) as i32,
        (Element::I8, false) => i32::from(shifted as i8),
        (Element::I16, true) => shifted.clamp(i64::from(i16::MIN), i64::from(i16::MAX)) as i32,
        (Element::I16, false) => i32::from(shifted as i16),
        _ => shifted as i32,
    }
}

/// Element `at` of a matrix of bf16.
pub(crate) fn bf16_at(bytes: &[u8], at: usize) -> f32 {
    bf16::from_le_bytes([bytes[2 * at], bytes[2 * at + 1]]).to_f32()
}

fn floats(matmul: &Matmul, a: &[u8], b: &[u8]) -> Vec<u8> {
    let b = rows_of_b(matmul, |at| bf16_at(b, at));
    let round = |value: f32| matmul.rounding.to_bf16(value);
    let mut output = Vec::with_capacity(matmul.m * matmul.n * matmul.output.bytes());
    for row in 0..matmul.m {
        let mut sums = vec![0f32; matmul.n];
        for k in 0..matmul.k {
            let a = bf16_at(a, row * matmul.k + k);
            for (sum, b) in sums.iter_mut().zip(&b[k * matmul.n..]) {
                *sum += a * b;
            }
            let narrows = matmul.partial == Partial::Output && matmul.output == Element::Bf16;
            if narrows && (k + 1) % matmul.tile.k == 0 {
                sums.iter_mut().for_each(|sum| *sum = round(*sum).to_f32());
            }
        }
        for sum in sums {
            let value = activate(matmul.activation, sum);
            match matmul.output {
                Element::Bf16 => output.extend(round(value).to_le_bytes()),
                _ => output.extend(value.to_le_bytes()),
            }
        }
    }
    output
}

fn activate(activation: Activation, x: f32) -> f32 {
    match activation {
        Activation::Identity => x,
        Activation::Gelu => x / (1.0 + (-1.702 * x).exp()),
        Activation::Silu => x / (1.0 + (-x).exp()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::Kernel;
    use crate::parse_kernels;

    fn kernel(line: &str) -> Matmul {
        match parse_kernels(line).unwrap().remove(0).kernel {
            Kernel::Matmul(matmul) => matmul,
            Kernel::Attention(_) => panic!("not a product"),
        }
    }

    /// Bytes that look random.
    fn noise(length: usize, mut seed: u32) -> Vec<u8> {
        let mut next = || {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (seed >> 24) as u8
        };
        (0..length).map(|_| next()).collect()
    }

    fn transpose(matrix: &[u8], rows: usize, columns: usize) -> Vec<u8> {
        (0..columns).flat_map(|c| (0..rows).map(move |r| matrix[r * columns + c])).collect()
    }

    #[test]
    fn i8_to_i32_in_every_layout() {
        let (m, k, n) = (128, 64, 32);
        let (a, b) = (noise(m * k, 1), noise(k * n, 2));
        let mut expected = Vec::new();
        for row in 0..m {
            for column in 0..n {
                let sum: i32 = (0..k)
                    .map(|i| i32::from(a[row * k + i] as i8) * i32::from(b[i * n + column] as i8))
                    .sum();
                expected.extend(sum.to_le_bytes());
            }
        }
        let tile = Tile { m: 16, k: 32, n: 16 };
        let layouts = [
            ("row", b.clone()),
            ("column", transpose(&b, k, n)),
            ("packed", pack(&b, (k, n), tile, 1)),
        ];
        for (name, b) in layouts {
            let line = format!("matmul i8 i32 {m}x{k}x{n} tile=16x32x16 columns=2 layout={name}");
            assert_eq!(run(&kernel(&line), &a, &b), expected, "{name}");
        }
    }

    #[test]
    fn narrow_outputs_saturate_or_wrap() {
        let (a, b) = (vec![100u8; 128 * 8], vec![100u8; 8 * 16]);
        let line = "matmul i8 i8 128x8x16 tile=16x8x16 columns=1 shift=4 rounding=12";
        // 8 · 100 · 100 / 16 = 5000.
        assert_eq!(run(&kernel(&format!("{line} saturate")), &a, &b)[0], 127);
        assert_eq!(run(&kernel(line), &a, &b)[0], 5000u32 as u8);
        let wide = "matmul i8 i16 128x8x16 tile=16x8x16 columns=1 shift=4";
        assert_eq!(run(&kernel(wide), &a, &b)[..2], 5000i16.to_le_bytes());
    }

    #[test]
    fn partial_sums_of_the_output_type_lose_bits() {
        // Three tiles of K of 8, which sum to 256, 1 and 1. Beyond 256, bf16 has steps of two.
        let repeat =
            |value: f32, count| std::iter::repeat_n(bf16::from_f32(value).to_le_bytes(), count);
        let a: Vec<u8> = repeat(1.0, 128 * 24).flatten().collect();
        let rows = |sum: f32| repeat(sum / 8.0, 8 * 16);
        let b: Vec<u8> = rows(256.0).chain(rows(1.0)).chain(rows(1.0)).flatten().collect();
        let line = "matmul bf16 bf16 128x24x16 tile=16x8x16 columns=1";
        let first = |words: &str| bf16_at(&run(&kernel(&format!("{line} {words}")), &a, &b), 0);
        assert_eq!(first("rounding=12"), 258.0);
        assert_eq!(first("rounding=12 partial=output"), 256.0, "257 goes to even, twice");
        assert_eq!(first("rounding=1 partial=output"), 260.0);
        let exact = run(&kernel(&line.replace("bf16 bf16", "bf16 f32")), &a, &b);
        assert_eq!(f32::from_le_bytes([exact[0], exact[1], exact[2], exact[3]]), 258.0);
    }

    #[test]
    fn activations() {
        let one: Vec<u8> =
            std::iter::repeat_n(bf16::ONE.to_le_bytes(), 128 * 8).flatten().collect();
        let b: Vec<u8> =
            std::iter::repeat_n(bf16::from_f32(0.125).to_le_bytes(), 8 * 16).flatten().collect();
        let run = |name: &str| {
            let line = format!("matmul bf16 f32 128x8x16 tile=16x8x16 columns=1 activation={name}");
            let bytes = run(&kernel(&line), &one, &b);
            f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
        };
        assert!((run("silu") - 0.731_058_6).abs() < 1e-6);
        assert!((run("gelu") - 0.845_795_8).abs() < 1e-6);
    }
}
