//! Attention on exactly the package's shape.

use std::ops::Range;

use half::bf16;

use super::element::Element;
use super::{KernelRunner, RunError};
use crate::package::{AttentionSpec, Operation};

impl KernelRunner {
    /// Attention with q of heads x queries x key width, k of KV heads x keys x key width, v of KV
    /// heads x keys x value width and out of heads x queries x value width.
    pub fn attention_bf16(
        &mut self,
        q: &[bf16],
        k: &[bf16],
        v: &[bf16],
        out: &mut [bf16],
    ) -> Result<(), RunError> {
        let Operation::Attention(spec) = &self.operation else {
            return Err(self.wrong_operation("attention"));
        };
        let spec = spec.clone();
        let values = self.operation.arguments();
        let lengths = [("q", q.len()), ("k", k.len()), ("v", v.len()), ("out", out.len())];
        for ((what, found), argument) in lengths.into_iter().zip(&values) {
            RunError::length(what, argument.bytes / size_of::<bf16>(), found)?;
        }
        self.write_argument(0, bf16::bytes(q))?;
        self.write_argument(1, bf16::bytes(k))?;
        let mut tiled = vec![bf16::ZERO; v.len()];
        for (plain, tile) in value_tiles(&spec, spec.kv_heads, spec.keys) {
            tiled[tile].copy_from_slice(&v[plain]);
        }
        self.write_argument(2, bf16::bytes(&tiled))?;
        self.run(3)?;
        let mut bytes = vec![0; self.arguments[3].1];
        self.read_argument(3, &mut bytes)?;
        let (words, _) = bytes.as_chunks::<2>();
        for (plain, tile) in value_tiles(&spec, spec.heads, spec.queries) {
            for (value, &word) in out[plain].iter_mut().zip(&words[tile]) {
                *value = bf16::from_le_bytes(word);
            }
        }
        Ok(())
    }
}

/// The design keeps values and outputs as heads x parts x positions x 64, so that a part is without
/// gaps: where each run of 64 lies in the plain order and in the design's.
fn value_tiles(
    spec: &AttentionSpec,
    heads: usize,
    positions: usize,
) -> impl Iterator<Item = (Range<usize>, Range<usize>)> {
    const TILE: usize = AttentionSpec::VALUE_TILE;
    let parts = spec.value_width / TILE;
    (0..heads * positions * parts).map(move |run| {
        let (head, rest) = (run / (positions * parts), run % (positions * parts));
        let (position, part) = (rest / parts, rest % parts);
        let tiled = ((head * parts + part) * positions + position) * TILE;
        (run * TILE..(run + 1) * TILE, tiled..tiled + TILE)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_two_parts_are_regrouped() {
        let spec = AttentionSpec {
            heads: 2,
            kv_heads: 2,
            queries: 3,
            keys: 3,
            key_width: 64,
            value_width: 128,
            causal: false,
        };
        let runs: Vec<_> = value_tiles(&spec, 2, 3).collect();
        let starts: Vec<usize> = runs.iter().map(|(_, tiled)| tiled.start / 64).collect();
        assert_eq!(starts, [0, 3, 1, 4, 2, 5, 6, 9, 7, 10, 8, 11]);
        assert_eq!(runs.last().unwrap().0, 11 * 64..12 * 64);
    }
}
