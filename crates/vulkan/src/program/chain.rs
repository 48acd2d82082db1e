//! A program whose kernels wait for one another by themselves, where they can, instead of behind barriers
//! (`shaders/include/chain.glsl`).

use super::Dispatch;
use crate::memory::Region;
use crate::pipeline::{PUSH_BYTES, Shader, Variant};
use crate::policy::chain::PROBE_STAGES;

/// Bytes of [`ChainMemory::chain`] before the counts: `gave_up`, `most_asked` and room.
pub(crate) const HEADER: u64 = 32;
/// Bytes from one count to the next.
const STRIDE: usize = 32;

/// Memory that chained kernels wait by.
#[derive(Clone, Copy)]
pub(crate) struct ChainMemory {
    /// The header, then the counts.
    pub chain: Region,
    /// What the host reads: whether a workgroup gave up.
    pub notice: Region,
}

impl ChainMemory {
    /// Memory of a program that is not played.
    pub fn dry_run() -> ChainMemory {
        ChainMemory { chain: Region::dry_run(0), notice: Region::dry_run(0) }
    }
}

/// A program of chained kernels, and what their counts begin with.
pub(crate) struct ChainedProgram {
    dispatches: Vec<Dispatch>,
    /// For each link the workgroups of the stage that is waited for: none at the beginning of a chain, which has a barrier
    /// before it.
    counts: Vec<u32>,
}

impl ChainedProgram {
    /// Replaces barriers by links between *stages*: dispatches that do not wait for one another. Two stages in succession are
    /// linked if all their kernels can wait. None where no two are.
    pub fn of(program: &[Dispatch]) -> Option<ChainedProgram> {
        let mut stages: Vec<Vec<Dispatch>> = Vec::new();
        for dispatch in program {
            match stages.last_mut() {
                Some(stage) if !dispatch.barrier => stage.push(dispatch.clone()),
                _ => stages.push(vec![dispatch.clone()]),
            }
        }
        let can_wait = |stage: &Vec<Dispatch>| {
            stage.iter().all(|dispatch| dispatch.variant.shader.chained().is_some())
        };
        let waits: Vec<bool> = stages.iter().map(can_wait).collect();
        let mut counts = Vec::new();
        for (index, stage) in stages.iter_mut().enumerate() {
            let follows = index > 0 && waits[index - 1];
            let leads = waits.get(index + 1) == Some(&true);
            if !waits[index] || !(follows || leads) {
                continue;
            }
            if !follows {
                counts.push(0);
            }
            let link = counts.len() as u32 - 1;
            stage[0].barrier = !follows;
            stage.iter_mut().for_each(|dispatch| join(dispatch, link));
            counts.push(stage.iter().map(workgroups).sum());
        }
        let dispatches = stages.into_iter().flatten().collect();
        (!counts.is_empty()).then_some(ChainedProgram { dispatches, counts })
    }

    /// Some stages that do nothing but wait for one another, with as many workgroups each.
    pub fn probe(stages: u32, workgroups: u32) -> ChainedProgram {
        let dispatch = |link: u32| {
            let variant = Variant { shader: Shader::ChainProbe, constants: vec![] };
            let mut dispatch = Dispatch::new(variant, vec![], &[], [workgroups, 1, 1], 0);
            dispatch.barrier = link == 0;
            put_link(&mut dispatch, link);
            dispatch
        };
        let counts = std::iter::once(0).chain((0..stages).map(|_| workgroups)).collect();
        ChainedProgram { dispatches: (0..stages).map(dispatch).collect(), counts }
    }

    /// Bytes of [`ChainMemory::chain`], at most, for the body of a plan of so many kernels, each of which is three launches
    /// at most, and for the test at load.
    pub fn most_bytes(kernels: usize) -> u64 {
        let links = (3 * kernels).max(PROBE_STAGES as usize) + 1;
        HEADER + (links * STRIDE) as u64
    }

    /// Counts a workgroup that never comes, in tests.
    pub fn await_one_more(&mut self) {
        self.counts[1] += 1;
    }

