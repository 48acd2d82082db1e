//! What plays are said to cost: the device's time, the host's wait, and what an engine without a
//! recording would allocate.

use crate::support::case::{Case, map_pages, plan, square};
use crate::support::gpu;
use pianola_formats::TensorType;
use pianola_plan::{
    DeviceId, LogitsTo, Numeric, PlayStatistics, Recording, SLOTS, Step, WAIT_LIMIT,
};
use pianola_vulkan::{Ablation, Gpu, GpuDescription, Instance, VulkanDevice, VulkanRecording};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A model with this many tokens, on a device that binds no more than `binding` bytes at once.
fn record(vocabulary: usize, binding: Option<u64>) -> VulkanRecording {
    let case = Case { vocabulary, ..square(TensorType::Q8_0, Numeric::Fast) };
    let (plan, weights) = plan(&case, VulkanDevice::spec_named("vulkan"));
    let mut gpu = gpu::open();
    if let Some(binding) = binding {
        let description = GpuDescription { largest_binding: binding, ..gpu.description().clone() };
        gpu = Gpu::open_described(Instance::load().unwrap(), description).unwrap();
    }
    let mut recording = VulkanRecording::new(
        Arc::new(plan),
        DeviceId(0),
        &weights,
        gpu::options(&gpu),
        &mut |_, _| (),
    )
    .unwrap();
    map_pages(&mut recording);
    recording
}

/// A token with logits.
fn token(position: u32) -> Step {
    let mut step = Step::default();
    step.push(3, 0, position, true);
    step
}

/// Plays a token and lets the host do something else for `pause` before it waits.
fn play(recording: &mut VulkanRecording, position: u32, pause: Duration) -> PlayStatistics {
    let before = recording.statistics();
    recording.submit(0, position as usize % SLOTS, &token(position), LogitsTo::Host).unwrap();
    std::thread::sleep(pause);
    recording.wait(position as usize % SLOTS, WAIT_LIMIT).unwrap();
    recording.statistics() - before
}

/// The machine may be busy, which delays the device: one of many plays counts.
#[test]
fn busy_is_the_devices_time_and_not_the_hosts_wait() {
    const PAUSE: Duration = Duration::from_millis(300);
    let mut recording = record(100, None);
    // The first play of its kind records.
    play(&mut recording, 0, Duration::ZERO);
    assert_eq!(recording.statistics().busy_seconds, 0.0, "not counted unless asked for");
    assert!(recording.measure_busy(true), "Mesa's driver keeps time");
    // Done long before the host waits.
    let done_before_the_wait = |paused: &PlayStatistics| {
        assert!(paused.busy_seconds > 1e-6, "{paused:?}");
        paused.busy_seconds < PAUSE.as_secs_f64() / 2.0
            && paused.waited_seconds < paused.busy_seconds
    };
    let mut plays = (0..20).map(|_| play(&mut recording, 1, PAUSE));
    let paused = plays.find(done_before_the_wait).expect("the pause or the wait is counted");
    // One behind another: the device cannot have computed longer than all of it took.
    let (start, before) = (Instant::now(), recording.statistics());
    for position in 2..40 {
        play(&mut recording, position, Duration::ZERO);
    }
    let spent = recording.statistics() - before;
    let wall = start.elapsed().as_secs_f64();
    assert!(spent.busy_seconds > 1e-5, "{spent:?} {paused:?}");
    assert!(spent.busy_seconds < wall && spent.waited_seconds < wall, "{spent:?} in {wall} s");
    assert!(!recording.measure_busy(false));
    assert_eq!(play(&mut recording, 40, Duration::ZERO).busy_seconds, 0.0);
}

#[test]
fn an_engine_that_allocates_allocates_one_row_for_one_row() {
    let (recording, spent) = play_allocating(100, None);
    let plan = recording.plan();
    let output = |op: &pianola_plan::PlanOp| {
        let outputs = op.nodes.iter().filter_map(|&node| plan.graph.nodes[node].output);
        outputs.filter_map(|tensor| plan.views[tensor.0]).next_back().map(|view| view.buffer)
    };
    let widths = plan.ops.iter().filter_map(output).map(|buffer| plan.buffers[buffer].width as u64);
    assert_eq!(spent.allocations, plan.ops.len() as u64);
    assert_eq!(spent.allocated_bytes, 4 * widths.sum::<u64>());
}

/// A head that is bound in parts: its launches write one output, and not each one of its own.
#[test]
fn an_output_of_several_launches_is_allocated_once() {
    let (recording, spent) = play_allocating(16_384, Some(6 << 20));
    let ops = recording.plan().ops.len() as u64;
    assert_eq!((spent.allocations, spent.dispatches), (ops, ops + 1));
}

/// Plays a token with everything allocated anew: the same computation.
fn play_allocating(vocabulary: usize, binding: Option<u64>) -> (VulkanRecording, PlayStatistics) {
    let mut recording = record(vocabulary, binding);
    play(&mut recording, 0, Duration::ZERO);
    let expected = recording.logits(0, 0).to_vec();
    recording.ablate(Some(Ablation::Allocate)).unwrap();
    let spent = play(&mut recording, 0, Duration::ZERO);
    assert!(recording.logits(0, 0) == expected, "logits differ");
    (recording, spent)
}
