//! Writes kernel packages for `npu (emulated)` into a folder: products of 512 x 512 x 512 in int8 and in bf16, with
//! the shapes and tiles of AMD's open designs. Their configurations are made up: no device can run them.
//!
//! ```sh
//! cargo run -p pianola-npu --features emulated --example packages FOLDER
//! pianola run --device npu+cpu --emulate-npu --npu-kernels FOLDER -m gemma3:270m -f prompt.txt
//! ```

use std::path::Path;

use pianola_npu::package::{
    Activation, BLayout, Design, ElementType, ImportOptions, MatmulSpec, Operation, Shape, import,
};
use pianola_npu_model::{artefacts, parse_kernels};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = std::env::args_os().nth(1).ok_or("name a folder")?;
    let folder = Path::new(&folder);
    std::fs::create_dir_all(folder)?;
    let shape = Shape { m: 512, k: 512, n: 512 };
    let products = [
        ("i8 i32", ElementType::I8, ElementType::I32, Shape { m: 64, k: 64, n: 64 }),
        ("bf16 f32", ElementType::Bf16, ElementType::F32, Shape { m: 32, k: 64, n: 32 }),
    ];
    for (types, input, output, tile) in products {
        let line = format!(
            "matmul {types} 512x512x512 tile={}x{}x{} columns=4 layout=column",
            tile.m, tile.k, tile.n
        );
        let made = artefacts::make(&parse_kernels(&line)?.remove(0).kernel);
        let (xclbin, stream) = (folder.join("made.xclbin"), folder.join("made.bin"));
        std::fs::write(&xclbin, &made.xclbin)?;
        std::fs::write(&stream, &made.instructions)?;
        let operation = Operation::Matmul(MatmulSpec {
            design: Design::WholeArray,
            input,
            output,
            shape,
            tile,
            b_layout: BLayout::ColumnMajor,
            activation: Activation::None,
        });
        let options = ImportOptions::new(&format!("emulated_{}", types.replace(' ', "_")));
        import(folder, (&xclbin, &stream), &operation, &options)?;
        std::fs::remove_file(xclbin)?;
        std::fs::remove_file(stream)?;
    }
    Ok(())
}
