//! Kernel descriptions as text, one a line.
//!
//! ```text
//! # what            in   out  M x K x N     how it was built                          where it is
//! matmul            i8   i32  512x512x512   tile=64x64x64 columns=4 layout=column     xclbin=a.xclbin
//! matmul            bf16 bf16 256x512x64    tile=64x128x64 layout=packed rounding=12  xclbin=b.xclbin insts=b.bin
//! attention         heads=8 kv_heads=2 lq=512 lk=512 dk=64 dv=64 causal               xclbin=air.xclbin
//! ```
//!
//! | word | of | meaning, and what it is if left out |
//! |---|---|---|
//! | `tile=MxKxN` | matmul | a core's tile; has to be given. Of packed B, K is the slice that a core holds at a time (IRON: 128 for N = 64) |
//! | `tile=N` | attention | keys of a step, 64 |
//! | `columns=N` | matmul | 1, 2 or 4 columns of the array, 4 |
//! | `layout=` | matmul | `row`, `column` or `packed` B, `row` |
//! | `rounding=N` | both | the core's mode, 0 to 3 or 8 to 13, 0 |
//! | `shift=N`, `saturate` | matmul of i8 | how sums are narrowed: 0, and wrapping |
//! | `partial=output` | matmul | partial sums are narrowed between tiles of K |
//! | `activation=` | matmul of bf16 | `gelu` or `silu` |
//! | `heads= kv_heads= lq= lk= dk= dv=` | attention | the shape; has to be given |
//! | `causal` | attention | queries see keys up to their own position |
//! | `state=f32` | attention | maxima, sums and outputs stay f32 between steps |
//! | `xclbin=`, `pdi=` | both | the program; a path relative to the file of descriptions |
//! | `insts=` | both | the instruction stream of this shape, where the PDI serves several |

use std::collections::BTreeMap;
use std::path::PathBuf;

use thiserror::Error;

use crate::kernel::{
    Activation, Attention, Element, Kernel, KernelError, Layout, Matmul, Partial, Tile,
};
use crate::rounding::Rounding;

/// One line: a kernel and where its program is.
#[derive(Clone, Debug, PartialEq)]
pub struct Description {
    /// What it computes.
    pub kernel: Kernel,
    /// The container whose PDIs compute it.
    pub xclbin: Option<PathBuf>,
    /// A bare PDI.
    pub pdi: Option<PathBuf>,
    /// The instruction stream of the shape.
    pub instructions: Option<PathBuf>,
}

/// Why descriptions could not be read.
#[derive(Debug, Error)]
pub enum DescriptionError {
    /// A line that makes no sense.
    #[error("line {line}: {reason}")]
    Line {
        /// Counted from one.
        line: usize,
        /// What is wrong.
        reason: String,
    },
    /// A program that cannot exist.
    #[error("line {line}: {reason}")]
    Kernel {
        /// Counted from one.
        line: usize,
        /// Why.
        reason: KernelError,
    },
    /// A file that cannot be read.
    #[error("{path}: {reason}")]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        reason: String,
    },
}

/// Reads descriptions. Paths are returned as they are written.
pub fn parse_kernels(text: &str) -> Result<Vec<Description>, DescriptionError> {
    let mut descriptions = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let line_number = index + 1;
        let line = line.split('#').next().unwrap_or_default().trim();
        if line.is_empty() {
            continue;
        }
        let parsed = parse_line(line)
            .map_err(|reason| DescriptionError::Line { line: line_number, reason })?;
        parsed
            .kernel
            .check()
            .map_err(|reason| DescriptionError::Kernel { line: line_number, reason })?;
        descriptions.push(parsed);
    }
    Ok(descriptions)
}

/// The words of a line: those without `=` in order, the others by name.
struct Words<'a> {
    plain: Vec<&'a str>,
    named: BTreeMap<&'a str, &'a str>,
}

fn parse_line(line: &str) -> Result<Description, String> {
    let mut words = Words { plain: Vec::new(), named: BTreeMap::new() };
    for word in line.split_whitespace() {
        match word.split_once('=') {
            Some((name, value)) => {
                if words.named.insert(name, value).is_some() {
                    return Err(format!("{name} is given twice"));
                }
            }
            None => words.plain.push(word),
        }
    }
    let path = |value: Option<&str>| value.map(PathBuf::from);
    let (xclbin, pdi) = (path(words.named.remove("xclbin")), path(words.named.remove("pdi")));
    let instructions = path(words.named.remove("insts"));
    if words.plain.is_empty() {
        return Err("the line names no operation".to_owned());
    }
    let kernel = match words.plain.remove(0) {
        "matmul" => Kernel::Matmul(matmul(&mut words)?),
        "attention" => Kernel::Attention(attention(&mut words)?),
        other => return Err(format!("{other} is not matmul or attention")),
    };
    if let Some(word) = words.plain.first().copied().or(words.named.keys().next().copied()) {
        return Err(format!("{word} is not a word of this operation"));
    }
    Ok(Description { kernel, xclbin, pdi, instructions })
}

