//! `npu import`: makes a package of the files that a build left.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use pianola_npu::package::{
    self, Activation, AttentionSpec, BLayout, ElementType, ImportOptions, IronName, MatmulSpec,
    Operation, PackageError, Shape, WholeArrayName,
};

use super::{FolderOption, described, dimensions};
use crate::console::{self, Console};
use crate::failure::Failure;

/// Make a package of an xclbin and its instructions.
///
/// The files come from a build of one of AMD's open designs: mlir-aie's whole_array (i8, bf16), IRON's
/// flm.GEMM (bf16), mlir-air's flash attention for npu1 (bf16). Shape, tile and columns are read from
/// the names of the files if they are there. Types and layouts are in no file; give them as built.
/// `pianola npu check` tests them.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  pianola npu import build/final_512x512x512_64x64x64_4c.xclbin \\
    build/insts_512x512x512_64x64x64_4c.bin --op matmul-i8
  pianola npu import air.xclbin air.insts.bin --op attention-bf16 --heads 8 --kv-heads 2 \\
    --queries 512 --keys 512 --key-width 64 --value-width 64 --causal")]
pub struct Arguments {
    /// Configuration of the array
    xclbin: PathBuf,
    /// Instruction stream: .bin, or .txt of hexadecimal words
    insts: PathBuf,
    /// What the kernel computes
    #[arg(long, value_enum)]
    op: Op,
    /// Name of the package [default: operation and shape]
    #[arg(long)]
    name: Option<String>,
    /// Name of the kernel in the xclbin
    #[arg(long, default_value = "MLIR_AIE")]
    kernel: String,
    /// Replace a package of the same name
    #[arg(long)]
    replace: bool,
    #[command(flatten)]
    folder: FolderOption,
    #[command(flatten)]
    product: ProductOptions,
    #[command(flatten)]
    attention: AttentionOptions,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Op {
    /// i8 times i8 into i32
    MatmulI8,
    /// bf16 times bf16, into f32 by whole_array and into bf16 by IRON
    MatmulBf16,
    /// Flash attention
    AttentionBf16,
}

#[derive(Args, Debug)]
#[command(next_help_heading = "Products")]
struct ProductOptions {
    /// Shape, if no file name has it
    #[arg(long, value_name = "MxKxN", value_parser = parse_shape)]
    shape: Option<Shape>,
    /// Tile of a core, if no file name has it
    #[arg(long, value_name = "MxKxN", value_parser = parse_shape)]
    tile: Option<Shape>,
    /// How whole_array reads B: column for a build with b_col_maj=1 [default: row]
    #[arg(long, value_enum)]
    b_layout: Option<Layout>,
    /// Column block (tn) of IRON's design, if no file name has it
    #[arg(long, value_name = "N")]
    iron_block: Option<usize>,
    /// Function that IRON's design applies to the product [default: none]
    #[arg(long, value_enum)]
    activation: Option<Function>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Layout {
    Row,
    Column,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Function {
    None,
    Gelu,
    Silu,
}

#[derive(Args, Debug)]
#[command(next_help_heading = "Attention")]
struct AttentionOptions {
    /// Heads of queries
    #[arg(long, value_name = "N")]
    heads: Option<usize>,
    /// Heads of keys and values
    #[arg(long, value_name = "N")]
    kv_heads: Option<usize>,
    /// Number of queries (lq)
    #[arg(long, value_name = "N")]
    queries: Option<usize>,
    /// Number of keys (lk)
    #[arg(long, value_name = "N")]
    keys: Option<usize>,
    /// Elements of a key (dk)
    #[arg(long, value_name = "N")]
    key_width: Option<usize>,
    /// Elements of a value (dv)
    #[arg(long, value_name = "N")]
    value_width: Option<usize>,
    /// Queries attend to no later key
    #[arg(long)]
    causal: bool,
}

fn parse_shape(text: &str) -> Result<Shape, String> {
    let numbers: Option<Vec<usize>> = text.split('x').map(|part| part.parse().ok()).collect();
    match numbers.as_deref() {
        Some(&[m, k, n]) => Ok(Shape { m, k, n }),
        _ => Err("three numbers with x between, as 512x512x512".to_string()),
    }
}

pub fn run(arguments: &Arguments, _: Console) -> Result<(), Failure> {
    let operation = operation(arguments)?;
    let name = arguments.name.clone().unwrap_or_else(|| default_name(&operation));
    let options =
        ImportOptions { kernel: arguments.kernel.clone(), replace: arguments.replace, name };
    let files = (arguments.xclbin.as_path(), arguments.insts.as_path());
    let package = package::import(&arguments.folder.path()?, files, &operation, &options).map_err(
        |error| match error {
            PackageError::Exists(_) => Failure::usage(format!("{error} (--name, --replace)")),
            error => error.into(),
        },
    )?;
    let manifest = package.manifest();
    console::print_line(&format!(
        "{}: {}, {}, {}; `pianola npu check --package {}` runs it on the device",
        package.name(),
        manifest.device.name(),
        console::count(manifest.columns.into(), "column"),
        described(&manifest.operation),
        package.name(),
    ))
}

fn operation(arguments: &Arguments) -> Result<Operation, Failure> {
    let Arguments { product, attention, .. } = arguments;
    match arguments.op {
        Op::AttentionBf16 => {
            product.refuse()?;
            attention.spec().map(Operation::Attention)
        }
        Op::MatmulI8 | Op::MatmulBf16 => {
            attention.refuse()?;
            product.spec(arguments).map(Operation::Matmul)
        }
    }
}

/// The first option that was given, as an error.
fn refuse(given: &[(&str, bool)], of: &str) -> Result<(), Failure> {
    match given.iter().find(|(_, given)| *given) {
        Some((option, _)) => {
            Err(Failure::usage(format!("{option} is an option of {of}; leave it out")))
        }
        None => Ok(()),
    }
}

impl ProductOptions {
    fn refuse(&self) -> Result<(), Failure> {
        let given = [
            ("--shape", self.shape.is_some()),
            ("--tile", self.tile.is_some()),
            ("--b-layout", self.b_layout.is_some()),
            ("--iron-block", self.iron_block.is_some()),
            ("--activation", self.activation.is_some()),
        ];
        refuse(&given, "products")
    }

    fn spec(&self, arguments: &Arguments) -> Result<MatmulSpec, Failure> {
        let named = IronName::parse(&arguments.insts);
        let agrees = |IronName { shape, n_tile }: IronName| {
            self.shape.is_none_or(|given| given == shape)
                && self.iron_block.is_none_or(|given| given == n_tile)
        };
        if !named.is_none_or(agrees) {
            return Err(Failure::usage(format!(
                "{} says another shape or column block than --shape and --iron-block; leave them out",
                arguments.insts.display()
            )));
        }
        match self.iron_block.or(named.map(|named| named.n_tile)) {
            Some(n_tile) => self.iron(arguments.op, n_tile, named.map(|named| named.shape)),
            None => self.whole_array(arguments),
        }
    }

    fn iron(&self, op: Op, n_tile: usize, named: Option<Shape>) -> Result<MatmulSpec, Failure> {
        let stated = [("--tile", self.tile.is_some()), ("--b-layout", self.b_layout.is_some())];
        refuse(&stated, "whole_array; IRON's follow from its column block")?;
        if op == Op::MatmulI8 {
            return Err(Failure::usage("IRON's GEMM computes bf16: --op matmul-bf16"));
        }
        let shape = required(self.shape.or(named), "--shape MxKxN")?;
        let activation = match self.activation {
            None | Some(Function::None) => Activation::None,
            Some(Function::Gelu) => Activation::Gelu,
            Some(Function::Silu) => Activation::Silu,
        };
        MatmulSpec::iron(IronName { shape, n_tile }, activation).ok_or_else(|| {
            Failure::usage(format!(
                "IRON's packing of B is known for column blocks of 16, 32, 64 and 128, not {n_tile}"
            ))
        })
    }

    fn whole_array(&self, arguments: &Arguments) -> Result<MatmulSpec, Failure> {
        refuse(
            &[("--activation", matches!(self.activation, Some(Function::Gelu | Function::Silu)))],
            "IRON's design",
        )?;
        let named = WholeArrayName::parse(&arguments.xclbin);
        let named = named.or_else(|| WholeArrayName::parse(&arguments.insts));
        let shape = self.shape.or(named.map(|named| named.shape));
        let tile = self.tile.or(named.map(|named| named.tile));
        let types = match arguments.op {
            Op::MatmulI8 => (ElementType::I8, ElementType::I32),
            _ => (ElementType::Bf16, ElementType::F32),
        };
        let layout = match self.b_layout {
            None | Some(Layout::Row) => BLayout::RowMajor,
            Some(Layout::Column) => BLayout::ColumnMajor,
        };
        let name = WholeArrayName {
            shape: required(shape, "--shape MxKxN")?,
            tile: required(tile, "--tile MxKxN")?,
            // The xclbin has the columns; a name that disagrees is refused by the import.
            columns: named.map_or(0, |named| named.columns),
        };
        Ok(MatmulSpec::whole_array(name, types, layout))
    }
}

impl AttentionOptions {
    fn refuse(&self) -> Result<(), Failure> {
        let given = [
            ("--heads", self.heads.is_some()),
            ("--kv-heads", self.kv_heads.is_some()),
            ("--queries", self.queries.is_some()),
            ("--keys", self.keys.is_some()),
            ("--key-width", self.key_width.is_some()),
            ("--value-width", self.value_width.is_some()),
            ("--causal", self.causal),
        ];
        refuse(&given, "attention")
    }

    fn spec(&self) -> Result<AttentionSpec, Failure> {
        Ok(AttentionSpec {
            heads: required(self.heads, "--heads N")?,
            kv_heads: required(self.kv_heads, "--kv-heads N")?,
            queries: required(self.queries, "--queries N")?,
            keys: required(self.keys, "--keys N")?,
            key_width: required(self.key_width, "--key-width N")?,
            value_width: required(self.value_width, "--value-width N")?,
            causal: self.causal,
        })
    }
}

/// What no file says has to be stated.
fn required<T>(value: Option<T>, option: &str) -> Result<T, Failure> {
    value.ok_or_else(|| {
        Failure::usage(format!("the files' names do not tell: state it as built, with {option}"))
    })
}

/// A name that tells packages of different operations and shapes apart.
fn default_name(operation: &Operation) -> String {
    match operation {
        Operation::Matmul(spec) => {
            let ty = if spec.input == ElementType::I8 { "i8" } else { "bf16" };
            let layout = match spec.b_layout {
                BLayout::RowMajor => "",
                BLayout::ColumnMajor => "_column",
                BLayout::Packed(_) => "_iron",
            };
            let activation = match spec.activation {
                Activation::None => "",
                Activation::Gelu => "_gelu",
                Activation::Silu => "_silu",
            };
            format!("matmul_{ty}_{}{layout}{activation}", dimensions(spec.shape))
        }
        Operation::Attention(spec) => format!(
            "attention_bf16_{}on{}_{}x{}_{}x{}{}",
            spec.heads,
            spec.kv_heads,
            spec.queries,
            spec.keys,
            spec.key_width,
            spec.value_width,
            if spec.causal { "_causal" } else { "" },
        ),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        arguments: Arguments,
    }

    fn of(words: &str) -> Result<Operation, Failure> {
        let words = std::iter::once("import").chain(words.split(' '));
        operation(&Line::try_parse_from(words).unwrap().arguments)
    }

    fn refused(words: &str) -> String {
        let failure = of(words).unwrap_err();
        assert_eq!(failure.exit_code(), 2);
        failure.message().unwrap().to_string()
    }

    #[test]
    fn names_of_files_tell_shapes() {
        let operation =
            of("final_512x256x128_64x32x16_4c.xclbin insts.bin --op matmul-i8").unwrap();
        assert_eq!(default_name(&operation), "matmul_i8_512x256x128");
        let words = "matmul i8 to i32, 512x256x128, tile 64x32x16, B row-major";
        assert_eq!(described(&operation), words);
        let insts = "FLM_GEMM_tn64_ck128_npu1_M256_K512_N2048.bin";
        let operation =
            of(&format!("a.xclbin {insts} --op matmul-bf16 --activation silu")).unwrap();
        assert_eq!(default_name(&operation), "matmul_bf16_256x512x2048_iron_silu");
        let operation =
            of("a b --op matmul-bf16 --shape 128x16x64 --tile 16x8x16 --b-layout column");
        assert_eq!(default_name(&operation.unwrap()), "matmul_bf16_128x16x64_column");
    }

    #[test]
    fn what_is_missing_or_stray_is_named() {
        assert!(refused("a b --op matmul-i8 --shape 1x2x3").contains("--tile MxKxN"));
        assert!(refused("a b --op matmul-i8").contains("--shape MxKxN"));
        assert!(
            refused("a b --op matmul-i8 --causal").contains("--causal is an option of attention")
        );
        assert!(refused("a b --op attention-bf16 --tile 1x2x3").contains("--tile is an option"));
        assert!(refused("a b --op attention-bf16 --heads 4").contains("--kv-heads N"));
        assert!(refused("a b --op matmul-i8 --iron-block 64 --shape 1x2x3").contains("bf16"));
        let words = "a b --op matmul-bf16 --iron-block 48 --shape 1x2x3";
        assert!(refused(words).contains("not 48"));
        let words = "a b --op matmul-bf16 --shape 1x2x3 --tile 1x2x3 --activation gelu";
        assert!(refused(words).contains("IRON's design"));
        assert!(parse_shape("1x2").is_err() && parse_shape("1x2x3x4").is_err());
    }
}
