//! What a kernel package computes, and the rules of the design that it was built from.

use serde::{Deserialize, Serialize};

use super::PackageError;
use super::file_name::{IronName, WholeArrayName};
use crate::amdxdna::Generation;

/// A type of a matrix's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ElementType {
    /// Signed bytes.
    I8,
    /// 32-bit integers.
    I32,
    /// The upper half of an f32.
    Bf16,
    /// Single precision.
    F32,
}

impl ElementType {
    /// Bytes of an element.
    pub fn bytes(self) -> usize {
        match self {
            ElementType::I8 => 1,
            ElementType::Bf16 => 2,
            ElementType::I32 | ElementType::F32 => 4,
        }
    }
}

/// The open design that a matmul was built from; its rules decide which shapes are right.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Design {
    /// mlir-aie's `matrix_multiplication/whole_array`.
    WholeArray,
    /// IRON's `flm.GEMM`.
    IronGemm,
}

/// How the second factor lies in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum BLayout {
    /// K rows of N.
    RowMajor,
    /// N rows of K (`b_col_maj=1`).
    ColumnMajor,
    /// In the order in which IRON's cores read it.
    Packed(Packing),
}

/// IRON's order of the second factor, outermost first: column block (`n_tile`), row block
/// (`k_tile`), slice of the row block (`slice_k`), then blocks of 8 x 8 with the column block
/// outside. A wrong number here computes wrongly in silence; the self-test finds out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Packing {
    /// Rows of B in a row block.
    pub k_tile: usize,
    /// Columns of B in a column block.
    pub n_tile: usize,
    /// Rows of B that a core holds at once.
    pub slice_k: usize,
}

impl Packing {
    /// Rows and columns of the blocks that the core's multiplier takes.
    pub const BLOCK: usize = 8;

    /// What IRON's build on npu1 uses for a column block (`tn` in its file names); none where that
    /// width was never verified.
    pub fn iron(n_tile: usize) -> Option<Packing> {
        let slice_k = match n_tile {
            16 => 16,
            32 | 128 => 32,
            64 => 128,
            _ => return None,
        };
        Some(Packing { k_tile: 512, n_tile, slice_k })
    }
}

/// What the design applies to the product.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Activation {
    /// Nothing.
    #[default]
    None,
    /// `x * sigmoid(1.702 x)`.
    Gelu,
    /// `x * sigmoid(x)`.
    Silu,
}

/// Rows, inner dimension and columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Shape {
    /// Rows of A and C.
    pub m: usize,
    /// Columns of A, rows of B.
    pub k: usize,
    /// Columns of B and C.
    pub n: usize,
}

/// `C = A B`, with A and C row-major.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MatmulSpec {
    /// Where the kernel comes from.
    pub design: Design,
    /// The type of A and B.
    pub input: ElementType,
    /// The type of C.
    pub output: ElementType,
    /// The one shape that the instructions compute.
    pub shape: Shape,
    /// What one core computes at a time.
    pub tile: Shape,
    /// How B lies.
    pub b_layout: BLayout,
    /// What is applied to C.
    #[serde(default)]
    pub activation: Activation,
}

/// Flash attention, bf16 in and out, scores scaled by the root of the key width.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AttentionSpec {
    /// Heads of queries and outputs.
    pub heads: usize,
    /// Heads of keys and values; each serves `heads / kv_heads` heads of queries.
    pub kv_heads: usize,
    /// Queries.
    pub queries: usize,
    /// Keys and values.
    pub keys: usize,
    /// Elements of a query and a key.
    pub key_width: usize,
    /// Elements of a value and an output.
    pub value_width: usize,
    /// Whether a query sees no later key.
    pub causal: bool,
}

/// What a package computes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Operation {
    /// A product of matrices.
    Matmul(MatmulSpec),
    /// Attention.
    Attention(AttentionSpec),
}

/// A data buffer of a kernel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Argument {
    /// Its name.
    pub name: String,
    /// Its bytes.
    pub bytes: usize,
}

