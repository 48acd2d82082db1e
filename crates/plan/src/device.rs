//! What a device offers: it records its part of a plan, and plays the segments of it.

use crate::error::DeviceError;
use crate::graph::TensorId;
use crate::kv::KvSlot;
use crate::options::Numeric;
use crate::placement::{DeviceId, DeviceSpec};
use crate::plan::Plan;
use crate::profile::KernelTime;
use crate::sampling::DeviceSampler;
use crate::statistics::{Ceilings, PlayStatistics};
use crate::step::{Row, Step};
use pianola_formats::TensorSource;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// Longest that a play is waited for. A submission is planned to take far less than a second; what
/// has not finished by then is taken for lost.
pub const WAIT_LIMIT: Duration = Duration::from_secs(120);

/// Slots that plays run in: plays of different slots may be in flight at once.
pub const SLOTS: usize = 2;

/// A device before a plan is recorded on it.
pub trait Device: Send + Sync {
    /// What the planner has to know of it.
    fn spec(&self) -> DeviceSpec;

    /// What it is, in words: `cpu (avx512, 2 threads)`.
    fn description(&self) -> String;

    /// Bytes that it grants now for weights, pages and activations; none where it cannot say.
    fn memory(&self) -> Option<u64>;

    /// What a recording of device `id`'s part of `plan` would allocate.
    fn allocations(&self, plan: &Plan, id: DeviceId) -> Result<Vec<Allocation>, DeviceError>;

    /// How much of each of its heaps these would take now, in the order in which they are filled; none
    /// if they do not fit.
    fn heaps(&self, allocations: &[Allocation]) -> Option<Vec<HeapShare>>;

    /// Whether all of these would find their memory now.
    fn holds(&self, allocations: &[Allocation]) -> bool {
        self.heaps(allocations).is_some()
    }

    /// Loads the weights that device `id` of `plan` reads from `source` and records its segments;
    /// `progress` is called with the bytes of weights done and the bytes in all.
    fn record(
        &self,
        plan: &Arc<Plan>,
        id: DeviceId,
        source: &dyn TensorSource,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Box<dyn Recording>, DeviceError>;

    /// Every kernel variant that steps of device `id`'s part of `plan` can launch, each once.
    fn variants(&self, plan: &Plan, id: DeviceId) -> Result<Vec<KernelVariant>, DeviceError>;

    /// What it can reach at best in a numeric mode, measured here and now; none where nothing
    /// could be measured.
    fn measure(&self, numeric: Numeric) -> Option<Ceilings>;

    /// What it costs to let it compute products that were placed elsewhere, in some steps only; none
    /// where it cannot.
    fn takeover(&self) -> Option<Takeover> {
        None
    }

    /// What device `id`'s part of `plan` costs that no prediction counts, in words.
    fn remarks(&self, _plan: &Plan, _id: DeviceId) -> Vec<String> {
        Vec::new()
    }

    /// Whether it only imitates a device: how long it takes then says nothing.
    fn is_emulated(&self) -> bool {
        false
    }

    /// The device itself, for what only one kind has.
    fn as_any(&self) -> &dyn std::any::Any;

    /// Whether it is gone: what was recorded on it cannot be used any more.
    fn is_lost(&self) -> bool {
        false
    }
}

/// What it costs a device to take products over, beside the arithmetic.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Takeover {
    /// Fewest rows of a step that it is asked for.
    pub least_rows: usize,
    /// Seconds that each of its segments takes before it computes, such as for a change of its
    /// configuration.
    pub seconds_each: f64,
    /// Whether its products are as exact as those of exact mode.
    pub exact: bool,
    /// Whether it reads the same memory as the processor, so that a step that memory bounds gains
    /// nothing.
    pub shares_memory: bool,
    /// Whether it computes the products of every such step, whatever is predicted: somebody tries it.
    pub always: bool,
}

/// Whether quantised weights are kept in a second form, rotated and rounded to int8, for products of many rows in
/// fast mode: faster than with the file's weights, for a byte a weight.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum PromptWeights {
    /// By the device's own rule: where it pays and memory is left.
    #[default]
    Auto,
    /// Always; an error where the device or the plan cannot. Matrices that have no such form are read in their
    /// first one.
    On,
    /// Never.
    Off,
}

impl PromptWeights {
    /// What is done where `obstacle` says why the device or the plan cannot keep a second form, and `auto` whether it
    /// would by itself.
    pub fn decide(
        self,
        obstacle: Option<&str>,
        auto: impl FnOnce() -> Result<bool, DeviceError>,
    ) -> Result<bool, DeviceError> {
        match (self, obstacle) {
            (PromptWeights::Off, _) | (PromptWeights::Auto, Some(_)) => Ok(false),
            (PromptWeights::On, None) => Ok(true),
            (PromptWeights::On, Some(why)) => Err(DeviceError::UnsupportedOption(format!(
                "prompts cannot have weights of their own here: {why}; use --prompt-weights auto, or leave that out"
            ))),
            (PromptWeights::Auto, None) => auto(),
        }
    }
}

