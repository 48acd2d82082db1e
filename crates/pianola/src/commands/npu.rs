//! `npu`: AMD's NPU, its kernel packages, and whether they compute rightly.
//!
//! ```text
//! files of a build ─ import ─► npu_kernels/<device>/ ─ check ─► the device, or its model, against the processor
//! ```
//!
//! Models use what passes the check (`--device npu+vulkan`). Nothing here has run on silicon.

mod check;
mod import;
mod list;
mod share;

use std::path::PathBuf;

use clap::{Args, Subcommand};
use pianola_hub::Store;
use pianola_npu::amdxdna::Generation;
use pianola_npu::package::{Activation, BLayout, ElementType, Operation, Shape};

use crate::console::Console;
use crate::failure::Failure;

pub use list::{CHANGE_POWER_MODE, contexts, device_text, device_value, name};

/// List, import and check kernels for AMD's NPU (never run on real hardware).
///
/// Kernels are built with AMD's open tools (mlir-aie, IRON, mlir-air) and imported as packages.
/// `check` runs each package on the NPU and compares it with the CPU. `run` and `serve` use packages
/// that pass with --device npu+vulkan or npu+cpu. None of this has run on real hardware;
/// docs/explanation/npu.md describes how it was tested.
#[derive(Args, Debug)]
pub struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    List(list::Arguments),
    Import(Box<import::Arguments>),
    Check(check::Arguments),
    Share(share::Arguments),
}

pub fn run(arguments: &Arguments, console: Console) -> Result<(), Failure> {
    match &arguments.command {
        Command::List(arguments) => list::run(arguments, console),
        Command::Import(arguments) => import::run(arguments, console),
        Command::Check(arguments) => check::run(arguments, console),
        Command::Share(arguments) => share::run(arguments),
    }
}

/// Where packages are kept.
#[derive(Args, Debug)]
struct FolderOption {
    /// Folder of kernel packages [default: npu_kernels beside the models]
    #[arg(long, value_name = "FOLDER")]
    folder: Option<PathBuf>,
}

impl FolderOption {
    fn path(&self) -> Result<PathBuf, Failure> {
        match &self.folder {
            Some(folder) => Ok(folder.clone()),
            None => default_folder(),
        }
    }
}

/// Beside the models.
pub fn default_folder() -> Result<PathBuf, Failure> {
    Ok(Store::open()?.models().with_file_name("npu_kernels"))
}

/// Processors with such an array.
pub fn processors(generation: Generation) -> &'static str {
    match generation {
        Generation::Npu1 => "XDNA: Phoenix, Hawk Point",
        Generation::Npu2 => "XDNA 2: Strix, Strix Halo, Krackan",
    }
}

/// A version as its makers write it.
pub fn firmware(version: [u32; 4]) -> String {
    version.map(|part| part.to_string()).join(".")
}

/// What a package computes, in words.
fn described(operation: &Operation) -> String {
    match operation {
        Operation::Matmul(spec) => {
            let layout = match spec.b_layout {
                BLayout::RowMajor => "row-major",
                BLayout::ColumnMajor => "column-major",
                BLayout::Packed(_) => "packed",
            };
            let activation = match spec.activation {
                Activation::None => "",
                Activation::Gelu => ", GELU",
                Activation::Silu => ", SiLU",
            };
            format!(
                "matmul {} to {}, {}, tile {}, B {layout}{activation}",
                element(spec.input),
                element(spec.output),
                dimensions(spec.shape),
                dimensions(spec.tile),
            )
        }
        Operation::Attention(spec) => format!(
            "attention bf16, {} heads on {}, {} queries, {} keys, widths {} and {}{}",
            spec.heads,
            spec.kv_heads,
            spec.queries,
            spec.keys,
            spec.key_width,
            spec.value_width,
            if spec.causal { ", causal" } else { "" },
        ),
    }
}

fn element(element: ElementType) -> &'static str {
    match element {
        ElementType::I8 => "i8",
        ElementType::I32 => "i32",
        ElementType::Bf16 => "bf16",
        ElementType::F32 => "f32",
    }
}

fn dimensions(Shape { m, k, n }: Shape) -> String {
    format!("{m}x{k}x{n}")
}