/// No dimension of a kernel comes near; products of three stay far below 64 bits.
const MAX_DIMENSION: usize = 1 << 16;
/// Local memory of a core, less its stack.
const CORE_BYTES: usize = (64 - 3) << 10;
/// Rows of cores.
const CORE_ROWS: usize = 4;

impl Operation {
    /// The data buffers, in the order of the instructions' argument indices.
    pub fn arguments(&self) -> Vec<Argument> {
        let argument = |name: &str, bytes| Argument { name: name.to_string(), bytes };
        match self {
            Operation::Matmul(MatmulSpec { input, output, shape, .. }) => {
                let Shape { m, k, n } = *shape;
                vec![
                    argument("a", m * k * input.bytes()),
                    argument("b", k * n * input.bytes()),
                    argument("c", m * n * output.bytes()),
                ]
            }
            Operation::Attention(spec) => {
                let bf16 = ElementType::Bf16.bytes();
                vec![
                    argument("q", spec.heads * spec.queries * spec.key_width * bf16),
                    argument("k", spec.kv_heads * spec.keys * spec.key_width * bf16),
                    argument("v", spec.kv_heads * spec.keys * spec.value_width * bf16),
                    argument("out", spec.heads * spec.queries * spec.value_width * bf16),
                ]
            }
        }
    }

    /// The type of the output's elements.
    pub fn output(&self) -> ElementType {
        match self {
            Operation::Matmul(spec) => spec.output,
            Operation::Attention(_) => ElementType::Bf16,
        }
    }

    /// Checks shapes and types against the design's rules.
    pub fn check(&self, device: Generation, columns: u16) -> Result<(), PackageError> {
        match self {
            Operation::Matmul(spec) => spec.check(device, columns as usize),
            Operation::Attention(spec) => spec.check(device),
        }
    }
}

/// The error where a rule does not hold.
fn rule(holds: bool, rule: &str) -> Result<(), PackageError> {
    if holds { Ok(()) } else { Err(PackageError::Rule(rule.to_string())) }
}

fn dimensions(values: &[usize]) -> Result<(), PackageError> {
    let sound = values.iter().all(|value| (1..=MAX_DIMENSION).contains(value));
    rule(sound, "every dimension is between 1 and 65,536")
}

impl MatmulSpec {
    /// A build of mlir-aie's whole_array by its file name; types of the factors and the product,
    /// and B's layout, are not in it.
    pub fn whole_array(
        name: WholeArrayName,
        (input, output): (ElementType, ElementType),
        b_layout: BLayout,
    ) -> MatmulSpec {
        let WholeArrayName { shape, tile, .. } = name;
        let (design, activation) = (Design::WholeArray, Activation::None);
        MatmulSpec { design, input, output, shape, tile, b_layout, activation }
    }

    /// A build of IRON's GEMM for npu1 by its file name; none where its column block was never
    /// verified.
    pub fn iron(name: IronName, activation: Activation) -> Option<MatmulSpec> {
        let packing = Packing::iron(name.n_tile)?;
        Some(MatmulSpec {
            design: Design::IronGemm,
            input: ElementType::Bf16,
            output: ElementType::Bf16,
            shape: name.shape,
            tile: Shape { m: 64, k: packing.k_tile, n: packing.n_tile },
            b_layout: BLayout::Packed(packing),
            activation,
        })
    }

    /// Whether both can compute parts of one product, so that it does not matter which does: they differ in
    /// M and N only. Another K would round sums elsewhere.
    pub fn shares_products_with(&self, other: &MatmulSpec) -> bool {
        let shape = Shape { k: self.shape.k, ..other.shape };
        *other == MatmulSpec { shape, ..self.clone() }
    }

    fn check(&self, device: Generation, columns: usize) -> Result<(), PackageError> {
        let (shape, tile) = (self.shape, self.tile);
        dimensions(&[shape.m, shape.k, shape.n, tile.m, tile.k, tile.n])?;
        match self.design {
            Design::WholeArray => self.check_whole_array(device, columns),
            Design::IronGemm => self.check_iron(device, columns),
        }
    }

