//! A check that cannot fail proves nothing: each fault that is planted in the kernels is noticed,
//! where it was planted.

#[path = "../../../tests/support/case.rs"]
mod case;
#[path = "../../../tests/support/faults.rs"]
mod faults;
#[path = "../../../tests/support/gpu.rs"]
mod gpu;

use case::{beside_reference, plan};
use faults::{Bench, Rows, shown_by};
use pianola_plan::{DeviceId, Fault, Numeric};
use pianola_vulkan::{VulkanDevice, VulkanRecording};

#[test]
#[ignore = "takes a minute: scripts/acceptance runs it"]
fn every_fault_is_noticed_where_it_is() {
    let gpu = gpu::open();
    let (plan, weights) = plan(&faults::case(Numeric::Fast), VulkanDevice::spec_named("vulkan"));
    let options = gpu::options(&gpu);
    let (mut recording, mut reference_model) = beside_reference(plan, &weights, |plan| {
        VulkanRecording::new(plan, DeviceId(0), &weights, options, &mut |_, _| ())
    });
    let mut bench = Bench::new(&mut recording, &mut reference_model);
    for fault in Fault::ALL {
        // Here the columns behind the last whole step of a sum are a tail, too.
        let more: &[Rows] = if fault == Fault::WrongTail { &[Rows::Single] } else { &[] };
        for &rows in shown_by(fault).iter().chain(more) {
            let failure = bench.notice(fault, rows, |_, fault| gpu.set_fault(fault));
            println!("{}, {rows:?}: {failure}", fault.name());
        }
    }
}