fn matmul(words: &mut Words<'_>) -> Result<Matmul, String> {
    let [input, output, shape] = words.plain.get(..3).unwrap_or_default() else {
        return Err("matmul needs the types of input and output, and MxKxN".to_owned());
    };
    let (input, output, shape) = (element(input)?, element(output)?, triple(shape)?);
    words.plain.drain(..3);
    let tile = triple(words.named.remove("tile").ok_or("matmul needs tile=MxKxN")?)?;
    let layout = match words.named.remove("layout").unwrap_or("row") {
        "row" => Layout::RowMajor,
        "column" => Layout::ColumnMajor,
        "packed" => Layout::Packed,
        other => return Err(format!("layout {other} is not row, column or packed")),
    };
    let partial = match words.named.remove("partial").unwrap_or("accumulator") {
        "accumulator" => Partial::Accumulator,
        "output" => Partial::Output,
        other => return Err(format!("partial {other} is not accumulator or output")),
    };
    let activation = match words.named.remove("activation").unwrap_or("none") {
        "none" => Activation::Identity,
        "gelu" => Activation::Gelu,
        "silu" => Activation::Silu,
        other => return Err(format!("activation {other} is not gelu or silu")),
    };
    Ok(Matmul {
        m: shape.m,
        k: shape.k,
        n: shape.n,
        input,
        output,
        layout,
        tile,
        columns: words.number("columns", Some(4))?,
        shift: words.number("shift", Some(0))?.min(u32::MAX as usize) as u32,
        rounding: words.rounding()?,
        saturate: words.flag("saturate"),
        partial,
        activation,
    })
}

fn attention(words: &mut Words<'_>) -> Result<Attention, String> {
    let narrow_state = match words.named.remove("state").unwrap_or("bf16") {
        "bf16" => true,
        "f32" => false,
        other => return Err(format!("state {other} is not bf16 or f32")),
    };
    Ok(Attention {
        heads: words.number("heads", None)?,
        kv_heads: words.number("kv_heads", None)?,
        lq: words.number("lq", None)?,
        lk: words.number("lk", None)?,
        dk: words.number("dk", None)?,
        dv: words.number("dv", None)?,
        tile: words.number("tile", Some(64))?,
        causal: words.flag("causal"),
        rounding: words.rounding()?,
        narrow_state,
    })
}

impl Words<'_> {
    fn number(&mut self, name: &str, default: Option<usize>) -> Result<usize, String> {
        match self.named.remove(name) {
            Some(value) => bounded(value),
            None => default.ok_or_else(|| format!("{name}= has to be given")),
        }
    }

    fn flag(&mut self, name: &str) -> bool {
        let found = self.plain.iter().position(|word| *word == name);
        found.map(|index| self.plain.remove(index)).is_some()
    }

    fn rounding(&mut self) -> Result<Rounding, String> {
        let mode = self.number("rounding", Some(0))?;
        Rounding::from_register(mode as u32)
            .ok_or_else(|| format!("rounding {mode} is not 0 to 3 or 8 to 13"))
    }
}

/// Products of three such numbers and an element's size stay far below 2^64.
fn bounded(value: &str) -> Result<usize, String> {
    match value.parse() {
        Ok(number) if number <= 1 << 17 => Ok(number),
        _ => Err(format!("{value} is not a number up to {}", 1 << 17)),
    }
}

fn triple(text: &str) -> Result<Tile, String> {
    let numbers: Vec<usize> = text.split('x').map(bounded).collect::<Result<_, _>>()?;
    match numbers[..] {
        [m, k, n] => Ok(Tile { m, k, n }),
        _ => Err(format!("{text} is not MxKxN")),
    }
}

fn element(name: &str) -> Result<Element, String> {
    Ok(match name {
        "i8" => Element::I8,
        "i16" => Element::I16,
        "i32" => Element::I32,
        "bf16" => Element::Bf16,
        "f32" => Element::F32,
        _ => return Err(format!("{name} is not i8, i16, i32, bf16 or f32")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines() {
        let text = "# comment\n\nmatmul i8 i8 512x512x512 tile=64x64x64 shift=7 rounding=12 saturate \
                    layout=column xclbin=a/b.xclbin # here\n";
        let [description] = &parse_kernels(text).unwrap()[..] else { panic!("one line") };
        assert_eq!(description.xclbin, Some(PathBuf::from("a/b.xclbin")));
        let Kernel::Matmul(matmul) = &description.kernel else { panic!("a product") };
        assert_eq!((matmul.shift, matmul.rounding), (7, Rounding::ConvergentEven));
        assert!(matmul.saturate && matmul.layout == Layout::ColumnMajor);
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (line, with) in [
            ("softmax 1", "softmax is not"),
            ("matmul i8 i32", "needs the types"),
            ("matmul i8 i32 512x512 tile=64x64x64", "512x512 is not MxKxN"),
            ("matmul i8 i32 512x512x512", "needs tile"),
            ("matmul i8 i32 512x512x512 tile=64x64x64 tiles=3", "tiles is not"),
            ("matmul i8 i32 512x512x512 tile=64x64x64 rounding=5", "rounding 5"),
            ("matmul i8 i32 999999x512x512 tile=64x64x64", "999999"),
            ("matmul u8 i32 512x512x512 tile=64x64x64", "u8 is not"),
            ("matmul i8 i32 512x512x512 tile=64x64x64 shift=1 shift=2", "twice"),
            ("attention heads=2", "kv_heads= has to"),
            ("xclbin=a", "names no operation"),
        ] {
            let error = parse_kernels(line).unwrap_err().to_string();
            assert!(error.starts_with("line 1: ") && error.contains(with), "{line}: {error}");
        }
    }
}
