//! The driver against the model of the device and of its kernel driver, which was written from the
//! same public interface by itself: what either one gets wrong shows here. Nothing of it has run on
//! silicon.

use crate::common;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::common::model::Machine;
use crate::common::packages::{attention, iron, matmul};
use pianola_npu::amdxdna::{Buffer, BufferKind, Device, DriverError, Generation, discover_with};
use pianola_npu::emulated::Emulated;
use pianola_npu::package::{Activation, BLayout, ElementType, Operation, Shape};
use pianola_npu::runner::{Factor, Order, RunError, RunOptions, TiledOptions, reference_matmul_i8};
use pianola_npu::sharing::{self, OtherBuffer, OtherDriver};
use pianola_npu_model::{Addressing, Config, Model};

const ADDRESSING: [Addressing; 3] = [Addressing::User, Addressing::UserImplied, Addressing::Dma];

fn product(input: ElementType, output: ElementType, layout: BLayout) -> Operation {
    Operation::Matmul(matmul(input, output, layout))
}

/// Every operation: how the model is told it, and what the manifest states.
fn operations() -> Vec<(&'static str, Operation)> {
    let (row, column) = (BLayout::RowMajor, BLayout::ColumnMajor);
    let (i8, i32, bf16, f32) =
        (ElementType::I8, ElementType::I32, ElementType::Bf16, ElementType::F32);
    let iron = |activation| Operation::Matmul(iron(activation));
    let attention = |causal| Operation::Attention(attention(causal));
    vec![
        ("matmul i8 i32 128x16x64 tile=16x8x16 columns=4", product(i8, i32, row)),
        ("matmul i8 i32 128x16x64 tile=16x8x16 columns=4 layout=column", product(i8, i32, column)),
        ("matmul bf16 f32 128x16x64 tile=16x8x16 columns=4", product(bf16, f32, row)),
        (
            "matmul bf16 f32 128x16x64 tile=16x8x16 columns=4 layout=column",
            product(bf16, f32, column),
        ),
        (
            "matmul bf16 bf16 256x512x64 tile=64x128x64 layout=packed rounding=12",
            iron(Activation::None),
        ),
        (
            "matmul bf16 bf16 256x512x64 tile=64x128x64 layout=packed rounding=12 activation=silu",
            iron(Activation::Silu),
        ),
        (
            "matmul bf16 bf16 256x512x64 tile=64x128x64 layout=packed activation=gelu",
            iron(Activation::Gelu),
        ),
        ("attention heads=4 kv_heads=2 lq=256 lk=256 dk=64 dv=128", attention(false)),
        ("attention heads=4 kv_heads=2 lq=256 lk=256 dk=64 dv=128 causal", attention(true)),
    ]
}

#[test]
fn every_operation_passes_its_self_test_in_every_addressing() {
    for (line, operation) in operations() {
        for addressing in ADDRESSING {
            let config = Config { addressing, ..Config::default() };
            let machine = Machine::new(config, line, operation.clone());
            let mut runner = machine.load(RunOptions::default()).unwrap();
            let result = runner.self_test(1);
            let complaints = machine.complaints();
            let result = result.unwrap_or_else(|error| panic!("{line}: {error}, {complaints:?}"));
            assert!(result.compared > 0 && result.worst <= 1.0, "{line}: {result:?}");
            assert!(complaints.is_empty(), "{line}: {complaints:?}");
        }
    }
}

#[test]
fn a_manifest_is_enough_to_emulate_its_package() {
    for (line, operation) in operations() {
        let package = Machine::new(Config::default(), line, operation).package;
        let calls = std::sync::Arc::new(Emulated::of_packages([&package]).unwrap());
        let device = Device::open_with(calls, Emulated::path()).unwrap();
        let options = RunOptions::default();
        let mut runner =
            pianola_npu::runner::KernelRunner::load(&device, &package, options).unwrap();
        runner.self_test(2).unwrap_or_else(|error| panic!("{line}: {error}"));
    }
}

