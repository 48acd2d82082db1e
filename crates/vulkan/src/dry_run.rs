//! Programs without memory: what would be launched, before anything is loaded.

use crate::device::{check_heads, logit_bucket};
use crate::gpu::Gpu;
use crate::memory::Region;
use crate::policy::Limits;
use crate::program::{Body, Programmer, Resources, Scratch};
use crate::tuning::Tuning;
use crate::weights::{Weights, slice_limit};
use pianola_plan::{DeviceError, PAGE_TOKENS, Plan, bucket};

/// Weights and memory that are nowhere, but as large as they would be.
pub(crate) struct DryRun {
    weights: Weights,
    resources: Resources,
}

impl DryRun {
    pub fn new(gpu: &Gpu, plan: &Plan) -> Result<DryRun, DeviceError> {
        check_heads(plan)?;
        let weights = Weights::dry_run(plan, slice_limit(gpu))?;
        Ok(DryRun { weights, resources: dry_resources(plan, &Limits::of(gpu)) })
    }

    pub fn programmer<'a>(
        &'a self,
        gpu: &Gpu,
        plan: &'a Plan,
        tuning: &'a Tuning,
    ) -> Programmer<'a> {
        Programmer {
            plan,
            weights: &self.weights,
            resources: &self.resources,
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

/// What a play of `rows` rows with `logits` rows of logits would launch, in order.
pub fn launches(
    gpu: &Gpu,
    plan: &Plan,
    rows: usize,
    logits: usize,
) -> Result<Vec<OpLaunch>, DeviceError> {
    let (dry_run, tuning) = (DryRun::new(gpu, plan)?, Tuning::default());
    let programmer = dry_run.programmer(gpu, plan, &tuning);
    // Where each row has logits, each is of another sequence.
    let body =
        Body { rows: bucket(rows).unwrap_or(rows) as u32, one_row_per_sequence: rows == logits };
    let mut program = programmer.body(body)?;
    if logits > 0 {
        program.extend(programmer.head(logit_bucket(logits, plan))?);
    }
    let launch = |dispatch: crate::program::Dispatch| OpLaunch {
        op: dispatch.op,
        kernel: dispatch.variant.shader.name(),
        barrier: dispatch.barrier,
    };
    Ok(program.into_iter().map(launch).collect())
}

/// Resources in no buffer. Programs take parts of the arena, which must be as large as planned;
/// what is bound whole may have any size.
fn dry_resources(plan: &Plan, limits: &Limits) -> Resources {
    let scratch = Scratch::of(plan, limits);
    let entries = plan.options.context.div_ceil(PAGE_TOKENS);
    let groups = &plan.graph.kv_groups;
    let table = |group| (group * plan.options.sequences * entries) as u32;
    Resources {
        arena: Region::dry_run(plan.arena.bytes as u64),
        operand: Region::dry_run(scratch.operand),
        metas: Region::dry_run(scratch.metas),
        handed: [(Region::dry_run(scratch.handed.0), Region::dry_run(scratch.handed.1)); 2],
        finished: Region::dry_run(4),
        partials: Region::dry_run(scratch.partials),
        arrivals: Region::dry_run(scratch.arrivals),
        pages: groups.iter().map(|group| vec![Region::dry_run(0); group.layers]).collect(),
        tables: (0..groups.len()).map(table).collect(),
        entries: entries as u32,
    }
}
