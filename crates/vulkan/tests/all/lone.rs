//! Every operation by itself against the reference: ragged shapes, columns of wider buffers, rows
//! with logits.

use crate::support::case::{Runs, beside_reference};
use crate::support::gpu;
use crate::support::lone::{Lone, LoneCase, check_lone, lone_case, plan};
use pianola_plan::DeviceId;
use pianola_vulkan::{Gpu, VulkanDevice, VulkanRecording};
use proptest::prelude::*;
use std::sync::{Arc, OnceLock};

/// A prompt, a token, a chunk beside a token that crosses a page, and one without
/// logits.
const STEPS: [(&Runs, u32); 4] =
    [(&[(0, 0, 60)], 3), (&[(1, 0, 1)], 1), (&[(0, 60, 7), (1, 1, 1)], 2), (&[(1, 2, 2)], 0)];

fn check(gpu: &Arc<Gpu>, op: Lone, case: &LoneCase) -> Result<(), String> {
    let (plan, weights) = plan(op, case, VulkanDevice::spec_named("vulkan"));
    let options = gpu::options(gpu);
    let (mut recording, mut reference_model) = beside_reference(plan, &weights, |plan| {
        VulkanRecording::new(plan, DeviceId(0), &weights, options, &mut |_, _| ())
    });
    check_lone(&mut recording, &mut reference_model, &STEPS)
}

static GPU: OnceLock<Arc<Gpu>> = OnceLock::new();

fn check_all(ops: &[Lone], case: &LoneCase) -> Result<(), TestCaseError> {
    for &op in ops {
        if let Err(reason) = check(GPU.get_or_init(gpu::open), op, case) {
            return Err(TestCaseError::fail(format!("{op:?}: {reason}")));
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2, max_shrink_iters: 10, ..ProptestConfig::default() })]

    #[test]
    fn lone_rows_match_the_reference(case in lone_case(vec![2, 6, 10, 16, 24, 640])) {
        let ops: Vec<Lone> = Lone::ALL.into_iter().filter(|&op| op != Lone::Attention).collect();
        check_all(&ops, &case)?;
    }

    /// Heads of whole vectors, whatever the type of keys and values.
    #[test]
    fn lone_attention_matches_the_reference(case in lone_case(vec![16, 32, 48, 64, 128])) {
        check_all(&[Lone::Attention], &case)?;
    }
}
