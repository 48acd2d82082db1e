//! A check that cannot fail proves nothing: each fault that is planted in the kernels is noticed,
//! where it was planted.

use crate::support::case::{beside_reference, plan};
use crate::support::faults;
use crate::support::faults::{Bench, Rows, shown_by};
use crate::support::gpu;
use pianola_plan::{DeviceId, Fault, Numeric};
use pianola_vulkan::{VulkanDevice, VulkanOptions, VulkanRecording};

#[test]
#[ignore = "takes a minute: scripts/acceptance runs it"]
fn every_fault_is_noticed_where_it_is() {
    // A device that counts its units has kernels of its own for one row.
    faults_are_noticed(Some(4), Some(Rows::Single));
    faults_are_noticed(None, None);
}

fn faults_are_noticed(units: Option<u32>, only: Option<Rows>) {
    let gpu = gpu::open();
    let (plan, weights) = plan(&faults::case(Numeric::Fast), VulkanDevice::spec_named("vulkan"));
    let options = VulkanOptions { units, ..gpu::options(&gpu) };
    let (mut recording, mut reference_model) = beside_reference(plan, &weights, |plan| {
        VulkanRecording::new(plan, DeviceId(0), &weights, options, &mut |_, _| ())
    });
    let mut bench = Bench::new(&mut recording, &mut reference_model);
    for fault in Fault::ALL {
        // Here the columns behind the last whole step of a sum are a tail, too.
        let more: &[Rows] = if fault == Fault::WrongTail { &[Rows::Single] } else { &[] };
        let all = shown_by(fault).iter().chain(more);
        for &rows in all.filter(|&rows| only.is_none_or(|only| only == *rows)) {
            let failure = bench.notice(fault, rows, |_, fault| gpu.set_fault(fault));
            println!("{}, {rows:?}: {failure}", fault.name());
        }
    }
}
