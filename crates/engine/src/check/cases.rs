//! Which types and steps a check combines.

use super::pairs::all_pairs;
use super::steps::StepKind;
use pianola_formats::TensorType;
use pianola_plan::{KvType, Numeric};

/// Tokens of the vocabulary in cases whose head is not the point.
pub(super) const FEW_TOKENS: usize = 4096;

/// The weights of a case.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum CaseWeights {
    /// The subject's own.
    Own,
    /// Random ones of another type, in the subject's shape.
    Random(TensorType),
}

/// A recording that steps are checked on.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Case {
    pub weights: CaseWeights,
    pub kv_type: KvType,
    pub numeric: Numeric,
    /// Whether the head has the whole vocabulary.
    pub whole: bool,
    pub kinds: Vec<StepKind>,
    /// Steps that a quick check adds while there is time.
    pub further: Vec<StepKind>,
}

impl std::fmt::Display for Case {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.weights {
            CaseWeights::Own => f.write_str("own weights")?,
            CaseWeights::Random(ty) => write!(f, "{ty} weights")?,
        }
        write!(f, ", {} keys and values, {} mode", self.kv_type, self.numeric)?;
        if self.whole { f.write_str(", whole vocabulary") } else { Ok(()) }
    }
}

/// The model's own weights in the mode that is used, with every type of keys and values; the one
/// that is used first, with the whole vocabulary.
pub(super) fn quick(used: (KvType, Numeric)) -> Vec<Case> {
    let mut cases = own(used, &[used.1], &[]);
    for case in &mut cases {
        let (first, further) = StepKind::few(case.whole);
        (case.kinds, case.further) = (first, further);
    }
    cases
}

/// The model's own weights with everything, then every other type of weights, paired.
pub(super) fn full(used: (KvType, Numeric), own_type: Option<TensorType>) -> Vec<Case> {
    let kinds = StepKind::all();
    let other = match used.1 {
        Numeric::Exact => Numeric::Fast,
        Numeric::Fast => Numeric::Exact,
    };
    let mut cases = own(used, &[used.1, other], &kinds);
    let types: Vec<TensorType> =
        TensorType::ALL.iter().copied().filter(|&ty| Some(ty) != own_type).collect();
    let modes = [Numeric::Fast, Numeric::Exact];
    for choice in all_pairs(&[types.len(), KvType::ALL.len(), modes.len(), kinds.len()]) {
        let weights = CaseWeights::Random(types[choice[0]]);
        let (kv_type, numeric) = (KvType::ALL[choice[1]], modes[choice[2]]);
        let same = |case: &&mut Case| {
            (case.weights, case.kv_type, case.numeric) == (weights, kv_type, numeric)
        };
        let kind = kinds[choice[3]];
        match cases.iter_mut().find(same) {
            Some(case) => case.kinds.push(kind),
            None => {
                let kinds = vec![kind];
                let further = Vec::new();
                cases.push(Case { weights, kv_type, numeric, whole: false, kinds, further });
            }
        }
    }
    cases
}

/// Own weights in some modes with every type of keys and values.
fn own(used: (KvType, Numeric), modes: &[Numeric], kinds: &[StepKind]) -> Vec<Case> {
    let mut cases = Vec::new();
    for &numeric in modes {
        for kv_type in KvType::ALL {
            let whole = (kv_type, numeric) == used;
            let case = Case {
                weights: CaseWeights::Own,
                kv_type,
                numeric,
                whole,
                kinds: kinds.to_vec(),
                further: Vec::new(),
            };
            cases.push(case);
        }
    }
    cases.sort_by_key(|case| !case.whole);
    cases
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_type_meets_every_step_and_every_other_type() {
        let cases = full((KvType::F16, Numeric::Fast), Some(TensorType::Q4_0));
        let has = |found: &dyn Fn(&Case) -> bool| cases.iter().any(found);
        for &ty in TensorType::ALL.iter().filter(|&&ty| ty != TensorType::Q4_0) {
            let weights = CaseWeights::Random(ty);
            for kind in StepKind::all() {
                assert!(has(&|case| case.weights == weights && case.kinds.contains(&kind)));
            }
            for kv_type in KvType::ALL {
                assert!(has(&|case| case.weights == weights && case.kv_type == kv_type));
            }
        }
        assert!(cases[0].whole && cases[1..].iter().all(|case| !case.whole));
        assert_eq!(cases.iter().filter(|case| case.weights == CaseWeights::Own).count(), 6);
        let quick = quick((KvType::Q8, Numeric::Exact));
        assert_eq!(quick.len(), 3);
        assert!(quick[0].whole && quick[0].kv_type == KvType::Q8);
    }
}
