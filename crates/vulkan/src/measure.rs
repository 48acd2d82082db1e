//! Ceilings of a device, measured on the spot.

use crate::constants;
use crate::describe::GpuKind;
use crate::gpu::Gpu;
use crate::lab::Lab;
use crate::memory::{Purpose, Region};
use crate::pipeline::{Shader, Variant};
use crate::policy::Limits;
use crate::policy::fragments::{Fragments, Places, token_side};
use crate::program::Dispatch;
use pianola_plan::{Ceilings, DeviceError, Numeric};
use std::sync::Arc;

/// Measures what the device can read and compute at best: a plain read of a block larger than its
/// caches, and chains of the multiply-adds that `numeric` rests on. Takes some milliseconds on a
/// GPU.
pub fn measure(gpu: &Arc<Gpu>, numeric: Numeric) -> Result<Ceilings, DeviceError> {
    let software = gpu.description().kind == GpuKind::Software;
    let mut lab = Lab::new(gpu)?;
    // Several times the caches; a software driver's are the processor's.
    let wanted: u64 = if software { 64 << 20 } else { 1 << 30 };
    let most = gpu.description().largest_binding.min(gpu.description().largest_allocation);
    let bytes = wanted.min(most) / GROUP_BYTES * GROUP_BYTES;
    let source = lab.buffer(bytes, 0x5a).or_else(|_| lab.buffer(64 << 20, 0x5a))?;
    let sink = lab.buffer(4096, 0)?;
    let groups = (source.size / GROUP_BYTES) as u32;
    let read = probe(0, source, sink, (GROUP_BYTES / 16) as u32, groups);
    let read_seconds = lab.time_awake(&[read], 5)?;
    let (rounds, groups) = if software { (2_000, 64) } else { (20_000, 2048) };
    let kind = if numeric == Numeric::Fast { 1 } else { 2 };
    let compute = probe(kind, source, sink, rounds, groups);
    let compute_seconds = lab.time_awake(&[compute], 3)?;
    // Eight operations a round and invocation; a dot is four multiply-adds, each two operations.
    let operations = 2.0 * 8.0 * if numeric == Numeric::Fast { 4.0 } else { 1.0 };
    let invocations = f64::from(groups) * 256.0;
    let mut rate = operations * invocations * f64::from(rounds) / compute_seconds;
    // Fast mode computes prompts on matrix units where there are any.
    let limits = Limits::of(gpu.description(), gpu.fragments());
    if numeric == Numeric::Fast && limits.matrices > 0 {
        rate = rate.max(matrix_rate(&mut lab, sink, &limits)?);
    }
    Ok(Ceilings {
        bytes_per_second: source.size as f64 / read_seconds,
        operations_per_second: rate,
    })
}

/// Operations a second of the device's matrix units.
fn matrix_rate(lab: &mut Lab, sink: Region, limits: &Limits) -> Result<f64, DeviceError> {
    const WORKGROUP: u32 = 256;
    /// Products that a subgroup has in flight.
    const CHAINS: u32 = 4;
    let (rounds, groups): (u32, u32) =
        if limits.parallelism < 1 << 10 { (50, 16) } else { (2_000, 1056) };
    let constants = vec![(constants::probe_matrix::SIDE, limits.matrices)];
    let variant = Variant { shader: Shader::ProbeMatrix, constants };
    let dispatch = Dispatch::new(variant, vec![sink], &rounds.to_ne_bytes(), [groups, 1, 1], 0);
    let seconds = lab.time_awake(&[dispatch], 3)?;
    let products = f64::from(groups * (WORKGROUP / limits.subgroup) * CHAINS) * f64::from(rounds);
    Ok(2.0 * f64::from(limits.matrices.pow(3)) * products / seconds)
}

/// Where the elements of matrices lie in registers, if that is as `ProjectFragments` needs it.
/// Vulkan leaves it to the driver, so every device that has matrices is asked, in a kernel of its
/// own. What is trusted is that the driver lays matrices of one type and size out alike in every
/// kernel it compiles: nothing promises it. A driver that does not would compute wrong products,
/// which a check of this kernel against the reference shows and nothing else would.
pub(crate) fn fragments(gpu: &Arc<Gpu>) -> Result<Option<Fragments>, DeviceError> {
    let side = Limits::of(gpu.description(), None).matrices;
    // A driver that only compiles has no memory to answer into.
    let has_memory = gpu.memory.memory_heaps_as_slice().iter().any(|heap| heap.size > 0);
    if side == 0 || !has_memory {
        return Ok(None);
    }
    let narrow = token_side(gpu.description(), side);
    match fragments_of(gpu, side, narrow)? {
        None if narrow < side => fragments_of(gpu, side, side),
        found => Ok(found),
    }
}