#[test]
fn a_manifest_that_states_another_layout_or_mask_is_refused() {
    let (i8, i32) = (ElementType::I8, ElementType::I32);
    for (line, operation) in [
        (
            "matmul i8 i32 128x16x64 tile=16x8x16 columns=4 layout=column",
            product(i8, i32, BLayout::RowMajor),
        ),
        (
            "matmul bf16 bf16 256x512x64 tile=64x128x64 layout=packed rounding=12 activation=silu",
            Operation::Matmul(iron(Activation::None)),
        ),
        (
            "attention heads=4 kv_heads=2 lq=256 lk=256 dk=64 dv=128",
            Operation::Attention(attention(true)),
        ),
    ] {
        let machine = Machine::new(Config::default(), line, operation);
        let error = machine.load(RunOptions::default()).unwrap().self_test(1).unwrap_err();
        assert!(matches!(error, RunError::SelfTest { .. }), "{line}: {error}");
    }
}

/// Numbers that repeat late and have both signs.
fn bytes(count: usize, seed: usize) -> Vec<i8> {
    (0..count).map(|index| ((index * 37 + seed * 11) % 251) as u8 as i8).collect()
}

#[test]
fn tiled_products_are_exact() {
    for addressing in ADDRESSING {
        let machine = Machine::small(Config { addressing, ..Config::default() });
        // Room for one command a bank, for a few, for whole chains.
        for staging_bytes in [100 << 10, 1 << 20, 64 << 20] {
            let runner = machine.load(RunOptions::default()).unwrap();
            let options = TiledOptions { staging_bytes, ..TiledOptions::default() };
            let mut tiled = runner.into_tiled(options).unwrap();
            for (m, k, n) in [(300, 100, 200), (1, 1000, 333), (129, 17, 65), (0, 4, 4), (4, 0, 4)]
            {
                let shape = Shape { m, k, n };
                let (a, b) = (bytes(m * k, 3), bytes(k * n, 4));
                for order in [Order::RowMajor, Order::ColumnMajor] {
                    let factor = Factor { values: &b, order };
                    let (mut out, mut expected) = (vec![7; m * n], vec![9; m * n]);
                    tiled.matmul_i8(shape, &a, factor, &mut out).unwrap();
                    reference_matmul_i8(shape, &a, factor, &mut expected).unwrap();
                    assert!(out == expected, "{shape:?}, {order:?}, {addressing:?}");
                }
            }
        }
        assert_eq!(machine.complaints(), Vec::<String>::new());
    }
}

#[test]
fn the_reference_is_the_plain_sum() {
    let shape = Shape { m: 3, k: 5, n: 4 };
    let (a, b) = (bytes(15, 1), bytes(20, 2));
    for order in [Order::RowMajor, Order::ColumnMajor] {
        let at = |k: usize, n: usize| match order {
            Order::RowMajor => k * 4 + n,
            Order::ColumnMajor => n * 5 + k,
        };
        let sum = |m: usize, n: usize| -> i32 {
            (0..5).map(|k| i32::from(a[m * 5 + k]) * i32::from(b[at(k, n)])).sum()
        };
        let mut out = vec![0; 12];
        reference_matmul_i8(shape, &a, Factor { values: &b, order }, &mut out).unwrap();
        let expected: Vec<i32> = (0..12).map(|index| sum(index / 4, index % 4)).collect();
        assert_eq!(out, expected);
    }
    let factor = Factor { values: &b[1..], order: Order::RowMajor };
    let error = reference_matmul_i8(shape, &a, factor, &mut [0; 12]).unwrap_err();
    assert!(matches!(error, RunError::Length { what: "b", .. }));
}

#[test]
fn devices_of_every_driver_version_are_found() {
    for minor in [0, 1, 4, 6] {
        let faults = "held=2".parse().unwrap();
        let config = Config { version: (0, minor, 0), faults, ..Config::default() };
        let calls = std::sync::Arc::new(Emulated::new(Model::new(config)));
        let found = discover_with(calls, Path::new("/nonexistent")).unwrap();
        let [device] = &found[..] else { panic!("{found:?}") };
        assert_eq!(device.identity.generation, Generation::Npu1);
        assert_eq!(device.identity.driver, (0, minor));
        assert_eq!(device.contexts.as_ref().map(Vec::len), Some(2), "minor {minor}");
    }
}

