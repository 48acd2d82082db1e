//! What a PDI computes: descriptions, since a PDI cannot be interpreted.

use thiserror::Error;

use crate::rounding::Rounding;
use crate::{attention, matmul};

/// An array program's arithmetic.
#[derive(Clone, Debug, PartialEq)]
pub enum Kernel {
    /// C = A times B: arguments 0, 1 and 2.
    Matmul(Matmul),
    /// O = softmax(Q Kᵀ) V: arguments 0 to 3 are Q, K, V, O.
    Attention(Attention),
}

/// The type of an element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Element {
    /// Signed bytes.
    I8,
    /// Signed 16 bit integers.
    I16,
    /// Signed 32 bit integers.
    I32,
    /// The upper half of an f32.
    Bf16,
    /// IEEE single precision.
    F32,
}

impl Element {
    /// Bytes of one.
    pub fn bytes(self) -> usize {
        match self {
            Element::I8 => 1,
            Element::I16 | Element::Bf16 => 2,
            Element::I32 | Element::F32 => 4,
        }
    }
}

/// The part of a product that one core works on at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tile {
    /// Rows of A and C.
    pub m: usize,
    /// Columns of A, rows of B.
    pub k: usize,
    /// Columns of B and C.
    pub n: usize,
}

/// How B lies in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// K x N.
    RowMajor,
    /// N x K.
    ColumnMajor,
    /// The order in which the cores read it: blocks of `tile.n` columns; in each, slices of `tile.k`
    /// rows; in each, groups of 8 columns; in each, blocks of 8 rows by 8 columns, row-major.
    Packed,
}

/// What happens to partial sums between two tiles of K.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Partial {
    /// They stay in the accumulator's type.
    Accumulator,
    /// They are narrowed to the output's type, and read again.
    Output,
}

/// A function of each output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// None.
    Identity,
    /// x times sigmoid(1.702 x).
    Gelu,
    /// x times sigmoid(x).
    Silu,
}

/// A matrix product.
#[derive(Clone, Debug, PartialEq)]
pub struct Matmul {
    /// Rows of A and C.
    pub m: usize,
    /// Columns of A, rows of B.
    pub k: usize,
    /// Columns of B and C.
    pub n: usize,
    /// The type of A and B: `I8` or `Bf16`.
    pub input: Element,
    /// The type of C.
    pub output: Element,
    /// How B lies in memory.
    pub layout: Layout,
    /// The tile of one core.
    pub tile: Tile,
    /// Columns of the array.
    pub columns: usize,
    /// Bits by which integer sums are shifted right before they are narrowed.
    pub shift: u32,
    /// How sums are narrowed.
    pub rounding: Rounding,
    /// Whether integers beyond the output's range become its ends; else they wrap.
    pub saturate: bool,
    /// What happens to partial sums.
    pub partial: Partial,
    /// What happens to each output.
    pub activation: Activation,
}

/// Attention of `heads` query heads over `kv_heads` heads of keys and values, all bf16.
///
/// Q is heads x lq x dk and K kv_heads x lk x dk. V and O have their columns in chunks of `tile`:
/// (kv_heads · dv/tile) x lk x tile, and (heads · dv/tile) x lq x tile.
#[derive(Clone, Debug, PartialEq)]
pub struct Attention {
    /// Query heads.
    pub heads: usize,
    /// Heads of keys and values, of which each serves `heads / kv_heads` query heads.
    pub kv_heads: usize,
    /// Queries.
    pub lq: usize,
    /// Keys.
    pub lk: usize,
    /// Width of queries and keys.
    pub dk: usize,
    /// Width of values.
    pub dv: usize,
    /// Keys of one step of the online softmax, and columns of a chunk.
    pub tile: usize,
    /// Whether a query sees only keys up to its own position.
    pub causal: bool,
    /// How values are narrowed to bf16.
    pub rounding: Rounding,
    /// Whether maxima, sums and outputs are kept in bf16 between steps, as the open design does.
    pub narrow_state: bool,
}

