//! What the sampling kernels can do, and which of them a row takes.

use super::whole::{self, Stage};
use super::{HISTORY, MOST_BIASES, MOST_PLAYS, MOST_STOPS, MOST_WANTED};
use pianola_plan::SampleRow;

/// What the buffers have room for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SampleRoom {
    pub rows: usize,
    pub vocabulary: usize,
    /// Tokens that the history of a row ever has.
    longest: usize,
    /// Tokens of it that penalties can look back at.
    pub history: usize,
}

impl SampleRoom {
    /// Room for `rows` rows of sequences of up to `context` tokens, whose histories a device binds
    /// as one buffer of at most `binding` bytes.
    pub fn new(rows: usize, vocabulary: usize, context: usize, binding: u64) -> SampleRoom {
        // The last token is sampled at the last position.
        let longest = context + 1;
        let most = (binding / 4) as usize / rows.max(1);
        let history = longest.max(HISTORY).min(most.saturating_sub(MOST_PLAYS));
        SampleRoom { rows, vocabulary, longest, history }
    }

    /// Why the GPU cannot sample this way; the host's sampler then has to.
    pub fn unsupported(&self, row: &SampleRow<'_>) -> Option<&'static str> {
        let sampling = row.sampling;
        let window = sampling.penalty_window.min(self.longest.max(row.history.len()));
        if sampling.penalises() && window > self.history {
            return Some("the GPU has no room for so long a penalty window");
        }
        if sampling.logit_bias.len() > whole::MOST_BIASES {
            return Some("the GPU takes at most 1024 biases");
        }
        if row.stop_tokens.len() > MOST_STOPS {
            return Some("the GPU takes at most 64 stop tokens");
        }
        if row.top_logprobs.is_some_and(|top| top > whole::MOST_LOGPROBS) {
            return Some("the GPU gives at most 20 log probabilities beside the token's");
        }
        if self.vocabulary > whole::MOST_TOKENS && (has_wide_options(row) || has_wide_window(row)) {
            return Some("the GPU samples so from at most 786432 tokens");
        }
        None
    }
}

/// Whether a row has to look at the whole vocabulary, its history aside.
fn has_wide_options(row: &SampleRow<'_>) -> bool {
    let sampling = row.sampling;
    row.mask.is_some()
        || row.top_logprobs.is_some()
        || (sampling.temperature > 0.0 && !(1..=MOST_WANTED).contains(&sampling.top_k))
        || sampling.logit_bias.len() > MOST_BIASES
}

/// Whether a row has to look at the whole vocabulary. A short history fits the state, whatever the
/// window.
pub(super) fn needs_whole(row: &SampleRow<'_>) -> bool {
    let is_long = row.history.len() + row.uniforms.len() > HISTORY;
    has_wide_options(row) || (is_long && has_wide_window(row))
}

/// Whether a row looks at the whole vocabulary once its history, that of the plays in one submission
/// included, is long.
pub(crate) fn changes_path(row: &SampleRow<'_>) -> bool {
    has_wide_window(row) && !has_wide_options(row)
}

fn has_wide_window(row: &SampleRow<'_>) -> bool {
    row.sampling.penalises() && row.sampling.penalty_window > HISTORY
}

/// Which kernels the rows of a submission need.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Paths {
    /// Those for which the best few of each slice are enough.
    pub best: bool,
    /// Those that look at the whole vocabulary, in the order of [`Stage::ALL`].
    stages: [bool; Stage::ALL.len()],
    /// Whether log probabilities are to be read.
    pub logprobs: bool,
}

