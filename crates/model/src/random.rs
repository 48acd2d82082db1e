//! Random weights in a model's shape, for benchmarks and tests.

use crate::config::Config;
use crate::role::Role;
use half::f16;
use pianola_formats::{Minimum, Tensor, TensorInfo, TensorSource, TensorType};
use std::borrow::Cow;
use std::collections::HashMap;

/// Answers for every tensor of a configuration with values of a fixed, non-zero distribution:
/// matrices scaled by the root of their width so that activations neither vanish nor explode,
/// norms around one. The same name and seed give the same values.
pub struct RandomWeights {
    infos: HashMap<String, TensorInfo>,
    seed: u64,
}

impl RandomWeights {
    /// Weights for `config`; `type_of` says which type a matrix `[rows, columns]` has.
    pub fn new(
        config: &Config,
        seed: u64,
        type_of: impl Fn(&str, usize, usize) -> TensorType,
    ) -> RandomWeights {
        let mut infos = HashMap::new();
        for (role, layer, part) in Role::of_model(config) {
            let location = role.locate(config, layer, part);
            // A tensor that holds several weights is put once for each of them.
            let shape = location.file_shape(role.shape(config, part));
            let name = location.name;
            let ty = match shape[..] {
                [rows, columns] => type_of(&name, rows, columns),
                _ => TensorType::F32,
            };
            let row = shape[shape.len() - 1];
            let rows = shape[..shape.len() - 1].iter().product::<usize>();
            let bytes = (rows * ty.row_bytes(row).unwrap_or(0)) as u64;
            infos.insert(name.clone(), TensorInfo { name, ty, shape, bytes });
        }
        RandomWeights { infos, seed }
    }
}

/// A 64-bit linear congruential generator; the high bits are good enough for weights.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u32 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 32) as u32
    }

    /// Between -1 and 1.
    fn signed(&mut self) -> f32 {
        self.next() as f32 / (1u64 << 31) as f32 - 1.0
    }
}

impl TensorSource for RandomWeights {
    fn tensor(&self, name: &str) -> Option<Tensor<'_>> {
        let info = self.infos.get(name)?;
        let hash = name.bytes().fold(self.seed ^ 0xcbf2_9ce4_8422_2325, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
        });
        let mut random = Random(hash);
        let columns = info.shape[info.shape.len() - 1];
        let bytes = match info.ty {
            TensorType::F32 if info.shape.len() == 1 => {
                (0..columns).flat_map(|_| (1.0 + 0.2 * random.signed()).to_le_bytes()).collect()
            }
            ty => matrix(ty, info.bytes as usize, columns, &mut random),
        };
        Some(Tensor {
            name: name.to_string(),
            ty: info.ty,
            shape: info.shape.clone(),
            bytes: Cow::Owned(bytes),
        })
    }

    fn info(&self, name: &str) -> Option<TensorInfo> {
        self.infos.get(name).cloned()
    }

    fn tensor_infos(&self) -> Vec<TensorInfo> {
        let mut infos: Vec<TensorInfo> = self.infos.values().cloned().collect();
        infos.sort_by(|a, b| a.name.cmp(&b.name));
        infos
    }
}

/// Random blocks with scales that give values a deviation of about `1 / sqrt(columns)`. A run of
/// at most a mebibyte is drawn and repeated: drawing 15 GB would take longer than a benchmark.
fn matrix(ty: TensorType, bytes: usize, columns: usize, random: &mut Random) -> Vec<u8> {
    let block = ty.block_bytes();
    // An odd number of blocks, so that rows do not repeat one another.
    let drawn = (((1 << 20) / block) | 1).min(bytes / block);
    let deviation = 1.0 / (columns as f32).sqrt();
    let mut run = Vec::with_capacity(drawn * block);
    for _ in 0..drawn {
        let start = run.len();
        match ty {
            TensorType::F32 => run.extend((1.7 * deviation * random.signed()).to_le_bytes()),
            TensorType::F16 => {
                run.extend(f16::from_f32(1.7 * deviation * random.signed()).to_le_bytes())
            }
            TensorType::BF16 => {
                run.extend(half::bf16::from_f32(1.7 * deviation * random.signed()).to_le_bytes());
            }
            _ => {
                while run.len() < start + block {
                    run.extend(random.next().to_le_bytes());
                }
                run.truncate(start + block);
                scale_block(ty, &mut run[start..], deviation, random);
            }
        }
    }
    let mut result = Vec::with_capacity(bytes);
    while result.len() < bytes {
        let rest = (bytes - result.len()).min(run.len());
        result.extend_from_slice(&run[..rest]);
    }
    result
}

/// Overwrites the scales of a block of random bytes.
fn scale_block(ty: TensorType, block: &mut [u8], deviation: f32, random: &mut Random) {
    let quantization = ty.quantization().expect("a quantised type");
    let jitter = 1.0 + 0.3 * random.signed();
    let half = |value: f32| f16::from_f32(value * deviation * jitter);
    // Deviation of random integers of so many bits around their mean.
    let spread = |bits: usize| match bits {
        4 => 4.6,
        5 => 9.2,
        6 => 18.5,
        _ => 74.0,
    };
    let codes = match quantization.codebook {
        Some(values) => {
            let squares = values.map(|value| f32::from(value).powi(2));
            (squares.iter().sum::<f32>() / squares.len() as f32).sqrt()
        }
        None => spread(quantization.code_bits),
    };
    // What the integer scales are about: signed ones around zero, or unsigned ones of six bits.
    let integers = match (quantization.scale_bits, quantization.minimum) {
        (0, _) => 1.0,
        (bits, Minimum::None) => spread(bits),
        _ => 37.0,
    };
    let middle = ((1 << quantization.code_bits) - 1) as f32 / 2.0;
    let minimum = match quantization.minimum {
        Minimum::None => 0.0,
        Minimum::Added => -middle,
        Minimum::Subtracted => middle,
    };
    let unit = codes * integers;
    quantization.set_scale(block, half(1.0 / unit), half(minimum / unit));
}

#[cfg(test)]
mod tests {
    use super::*;
    use pianola_formats::dequantize_row;

    #[test]
    fn matrices_have_the_deviation_of_their_width() {
        for &ty in TensorType::ALL {
            let bytes = matrix(ty, ty.row_bytes(512).unwrap() * 64, 512, &mut Random(5));
            let mut values = vec![0.0; 512 * 64];
            dequantize_row(ty, &bytes, &mut values);
            let squares: f32 = values.iter().map(|value| value * value).sum();
            let relative = (squares / 64.0).sqrt();
            // Minimums of sub-blocks add a deviation of their own.
            assert!((0.8..1.7).contains(&relative), "{ty}: {relative}");
        }
    }
}