/// Memory that a recording allocates.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Allocation {
    /// What for.
    pub kind: AllocationKind,
    /// The same in words, for errors.
    pub what: String,
    /// Bytes.
    pub bytes: u64,
    /// The layer that needs it; none where all do.
    pub layer: Option<usize>,
}

/// What memory is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AllocationKind {
    /// Weights.
    Weights,
    /// Weights in a second form, for prompts: kept where there is room for it when everything else is
    /// placed.
    PromptWeights,
    /// Pages of keys and values.
    Kv,
    /// Activations, and what kernels need besides.
    Working,
}

/// A part of a device's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HeapShare {
    /// What it is, in words.
    pub name: &'static str,
    /// Bytes that are taken of it.
    pub taken: u64,
    /// Bytes that could be.
    pub free: u64,
}

/// A kernel as a device launches it, with the choices that were made for it: what checks count.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct KernelVariant {
    /// Name of the kernel, such as that of its source.
    pub kernel: String,
    /// Types, tile sizes and whatever else was chosen, in words.
    pub choices: String,
}

impl std::fmt::Display for KernelVariant {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ({})", self.kernel, self.choices)
    }
}

/// Where the logits of a segment that computes them go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LogitsTo {
    /// To [`Recording::logits`], once the slot was waited for.
    Host,
    /// Nowhere: [`DeviceSampler::sample`] reads them where they are.
    Sampler,
}

/// A device's part of a plan in replayable form.
///
/// A play runs in a *slot*: each has an arena of its own where the plan has several devices, so
/// that plays of different slots may be in flight at once. Segments that are submitted to one
/// device run in the order of their submission, whatever their slots.
pub trait Recording: Probe + Send {
    /// The plan that this plays a part of.
    fn plan(&self) -> &Plan;

    /// Starts a segment of the plan for `step`. A device that works by itself returns before the
    /// segment is done. What the segment receives from other devices was imported before. Of
    /// the slot only earlier segments of the same step may be in flight.
    fn submit(
        &mut self,
        segment: usize,
        slot: usize,
        step: &Step,
        logits: LogitsTo,
    ) -> Result<(), DeviceError>;

    /// Waits until everything that was submitted for `slot` is done, at most for `limit`.
    fn wait(&mut self, slot: usize, limit: Duration) -> Result<(), DeviceError>;

    /// The first rows of a tensor that a segment of this device left for another device, in the
    /// form that the plan's transfer declares. The slot was waited for.
    fn export(
        &mut self,
        slot: usize,
        tensor: TensorId,
        rows: &mut [f32],
    ) -> Result<(), DeviceError>;

    /// Takes over the first rows of a tensor that a segment of another device left for this one.
    fn import(&mut self, slot: usize, tensor: TensorId, rows: &[f32]) -> Result<(), DeviceError>;

    /// Logits of the `index`-th row that wanted them, `[vocabulary]`. Writable, because sampling
    /// works in place.
    fn logits(&mut self, slot: usize, index: usize) -> &mut [f32];

    /// What samples on the device; none where tokens are sampled by the host, from the logits.
    fn sampler(&self) -> Option<&dyn DeviceSampler> {
        None
    }

    /// The same, to sample with.
    fn sampler_mut(&mut self) -> Option<&mut dyn DeviceSampler> {
        None
    }

    /// Makes everything ready that any step may need, where the first step of its kind would
    /// otherwise wait for it.
    fn record_ahead(&mut self) -> Result<(), DeviceError> {
        Ok(())
    }

    /// Points entry `index` of a sequence's page table at `page`.
    fn map_page(&mut self, group: usize, sequence: usize, index: usize, page: u32);

    /// Forgets that entry: no row may see it any more.
    fn unmap_page(&mut self, group: usize, sequence: usize, index: usize);

    /// Gives plays up soon after `flag` is set, with [`DeviceError::Interrupted`], instead of at
    /// their end. What the device was given before finishes by itself, before the next play. The
    /// flag is looked at between parts of a play, so that it may be cleared only between plays.
    fn set_interrupt(&mut self, flag: Arc<AtomicBool>);

    /// From now on, also count how long the device computes ([`PlayStatistics::busy_seconds`]), which
    /// costs a little speed; or no longer. Returns whether it is counted: not every device can.
    fn measure_busy(&mut self, _on: bool) -> bool {
        false
    }

    /// From now on, time every kernel of every play, at the cost of speed. False where the device
    /// cannot.
    fn start_profile(&mut self) -> bool {
        false
    }

    /// What was timed since, and an end to it.
    fn take_profile(&mut self) -> Vec<KernelTime> {
        Vec::new()
    }

    /// What [`Device::measure`] finds, measured with the weights that are in memory already. None where
    /// a device has to be measured apart from its recordings.
    fn measure(&self) -> Option<Ceilings> {
        None
    }

