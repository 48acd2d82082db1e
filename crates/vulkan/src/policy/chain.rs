//! The test of a chain at load: dispatches that do nothing but wait for one another.

use super::Limits;
use crate::program::ChainedProgram;

/// Dispatches of the test. Each takes about 2 µs on a card.
pub(crate) const PROBE_STAGES: u32 = 500;
/// The same on a software driver, which computes one dispatch after another.
const SOFTWARE_STAGES: u32 = 5;

/// Dispatches that wait for one another, of more workgroups than run at once, so that some of a stage start while others of
/// it wait already.
pub(crate) fn probe(software: bool, limits: &Limits) -> ChainedProgram {
    let stages = if software { SOFTWARE_STAGES } else { PROBE_STAGES };
    ChainedProgram::probe(stages, 8 * limits.units.max(1))
}
