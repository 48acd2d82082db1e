//! Choices that shape a plan, and why they may not do.

use crate::kv::KvType;

/// Row counts that a play is rounded up to where a device records per count.
pub const BUCKETS: [usize; 10] = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512];

/// The smallest bucket that holds `rows`.
pub fn bucket(rows: usize) -> Option<usize> {
    BUCKETS.into_iter().find(|&bucket| rows <= bucket)
}

/// The type in which activations are multiplied with weights.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Numeric {
    /// f32 activations, weights dequantised, f32 KV.
    Exact,
    /// int8 activations against quantised weights (two int8 for the head), f16 KV.
    Fast,
}

impl Numeric {
    /// Type that keys and values are stored in where none was asked for.
    pub fn kv_type(self) -> KvType {
        match self {
            Numeric::Exact => KvType::F32,
            Numeric::Fast => KvType::F16,
        }
    }
}

impl std::fmt::Display for Numeric {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Numeric::Exact => "exact",
            Numeric::Fast => "fast",
        })
    }
}

/// What the planner may choose, apart from the devices.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PlanOptions {
    /// Numeric mode.
    pub numeric: Numeric,
    /// Type of keys and values; by default that of the numeric mode.
    pub kv_type: Option<KvType>,
    /// Most rows in one play.
    pub max_rows: usize,
    /// Most rows with logits in one play.
    pub max_logit_rows: usize,
    /// Tokens a sequence may grow to; at most the model's context.
    pub context: usize,
    /// Sequences with page tables.
    pub sequences: usize,
    /// Most bytes of KV pages; none: all that this many sequences can use.
    pub kv_bytes: Option<u64>,
    /// Whether operations are fused into larger kernels where a device has them. Without fusion
    /// every node is a kernel of its own: slow, for checks.
    pub fusion: bool,
    /// Whether a row's result has the same bits whatever other rows are in its play. Devices then
    /// compute all row counts with one choice of kernels, which is slower.
    pub reproducible: bool,
}

/// Why a graph cannot be planned.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum PlanError {
    /// A limit of zero, or beyond the model's.
    #[error("{what} must be between 1 and {most}, not {found}")]
    Limit {
        /// Which option.
        what: &'static str,
        /// Largest value.
        most: usize,
        /// Value asked for.
        found: usize,
    },
    /// Keys and values of the whole context are more than can be addressed.
    #[error(
        "the KV pages of a context of {context} tokens are too large to address; ask for a smaller context"
    )]
    KvSize {
        /// Tokens asked for.
        context: usize,
    },
    /// The budget for keys and values holds no whole sequence.
    #[error(
        "keys and values of {context} tokens take {}, and {} are granted; grant more memory{}",
        crate::size_text(*needed),
        crate::size_text(*bytes),
        if *context > crate::PAGE_TOKENS { ", or ask for a smaller context" } else { "" }
    )]
    KvBudget {
        /// Bytes there are.
        bytes: u64,
        /// Bytes of one sequence.
        needed: u64,
        /// Its tokens.
        context: usize,
    },
    /// A layer's attention is on another device than its keys and values.
    #[error("layer {layer} attends on another device than the one that stores its keys and values")]
    KvApart {
        /// The layer.
        layer: usize,
    },
    /// No device of the placement has a kernel for an operation.
    #[error("no device of the plan has a kernel for '{0}'")]
    NoKernel(&'static str),
    /// The graph names no result.
    #[error("the graph of {0} has no logits")]
    NoLogits(String),
}

impl PlanOptions {
    /// Type that keys and values are stored in.
    pub fn kv_type(&self) -> KvType {
        self.kv_type.unwrap_or_else(|| self.numeric.kv_type())
    }
}