    /// Whether it keeps weights in a second form ([`PromptWeights`]): what was decided when it was recorded.
    fn keeps_prompt_weights(&self) -> bool {
        false
    }

    /// How often the device failed and the recording itself computed on the processor what it should
    /// have, and the last reason; none where that never happened.
    fn made_up_for(&self) -> Option<(u64, String)> {
        None
    }

    /// What happened that whoever uses the device should hear of, once: that it plays otherwise than it was asked to.
    fn take_notice(&mut self) -> Option<String> {
        None
    }

    /// Counters since the recording was made.
    fn statistics(&self) -> PlayStatistics;

    /// The recording itself, for what only one device has.
    fn as_any(&self) -> &dyn std::any::Any;

    /// The same, to be changed.
    fn as_any_mut(&mut self) -> &mut dyn std::any::Any;

    /// Plays a whole step of a plan that has no other device.
    fn play(&mut self, step: &Step) -> Result<(), DeviceError> {
        for segment in self.plan().segmentations[0].segments.clone() {
            self.submit(segment, 0, step, LogitsTo::Host)?;
        }
        self.wait(0, WAIT_LIMIT)
    }
}

/// How a kernel rounds the inputs of its products, beyond f32.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rounding {
    /// Not at all.
    None,
    /// To int8 with a scale for 32 values.
    Int8,
    /// To two int8, the second holding what the first left out.
    Int8Twice,
    /// Weights and inputs both to half floats, each row of the inputs scaled by a power of two.
    Halves,
    /// The same with one scale for all rows: inputs are multiples of [`Rounding::half_step`] besides.
    FixedHalves,
    /// Of attention only: queries, keys, weights and values to the eight bits of bf16.
    Bf16,
    /// Weights and inputs both to int8, once blocks of columns were rotated by a Hadamard matrix.
    Rotated {
        /// Columns of a block.
        block: usize,
        /// Columns that share a scale, a whole number of blocks: as many as there are where a row has one.
        scaled: usize,
    },
}

/// The smallest half float, 16 times.
const FIXED_HALF_STEP: f64 = 1.0 / (1 << 20) as f64;

impl Rounding {
    /// What a kernel that rounds so does with the inputs of one of its products: floats are rounded where they meet matrix
    /// units, and nowhere else.
    pub fn of_product(self, quantised: bool) -> Rounding {
        if quantised || self.half_step().is_some() { self } else { Rounding::None }
    }

    /// What lies between two neighbouring inputs at least, where they become half floats: 0 where rows have scales of their own.
    pub fn half_step(self) -> Option<f64> {
        match self {
            Rounding::Halves => Some(0.0),
            Rounding::FixedHalves => Some(FIXED_HALF_STEP),
            _ => None,
        }
    }
}

/// A plan's play that can be looked into: kernel by kernel, tensor by tensor. For checks only; slow.
pub trait Probe {
    /// Makes ready to play the kernels of `step` one by one.
    fn begin(&mut self, step: &Step) -> Result<(), DeviceError>;

    /// Plays kernel `op` of the plan, on what the kernels before it left.
    fn play_op(&mut self, op: usize, step: &Step) -> Result<(), DeviceError>;

    /// The first `rows` rows of a tensor that has a place in the arena.
    fn read_tensor(&mut self, tensor: TensorId, rows: usize) -> Result<Vec<f32>, DeviceError>;

    /// Overwrites the first rows of a tensor that has a place in the arena.
    fn write_tensor(&mut self, tensor: TensorId, rows: &[f32]) -> Result<(), DeviceError>;

    /// Keys and values of some rows as they are stored, `[rows][kv_heads * head_dim]` each: keys are
    /// rotated where the type wants it (`KvGroup::key_rotation`).
    fn read_kv(&mut self, slot: KvSlot, rows: &[Row]) -> Result<[Vec<f32>; 2], DeviceError>;

    /// How kernel `op` rounds the inputs of its products ([`Rounding::of_product`]), or those of its
    /// attention, in a play of `step`. An attention knows [`Rounding::Halves`] and [`Rounding::Bf16`] only.
    fn rounding(&self, op: usize, step: &Step) -> Rounding;

    /// The kernel variants that playing kernel `op` for `step` launches.
    fn variants(&self, op: usize, step: &Step) -> Result<Vec<KernelVariant>, DeviceError>;

    /// Overwrites the first `rows` rows of a tensor that has a place in the arena with NaN.
    fn poison_tensor(&mut self, tensor: TensorId, rows: usize) -> Result<(), DeviceError>;

    /// Overwrites the arena with NaN, so that reading what was never written shows.
    fn poison(&mut self) -> Result<(), DeviceError>;

    /// Overwrites all KV pages with NaN, likewise.
    fn poison_kv(&mut self) -> Result<(), DeviceError>;
}
