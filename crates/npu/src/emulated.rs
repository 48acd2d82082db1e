//! `npu (emulated)`: the driver's system calls answered by a model of the device in this process.
//!
//! The model cannot interpret an array configuration. It computes what a package's manifest states,
//! so that a run shows that files, driver and manifest fit together, and nothing about a kernel's own
//! arithmetic or about any device's speed.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_void};
use std::os::fd::RawFd;
use std::path::Path;
use std::ptr::NonNull;

use pianola_npu_model as model;

use crate::amdxdna::{Calls, Errno};
use crate::package::{
    Activation, AttentionSpec, BLayout, ElementType, MatmulSpec, Operation, Package, PackageError,
};

/// The only node that an emulated machine has.
pub const NODE: &str = "/dev/accel/accel0";

/// A machine whose one NPU is a model.
pub struct Emulated(model::Model);

impl Emulated {
    /// With a model that knows its kernels.
    pub fn new(model: model::Model) -> Emulated {
        Emulated(model)
    }

    /// With a faultless model that computes what the manifests of these packages state.
    pub fn of_packages<'a>(
        packages: impl IntoIterator<Item = &'a Package>,
    ) -> Result<Emulated, PackageError> {
        let model = model::Model::new(model::Config::default());
        for package in packages {
            let (pdi, _) = package.configuration()?;
            let manifest = package.manifest();
            let kernel = kernel(&manifest.operation, manifest.columns);
            let stream = package.instructions().bytes();
            model.register(pdi, Some(stream), kernel).map_err(|error| {
                let name = package.name();
                PackageError::Rule(format!("npu (emulated) cannot compute {name}: {error}"))
            })?;
        }
        Ok(Emulated(model))
    }

    /// The model.
    pub fn model(&self) -> &model::Model {
        &self.0
    }

    /// The node's path.
    pub fn path() -> &'static Path {
        Path::new(NODE)
    }
}

impl Calls for Emulated {
    fn open(&self, path: &CStr) -> Result<RawFd, Errno> {
        match path.to_bytes() == NODE.as_bytes() {
            true => self.0.open().map_err(|errno| errno.0),
            false => Err(libc::ENOENT),
        }
    }

    fn close(&self, fd: RawFd) {
        // As with the kernel, there is nothing to be done about an error.
        let _ = self.0.close(fd);
    }

    unsafe fn ioctl(&self, fd: RawFd, request: u64, argument: *mut c_void) -> Result<(), Errno> {
        // SAFETY: the caller vouches for `argument`.
        unsafe { self.0.ioctl(fd, request, argument.cast()) }.map(drop).map_err(|errno| errno.0)
    }

    unsafe fn mmap(
        &self,
        fd: RawFd,
        offset: u64,
        length: usize,
        alignment: usize,
    ) -> Result<NonNull<u8>, Errno> {
        self.0.mmap_aligned(fd, offset, length, alignment).map_err(|errno| errno.0)
    }

    unsafe fn munmap(&self, address: NonNull<u8>, length: usize) {
        // SAFETY: the caller hands over a whole mapping. What fails leaves it mapped.
        let _ = unsafe { self.0.munmap(address.as_ptr(), length) };
    }
}

/// The model's description of an operation.
fn kernel(operation: &Operation, columns: u16) -> model::Kernel {
    match operation {
        Operation::Matmul(spec) => model::Kernel::Matmul(matmul(spec, columns)),
        Operation::Attention(spec) => model::Kernel::Attention(attention(spec)),
    }
}

fn matmul(spec: &MatmulSpec, columns: u16) -> model::Matmul {
    let element = |element| match element {
        ElementType::I8 => model::Element::I8,
        ElementType::I32 => model::Element::I32,
        ElementType::Bf16 => model::Element::Bf16,
        ElementType::F32 => model::Element::F32,
    };
    // Of a packed B, the model's tile has the rows that a core holds at once.
    let (layout, tile_k) = match spec.b_layout {
        BLayout::RowMajor => (model::Layout::RowMajor, spec.tile.k),
        BLayout::ColumnMajor => (model::Layout::ColumnMajor, spec.tile.k),
        BLayout::Packed(packing) => (model::Layout::Packed, packing.slice_k),
    };
    model::Matmul {
        m: spec.shape.m,
        k: spec.shape.k,
        n: spec.shape.n,
        input: element(spec.input),
        output: element(spec.output),
        layout,
        tile: model::Tile { m: spec.tile.m, k: tile_k, n: spec.tile.n },
        columns: columns.into(),
        shift: 0,
        // IRON's build sets the mode, mlir-aie's leaves the core's default.
        rounding: match spec.b_layout {
            BLayout::Packed(_) => model::Rounding::ConvergentEven,
            _ => model::Rounding::Floor,
        },
        saturate: false,
        partial: model::Partial::Accumulator,
        activation: match spec.activation {
            Activation::None => model::Activation::Identity,
            Activation::Gelu => model::Activation::Gelu,
            Activation::Silu => model::Activation::Silu,
        },
    }
}

fn attention(spec: &AttentionSpec) -> model::Attention {
    model::Attention {
        heads: spec.heads,
        kv_heads: spec.kv_heads,
        lq: spec.queries,
        lk: spec.keys,
        dk: spec.key_width,
        dv: spec.value_width,
        tile: AttentionSpec::VALUE_TILE,
        causal: spec.causal,
        rounding: model::Rounding::Floor,
        narrow_state: true,
    }
}
