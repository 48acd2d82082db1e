//! How single rows are played.

use pianola_plan::DeviceError;

/// How the layers of a single row are played.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Decode {
    /// As was measured to be fastest: by dispatches.
    #[default]
    Auto,
    /// Five dispatches a layer.
    Dispatches,
    /// All layers in one dispatch of resident workgroups; an error where that is not possible.
    Persistent,
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
    /// Parts that the visible pages of a head are cut into, at most.
    pub splits: Option<u32>,
    /// Registers of an invocation that hold weights under way, at most.
    pub words: Option<u32>,
    /// Load norms when the row has come, not before.
    pub late_norms: bool,
}

/// The error of a plan whose single rows cannot be played as [`Decode::Persistent`] asks.
pub(crate) fn refusal(why: &str) -> DeviceError {
    DeviceError::Unsupported(format!(
        "one dispatch a token (--decode persistent) is not possible here: {why}; use --decode dispatches"
    ))
}