/// Why a description cannot be one of a program for this array.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum KernelError {
    /// A shape that does not divide.
    #[error("{name} is {value}; it has to be a positive multiple of {of}")]
    Multiple {
        /// What.
        name: &'static str,
        /// How much.
        value: usize,
        /// What it has to be a multiple of.
        of: usize,
    },
    /// Tiles that do not fit a core.
    #[error("the tiles take {bytes} bytes of a core's memory; {limit} are free")]
    TileMemory {
        /// What they take.
        bytes: usize,
        /// What there is.
        limit: usize,
    },
    /// Anything else.
    #[error("{0}")]
    Unsupported(&'static str),
}

/// A core's data memory less stack and program state.
pub(crate) const TILE_MEMORY: usize = 64 * 1024 - 3 * 1024;
/// Tables of activation functions in programs that have them.
const ACTIVATION_TABLES: usize = 5248;
/// Rows of cores that share the work on M.
const CORE_ROWS: usize = 4;

fn multiple(name: &'static str, value: usize, of: usize) -> Result<(), KernelError> {
    if value == 0 || of == 0 || !value.is_multiple_of(of) {
        return Err(KernelError::Multiple { name, value, of });
    }
    Ok(())
}

impl Kernel {
    /// Whether a program for this array could have been built.
    pub fn check(&self) -> Result<(), KernelError> {
        match self {
            Kernel::Matmul(matmul) => matmul.check(),
            Kernel::Attention(attention) => attention.check(),
        }
    }

    /// Bytes of each argument, in order; the last is the output.
    pub fn argument_bytes(&self) -> Vec<usize> {
        match self {
            Kernel::Matmul(it) => vec![
                it.m * it.k * it.input.bytes(),
                it.k * it.n * it.input.bytes(),
                it.m * it.n * it.output.bytes(),
            ],
            Kernel::Attention(it) => vec![
                2 * it.heads * it.lq * it.dk,
                2 * it.kv_heads * it.lk * it.dk,
                2 * it.kv_heads * it.lk * it.dv,
                2 * it.heads * it.lq * it.dv,
            ],
        }
    }

    /// The type of the output.
    pub fn output(&self) -> Element {
        match self {
            Kernel::Matmul(matmul) => matmul.output,
            Kernel::Attention(_) => Element::Bf16,
        }
    }

    /// Columns of the array that the program takes.
    pub fn columns(&self) -> usize {
        match self {
            Kernel::Matmul(matmul) => matmul.columns,
            Kernel::Attention(_) => 4,
        }
    }

    /// The output for inputs of [`Kernel::argument_bytes`].
    pub fn run(&self, inputs: &[Vec<u8>]) -> Vec<u8> {
        match self {
            Kernel::Matmul(it) => matmul::run(it, &inputs[0], &inputs[1]),
            Kernel::Attention(it) => attention::run(it, &inputs[0], &inputs[1], &inputs[2]),
        }
    }
}

impl Matmul {
    fn check(&self) -> Result<(), KernelError> {
        let outputs: &[Element] = match self.input {
            Element::I8 => &[Element::I8, Element::I16, Element::I32],
            Element::Bf16 => &[Element::Bf16, Element::F32],
            _ => return Err(KernelError::Unsupported("inputs are i8 or bf16")),
        };
        if !outputs.contains(&self.output) {
            return Err(KernelError::Unsupported("no such output for this input"));
        }
        if !matches!(self.columns, 1 | 2 | 4) {
            return Err(KernelError::Unsupported("a program takes 1, 2 or 4 columns"));
        }
        if self.input == Element::I8 && self.activation != Activation::Identity {
            return Err(KernelError::Unsupported("activations are for bf16"));
        }
        if self.shift > 31 {
            return Err(KernelError::Unsupported("a shift of more than 31 bits"));
        }
        multiple("tile m", self.tile.m, 16)?;
        multiple("tile k", self.tile.k, 8)?;
        multiple("tile n", self.tile.n, 16)?;
        if self.layout == Layout::Packed {
            multiple("M", self.m, CORE_ROWS * self.tile.m)?;
            multiple("N", self.n, self.tile.n)?;
        } else {
            multiple("M", self.m, 2 * CORE_ROWS * self.tile.m)?;
            multiple("N", self.n, self.tile.n * self.columns)?;
        }
        multiple("K", self.k, self.tile.k)?;
        let (bytes, limit) = self.tile_memory();
        if bytes > limit {
            return Err(KernelError::TileMemory { bytes, limit });
        }
        Ok(())
    }

