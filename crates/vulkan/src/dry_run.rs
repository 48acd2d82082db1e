//! Programs without memory: what would be launched, before anything is loaded.

use crate::budget::Budget;
use crate::constants::{matrix, project_rotated};
use crate::decode::{Decode, PersistentTrial, refusal};
use crate::device::VulkanOptions;
use crate::memory::Region;
use crate::pipeline::{Shader, Variant};
use crate::policy::{Limits, persistent};
use crate::program::{Body, Dispatch, PersistentMemory, PersistentProgram, Programmer, Resources};
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
    /// The layers as [`Decode::Persistent`] plays them, or the error that says why not, as far as can be said before
    /// anything is recorded.
    pub fn persistent_or_refusal(
        &self,
        lacks: &[&str],
        trial: &PersistentTrial,
    ) -> Result<PersistentProgram, DeviceError> {
        if !lacks.is_empty() {
            return Err(refusal(&format!("the device lacks {}", lacks.join(", "))));
        }
        self.persistent(trial).map_err(|why| refusal(&why))
    }

    /// The same where it is possible and was measured to be faster: what [`Decode::Auto`] chooses.
    pub fn persistent_where_it_pays(
        &self,
        lacks: &[&str],
        trial: &PersistentTrial,
    ) -> Option<PersistentProgram> {
        let pays = persistent::pays(self.hidden());
        pays.then(|| self.persistent_or_refusal(lacks, trial).ok()).flatten()
    }

    /// The same, if they are played so.
    fn chosen_persistent(
        &self,
        options: &VulkanOptions,
    ) -> Result<Option<PersistentProgram>, DeviceError> {
        let (lacks, trial) = (&options.gpu.exchange_lacks, &options.persistent);
        match options.decode {
            Decode::Dispatches => Ok(None),
            Decode::Auto => Ok(self.persistent_where_it_pays(lacks, trial)),
            Decode::Persistent => self.persistent_or_refusal(lacks, trial).map(Some),
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
    let Some(program) = programmer.chosen_persistent(options)? else {
        return programmer.launches(rows, logits);
    };
    if (rows, logits) != (1, 1) {
        return programmer.launches(rows, logits);
    }
    let mut program = program.body(&PersistentMemory::dry_run());
    program.extend(programmer.head(0, 1)?);
    Ok(program.iter().map(OpLaunch::of).collect())
}

/// How single rows of device `device`'s part of a plan are played, in words. Whether workgroups fit by their
/// registers, and meet, is seen when the plan is recorded.
pub fn decode_in_words(
    options: &VulkanOptions,
    plan: &Plan,
    device: DeviceId,
) -> Result<String, DeviceError> {
    let dry_run = DryRun::new(options, plan, device)?;
    let programmer = dry_run.programmer(plan, device, &options.tuning);
    Ok(match programmer.chosen_persistent(options)? {
        None => "by dispatches".to_string(),
        Some(program) => {
            format!(
                "two dispatches a layer, products by {} resident workgroups",
                program.workgroups
            )
        }
    })
}
