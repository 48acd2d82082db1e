//! How single rows are played.

use pianola_plan::DeviceError;

/// How the layers of a single row are played.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Decode {
    /// As [`Decode::Chained`] where that is possible, else as [`Decode::Dispatches`].
    #[default]
    Auto,
    /// Five dispatches a layer, with barriers between them.
    Dispatches,
    /// The same without barriers: kernels wait for one another by themselves, and what does not depend on the kernel before is
    /// under way meanwhile; an error where that is not possible.
    Chained,
}

/// What tests of [`Decode::Chained`] may set otherwise than the policy does.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ChainTrial {
    /// How often a workgroup asks, at most.
    pub most_asked: Option<u32>,
    /// A workgroup is waited for that never comes.
    pub absent: bool,
}

/// The error of a plan whose single rows cannot be played as [`Decode::Chained`] asks.
pub(crate) fn chain_refusal(why: &str) -> DeviceError {
    DeviceError::UnsupportedOption(format!(
        "kernels that overlap (--decode chained) are not possible here: {why}; use --decode dispatches"
    ))
}
