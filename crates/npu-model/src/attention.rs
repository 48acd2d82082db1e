//! Attention as the open design computes it: online softmax over tiles of keys, bf16 in tile memory.

use crate::kernel::Attention;
use crate::matmul::bf16_at;
use crate::rounding::Rounding;

/// O of Q, K and V, as bytes.
pub(crate) fn run(attention: &Attention, q: &[u8], k: &[u8], v: &[u8]) -> Vec<u8> {
    let Attention { heads, kv_heads, lq, dv, tile, .. } = *attention;
    let mut output = vec![0; 2 * heads * lq * dv];
    for head in 0..heads {
        let kv_head = head / (heads / kv_heads);
        for query in 0..lq {
            let row = one_query(attention, Rows { q, k, v, head, kv_head, query });
            for (column, value) in row.into_iter().enumerate() {
                let chunk = head * (dv / tile) + column / tile;
                let at = (chunk * lq + query) * tile + column % tile;
                let value = attention.rounding.to_bf16(value);
                output[2 * at..2 * at + 2].copy_from_slice(&value.to_le_bytes());
            }
        }
    }
    output
}

/// The inputs of one row of the output.
struct Rows<'a> {
    q: &'a [u8],
    k: &'a [u8],
    v: &'a [u8],
    head: usize,
    kv_head: usize,
    query: usize,
}

fn one_query(attention: &Attention, rows: Rows<'_>) -> Vec<f32> {
    let Attention { lk, dv, tile, .. } = *attention;
    let bf16 = |value: f32| narrow(attention.rounding, value);
    let state = |value: f32| if attention.narrow_state { bf16(value) } else { value };
    let (mut maximum, mut sum) = (f32::NEG_INFINITY, 0f32);
    let mut output = vec![0f32; dv];
    let end = if attention.causal { rows.query + 1 } else { lk };
    for first in (0..lk).step_by(tile) {
        let last = (first + tile).min(end);
        if first >= last {
            break;
        }
        let scores: Vec<f32> =
            (first..last).map(|key| bf16(score(attention, &rows, key))).collect();
        let tile_maximum = scores.iter().fold(maximum, |a, b| a.max(*b));
        // exp(-inf) of the first tile is zero: nothing was summed yet.
        let rescale = bf16((maximum - tile_maximum).exp());
        sum = state(sum * rescale);
        output.iter_mut().for_each(|value| *value = state(*value * rescale));
        let weights: Vec<f32> =
            scores.iter().map(|score| bf16((score - tile_maximum).exp())).collect();
        sum = state(sum + weights.iter().sum::<f32>());
        for (column, value) in output.iter_mut().enumerate() {
            let base = (rows.kv_head * (dv / tile) + column / tile) * lk;
            let at = |key: usize| (base + key) * tile + column % tile;
            let keys = (first..last).zip(&weights);
            let added: f32 = keys.map(|(key, weight)| weight * bf16_at(rows.v, at(key))).sum();
            *value = state(*value + added);
        }
        maximum = tile_maximum;
    }
    output.into_iter().map(|value| value / sum).collect()
}

/// q · k / sqrt(dk).
fn score(attention: &Attention, rows: &Rows<'_>, key: usize) -> f32 {
    let Attention { lq, lk, dk, .. } = *attention;
    let (q, k) = ((rows.head * lq + rows.query) * dk, (rows.kv_head * lk + key) * dk);
    let dot: f32 = (0..dk).map(|i| bf16_at(rows.q, q + i) * bf16_at(rows.k, k + i)).sum();
    dot / (dk as f32).sqrt()
}

fn narrow(rounding: Rounding, value: f32) -> f32 {
    rounding.to_bf16(value).to_f32()
}

#[cfg(test)]
mod tests {
    use half::bf16;

    use super::*;
    use crate::kernel::Kernel;
    use crate::parse_kernels;

    fn kernel(line: &str) -> Attention {
        match parse_kernels(line).unwrap().remove(0).kernel {
            Kernel::Attention(attention) => attention,
            Kernel::Matmul(_) => panic!("not attention"),
        }
    }

    fn noise(length: usize, mut seed: u32) -> Vec<u8> {
        let mut next = || {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (seed >> 8) as f32 / (1 << 23) as f32 - 1.0
        };
        (0..length).flat_map(|_| bf16::from_f32(next()).to_le_bytes()).collect()
    }

    /// Softmax in one go, f64, for one output.
    fn plain(
        it: &Attention,
        q: &[u8],
        k: &[u8],
        v: &[u8],
        (head, query, column): (usize, usize, usize),
    ) -> f64 {
        let kv = head / (it.heads / it.kv_heads);
        let keys = if it.causal { query + 1 } else { it.lk };
        let weights: Vec<f64> = (0..keys)
            .map(|key| {
                let dot: f64 = (0..it.dk)
                    .map(|i| {
                        f64::from(bf16_at(q, (head * it.lq + query) * it.dk + i))
                            * f64::from(bf16_at(k, (kv * it.lk + key) * it.dk + i))
                    })
                    .sum();
                (dot / (it.dk as f64).sqrt()).exp()
            })
            .collect();
        let chunk = kv * (it.dv / it.tile) + column / it.tile;
        let value = |key| f64::from(bf16_at(v, (chunk * it.lk + key) * it.tile + column % it.tile));
        let sum: f64 = weights.iter().sum();
        weights.iter().enumerate().map(|(key, weight)| weight * value(key)).sum::<f64>() / sum
    }

    #[test]
    fn agrees_with_softmax_in_one_go() {
        for (line, tolerance) in [
            ("attention heads=2 kv_heads=1 lq=256 lk=256 dk=64 dv=128 rounding=12 state=f32", 0.01),
            (
                "attention heads=2 kv_heads=1 lq=256 lk=256 dk=64 dv=128 causal rounding=12 state=f32",
                0.02,
            ),
            ("attention heads=2 kv_heads=1 lq=256 lk=256 dk=64 dv=128 causal rounding=12", 0.03),
        ] {
            let it = kernel(line);
            let q = noise(it.heads * it.lq * it.dk, 3);
            let k = noise(it.kv_heads * it.lk * it.dk, 4);
            let v = noise(it.kv_heads * it.lk * it.dv, 5);
            let output = run(&it, &q, &k, &v);
            for (head, query, column) in
                [(0, 0, 0), (1, 255, 127), (1, 64, 70), (0, 63, 5), (1, 130, 64)]
            {
                let at = ((head * 2 + column / 64) * it.lq + query) * 64 + column % 64;
                let (ours, theirs) = (
                    f64::from(bf16_at(&output, at)),
                    plain(&it, &q, &k, &v, (head, query, column)),
                );
                assert!(
                    (ours - theirs).abs() < tolerance,
                    "{line} {head} {query} {column}: {ours} {theirs}"
                );
            }
        }
    }
}
