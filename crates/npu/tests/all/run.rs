//! Running packages on the stand-in: results, tiling, chains, and the self-test.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::common::fake::{Fake, Faults};
use crate::common::open;
use crate::common::packages::{attention, attention_kernel, iron, matmul, matmul_kernel, package};
use half::bf16;
use pianola_npu::amdxdna::DriverError;
use pianola_npu::package::{Activation, BLayout, ElementType, MatmulSpec, Operation, Shape};
use pianola_npu::runner::{
    Factor, KernelRunner, Order, RunError, RunOptions, TiledMatmul, TiledOptions,
};

const EXEC_CMD: u64 = 0xC038_6446;
const SYNC_BO: u64 = 0xC018_6445;

fn i8_spec(layout: BLayout) -> MatmulSpec {
    matmul(ElementType::I8, ElementType::I32, layout)
}

fn runner(fake: &Arc<Fake>, operation: Operation) -> KernelRunner {
    KernelRunner::load(&open(fake), &package(operation), RunOptions::default()).unwrap()
}

fn matmul_runner(spec: &MatmulSpec) -> (Arc<Fake>, KernelRunner) {
    let fake = Fake::with_kernel(matmul_kernel(spec.clone()));
    let runner = runner(&fake, Operation::Matmul(spec.clone()));
    (fake, runner)
}

/// Numbers that repeat late and have both signs.
fn bytes(count: usize, seed: usize) -> Vec<i8> {
    (0..count).map(|index| ((index * 37 + seed * 11) % 251) as u8 as i8).collect()
}

fn plain(shape: Shape, a: &[i8], b: impl Fn(usize, usize) -> i8) -> Vec<i32> {
    let mut out = Vec::new();
    for m in 0..shape.m {
        for n in 0..shape.n {
            let term = |k| i32::from(a[m * shape.k + k]) * i32::from(b(k, n));
            out.push((0..shape.k).map(term).sum());
        }
    }
    out
}

#[test]
fn products_of_bytes_are_exact_in_every_layout() {
    for layout in [BLayout::RowMajor, BLayout::ColumnMajor] {
        let spec = i8_spec(layout);
        let (fake, mut runner) = matmul_runner(&spec);
        let shape = spec.shape;
        let (a, b) = (bytes(shape.m * shape.k, 1), bytes(shape.k * shape.n, 2));
        let mut out = vec![7; shape.m * shape.n];
        runner.matmul_i8(&a, &b, &mut out).unwrap();
        assert_eq!(out, plain(shape, &a, |k, n| b[k * shape.n + n]));
        let wrong = runner.matmul_i8(&a[1..], &b, &mut out).unwrap_err();
        assert!(matches!(wrong, RunError::Length { what: "a", .. }));
        let other = runner.matmul_bf16(&[], &[], &mut []).unwrap_err();
        assert!(matches!(other, RunError::WrongOperation { .. }));
        drop(runner);
        fake.finish();
    }
}

#[test]
fn sound_kernels_pass_the_self_test() {
    let mut operations = vec![
        i8_spec(BLayout::RowMajor),
        i8_spec(BLayout::ColumnMajor),
        matmul(ElementType::Bf16, ElementType::F32, BLayout::RowMajor),
    ];
    operations.extend([Activation::None, Activation::Gelu, Activation::Silu].map(iron));
    for spec in operations {
        let (fake, mut runner) = matmul_runner(&spec);
        let result = runner.self_test(1).unwrap();
        assert_eq!(result.compared, spec.shape.m * spec.shape.n);
        assert!(result.worst <= 1.0);
        drop(runner);
        fake.finish();
    }
    for causal in [false, true] {
        let spec = attention(causal);
        let fake = Fake::with_kernel(attention_kernel(spec.clone()));
        let mut runner = runner(&fake, Operation::Attention(spec));
        assert!(runner.self_test(1).unwrap().compared > 0);
        drop(runner);
        fake.finish();
    }
}

/// Runs a package on a kernel that computes something else.
fn refused(operation: Operation, kernel: impl Fn(&mut [Vec<u8>]) + Send + 'static) {
    let fake = Fake::with_kernel(kernel);
    let mut runner = runner(&fake, operation.clone());
    let error = runner.self_test(1).unwrap_err();
    assert!(matches!(error, RunError::SelfTest { .. }), "{operation:?}: {error}");
    drop(runner);
    fake.finish();
}