impl Paths {
    pub fn of<'a, 'b: 'a>(rows: impl IntoIterator<Item = &'a SampleRow<'b>>) -> Paths {
        let mut paths = Paths::default();
        for row in rows {
            paths.logprobs |= row.top_logprobs.is_some();
            if !needs_whole(row) {
                paths.best = true;
                continue;
            }
            for (needed, stage) in paths.stages.iter_mut().zip(Stage::ALL) {
                *needed |= stage.is_needed(row);
            }
        }
        paths
    }

    /// Whether any row looks at the whole vocabulary.
    pub fn is_whole(&self) -> bool {
        self.stages.contains(&true)
    }

    /// Stages that some row needs, with their places in [`Stage::ALL`].
    pub fn stages(&self) -> impl Iterator<Item = (usize, Stage)> {
        let stages = self.stages;
        Stage::ALL.into_iter().enumerate().filter(move |&(index, _)| stages[index])
    }

    /// Launches of one play.
    pub fn dispatches(&self) -> u32 {
        let best = if self.best { 2 } else { 0 };
        best + self.stages().map(|(_, stage)| stage.dispatches()).sum::<u32>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pianola_plan::Sampling;

    fn row<'a>(sampling: &'a Sampling, stop_tokens: &'a [u32]) -> SampleRow<'a> {
        SampleRow { stop_tokens, ..SampleRow::new(sampling, &[0.0]) }
    }

    #[test]
    fn what_the_gpu_cannot_do_is_said() {
        let room = SampleRoom::new(4, 262_144, 8192, 1 << 27);
        let supports = |sampling: Sampling| room.unsupported(&row(&sampling, &[])).is_none();
        let top_k = |top_k| supports(Sampling { top_k, ..Sampling::default() });
        assert!(supports(Sampling::greedy()) && top_k(0) && top_k(1) && top_k(65));
        let penalised = |penalty_window| Sampling {
            presence_penalty: 0.5,
            penalty_window,
            ..Sampling::greedy()
        };
        assert!(supports(penalised(256)) && supports(penalised(usize::MAX)));
        let biased =
            |count| supports(Sampling { logit_bias: vec![(0, 1.0); count], ..Sampling::greedy() });
        assert!(biased(1024) && !biased(1025));
        let greedy = Sampling::greedy();
        let stopped = |count| room.unsupported(&row(&greedy, &vec![0; count])).is_none();
        assert!(stopped(64) && !stopped(65));
        let reported = |top| {
            let row = SampleRow { top_logprobs: Some(top), ..row(&greedy, &[]) };
            room.unsupported(&row).is_none()
        };
        assert!(reported(0) && reported(20) && !reported(21));

        // Histories that a device cannot bind, and a vocabulary that shared memory cannot hold.
        let narrow = SampleRoom::new(64, 1 << 20, 1 << 20, 1 << 27);
        assert!(narrow.unsupported(&row(&penalised(usize::MAX), &[])).is_some());
        assert!(narrow.unsupported(&row(&penalised(256), &[])).is_none());
        assert!(narrow.unsupported(&row(&Sampling::default(), &[])).is_some());
        assert!(narrow.unsupported(&row(&greedy, &[])).is_none());
    }

    #[test]
    fn rows_look_no_further_than_they_must() {
        let whole = |sampling: &Sampling, history: usize| {
            needs_whole(&SampleRow { history: &vec![1; history], ..row(sampling, &[]) })
        };
        let top_k = Sampling { top_k: 64, ..Sampling::default() };
        assert!(!whole(&Sampling::greedy(), 9000) && !whole(&top_k, 9000));
        assert!(whole(&Sampling { top_k: 65, ..top_k.clone() }, 0));
        assert!(whole(&Sampling::default(), 0));
        let penalised = Sampling { presence_penalty: 0.5, ..top_k };
        assert!(!whole(&penalised, 255) && whole(&penalised, 256));
        assert!(!whole(&Sampling { penalty_window: 256, ..penalised }, 9000));
        let greedy = Sampling::greedy();
        assert!(needs_whole(&SampleRow { mask: Some(&[1]), ..row(&greedy, &[]) }));
        assert!(needs_whole(&SampleRow { top_logprobs: Some(0), ..row(&greedy, &[]) }));
    }

    #[test]
    fn a_submission_has_the_kernels_that_some_row_needs() {
        let (greedy, plain) = (Sampling::greedy(), Sampling::default());
        let nucleus = Sampling { top_p: 0.9, ..Sampling::default() };
        let names = |rows: &[SampleRow<'_>]| {
            let paths = Paths::of(rows);
            (paths.best, paths.stages().map(|(_, stage)| stage).collect::<Vec<_>>())
        };
        assert_eq!(names(&[row(&greedy, &[])]), (true, vec![]));
        let simple = vec![Stage::Shape, Stage::Weigh, Stage::Sample];
        assert_eq!(names(&[row(&plain, &[])]), (false, simple));
        let both = vec![Stage::Shape, Stage::TopP, Stage::Weigh, Stage::Sample];
        assert_eq!(names(&[row(&greedy, &[]), row(&nucleus, &[])]), (true, both));
        let reported = SampleRow { top_logprobs: Some(2), ..row(&greedy, &[]) };
        assert_eq!(names(&[reported]), (false, vec![Stage::Shape, Stage::Sample]));
        assert!(Paths::of(&[reported]).logprobs);
        assert_eq!(Paths::of(&[row(&nucleus, &[])]).dispatches(), 6);
    }
}