    fn check_whole_array(&self, device: Generation, columns: usize) -> Result<(), PackageError> {
        let (shape, tile) = (self.shape, self.tile);
        let types = (self.input, self.output);
        let known = [(ElementType::I8, ElementType::I32), (ElementType::Bf16, ElementType::F32)];
        rule(known.contains(&types), "whole_array computes i8 to i32 or bf16 to f32")?;
        rule(self.activation == Activation::None, "whole_array has no activation")?;
        rule(
            !matches!(self.b_layout, BLayout::Packed(_)),
            "whole_array takes B row-major or column-major",
        )?;
        let widths = [1, 2, 4, 8];
        rule(
            widths.contains(&columns) && columns <= device.columns() as usize,
            "whole_array uses 1, 2 or 4 columns (8 on npu2)",
        )?;
        rule(
            tile.m.is_multiple_of(16) && tile.k.is_multiple_of(8) && tile.n.is_multiple_of(16),
            "tiles are multiples of 16 x 8 x 16",
        )?;
        let block = CORE_ROWS * tile.m;
        rule(
            shape.m.is_multiple_of(block) && (shape.m / block).is_multiple_of(2),
            "M is an even number of times 4 m",
        )?;
        rule(shape.k.is_multiple_of(tile.k), "K is a multiple of k")?;
        rule(shape.n.is_multiple_of(tile.n * columns), "N is a multiple of n times the columns")?;
        let inputs = (tile.m * tile.k + tile.k * tile.n) * self.input.bytes();
        let bytes = 2 * (inputs + tile.m * tile.n * self.output.bytes());
        rule(bytes <= CORE_BYTES, "two tiles each of A, B and C fit into 61 KiB of a core's memory")
    }

    fn check_iron(&self, device: Generation, columns: usize) -> Result<(), PackageError> {
        let (shape, tile) = (self.shape, self.tile);
        let types = (self.input, self.output);
        let bf16 = ElementType::Bf16;
        rule(types == (bf16, bf16), "IRON's GEMM computes bf16 to bf16")?;
        rule(
            device == Generation::Npu1,
            "IRON's GEMM takes a block-floating B on npu2, which this program does not make",
        )?;
        rule(columns == device.columns() as usize, "IRON's GEMM uses all columns")?;
        let BLayout::Packed(packing) = self.b_layout else {
            return rule(false, "IRON's GEMM takes B packed");
        };
        rule(
            Packing::iron(packing.n_tile) == Some(packing),
            "B's packing is one that IRON has verified: column blocks of 16, 32, 64 or 128",
        )?;
        let tiles = Shape { m: 64, k: packing.k_tile, n: packing.n_tile };
        rule(tile == tiles, "IRON's tile is 64 x 512 x the column block")?;
        rule(shape.m.is_multiple_of(256), "M is a multiple of 256")?;
        rule(shape.k.is_multiple_of(512), "K is a multiple of 512")?;
        rule(shape.n.is_multiple_of(packing.n_tile), "N is a multiple of the column block")
    }
}

impl AttentionSpec {
    /// Elements of a value that the design handles at once; values and outputs lie in such parts.
    pub const VALUE_TILE: usize = 64;

    fn check(&self, device: Generation) -> Result<(), PackageError> {
        rule(device == Generation::Npu1, "attention is mlir-air's design for npu1")?;
        let heads = [self.heads, self.kv_heads];
        let lengths = [self.queries, self.keys, self.key_width, self.value_width];
        dimensions(&heads)?;
        dimensions(&lengths)?;
        rule(self.heads.is_multiple_of(self.kv_heads), "heads are a multiple of KV heads")?;
        rule(self.queries.is_multiple_of(256), "queries are a multiple of 256")?;
        rule(self.keys.is_multiple_of(256), "keys are a multiple of 256")?;
        rule(
            self.key_width.is_multiple_of(64) && self.value_width.is_multiple_of(64),
            "widths of keys and values are multiples of 64",
        )?;
        rule(
            !self.causal || self.queries == self.keys,
            "causal attention has as many queries as keys",
        )
    }
}