#[test]
fn wrong_kernels_fail_the_self_test() {
    let right = i8_spec(BLayout::RowMajor);
    // The other layout of B, an element that is never written, one that is off by one.
    refused(Operation::Matmul(right.clone()), matmul_kernel(i8_spec(BLayout::ColumnMajor)));
    refused(Operation::Matmul(right.clone()), |_| {});
    let kernel = matmul_kernel(right.clone());
    refused(Operation::Matmul(right), move |buffers| {
        kernel(buffers);
        buffers[2][4 * 777] ^= 1;
    });
    // IRON's B taken as row-major, and without the activation of the manifest.
    let right = iron(Activation::None);
    let row_major = MatmulSpec { b_layout: BLayout::RowMajor, ..right.clone() };
    refused(Operation::Matmul(right.clone()), matmul_kernel(row_major));
    refused(Operation::Matmul(iron(Activation::Gelu)), matmul_kernel(right.clone()));
    let kernel = matmul_kernel(right.clone());
    refused(Operation::Matmul(right), move |buffers| {
        kernel(buffers);
        buffers[2][100..102].copy_from_slice(&bf16::NAN.to_le_bytes());
    });
    // A mask that is missing, heads that are not shared.
    let causal = attention(true);
    refused(Operation::Attention(causal.clone()), attention_kernel(attention(false)));
    let kernel = attention_kernel(causal.clone());
    refused(Operation::Attention(causal), move |buffers| {
        kernel(buffers);
        let half = buffers[3].len() / 2;
        buffers[3].rotate_left(half / 2);
    });
}

#[test]
fn attention_takes_plain_layouts() {
    let spec = attention(false);
    let fake = Fake::with_kernel(attention_kernel(spec.clone()));
    let mut runner = runner(&fake, Operation::Attention(spec.clone()));
    // Equal scores: every output is the mean of its head's values.
    let q = vec![bf16::ZERO; spec.heads * spec.queries * spec.key_width];
    let k = vec![bf16::ONE; spec.kv_heads * spec.keys * spec.key_width];
    let mut v = Vec::new();
    for head in 0..spec.kv_heads {
        for _ in 0..spec.keys {
            let element = |i: usize| bf16::from_f32((head * spec.value_width + i) as f32);
            v.extend((0..spec.value_width).map(element));
        }
    }
    let mut out = vec![bf16::ZERO; spec.heads * spec.queries * spec.value_width];
    runner.attention_bf16(&q, &k, &v, &mut out).unwrap();
    for (index, value) in out.iter().enumerate() {
        let (row, i) = (index / spec.value_width, index % spec.value_width);
        let kv_head = row / spec.queries / 2;
        let expected = bf16::from_f32((kv_head * spec.value_width + i) as f32);
        assert!((value.to_f32() - expected.to_f32()).abs() <= expected.to_f32() / 100.0);
    }
    let error = runner.attention_bf16(&q, &k, &v[1..], &mut out).unwrap_err();
    assert!(matches!(error, RunError::Length { what: "v", .. }));
}

fn tiled(spec: &MatmulSpec, options: TiledOptions) -> (Arc<Fake>, TiledMatmul) {
    let (fake, runner) = matmul_runner(spec);
    (fake, runner.into_tiled(options).unwrap())
}