/// The same of matrices whose second factor has `token_side` rows of the operand.
fn fragments_of(
    gpu: &Arc<Gpu>,
    side: u32,
    token_side: u32,
) -> Result<Option<Fragments>, DeviceError> {
    let subgroup = Limits::of(gpu.description(), None).subgroup;
    let (elements, token_elements) = (side * side, side * token_side);
    if token_elements < subgroup {
        return Ok(None);
    }
    let mut lab = Lab::new(gpu)?;
    let words = 2 + (elements + token_elements) as usize;
    let places = lab.memory.allocate(Purpose::Readback, 4 * words as u64, "a measurement")?;
    let constants = vec![
        (constants::probe_fragments::SUBGROUP, subgroup),
        (constants::probe_fragments::SIDE, side),
        (constants::probe_fragments::TOKEN_SIDE, token_side),
    ];
    let variant = Variant { shader: Shader::ProbeFragments, constants };
    lab.play(&[Dispatch::new(variant, vec![places], &[], [1, 1, 1], 0)])?;
    let start = lab.memory.mapped(places).expect("visible to the host");
    // SAFETY: mapped, as large, and the submission that wrote it is done.
    let found = unsafe { std::slice::from_raw_parts(start.cast::<u32>(), words) };
    let (lengths, places) = found.split_at(2);
    // Where invocations hold copies, as on RDNA 3, an invocation has more elements.
    if lengths != [elements / subgroup, token_elements / subgroup] {
        return Ok(None);
    }
    let (first, second) = places.split_at(elements as usize);
    Ok(Fragments::of(&Places { subgroup, side, token_side, first, second }))
}

/// Operations a second of the arithmetic that `numeric` rests on, roughly, for predictions.
pub(crate) fn rough_rate(gpu: &Arc<Gpu>, numeric: Numeric) -> Result<f64, DeviceError> {
    let software = gpu.description().kind == GpuKind::Software;
    let mut lab = Lab::new(gpu)?;
    let sink = lab.buffer(4096, 0)?;
    let (rounds, groups) = if software { (200, 16) } else { (500, 1024) };
    let (kind, operations) = if numeric == Numeric::Fast { (1, 64.0) } else { (2, 16.0) };
    let seconds = lab.time_awake(&[probe(kind, sink, sink, rounds, groups)], 1)?.max(1e-6);
    Ok(operations * f64::from(groups) * 256.0 * f64::from(rounds) / seconds)
}

/// Seconds that `groups` workgroups take to add to each of `outputs` values in memory, and seconds
/// of a launch that does nothing: what decides whether a product that feeds another can share its
/// launch (`bench/lab/NOTES.md`, before the first entry).
#[doc(hidden)]
pub fn atomic_additions(
    gpu: &Arc<Gpu>,
    groups: u32,
    outputs: u32,
) -> Result<(f64, f64), DeviceError> {
    let mut lab = Lab::new(gpu)?;
    let sink = lab.buffer(4 * u64::from(outputs), 0)?;
    let launches = |outputs: u32| {
        let launch = Dispatch { barrier: true, ..probe(3, sink, sink, outputs, groups) };
        vec![launch; 32]
    };
    let atomics = lab.time_awake(&launches(outputs), 5)? / 32.0;
    let empty = lab.time_awake(&launches(0), 5)? / 32.0;
    Ok((atomics, empty))
}

/// Bytes that one workgroup reads.
const GROUP_BYTES: u64 = 256 << 10;

fn probe(kind: u32, source: Region, sink: Region, count: u32, groups: u32) -> Dispatch {
    let variant =
        Variant { shader: Shader::Probe, constants: vec![(constants::probe::KIND, kind)] };
    Dispatch::new(variant, vec![source, sink], &count.to_ne_bytes(), [groups, 1, 1], 0)
}
