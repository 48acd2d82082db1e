//! Measured choices: what `pianola tune` found fastest on a device, and how they are kept.

use crate::gpu::Gpu;
use crate::pipeline::Shader;
use crate::policy::rows::RowsShape;
use pianola_formats::TensorType;
use std::collections::BTreeMap;
use std::fmt::Write;

/// A product that was measured.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub(crate) struct RowsKey {
    /// Type of its first part.
    pub ty: TensorType,
    /// Weight rows.
    pub rows: u32,
    /// Blocks of a row.
    pub blocks: u32,
    /// Rows of activations.
    pub count: u32,
}

/// Choices by what they were measured for; empty where nothing was.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Tuning {
    pub(crate) rows: BTreeMap<RowsKey, RowsShape>,
}

/// Why kept choices are of no use.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Stale {
    /// Measured on something else.
    #[error("measured for {found}, this is {expected}")]
    Other {
        /// What it was measured for.
        found: String,
        /// What is here.
        expected: String,
    },
    /// Not what `pianola tune` writes.
    #[error("line {0} cannot be read")]
    Broken(usize),
}

const TITLE: &str = "pianola tuning 1";

/// Device, driver and kernels: choices hold for no others.
pub(crate) fn identity(gpu: &Gpu) -> String {
    let description = gpu.description();
    format!("{} | {} | kernels {:016x}", description.name, description.driver, shader_hash())
}

/// A sum of all kernels' code.
fn shader_hash() -> u64 {
    fnv(Shader::ALL.iter().flat_map(|shader| shader.code()))
}

/// A sum of bytes (FNV-1a).
pub(crate) fn fnv<'a>(bytes: impl IntoIterator<Item = &'a u8>) -> u64 {
    bytes.into_iter().fold(0xcbf2_9ce4_8422_2325, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

impl Tuning {
    /// Number of products with a measured choice.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Whether nothing was measured.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Adds what another measurement found; where both have a choice, the other's stands.
    pub fn merge(&mut self, other: &Tuning) {
        self.rows.extend(&other.rows);
    }

    /// As text for a file.
    pub fn to_text(&self, gpu: &Gpu) -> String {
        let mut text = format!("{TITLE}\n{}\n", identity(gpu));
        for (key, shape) in &self.rows {
            let RowsKey { ty, rows, blocks, count } = key;
            let RowsShape { workgroup, row_invocations, height, unroll } = shape;
            let _ = writeln!(
                text,
                "rows {ty} {rows} {blocks} {count}: {workgroup} {row_invocations} {height} {unroll}"
            );
        }
        text
    }

    /// From the text of a file that was written for the same device, driver and kernels.
    pub fn from_text(text: &str, gpu: &Gpu) -> Result<Tuning, Stale> {
        let mut lines = text.lines().enumerate();
        if lines.next().map(|line| line.1) != Some(TITLE) {
            return Err(Stale::Broken(1));
        }
        let found = lines.next().map_or("", |line| line.1).to_string();
        let expected = identity(gpu);
        if found != expected {
            return Err(Stale::Other { found, expected });
        }
        let mut rows = BTreeMap::new();
        for (index, line) in lines {
            let (key, shape) = parse(line).ok_or(Stale::Broken(index + 1))?;
            rows.insert(key, shape);
        }
        Ok(Tuning { rows })
    }
}

fn parse(line: &str) -> Option<(RowsKey, RowsShape)> {
    let (key, shape) = line.strip_prefix("rows ")?.split_once(": ")?;
    let mut key = key.split(' ');
    let ty: TensorType = key.next()?.parse().ok()?;
    let key: Vec<u32> = key.map(|word| word.parse().ok()).collect::<Option<_>>()?;
    let shape: Vec<u32> = shape.split(' ').map(|word| word.parse().ok()).collect::<Option<_>>()?;
    let ([rows, blocks, count], [workgroup, row_invocations, height, unroll]) =
        (&key[..], &shape[..])
    else {
        return None;
    };
    Some((
        RowsKey { ty, rows: *rows, blocks: *blocks, count: *count },
        RowsShape {
            workgroup: *workgroup,
            row_invocations: *row_invocations,
            height: *height,
            unroll: *unroll,
        },
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read_back_and_others_refused() {
        let key = RowsKey { ty: TensorType::Q4_0, rows: 5376, blocks: 168, count: 1 };
        let shape = RowsShape { workgroup: 256, row_invocations: 8, height: 2, unroll: 4 };
        assert_eq!(parse("rows q4_0 5376 168 1: 256 8 2 4"), Some((key, shape)));
        for wrong in ["", "rows", "rows q4_0 1 2: 3 4 5 6", "rows q9 1 2 3: 4 5 6 7", "x 1 2 3: 4"]
        {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
    }
}
