//! What a recording keeps for each slot, and the memory that the host reads logits from.

use super::settle::PlayedBy;
use crate::gpu::Gpu;
use crate::memory::{Memory, Purpose, Region};
use crate::program::Body;
use crate::step::STEP_BYTES;
use crate::transfer::Transfers;
use ash::vk;
use pianola_plan::{DeviceError, DeviceId, Plan, Step};
use std::collections::BTreeMap;

/// A program in replayable form: one command buffer, or several where it is long.
pub(crate) struct Recorded {
    pub commands: Vec<vk::CommandBuffer>,
    pub dispatches: u32,
}

/// What a slot has to itself: while one plays, the next step is written for the other.
pub(crate) struct FrameSlot {
    pub step: Region,
    pub start: *mut u8,
    pub set: vk::DescriptorSet,
    pub fence: vk::Fence,
    pub in_flight: bool,
    /// Submissions with timestamps up to the one that signals the fence.
    pub stamped: u64,
    pub transfers: Transfers,
    pub bodies: BTreeMap<Body, Recorded>,
    /// The body of a play of one row by chained kernels.
    pub chained: Option<Recorded>,
    /// The step that was last played so, and whether it is still to be found out that it was played to the end.
    pub single: Step,
    pub unsettled: bool,
    /// Whether it had to be played again by other dispatches.
    pub replayed: bool,
    /// By segment and rows with logits.
    pub heads: BTreeMap<(usize, u32), Recorded>,
    /// Copies of logits to the host, by rows.
    pub copies: BTreeMap<u32, vk::CommandBuffer>,
    /// Copies of what a body, with this many rows of logits, receives and sends.
    pub moves: BTreeMap<(Body, u32), [Option<vk::CommandBuffer>; 2]>,
}

/// Logits as the host reads them.
#[derive(Clone, Copy)]
pub(super) struct HostLogits {
    pub region: Region,
    pub start: *mut f32,
}

impl FrameSlot {
    pub fn new(
        gpu: &Gpu,
        step: Region,
        start: *mut u8,
        set: vk::DescriptorSet,
        transfers: Transfers,
    ) -> Result<FrameSlot, DeviceError> {
        // SAFETY: a live device.
        let fence = unsafe { gpu.raw.create_fence(&vk::FenceCreateInfo::default(), None) }
            .map_err(|error| gpu.failure("making a fence", error))?;
        Ok(FrameSlot {
            step: step.slice(0, STEP_BYTES),
            start,
            set,
            fence,
            in_flight: false,
            stamped: 0,
            transfers,
            bodies: BTreeMap::new(),
            chained: None,
            single: Step::default(),
            unsettled: false,
            replayed: false,
            heads: BTreeMap::new(),
            copies: BTreeMap::new(),
            moves: BTreeMap::new(),
        })
    }
}

impl FrameSlot {
    /// The recorded body of a play.
    pub fn body(&self, body: &Body, by: PlayedBy) -> &Recorded {
        let other = match by {
            PlayedBy::Dispatches => None,
            PlayedBy::Chain => self.chained.as_ref(),
        };
        other.unwrap_or_else(|| &self.bodies[body])
    }
}

/// Memory that the host reads logits from, where this device computes them.
pub(super) fn host_logits(
    plan: &Plan,
    device: DeviceId,
    memory: &mut Memory,
) -> Result<Vec<HostLogits>, DeviceError> {
    let here = plan.head_device() == device;
    let values = plan.options.max_logit_rows * plan.graph.vocabulary;
    let one = |_| {
        let region = memory.allocate(Purpose::Readback, 4 * values as u64, "logits")?;
        let start = memory.mapped(region).expect("visible to the host").cast();
        Ok(HostLogits { region, start })
    };
    (0..if here { plan.arenas() } else { 0 }).map(one).collect()
}