#[test]
fn products_of_any_shape_are_tiled() {
    let spec = i8_spec(BLayout::ColumnMajor);
    let tile = spec.shape;
    let shapes = [
        Shape { m: 1, k: 1, n: 1 },
        tile,
        Shape { m: 129, k: 17, n: 65 },
        Shape { m: 300, k: 100, n: 200 },
        Shape { m: 5, k: 300, n: 70 },
        Shape { m: 0, k: 4, n: 4 },
        Shape { m: 4, k: 0, n: 4 },
    ];
    // Room for one command a bank, for three, and for whole chains.
    let one = 2 * (4096 + 4096 + 128 * 64 * 4);
    for (staging_bytes, wave) in [(one, 1), (3 * one, 3), (64 << 20, 36)] {
        let options = TiledOptions { staging_bytes, ..TiledOptions::default() };
        let (fake, mut tiled) = tiled(&spec, options);
        assert_eq!(tiled.wave(), wave);
        for shape in shapes {
            let (a, b) = (bytes(shape.m * shape.k, 3), bytes(shape.k * shape.n, 4));
            let mut out = vec![7; shape.m * shape.n];
            for order in [Order::RowMajor, Order::ColumnMajor] {
                let before = (fake.commands(), fake.count(EXEC_CMD));
                let factor = Factor { values: &b, order };
                tiled.matmul_i8(shape, &a, factor, &mut out).unwrap();
                let expected = plain(shape, &a, |k, n| match order {
                    Order::RowMajor => b[k * shape.n + n],
                    Order::ColumnMajor => b[n * shape.k + k],
                });
                assert!(out == expected, "{shape:?} in waves of {wave}");
                let tiles =
                    shape.m.div_ceil(tile.m) * shape.k.div_ceil(tile.k) * shape.n.div_ceil(tile.n);
                assert_eq!(fake.commands() - before.0, tiles);
                assert_eq!(fake.count(EXEC_CMD) - before.1, tiles.div_ceil(wave));
            }
        }
        drop(tiled);
        fake.finish();
    }
}

#[test]
fn tiles_are_staged_once_where_there_is_room() {
    let spec = i8_spec(BLayout::RowMajor);
    let (fake, mut tiled) = tiled(&spec, TiledOptions::default());
    // 2 x 3 tiles of A and 3 x 4 of B: 24 commands, one chain.
    let shape = Shape { m: 256, k: 48, n: 256 };
    let (a, b) = (bytes(shape.m * shape.k, 5), bytes(shape.k * shape.n, 6));
    let mut out = vec![0; shape.m * shape.n];
    let before = fake.count(SYNC_BO);
    let factor = Factor { values: &b, order: Order::RowMajor };
    tiled.matmul_i8(shape, &a, factor, &mut out).unwrap();
    // Each output is flushed before its command, and read after it.
    assert_eq!(fake.count(SYNC_BO) - before, 6 + 12 + 24 + 24);
    assert_eq!(out, plain(shape, &a, |k, n| b[k * shape.n + n]));
}

/// What an earlier wave left in a buffer must not pass for the result of a later one.
#[test]
fn what_a_kernel_does_not_write_is_no_result() {
    let i8 = i8_spec(BLayout::RowMajor);
    let bf16 = matmul(ElementType::Bf16, ElementType::F32, BLayout::RowMajor);
    for spec in [i8, bf16] {
        let (count, kernel) = (AtomicUsize::new(0), matmul_kernel(spec.clone()));
        let fake = Fake::with_kernel(move |buffers: &mut [Vec<u8>]| {
            if count.fetch_add(1, Ordering::Relaxed) != 1 {
                kernel(buffers);
            }
        });
        let runner = runner(&fake, Operation::Matmul(spec.clone()));
        let mut tiled = runner.into_tiled(TiledOptions::default()).unwrap();
        let shape = Shape { m: 2, k: 3, n: 4 };
        let mut run = || match spec.input {
            ElementType::I8 => {
                let factor = Factor { values: &[1; 12], order: Order::RowMajor };
                tiled.matmul_i8(shape, &[1; 6], factor, &mut [0; 8])
            }
            _ => {
                let factor = Factor { values: &[bf16::ONE; 12], order: Order::RowMajor };
                tiled.matmul_bf16(shape, &[bf16::ONE; 6], factor, &mut [0.0; 8])
            }
        };
        run().unwrap();
        assert!(matches!(run(), Err(RunError::NoResult { .. })), "{:?}", spec.input);
        run().unwrap();
    }
}

