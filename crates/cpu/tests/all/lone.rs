//! Every operation by itself against the reference: ragged shapes, columns of wider buffers, rows
//! with logits, all instruction sets.

use crate::support::case::{Runs, beside_reference};
use crate::support::lone::{Lone, LoneCase, check_lone, lone_case, plan};
use crate::support::skip;
use pianola_cpu::{CpuDevice, CpuOptions, CpuRecording, Level};
use pianola_plan::DeviceId;
use proptest::prelude::*;

/// A prompt, a token, a chunk beside a token, and one without logits.
const STEPS: [(&Runs, u32); 5] = [
    (&[(0, 0, 37)], 3),
    (&[(1, 0, 1)], 1),
    (&[(0, 37, 40), (1, 1, 1)], 2),
    (&[(0, 77, 2)], 0),
    (&[(1, 2, 9), (0, 79, 1)], 4),
];

fn levels() -> impl Iterator<Item = Level> {
    let levels = Level::ALL.into_iter().filter(|level| *level != Level::Reference);
    levels.filter(|level| skip::has(level, level.available()))
}

fn check(op: Lone, case: &LoneCase, level: Level) -> Result<(), String> {
    let (plan, weights) = plan(op, case, CpuDevice::spec());
    let options = CpuOptions::bare(level, 2);
    let (mut recording, mut reference_model) = beside_reference(plan, &weights, |plan| {
        CpuRecording::new(plan, DeviceId(0), &weights, options, &mut |_, _| ())
    });
    check_lone(&mut recording, &mut reference_model, &STEPS)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 8, max_shrink_iters: 30, ..ProptestConfig::default() })]

    #[test]
    fn lone_operations_match_the_reference(case in lone_case(vec![2, 6, 10, 16, 24, 64])) {
        for op in Lone::ALL {
            for level in levels() {
                if let Err(reason) = check(op, &case, level) {
                    prop_assert!(false, "{op:?} on {level}: {reason}");
                }
            }
        }
    }
}
