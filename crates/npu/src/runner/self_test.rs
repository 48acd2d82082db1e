//! Runs a package on known data and compares it with a plain computation.
//!
//! A kernel may compute wrongly without any sign of it: compilers have had such faults, a manifest
//! may state the wrong type, a wrongly packed factor has the right size. So no result is trusted
//! before this has passed. Bounds are derived from the types: what a right kernel can be off by.

use half::bf16;

use super::reference::{self, Element};
use super::{KernelRunner, RunError};
use crate::package::{Activation, AttentionSpec, ElementType, MatmulSpec, Operation};

/// What a self-test found.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SelfTest {
    /// Elements compared with the plain computation; all were looked at for NaN.
    pub compared: usize,
    /// The largest error as a part of what is allowed: 1 is the limit, 0 is exact.
    pub worst: f64,
}

/// Multiplications of the plain computation: about a second.
const BUDGET: usize = 1 << 28;
/// The unit of f32's rounding, doubled, because the array's accumulator need not round to nearest.
const F32_STEP: f64 = 1.0 / (1 << 23) as f64;
/// The largest relative error of a conversion to bf16 by cutting off, the array's default.
const BF16_STEP: f64 = 1.0 / 128.0;
/// The relative error that the array's tables for exponentials and activations may have.
const TABLE_STEP: f64 = 1.0 / 64.0;

/// A small generator of random numbers (splitmix64), the same on every machine.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Uniform between -1 and 1.
    fn unit(&mut self) -> bf16 {
        bf16::from_f64(self.next() as i64 as f64 / i64::MAX as f64)
    }

    fn units(&mut self, count: usize) -> Vec<bf16> {
        (0..count).map(|_| self.unit()).collect()
    }
}

impl KernelRunner {
    /// Runs the package on data made from `seed`; an error if it computes wrongly or returns NaN.
    pub fn self_test(&mut self, seed: u64) -> Result<SelfTest, RunError> {
        let random = &mut Random(seed);
        let result = match self.operation.clone() {
            Operation::Matmul(spec) if spec.input == ElementType::I8 => {
                self.test_matmul_i8(&spec, random)
            }
            Operation::Matmul(spec) => self.test_matmul_bf16(&spec, random),
            Operation::Attention(spec) => self.test_attention(&spec, random),
        };
        let result = match result {
            Err(RunError::NoResult { .. }) => Err("an element was not written".to_string()),
            result => result?,
        };
        result.map_err(|problem| RunError::SelfTest { package: self.name.clone(), problem })
    }

    fn test_matmul_i8(&mut self, spec: &MatmulSpec, random: &mut Random) -> Outcome {
        let shape = spec.shape;
        let mut bytes = |count| (0..count).map(|_| random.next() as i8).collect::<Vec<i8>>();
        let (a, b) = (bytes(shape.m * shape.k), bytes(shape.k * shape.n));
        let mut out = vec![0; shape.m * shape.n];
        self.matmul_i8(&a, &b, &mut out)?;
        let mut check = Check::default();
        for row in sampled_rows(shape.m, shape.k * shape.n) {
            let expected = reference::matmul_row(shape, &a, &b, row, f64::from);
            for (column, element) in expected.iter().enumerate() {
                let value = f64::from(out[row * shape.n + column]);
                check.compare((row, column), value, element.value, 0.0);
            }
        }
        Ok(check.finish())
    }

    fn test_matmul_bf16(&mut self, spec: &MatmulSpec, random: &mut Random) -> Outcome {
        let shape = spec.shape;
        let (a, b) = (random.units(shape.m * shape.k), random.units(shape.k * shape.n));
        let mut out = vec![0.0; shape.m * shape.n];
        self.matmul_bf16(&a, &b, &mut out)?;
        let mut check = Check::default();
        check.finite(out.iter().map(|&value| f64::from(value)), shape.n);
        for row in sampled_rows(shape.m, shape.k * shape.n) {
            let expected = reference::matmul_row(shape, &a, &b, row, f64::from);
            for (column, &element) in expected.iter().enumerate() {
                let value = f64::from(out[row * shape.n + column]);
                let target = reference::activate(spec.activation, element.value);
                check.compare((row, column), value, target, matmul_bound(spec, element));
            }
        }
        Ok(check.finish())
    }

    fn test_attention(&mut self, spec: &AttentionSpec, random: &mut Random) -> Outcome {
        let (q, k, v) = attention_data(spec, random);
        let mut out = vec![bf16::ZERO; spec.heads * spec.queries * spec.value_width];
        self.attention_bf16(&q, &k, &v, &mut out)?;
        let mut check = Check::default();
        check.finite(out.iter().map(|value| value.to_f64()), spec.value_width);
        let work = spec.keys * (spec.key_width + spec.value_width);
        for row in sampled_rows(spec.heads * spec.queries, work) {
            let place = (row / spec.queries, row % spec.queries);
            let expected = reference::attention_row(spec, (&q, &k, &v), place);
            for (column, element) in expected.iter().enumerate() {
                let value = out[row * spec.value_width + column].to_f64();
                let bound = attention_bound(spec) * element.magnitude;
                check.compare((row, column), value, element.value, bound);
            }
        }
        Ok(check.finish())
    }
}

