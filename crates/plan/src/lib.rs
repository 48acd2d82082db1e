//! What a model computes ([`Graph`]) and how a device will compute it ([`Plan`]).
//!
//! ```text
//! model ──► Graph ──place, fuse──► kernels ──► arena, hazards, segments ──► Plan ──► Device::record
//! ```
//!
//! Everything here is plain data: it can be printed, compared and tested without a device. This
//! crate never computes with a weight and never runs an operation; it names tensors and says in
//! which order, from where and to where. Shapes are symbolic in the number of rows T of a play:
//! a [`Step`] carries the T rows, and one arena of the largest bucket serves every T.

#![forbid(unsafe_code)]

mod arena;
mod builder;
mod cost;
mod device;
mod error;
mod fault;
mod fuse;
mod graph;
mod hazard;
mod kv;
mod lay_out;
mod options;
mod overlap;
mod part;
mod placement;
mod plan;
mod print;
mod profile;
mod sampling;
mod segment;
mod statistics;
mod step;
mod summary;
mod takeover;
mod units;
mod weight;

pub use arena::Arena;
pub use builder::GraphBuilder;
pub use cost::{Cost, Work};
pub use device::{
    Allocation, AllocationKind, Device, HeapShare, KernelVariant, LogitsTo, Probe, PromptWeights,
    Recording, Rounding, SLOTS, Takeover, WAIT_LIMIT,
};
pub use error::DeviceError;
pub use fault::Fault;
pub use fuse::{Attend, Fused, FusedNorm, Kernel, Part, Project, Residual};
pub use graph::{
    Activation, AttentionSpec, Graph, LongFrequencies, Node, Op, RopePairing, RopeSpec, RowSet,
    TensorId, TensorSpec, WeightId,
};
pub use hazard::{Access, Range, Space, barriers};
pub use kv::{KvDemand, KvGroup, KvSlot, KvType, KvTypeError, PAGE_TOKENS, kv_bytes};
pub use options::{BUCKETS, Numeric, PlanError, PlanOptions, bucket};
pub use overlap::{OverlapTimes, Turn};
pub use part::ModelPart;
pub use placement::{DeviceId, DeviceSpec, Moved, Placement};
pub use plan::{Buffer, Plan, PlanOp, View};
pub use print::PlanText;
pub use profile::KernelTime;
pub use sampling::{DeviceSampler, SampleRow, Sampling, SamplingError, TokenLogProbs, mask_words};
pub use segment::{Segment, Segmentation, Transfer, TransferForm};
pub use statistics::{Ceilings, PlayStatistics};
pub use step::{Row, Step};
pub use takeover::TakeoverTerms;
pub use units::{layer_range, parameters_text, part_text, size_text};
pub use weight::{WeightShape, WeightSpec};
