//! Instruction streams of one xclbin for several shapes: one hardware context serves all, and each product is
//! computed by the one that has the least work with it, with the same result.

use std::path::Path;
use std::sync::Arc;

use crate::common::placed::{
    Folder, NPU, Player, Share, matmul_bf16, matmul_i8, plan, plan_options, shaped, step,
};
use half::bf16;
use pianola_formats::npy;
use pianola_model::ModelFile;
use pianola_npu::amdxdna::Device;
use pianola_npu::emulated::{Emulated, NODE};
use pianola_npu::package::{Operation, Package, Shape};
use pianola_npu::placed::NpuDevice;
use pianola_npu::runner::{
    Factor, KernelRunner, Order, RunError, RunOptions, TiledMatmul, TiledOptions, Work,
    reference_matmul_i8,
};
use pianola_plan::{Device as _, Kernel};

/// Two banks of a few tiles of the larger shape.
const TILED: TiledOptions = TiledOptions { staging_bytes: 4 << 20, chain: 4 };

fn open(packages: &[&Package]) -> Device {
    let machine = Emulated::of_packages(packages.iter().copied()).unwrap();
    Device::open_with(Arc::new(machine), Path::new(NODE)).unwrap()
}

fn load(device: &Device, packages: &[&Package]) -> Result<TiledMatmul, RunError> {
    let mut runner = KernelRunner::load(device, packages[0], RunOptions::default())?;
    runner.self_test(1)?;
    for package in &packages[1..] {
        runner = runner.with_stream(package)?;
        runner.self_test(1)?;
    }
    runner.into_tiled(TILED)
}

/// The work of products of so many rows, by 512 x 256 alone and beside 128 x 64.
fn works(rows: usize, columns: usize) -> [Work; 2] {
    let large = shaped(&matmul_i8(64), 512, 256);
    let folder = Folder::new(std::slice::from_ref(&large));
    let small = folder.add_stream(0, "small", &shaped(&large, 128, 64));
    let packages = [folder.package(0), &small];
    let shape = Shape { m: rows, k: 150, n: columns };
    let byte = |at: usize| ((at * 37 + 11) % 251) as u8 as i8;
    let a: Vec<i8> = (0..shape.m * shape.k).map(byte).collect();
    let b: Vec<i8> = (0..shape.k * shape.n).map(byte).collect();
    let factor = Factor { values: &b[..], order: Order::ColumnMajor };
    let mut expected = vec![0; shape.m * shape.n];
    reference_matmul_i8(shape, &a, factor, &mut expected).unwrap();
    [&packages[..1], &packages[..]].map(|packages| {
        let device = open(packages);
        let mut tiled = load(&device, packages).unwrap();
        assert_eq!(device.contexts_in_use().unwrap().len(), 1, "one context for all");
        let mut out = vec![7; shape.m * shape.n];
        tiled.matmul_i8(shape, &a, factor, &mut out).unwrap();
        assert_eq!(out, expected);
        tiled.work()
    })
}

#[test]
fn few_rows_and_columns_are_padded_less() {
    // K is cut into three.
    let [alone, beside] = works(32, 50);
    assert_eq!(alone, Work { commands: 3, multiplications: 3 * 512 * 64 * 256 });
    assert_eq!(beside, Work { commands: 3, multiplications: 3 * 128 * 64 * 64 });
    // Where the small one would need more commands the large one stays.
    let [alone, beside] = works(300, 200);
    assert_eq!(alone, beside);
    assert_eq!(alone.commands, 3);
}

#[test]
fn streams_of_other_builds_are_refused() {
    let folder = Folder::new(&[matmul_i8(64), matmul_i8(32), matmul_bf16(64)]);
    let other = folder.package(1);
    let device = open(&[folder.package(0), other]);
    let error = load(&device, &[folder.package(0), other]).unwrap_err();
    assert!(matches!(error, RunError::OtherConfiguration { .. }), "{error}");
    // Another K in the same xclbin would round sums elsewhere.
    let longer = folder.add_stream(0, "longer", &matmul_i8(128));
    let device = open(&[folder.package(0), &longer]);
    let error = load(&device, &[folder.package(0), &longer]).unwrap_err();
    assert!(matches!(error, RunError::OtherProducts { .. }), "{error}");
}

#[test]
fn sums_of_bf16_have_the_same_bits() {
    let large = shaped(&matmul_bf16(64), 256, 128);
    let folder = Folder::new(std::slice::from_ref(&large));
    let small = folder.add_stream(0, "small", &shaped(&large, 128, 64));
    let packages = [folder.package(0), &small];
    let shape = Shape { m: 40, k: 200, n: 60 };
    let value = |at: usize| bf16::from_f32(((at * 29) % 113) as f32 / 50.0 - 1.0);
    let a: Vec<bf16> = (0..shape.m * shape.k).map(value).collect();
    let b: Vec<bf16> = (0..shape.k * shape.n).map(value).collect();
    let [alone, beside] = [&packages[..1], &packages[..]].map(|packages| {
        let mut tiled = load(&open(packages), packages).unwrap();
        let mut out = vec![0.0; shape.m * shape.n];
        let factor = Factor { values: &b[..], order: Order::RowMajor };
        tiled.matmul_bf16(shape, &a, factor, &mut out).unwrap();
        (out, tiled.work().multiplications)
    });
    assert!(alone.0 == beside.0 && beside.1 < alone.1);
}

/// A model's prompt with and without the small stream: the same logits, by lighter kernels.
#[test]
fn a_model_uses_the_stream_that_fits_its_rows() {
    let case = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/gemma3");
    let file = ModelFile::open(&case).unwrap();
    let tokens = npy::read_tokens(case.join("tokens.npy")).unwrap();
    let step = step(&tokens, 0, 0, 1);
    let large: Operation = shaped(&matmul_i8(64), 512, 256);
    let folder = Folder::new(std::slice::from_ref(&large));
    let play = || {
        let npu = Arc::new(NpuDevice::emulated(folder.options()).unwrap());
        let graph = pianola_model::graph(&file.config().unwrap(), file.source(), None).unwrap();
        let plan = plan(graph, Share::Products, &npu, plan_options());
        let possible = npu.variants(&plan, NPU).unwrap();
        let mut player = Player::with_npu(plan.clone(), npu.clone(), file.source()).unwrap();
        let logits = player.play(&step).unwrap();
        let product = (0..plan.ops.len()).find(|&op| {
            plan.ops[op].device == NPU && matches!(plan.ops[op].kernel, Kernel::Project(_))
        });
        let used = player.recordings[NPU.0].variants(product.unwrap(), &step).unwrap();
        assert!(used.iter().all(|one| possible.contains(one)), "{used:?} of {possible:?}");
        let used: Vec<String> = used.iter().map(ToString::to_string).collect();
        (logits, used, npu.facts())
    };
    let (alone, used, _) = play();
    assert_eq!(used, ["matmul_i8 (512x64x256)"]);
    folder.add_stream(0, "small", &shaped(&large, 128, 64));
    let (beside, used, facts) = play();
    assert!(used.iter().any(|one| one == "matmul_i8 (128x64x64)"), "{used:?}");
    assert!(alone == beside, "the same logits");
    assert_eq!(facts.products, ["kernel0", "small"]);
    assert!(facts.unused.is_empty() && facts.configurations == 1, "{facts:?}");
}
