//! Programs without memory: what would be launched, before anything is loaded.

use crate::gpu::Gpu;
use crate::memory::Region;
use crate::policy::Limits;
use crate::program::{Body, Programmer, Resources};
use crate::recording::{check_heads, logit_bucket};
use crate::tuning::Tuning;
use crate::weights::{Weights, slice_limit};
use pianola_plan::{Allocation, DeviceError, DeviceId, Plan, bucket};

/// Weights and memory that are nowhere, but as large as they would be.
pub(crate) struct DryRun {
    weights: Weights,
    resources: Resources,
}

impl DryRun {
    pub fn new(gpu: &Gpu, plan: &Plan, device: DeviceId) -> Result<DryRun, DeviceError> {
        check_heads(plan)?;
        let mut nowhere = |allocation: &Allocation| Ok(Region::dry_run(allocation.bytes));
        let weights = Weights::new(plan, device, slice_limit(gpu), &mut nowhere)?;
        let resources = Resources::new(plan, device, &Limits::of(gpu), &mut nowhere)?;
        Ok(DryRun { weights, resources })
    }

    pub fn programmer<'a>(
        &'a self,
        gpu: &Gpu,
        plan: &'a Plan,
        device: DeviceId,
        tuning: &'a Tuning,
    ) -> Programmer<'a> {
        Programmer {
            plan,
            device,
            weights: &self.weights,
            resources: &self.resources,
            arena: self.resources.arenas[0],
            limits: Limits::of(gpu),
            tuning,
        }
    }
}

/// What a kernel of the plan is launched as.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OpLaunch {
    /// Kernel of the plan.
    pub op: usize,
    /// Name of the source in `shaders/`.
    pub kernel: &'static str,
    /// Whether it waits for those before it.
    pub barrier: bool,
}

/// What device `device`'s part of a play of `rows` rows with `logits` rows of logits would launch,
/// in order.
pub fn launches(
    gpu: &Gpu,
    plan: &Plan,
    device: DeviceId,
    rows: usize,
    logits: usize,
) -> Result<Vec<OpLaunch>, DeviceError> {
    let (dry_run, tuning) = (DryRun::new(gpu, plan, device)?, Tuning::default());
    let programmer = dry_run.programmer(gpu, plan, device, &tuning);
    // Where each row has logits, each is of another sequence.
    let one_row_per_sequence = rows == logits;
    let rows = bucket(rows).unwrap_or(rows) as u32;
    let mut program = Vec::new();
    for segment in programmer.segments() {
        program.extend(programmer.body(Body { segment, rows, one_row_per_sequence })?);
        if logits > 0 {
            program.extend(programmer.head(segment, logit_bucket(logits, plan))?);
        }
    }
    let launch = |dispatch: crate::program::Dispatch| OpLaunch {
        op: dispatch.op,
        kernel: dispatch.variant.shader.name(),
        barrier: dispatch.barrier,
    };
    Ok(program.into_iter().map(launch).collect())
}