#[test]
fn products_of_bf16_are_added_up_in_f32() {
    let specs =
        [matmul(ElementType::Bf16, ElementType::F32, BLayout::RowMajor), iron(Activation::None)];
    for spec in specs {
        let (fake, mut tiled) = tiled(&spec, TiledOptions::default());
        let shape = Shape { m: 3, k: spec.shape.k + 9, n: 70 };
        // Small integers: every sum is exact, but for the rounding of a bf16 output.
        let small = |count: usize, seed: usize| -> Vec<bf16> {
            bytes(count, seed).iter().map(|&x| bf16::from_f32(f32::from(x % 4))).collect()
        };
        let (a, b) = (small(shape.m * shape.k, 7), small(shape.k * shape.n, 8));
        let mut out = vec![0.0; shape.m * shape.n];
        let factor = Factor { values: &b, order: Order::RowMajor };
        tiled.matmul_bf16(shape, &a, factor, &mut out).unwrap();
        for (index, &value) in out.iter().enumerate() {
            let (m, n) = (index / shape.n, index % shape.n);
            let term = |k: usize| a[m * shape.k + k].to_f32() * b[k * shape.n + n].to_f32();
            let expected: f32 = (0..shape.k).map(term).sum();
            let allowed = match spec.output {
                ElementType::F32 => 0.0,
                _ => (expected.abs() + 64.0) / 256.0,
            };
            assert!((value - expected).abs() <= allowed, "{value} is not {expected}");
        }
        drop(tiled);
        fake.finish();
    }
}

#[test]
fn impossible_products_are_refused() {
    let (_fake, mut bf16_tiled) = tiled(&iron(Activation::Silu), TiledOptions::default());
    let shape = Shape { m: 1, k: 513, n: 1 };
    let factor = |values| Factor { values, order: Order::RowMajor };
    let error = bf16_tiled.matmul_bf16(shape, &[], factor(&[]), &mut []).unwrap_err();
    assert!(matches!(error, RunError::SplitActivation { k: 512, asked: 513 }));
    let (_fake, mut tiled) = tiled(&i8_spec(BLayout::RowMajor), TiledOptions::default());
    let factor = |values| Factor { values, order: Order::RowMajor };
    let error =
        tiled.matmul_i8(Shape { m: 1, k: 1 << 17, n: 1 }, &[], factor(&[]), &mut []).unwrap_err();
    assert!(matches!(error, RunError::TooLong(_)));
    let huge = Shape { m: usize::MAX, k: 2, n: 1 };
    let error = tiled.matmul_i8(huge, &[], factor(&[]), &mut []).unwrap_err();
    assert!(matches!(error, RunError::Impossible(..)));
    let (_fake, runner) = matmul_runner(&i8_spec(BLayout::RowMajor));
    let options = TiledOptions { staging_bytes: 1000, ..TiledOptions::default() };
    assert!(matches!(runner.into_tiled(options), Err(RunError::Staging { .. })));
}

#[test]
fn a_device_that_hangs_or_fails_in_the_middle_leaves_nothing_behind() {
    for (faults, lost) in [
        (Faults { hang: true, ..Faults::default() }, true),
        (Faults { state: Some(5), ..Faults::default() }, false),
        (Faults { fail: Some((EXEC_CMD, 1, libc::EIO)), ..Faults::default() }, false),
    ] {
        let spec = i8_spec(BLayout::RowMajor);
        let options = TiledOptions { chain: 2, ..TiledOptions::default() };
        let (fake, mut tiled) = tiled(&spec, options);
        fake.set_faults(faults);
        let shape = Shape { m: 600, k: 40, n: 100 };
        let (a, b) = (bytes(shape.m * shape.k, 1), bytes(shape.k * shape.n, 2));
        let mut out = vec![0; shape.m * shape.n];
        let factor = Factor { values: &b, order: Order::RowMajor };
        let error = tiled.matmul_i8(shape, &a, factor, &mut out).unwrap_err();
        assert!(matches!(error, RunError::Driver(_)), "{error}");
        assert_eq!(tiled.is_lost(), lost);
        fake.set_faults(Faults::default());
        let again = tiled.matmul_i8(shape, &a, factor, &mut out);
        match lost {
            true => {
                let error = again.unwrap_err();
                assert!(matches!(error, RunError::Driver(DriverError::ContextLost { .. })));
            }
            false => {
                again.unwrap();
                assert_eq!(out, plain(shape, &a, |k, n| b[k * shape.n + n]));
            }
        }
        drop(tiled);
        fake.finish();
    }
}
