//! Faults planted in kernels: each is noticed by the check, where it was planted.

use super::case::{Case, Runs, check, usual};
use pianola_cpu::ReferenceModel;
use pianola_formats::TensorType;
use pianola_plan::{Fault, Numeric, Recording};

/// A model that every fault shows in: a window, and rows of nine blocks, which no sum takes in whole
/// steps.
pub fn case(numeric: Numeric) -> Case {
    Case { hidden: 288, feed_forward: 416, window: Some(20), numeric, ..usual(TensorType::Q4_0) }
}

/// Rows of a step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rows {
    /// One.
    Single,
    /// One of each sequence.
    Lanes,
    /// Several of one sequence, no whole tile.
    Chunk,
}

/// The kinds of step that a fault shows in on any device.
pub fn shown_by(fault: Fault) -> &'static [Rows] {
    match fault {
        Fault::WrongTail => &[Rows::Chunk],
        Fault::OtherLane => &[Rows::Lanes],
        Fault::WrongPosition => &[Rows::Lanes, Rows::Chunk],
        _ => &[Rows::Single, Rows::Lanes, Rows::Chunk],
    }
}

/// A recording whose two sequences have three pages each, and steps that go on from there.
pub struct Bench<'a> {
    pub recording: &'a mut dyn Recording,
    pub reference_model: &'a mut ReferenceModel,
    /// Next position of each sequence; the first is ahead.
    next: [u32; 2],
}

impl<'a> Bench<'a> {
    pub fn new(recording: &'a mut dyn Recording, reference_model: &'a mut ReferenceModel) -> Self {
        let prompts: [&Runs; 6] = [
            &[(0, 0, 64)],
            &[(0, 64, 64)],
            &[(0, 128, 12)],
            &[(1, 0, 64)],
            &[(1, 64, 64)],
            &[(1, 128, 2)],
        ];
        check(recording, reference_model, &prompts).expect("no fault, no failure");
        Bench { recording, reference_model, next: [140, 130] }
    }

    /// Plays a step with a fault, which `plant` sets, and again without. Returns how it was noticed.
    ///
    /// # Panics
    /// If it was not, or elsewhere, or if something is still wrong without it.
    pub fn notice(
        &mut self,
        fault: Fault,
        rows: Rows,
        mut plant: impl FnMut(&mut dyn Recording, Option<Fault>),
    ) -> String {
        let [a, b] = self.next;
        let runs: &Runs = match rows {
            Rows::Single => &[(0, a, 1)],
            Rows::Lanes => &[(0, a, 1), (1, b, 1)],
            Rows::Chunk => &[(0, a, 11)],
        };
        for &(sequence, first, rows) in runs {
            self.next[sequence as usize] = first + rows;
        }
        let name = fault.name();
        plant(self.recording, Some(fault));
        let failure = check(self.recording, self.reference_model, &[runs])
            .expect_err(&format!("{name} is noticed by {rows:?}"));
        assert!(is_place_of(fault, &failure), "{name}, {rows:?}: {failure}");
        plant(self.recording, None);
        check(self.recording, self.reference_model, &[runs]).expect("no fault, no failure");
        failure
    }
}

/// Whether a kernel named as wrong is one that has the fault.
fn is_place_of(fault: Fault, failure: &str) -> bool {
    match fault {
        Fault::DroppedBlock | Fault::WrongScale | Fault::StaleRow | Fault::WrongTail => {
            !failure.contains("attention")
        }
        Fault::StaleKey | Fault::SwappedKv => {
            failure.contains("keys, row") || failure.contains("values, row")
        }
        Fault::WrongPage
        | Fault::LongWindow
        | Fault::LostSplit
        | Fault::OtherLane
        | Fault::WrongPosition => failure.contains("attention, row"),
    }
}