    /// The counts as they lie in memory.
    pub fn count_bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.counts.len() * STRIDE];
        for (count, at) in self.counts.iter().zip(bytes.chunks_exact_mut(STRIDE)) {
            at[..4].copy_from_slice(&count.to_le_bytes());
        }
        bytes
    }

    /// The dispatches, with the memory that they wait by.
    pub fn dispatches(&self, memory: &ChainMemory) -> Vec<Dispatch> {
        let mut dispatches = self.dispatches.clone();
        for dispatch in dispatches.iter_mut().filter(|dispatch| is_chained(dispatch)) {
            dispatch.bindings.extend([memory.chain, memory.notice]);
        }
        dispatches
    }

    /// Whether its first kernel reads counts.
    pub fn begins_chained(&self) -> bool {
        self.dispatches.first().is_some_and(is_chained)
    }
}

fn workgroups(dispatch: &Dispatch) -> u32 {
    dispatch.groups.iter().product()
}

fn is_chained(dispatch: &Dispatch) -> bool {
    use Shader::{AttentionSingleChained, ChainProbe, ProjectSingleChained};
    matches!(dispatch.variant.shader, ProjectSingleChained | AttentionSingleChained | ChainProbe)
}

/// Makes a kernel wait at a link, and leave the next.
fn join(dispatch: &mut Dispatch, link: u32) {
    let shader = &mut dispatch.variant.shader;
    *shader = shader.chained().expect("only such are joined");
    put_link(dispatch, link);
}

/// Writes CHAIN_LINK, the last of all push constants.
fn put_link(dispatch: &mut Dispatch, link: u32) {
    let place = PUSH_BYTES as usize - 4;
    assert!(dispatch.push.len() <= place, "it is the last of all push constants");
    dispatch.push.resize(place, 0);
    dispatch.push.extend(link.to_le_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dispatch(shader: Shader, barrier: bool, workgroups: u32) -> Dispatch {
        let variant = Variant { shader, constants: vec![] };
        let made = Dispatch::new(variant, vec![], &[1, 2, 3, 4], [workgroups, 1, 1], 0);
        Dispatch { barrier, ..made }
    }

    fn link(dispatch: &Dispatch) -> u32 {
        assert_eq!(dispatch.push[..4], [1, 2, 3, 4]);
        u32::from_le_bytes(dispatch.push[124..].try_into().unwrap())
    }

    #[test]
    fn neighbours_that_can_wait_are_linked_and_others_keep_their_barriers() {
        use Shader::{AttentionSingle, Embed, ProjectSingle, RmsNorm};
        let program = [
            dispatch(Embed, true, 1),
            dispatch(ProjectSingle, true, 5),
            dispatch(ProjectSingle, false, 7),
            dispatch(AttentionSingle, true, 3),
            dispatch(ProjectSingle, true, 2),
            dispatch(RmsNorm, true, 1),
            dispatch(ProjectSingle, true, 9),
            dispatch(RmsNorm, true, 1),
            dispatch(ProjectSingle, true, 4),
            dispatch(AttentionSingle, true, 6),
        ];
        let chained = ChainedProgram::of(&program).unwrap();
        let barriers: Vec<bool> = chained.dispatches.iter().map(|d| d.barrier).collect();
        let t = true;
        let f = false;
        assert_eq!(barriers, [t, t, f, f, f, t, t, t, t, f]);
        // Both of the first stage leave one count, for which attention waits.
        assert_eq!(chained.counts, [0, 12, 3, 2, 0, 4, 6]);
        let links: Vec<u32> =
            chained.dispatches.iter().filter(|d| is_chained(d)).map(link).collect();
        assert_eq!(links, [0, 0, 1, 2, 4, 5]);
        // One alone between others stays as it is.
        assert_eq!(chained.dispatches[6].variant.shader, ProjectSingle);
        assert_eq!(chained.count_bytes().len(), 7 * STRIDE);
        assert_eq!(chained.count_bytes()[STRIDE..STRIDE + 4], [12, 0, 0, 0]);
    }

    #[test]
    fn a_program_without_neighbours_that_can_wait_is_no_chain() {
        let program = [dispatch(Shader::Embed, true, 1), dispatch(Shader::ProjectSingle, true, 5)];
        assert!(ChainedProgram::of(&program).is_none());
    }
}
