//! Choices of variants and sizes: pure functions of a device's limits and a kernel's shape, tested
//! without a device. What `pianola tune` measured takes their place where there is a measurement.

pub(crate) mod attention;
pub(crate) mod attention_matrix;
pub(crate) mod chain;
#[cfg(test)]
mod devices;
pub(crate) mod fragments;
pub(crate) mod matrix;
pub(crate) mod rotated;
pub(crate) mod rows;
pub(crate) mod single;
pub(crate) mod submissions;

use crate::describe::{GpuDescription, GpuKind};
use crate::device::VulkanOptions;
use fragments::Fragments;

/// What choices depend on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Limits {
    /// Invocations of a subgroup.
    pub subgroup: u32,
    /// Invocations that keep the device busy.
    pub parallelism: u32,
    /// Units, each of which runs a workgroup of 512; 0 where the device does not count them.
    pub units: u32,
    /// Bytes that a workgroup shares.
    pub shared_memory: u32,
    /// Side of cooperative matrices of f16 with f32 sums; 0 where there are none.
    pub matrices: u32,
    /// Columns of cooperative matrices of int8 with int32 sums and the same side; 0 where there are
    /// none.
    pub byte_depth: u32,
    /// How matrices lie in registers, where that is as `ProjectFragments` needs it.
    pub fragments: Option<Fragments>,
}

impl Limits {
    /// Those of a GPU, with what the options say of it.
    pub fn of_options(options: &VulkanOptions) -> Limits {
        let limits = Limits::of(options.gpu.description(), options.gpu.fragments());
        Limits {
            parallelism: options.parallelism.unwrap_or(limits.parallelism),
            units: options.units.unwrap_or(limits.units),
            fragments: limits.fragments.filter(|_| options.fragments),
            ..limits
        }
    }

    /// Those of a device by its description and by how matrices were found to lie in its registers.
    pub fn of(description: &GpuDescription, fragments: Option<Fragments>) -> Limits {
        let shapes = || description.matrices.iter();
        // Graphics chips have 16; Mesa's software driver has 8.
        let side = [16, 8].into_iter().find(|&side| {
            shapes().any(|shape| shape.size == [side; 3] && shape.types == ["f16", "f32"])
        });
        let bytes = shapes().filter(|shape| {
            shape.types == ["i8", "i32"] && side.is_some_and(|side| shape.size[..2] == [side; 2])
        });
        Limits {
            subgroup: description.kernel_subgroup(),
            // Vulkan does not report how many units a device has; these are rough sizes of their
            // classes, and tuning finds the rest.
            parallelism: match description.kind {
                GpuKind::Discrete | GpuKind::Virtual => 1 << 17,
                GpuKind::Integrated => 1 << 14,
                GpuKind::Software => 1 << 8,
            },
            units: match description.kind {
                GpuKind::Discrete | GpuKind::Virtual => description.units,
                GpuKind::Integrated | GpuKind::Software => 0,
            },
            shared_memory: description.shared_memory,
            matrices: side.unwrap_or(0),
            // A chunk is whole matrices, of whole vectors of 8 bytes.
            byte_depth: bytes
                .map(|shape| shape.size[2])
                .find(|depth| [8, 16, 32, 64].contains(depth))
                .unwrap_or(0),
            fragments,
        }
    }
}

/// The number of rows that choices are made for where a row's result must not depend on how many
/// others are in its play ([`pianola_plan::PlanOptions::reproducible`]): a kernel of many rows, at
/// the size that costs a single row least.
pub(crate) const REPRODUCIBLE_ROWS: u32 = 16;

/// Rows of the operand in a tile of `ProjectTiles`.
pub(crate) fn tile_tokens(rows: u32) -> u32 {
    match rows {
        0..=32 => 32,
        _ => 64,
    }
}

/// Invocations of a workgroup that forms one row of `width` values: a pass takes four an
/// invocation, and passes are waits for memory.
pub(crate) fn prologue_workgroup(limits: &Limits, width: u32) -> u32 {
    let usual = if width >= 8192 { 512 } else { 256 };
    // `include/prologue.glsl` has room for the sums of 64 subgroups.
    let large = limits.parallelism >= 1 << 16 && limits.subgroup >= 16;
    if large && width >= 4096 { 2 * usual } else { usual }
}
/// How often a workgroup asks for what another leaves, at most, on a card: an answer takes about 0.7 µs, so that this is
/// some 50 ms, far more than a layer and far less than a driver waits.
const SPINS: u32 = 1 << 16;
/// The same on a software driver, whose threads the system may keep from running.
const SOFTWARE_SPINS: u32 = 1 << 26;

/// How often a workgroup asks for what another leaves, at most.
pub(crate) fn spins(software: bool) -> u32 {
    if software { SOFTWARE_SPINS } else { SPINS }
}
