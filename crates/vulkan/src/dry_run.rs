//! Programs without memory: what would be launched, before anything is loaded.

use crate::budget::Budget;
use crate::commands::MOST_UPDATED;
use crate::constants::{matrix, project_rotated};
use crate::decode::{Decode, chain_refusal};
use crate::device::VulkanOptions;
use crate::memory::Region;
use crate::pipeline::{Shader, Variant};
use crate::policy::Limits;
use crate::program::{Body, ChainMemory, ChainedProgram, Dispatch, Programmer, Resources};
use crate::recording::{check_heads, logit_bucket};
use crate::tuning::Tuning;
use crate::weights::Weights;
use pianola_plan::{Allocation, DeviceError, DeviceId, Plan, bucket};

/// Weights and memory that are nowhere, but as large as they would be.
pub(crate) struct DryRun {
    weights: Weights,
    resources: Resources,
    limits: Limits,
}

impl DryRun {
    pub fn new(
        options: &VulkanOptions,
        plan: &Plan,
        device: DeviceId,
    ) -> Result<DryRun, DeviceError> {
        DryRun::within(&Budget::of(options), Limits::of_options(options), plan, device)
    }

    /// On a device of these limits that grants this much memory.
    pub fn within(
        budget: &Budget,
        limits: Limits,
        plan: &Plan,
        device: DeviceId,
    ) -> Result<DryRun, DeviceError> {
        check_heads(plan)?;
        let slice = budget.largest_slice;
        let mut nowhere = |allocation: &Allocation| Ok(Region::dry_run(allocation.bytes));
        let mut weights = Weights::new(plan, device, slice, &mut nowhere)?;
        if budget.keeps_prompt_weights(plan, device)? {
            weights.add_prompt_form(plan, device, slice, &mut nowhere)?;
        }
        let resources = Resources::new(plan, device, &limits, &mut nowhere)?;
        Ok(DryRun { weights, resources, limits })
    }

    pub fn programmer<'a>(
        &'a self,
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
            within: 0..0,
            limits: self.limits,
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
    /// Specialisation constants.
    pub constants: Vec<(u32, u32)>,
    /// Weight rows and rows of the operand of a workgroup, of a product on matrix units.
    pub tile: Option<[u32; 2]>,
    /// Whether it waits for those before it.
    pub barrier: bool,
}

impl OpLaunch {
    fn of(dispatch: &Dispatch) -> OpLaunch {
        let Variant { shader, constants } = &dispatch.variant;
        // Numbers of the constants whose products are the sides of a tile.
        let sides = match shader {
            Shader::ProjectMatrix | Shader::ProjectFragments => {
                Some([[matrix::ROWS_EACH, matrix::ACROSS], [matrix::TOKENS_EACH, matrix::ALONG]])
            }
            Shader::ProjectRotated => Some([
                [project_rotated::ROWS_EACH, project_rotated::ACROSS],
                [project_rotated::TOKENS_EACH, project_rotated::ALONG],
            ]),
            _ => None,
        };
        let value = |id: u32| constants.iter().find(|constant| constant.0 == id).map_or(1, |c| c.1);
        OpLaunch {
            op: dispatch.op,
            kernel: shader.name(),
            constants: constants.clone(),
            tile: sides.map(|sides| sides.map(|side| side.map(value).iter().product())),
            barrier: dispatch.barrier,
        }
    }
}

impl Programmer<'_> {
    /// What a play of `rows` rows with `logits` rows of logits launches, in order.
    pub fn launches(&self, rows: usize, logits: usize) -> Result<Vec<OpLaunch>, DeviceError> {
        // Where each row has logits, each is of another sequence.
        let one_row_per_sequence = rows == logits;
        let rows = bucket(rows).unwrap_or(rows) as u32;
        let mut program = Vec::new();
        let first = &self.plan.segmentations[0].segments;
        for segment in self.segments().filter(|segment| first.contains(segment)) {
            program.extend(self.body(Body { segment, rows, one_row_per_sequence })?);
            if logits > 0 {
                program.extend(self.head(segment, logit_bucket(logits, self.plan))?);
            }
        }
        Ok(program.iter().map(OpLaunch::of).collect())
    }
}

impl Programmer<'_> {
    /// The body of one row as [`Decode::Chained`] plays it, or the error that says why not, as far as can be said before anything is
    /// recorded.
    pub fn chain_or_refusal(&self, lacks: &[&str]) -> Result<ChainedProgram, DeviceError> {
        if !lacks.is_empty() {
            return Err(chain_refusal(&format!("the device lacks {}", lacks.join(", "))));
        }
        if self.plan.segments.len() != 1 {
            return Err(chain_refusal("several devices share the model"));
        }
        let body = self.body(Body::single(0))?;
        let program =
            ChainedProgram::of(&body).filter(|program| program.count_bytes().len() <= MOST_UPDATED);
        program.ok_or_else(|| {
            chain_refusal(
                "its kernels of one row cannot wait for one another (these are for fast mode, without --reproducible, with quantised \
                 weights, on cards that count their units)",
            )
        })
    }

    /// The chain that plays a single row, if `decode` and the plan have one play it.
    pub fn chain(
        &self,
        decode: Decode,
        lacks: &[&str],
    ) -> Result<Option<ChainedProgram>, DeviceError> {
        match decode {
            Decode::Dispatches => Ok(None),
            Decode::Auto => Ok(self.chain_or_refusal(lacks).ok()),
            Decode::Chained => self.chain_or_refusal(lacks).map(Some),
        }
    }
}

/// What device `device`'s part of a play of `rows` rows with `logits` rows of logits would launch,
/// in order.
pub fn launches(
    options: &VulkanOptions,
    plan: &Plan,
    device: DeviceId,
    rows: usize,
    logits: usize,
) -> Result<Vec<OpLaunch>, DeviceError> {
    let dry_run = DryRun::new(options, plan, device)?;
    let tuning = Tuning::default();
    let programmer = dry_run.programmer(plan, device, &tuning);
    // Refused also where other steps are asked about: it would be when the plan is recorded.
    match programmer.chain(options.decode, &options.gpu.exchange_lacks)? {
        Some(chain) if (rows, logits) == (1, 1) => {
            let mut program = chain.dispatches(&ChainMemory::dry_run());
            program.extend(programmer.head(0, 1)?);
            Ok(program.iter().map(OpLaunch::of).collect())
        }
        _ => programmer.launches(rows, logits),
    }
}

/// How single rows of device `device`'s part of a plan are played, in words. Whether kernels overlap is seen when the
/// plan is recorded.
pub fn decode_in_words(
    options: &VulkanOptions,
    plan: &Plan,
    device: DeviceId,
) -> Result<&'static str, DeviceError> {
    let dry_run = DryRun::new(options, plan, device)?;
    let programmer = dry_run.programmer(plan, device, &options.tuning);
    Ok(match programmer.chain(options.decode, &options.gpu.exchange_lacks)? {
        Some(_) => "by dispatches that overlap: each kernel waits for the one before by itself",
        None => "by dispatches",
    })
}