    /// What the tiles take of a core's memory, and what there is.
    ///
    /// Two tiles each of A, B and C. Programs with packed B keep one accumulator of 32 bit instead of
    /// C, send results in parts of 512, and may take A in bands of a quarter of the tile's height and B
    /// without a second buffer; their activations' tables stand in the same memory.
    fn tile_memory(&self) -> (usize, usize) {
        let Tile { m, k, n } = self.tile;
        let element = self.input.bytes();
        match self.layout {
            Layout::Packed => {
                let inputs = (2 * (m / 4) * k + k * n) * element;
                (
                    inputs + 4 * m * n + 2 * 512 * self.output.bytes(),
                    TILE_MEMORY - ACTIVATION_TABLES,
                )
            }
            _ => (2 * ((m * k + k * n) * element + m * n * self.output.bytes()), TILE_MEMORY),
        }
    }
}

impl Attention {
    fn check(&self) -> Result<(), KernelError> {
        multiple("tile", self.tile, 64)?;
        multiple("lq", self.lq, 256)?;
        multiple("lk", self.lk, 256)?;
        multiple("dk", self.dk, self.tile)?;
        multiple("dv", self.dv, self.tile)?;
        multiple("heads", self.heads, self.kv_heads)?;
        if self.causal && self.lq != self.lk {
            return Err(KernelError::Unsupported("causal attention wants as many queries as keys"));
        }
        // Tiles of Q, K, V, the scores and the output.
        let bytes = 2 * 5 * self.tile * self.tile;
        if bytes > TILE_MEMORY {
            return Err(KernelError::TileMemory { bytes, limit: TILE_MEMORY });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use crate::parse_kernels;

    fn check(line: &str) -> Result<(), String> {
        parse_kernels(line).map(drop).map_err(|error| error.to_string())
    }

    #[test]
    fn programs_that_can_be_built() {
        check("matmul i8 i32 512x512x512 tile=64x64x64 columns=4").unwrap();
        check("matmul bf16 f32 256x256x256 tile=32x64x32 columns=4").unwrap();
        check("matmul bf16 bf16 256x512x64 tile=64x128x64 layout=packed").unwrap();
        check("attention heads=8 kv_heads=2 lq=512 lk=512 dk=64 dv=64 causal").unwrap();
    }

    #[test]
    fn programs_that_cannot() {
        let fails = |line: &str, with: &str| {
            let error = check(line).unwrap_err();
            assert!(error.contains(with), "{line}: {error}");
        };
        fails("matmul i8 i32 256x512x512 tile=64x64x64 columns=4", "multiple of 512");
        fails("matmul i8 i32 512x512x128 tile=64x64x64 columns=4", "N is 128");
        fails("matmul i8 i32 512x500x512 tile=64x64x64 columns=4", "K is 500");
        fails("matmul i8 i32 512x512x512 tile=64x64x64 columns=3", "1, 2 or 4");
        fails("matmul i8 i32 512x512x512 tile=8x64x64 columns=4", "tile m");
        fails("matmul bf16 f32 512x512x512 tile=64x64x64 columns=4", "65536 bytes");
        fails("matmul bf16 bf16 256x512x256 tile=64x128x256 layout=packed", "bytes of a core");
        fails("matmul i8 f32 512x512x512 tile=64x64x64 columns=4", "no such output");
        fails("attention heads=8 kv_heads=3 lq=512 lk=512 dk=64 dv=64", "heads is 8");
        fails("attention heads=8 kv_heads=2 lq=256 lk=512 dk=64 dv=64 causal", "as many");
        fails("attention heads=8 kv_heads=2 lq=100 lk=512 dk=64 dv=64", "lq is 100");
    }
}
