//! What a model computes ([`Graph`]) and how a device will compute it ([`Plan`]).
//!
//! ```text
//! model ──► Graph ──fuse──► kernels ──place──► arena, hazards, segments ──► Plan ──► Device::record
//! ```
//!
//! Everything here is plain data: it can be printed, compared and tested without a device. This
//! crate never computes with a weight and never runs an operation; it names tensors and says in
//! which order, from where and to where. Shapes are symbolic in the number of rows T of a play:
//! a [`Step`] carries the T rows, and one arena of the largest bucket serves every T.

#![forbid(unsafe_code)]

mod arena;
mod cost;
mod device;
mod fuse;
mod graph;
mod hazard;
mod kv;
mod place;
mod plan;
mod print;
mod profile;
mod sampling;
mod step;
mod weight;

pub use arena::Arena;
pub use cost::{Cost, Work};
pub use device::{Ceilings, DeviceError, Draw, PlayStatistics, Probe, Recording};
pub use fuse::{Attend, Fused, FusedNorm, Kernel, Part, Project, Residual, fuse};
pub use graph::{
    Activation, AttentionSpec, Graph, GraphBuilder, LongFrequencies, Node, Op, RopePairing,
    RopeSpec, RowSet, TensorId, TensorSpec, WeightId,
};
pub use hazard::{Access, Range, Space, barriers};
pub use kv::{KvDemand, KvGroup, KvSlot, KvType, KvTypeError, PAGE_TOKENS, kv_bytes};
pub use place::{layer_range, size_text};
pub use plan::{
    BUCKETS, Buffer, DeviceKind, Layout, Numeric, Plan, PlanError, PlanOp, PlanOptions, Segment,
    View, bucket,
};
pub use print::PlanText;
pub use profile::KernelTime;
pub use sampling::{Sampling, SamplingError};
pub use step::{Row, Step};
pub use weight::{WeightShape, WeightSpec};
