//! How single rows are played.

use pianola_plan::DeviceError;

/// How the layers of a single row are played.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Decode {
    /// As [`Decode::Chained`], where that is possible: measured to be as fast as the others or faster for nearly all models.
    #[default]
    Auto,
    /// Five dispatches a layer, with barriers between them.
    Dispatches,
    /// The same without barriers: kernels wait for one another by themselves, and what does not depend on the kernel before is
    /// under way meanwhile; an error where that is not possible.
    Chained,
    /// Two dispatches a layer: attention, and all products up to the next one by workgroups that stay resident; an
    /// error where that is not possible.
    Persistent,
}

/// What tests of [`Decode::Chained`] may set otherwise than the policy does.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ChainTrial {
    /// How often a workgroup asks, at most.
    pub most_asked: Option<u32>,
    /// A workgroup is waited for that never comes.
    pub absent: bool,
}

/// What tests and measurements of [`Decode::Persistent`] may set otherwise than the policy does.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PersistentTrial {
    /// As many workgroups run at once as the options give units, whatever the driver says.
    pub resident: bool,
    /// How often a word is asked for, at most.
    pub spins: Option<u32>,
    /// A workgroup that leaves at the beginning of every play.
    pub absent: Option<u32>,
    /// Registers of an invocation that hold weights under way, at most.
    pub words: Option<u32>,
}

/// The error of a plan whose single rows cannot be played as [`Decode::Chained`] asks.
pub(crate) fn chain_refusal(why: &str) -> DeviceError {
    DeviceError::UnsupportedOption(format!(
        "kernels that overlap (--decode chained) are not possible here: {why}; use --decode dispatches"
    ))
}

/// The error of a plan whose single rows cannot be played as [`Decode::Persistent`] asks.
pub(crate) fn refusal(why: &str) -> DeviceError {
    DeviceError::UnsupportedOption(format!(
        "resident workgroups (--decode persistent) are not possible here: {why}; use --decode dispatches"
    ))
}