#[test]
#[allow(unsafe_code)] // Imported memory has several owners.
fn buffers_are_shared_with_other_drivers() {
    let machine = Machine::small(Config::default());
    let device = machine.open();
    let mut buffer = Buffer::new(&device, BufferKind::Share, 5000).unwrap();
    buffer.write(4990, b"hello");
    let exported = buffer.export().unwrap();
    // SAFETY: here and below, one thread uses all buffers.
    let again = unsafe { Buffer::import(&device, exported.fd(), 5000) }.unwrap();
    assert_eq!(again.handle(), buffer.handle(), "the same memory");
    // Another file of the device, as another process has it.
    let other_device = machine.open();
    // SAFETY: as above.
    let other = unsafe { Buffer::import(&other_device, exported.fd(), 5000) }.unwrap();
    drop((buffer, again, exported));
    let mut read = [0; 5];
    other.read(4990, &mut read);
    assert_eq!(&read, b"hello");
    let inside = Buffer::new(&device, BufferKind::Device, 5000).unwrap();
    assert!(matches!(inside.export(), Err(DriverError::NotShareable)));
    let foreign = std::fs::File::open("/dev/null").unwrap();
    let foreign = std::os::fd::AsRawFd::as_raw_fd(&foreign);
    // SAFETY: as above.
    let refused = unsafe { Buffer::import(&device, foreign, 4096) };
    assert!(matches!(refused, Err(DriverError::PrimeUnsupported { .. })), "{refused:?}");
}

/// Another driver whose buffers are files, which the emulated one takes for dma-bufs.
struct Files;

struct FileBuffer(std::fs::File);

impl OtherBuffer for FileBuffer {
    fn write(&mut self, bytes: &[u8]) -> Result<(), sharing::Failure> {
        Ok(self.0.write_all_at(bytes, 0)?)
    }

    fn read(&mut self, bytes: &mut [u8]) -> Result<(), sharing::Failure> {
        Ok(self.0.read_exact_at(bytes, 0)?)
    }
}

impl OtherDriver for Files {
    fn import(
        &mut self,
        fd: OwnedFd,
        bytes: usize,
    ) -> Result<Box<dyn OtherBuffer>, sharing::Failure> {
        assert_eq!(bytes, sharing::BYTES);
        Ok(Box::new(FileBuffer(fd.into())))
    }

    fn export(
        &mut self,
        bytes: usize,
    ) -> Result<(Box<dyn OtherBuffer>, OwnedFd), sharing::Failure> {
        let scratch = common::Scratch::new();
        let path = scratch.0.join("memory");
        let file = std::fs::File::options().read(true).write(true).create_new(true).open(path)?;
        file.set_len(bytes as u64)?;
        let fd = file.try_clone()?.into();
        Ok((Box::new(FileBuffer(file)), fd))
    }
}

#[test]
fn bytes_pass_between_drivers() {
    let config = Config { foreign_import: true, ..Config::default() };
    let device = Machine::small(config).open();
    let outcomes = sharing::check(&device, &mut Files);
    assert_eq!(outcomes.len(), 4);
    assert!(outcomes.iter().all(|outcome| outcome.result.is_ok()), "{outcomes:?}");
    // Two of the four need no import by the NPU.
    let device = Machine::small(Config::default()).open();
    let outcomes = sharing::check(&device, &mut Files);
    let passed: Vec<bool> = outcomes.iter().map(|outcome| outcome.result.is_ok()).collect();
    assert_eq!(passed, [true, true, false, false], "{outcomes:?}");
}

#[test]
fn seven_contexts_are_one_too_many() {
    let machine = Machine::small(Config::default());
    let mut held: Vec<_> = (0..6).map(|_| machine.load(RunOptions::default()).unwrap()).collect();
    let error = machine.load(RunOptions::default()).unwrap_err();
    let RunError::Driver(DriverError::NoFreeContext { in_use, limit }) = error else {
        panic!("{error}")
    };
    assert_eq!((in_use, limit), (Some(6), 6));
    held.pop();
    machine.load(RunOptions::default()).unwrap().self_test(1).unwrap();
}
