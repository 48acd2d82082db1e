//! Plans that the kernels or the device cannot play.

use crate::program::page_bytes;
use pianola_plan::{DeviceError, Plan};

/// Refuses heads that vectors of 16 bytes do not divide, or that are wider than a workgroup sums.
pub(crate) fn check_heads(plan: &Plan) -> Result<(), DeviceError> {
    for group in &plan.graph.kv_groups {
        let length = 16 / group.ty.bytes();
        let vectors = group.head_dim / length;
        if !group.head_dim.is_multiple_of(length) || !(1..=128).contains(&vectors) {
            return Err(DeviceError::Unsupported(format!(
                "the Vulkan kernels need heads of a multiple of {length} values and at most {}, not {}, \
                 to keep them in {}: use another type for keys and values, or another device",
                128 * length,
                group.head_dim,
                group.ty
            )));
        }
    }
    Ok(())
}

/// Refuses what kernels bind whole and the device cannot.
pub(super) fn check_bindings(plan: &Plan, limit: u64) -> Result<(), DeviceError> {
    let pages = (0..plan.graph.kv_groups.len()).map(|group| page_bytes(plan, group));
    let buffers = plan.buffers.iter();
    let buffers = buffers.map(|buffer| (4 * plan.max_rows(buffer.rows) * buffer.width) as u64);
    for (bytes, what, cure) in pages
        .map(|bytes| {
            (bytes, "the KV pages of a layer", "use a smaller context, or q8_0 for keys and values")
        })
        .chain(buffers.map(|bytes| (bytes, "an activation", "use another device")))
    {
        if bytes > limit {
            return Err(DeviceError::Unsupported(format!(
                "{what} takes {bytes} bytes, and this device binds at most {limit}: {cure}"
            )));
        }
    }
    Ok(())
}
