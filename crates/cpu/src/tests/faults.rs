//! A check that cannot fail proves nothing: each fault that is planted in the kernels is noticed,
//! where it was planted.

use super::case::{beside_reference, plan};
use super::planted::{self, Bench, shown_by};
use crate::{CpuDevice, CpuOptions, CpuRecording, Level, ReferenceModel};
use pianola_plan::{DeviceId, Fault, Numeric};

fn record(numeric: Numeric, level: Level) -> (CpuRecording, ReferenceModel) {
    let (plan, weights) = plan(&planted::case(numeric), CpuDevice::spec());
    let cpu = CpuOptions::bare(level, 2);
    beside_reference(plan, &weights, |plan| {
        CpuRecording::new(plan, DeviceId(0), &weights, cpu, &mut |_, _| ())
    })
}

#[test]
fn every_fault_is_noticed_where_it_is() {
    for numeric in [Numeric::Exact, Numeric::Fast] {
        let (mut recording, mut reference_model) = record(numeric, Level::best());
        let mut bench = Bench::new(&mut recording, &mut reference_model);
        for fault in Fault::ALL {
            for &rows in shown_by(fault) {
                let failure = bench.notice(fault, rows, |recording, fault| {
                    let recording = recording.as_any_mut().downcast_mut::<CpuRecording>();
                    recording.unwrap().set_fault(fault);
                });
                println!("{}, {rows:?}, {numeric}: {failure}", fault.name());
            }
        }
    }
}