/// The inner result is what was found wrong.
type Outcome = Result<Result<SelfTest, String>, RunError>;

/// Products of bf16 are exact in f32, and every addition of K may be off by a step of the partial
/// sum, which the terms' magnitudes bound; then comes the conversion of the result.
fn matmul_bound(spec: &MatmulSpec, element: Element) -> f64 {
    let sum = spec.shape.k as f64 * F32_STEP * element.magnitude;
    let (sum, table) = match spec.activation {
        Activation::None => (sum, 0.0),
        // The slopes of both activations stay under 1.13.
        Activation::Gelu | Activation::Silu => (1.13 * sum, TABLE_STEP * element.value.abs()),
    };
    match spec.output {
        ElementType::Bf16 => sum + table + BF16_STEP * (element.value.abs() + sum),
        _ => sum + table,
    }
}

/// Scores are kept in bf16, so that one of magnitude s is off by s steps, which becomes a relative
/// error of its weight; weights and the running output are bf16, too, the latter converted once
/// for each 64 keys; exponentials come from a table.
fn attention_bound(spec: &AttentionSpec) -> f64 {
    let score = (spec.key_width as f64).sqrt();
    let chunks = (spec.keys / 64) as f64;
    (score + 2.0 + chunks) * BF16_STEP + TABLE_STEP
}

/// Keys of random signs; each query is one of the keys it sees, whose score is then the root of the
/// width while others are about 1: the output is mostly one value, and a kernel that mixes up
/// rows, heads or parts is off by far more than the bound. (Random queries would weigh all keys
/// alike, and their outputs would be near zero whatever the kernel does.)
fn attention_data(spec: &AttentionSpec, random: &mut Random) -> (Vec<bf16>, Vec<bf16>, Vec<bf16>) {
    let (keys, width) = (spec.kv_heads * spec.keys, spec.key_width);
    let sign = |bits: u64| if bits & 1 == 0 { bf16::ONE } else { bf16::NEG_ONE };
    let k: Vec<bf16> = (0..keys * width).map(|_| sign(random.next() >> 32)).collect();
    let v = random.units(keys * spec.value_width);
    let mut q = Vec::with_capacity(spec.heads * spec.queries * width);
    for head in 0..spec.heads {
        let kv_head = head / (spec.heads / spec.kv_heads);
        for query in 0..spec.queries {
            let seen = if spec.causal { query + 1 } else { spec.keys };
            let key = kv_head * spec.keys + random.next() as usize % seen;
            q.extend_from_slice(&k[key * width..(key + 1) * width]);
        }
    }
    (q, k, v)
}

/// Rows to compare: all if the budget allows, else spread evenly from the first to the last.
fn sampled_rows(rows: usize, work: usize) -> impl Iterator<Item = usize> {
    let count = (BUDGET / work.max(1)).clamp(2, rows.max(2)).min(rows);
    (0..count).map(move |index| if count < 2 { 0 } else { index * (rows - 1) / (count - 1) })
}

/// Compares elements, and remembers the first that is wrong.
#[derive(Default)]
struct Check {
    compared: usize,
    worst: f64,
    problem: Option<String>,
}

impl Check {
    fn finite(&mut self, values: impl Iterator<Item = f64>, width: usize) {
        for (index, value) in values.enumerate() {
            if !value.is_finite() {
                let (row, column) = (index / width, index % width);
                let problem = || format!("row {row}, column {column} is {value}");
                self.problem.get_or_insert_with(problem);
                return;
            }
        }
    }

    fn compare(&mut self, (row, column): (usize, usize), value: f64, target: f64, bound: f64) {
        self.compared += 1;
        let error = (value - target).abs();
        if error.is_nan() || error > bound {
            self.problem.get_or_insert_with(|| {
                format!("row {row}, column {column} is {value}, not {target} (within {bound:.3e})")
            });
        }
        if bound > 0.0 {
            self.worst = self.worst.max(error / bound);
        }
    }

    fn finish(self) -> Result<SelfTest, String> {
        match self.problem {
            Some(problem) => Err(problem),
            None => Ok(SelfTest { compared: self.compared, worst: self.worst }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sampled_rows_have_both_ends() {
        assert_eq!(sampled_rows(4, 1).collect::<Vec<_>>(), [0, 1, 2, 3]);
        assert_eq!(sampled_rows(1, 1).collect::<Vec<_>>(), [0]);
        let rows: Vec<usize> = sampled_rows(4096, 4096 * 4096).collect();
        assert_eq!((rows.len(), rows[0], *rows.last().unwrap()), (16, 0, 4095));
    }

    #[test]
    fn nan_never_passes() {
        let mut check = Check::default();
        check.compare((0, 0), f64::NAN, 1.0, 1e9);
        assert!(check.finish().unwrap_err().contains("NaN"));
    }
}
