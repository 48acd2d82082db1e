//! `check` finds each fault of a processor's kernels, and says where it is.

use super::tiny_model::tiny_config;
use crate::{CpuDevice, CpuOptions, CpuRecording, Level};
use pianola_engine::{CheckIssue, CheckOptions, CheckSubject, DeviceCheck, check};
use pianola_formats::{TensorSource, TensorType};
use pianola_plan::{
    Allocation, Ceilings, Device, DeviceError, DeviceId, DeviceSpec, Fault, HeapShare,
    KernelVariant, Numeric, Plan, Recording,
};
use std::sync::Arc;

const QUICK: CheckOptions =
    CheckOptions { quick: true, numeric: None, kv_type: None, reproducible: false };

fn checked(fault: Fault) -> DeviceCheck {
    let subject = CheckSubject::random("tiny".to_string(), tiny_config(), TensorType::Q8_0);
    let device: Arc<dyn Device> = Arc::new(Faulty(fault));
    check(&subject, &device, QUICK, &mut |_| ()).unwrap()
}

/// A processor with a fault in its kernels.
struct Faulty(Fault);

impl Device for Faulty {
    fn spec(&self) -> DeviceSpec {
        CpuDevice::spec()
    }

    fn description(&self) -> String {
        format!("a processor with {}", self.0.name())
    }

    fn memory(&self) -> Option<u64> {
        None
    }

    fn allocations(&self, _plan: &Plan, _id: DeviceId) -> Result<Vec<Allocation>, DeviceError> {
        Ok(Vec::new())
    }

    fn heaps(&self, _allocations: &[Allocation]) -> Option<Vec<HeapShare>> {
        Some(Vec::new())
    }

    fn record(
        &self,
        plan: &Arc<Plan>,
        id: DeviceId,
        source: &dyn TensorSource,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Box<dyn Recording>, DeviceError> {
        let options = CpuOptions::bare(Level::best(), 1);
        let mut recording = CpuRecording::new(plan.clone(), id, source, options, progress)?;
        recording.set_fault(Some(self.0));
        Ok(Box::new(recording))
    }

    fn variants(&self, plan: &Plan, id: DeviceId) -> Result<Vec<KernelVariant>, DeviceError> {
        CpuDevice { options: CpuOptions::bare(Level::best(), 1) }.variants(plan, id)
    }

    fn measure(&self, _numeric: Numeric) -> Option<Ceilings> {
        None
    }

    fn as_any(&self) -> &dyn std::any::Any {
        self
    }
}

#[test]
fn a_wrong_kernel_is_named_with_its_shape() {
    let result = checked(Fault::DroppedBlock);
    assert!(!result.passed());
    let first = result.issues[0].to_string();
    for word in ["blk.0.attn_q+attn_k+attn_v", "64 x 64 q8_0", "f16 keys and values", "rows"] {
        assert!(first.contains(word), "{first}");
    }
    assert!(result.issues.len() > 1 && result.issues.len() <= 10);
    // The row is the step's, not the compared ones'.
    let row = |issue: &CheckIssue| issue.reason.contains("row 449, column");
    let stale = checked(Fault::WrongTail);
    assert!(stale.issues.iter().any(row), "{:?}", stale.issues);
}

#[test]
fn every_fault_of_the_processor_is_found() {
    for fault in Fault::ALL {
        let result = checked(fault);
        assert!(!result.passed(), "{} was not noticed", fault.name());
    }
}
