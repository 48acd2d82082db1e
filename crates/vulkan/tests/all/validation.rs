//! Small models under Khronos's validation layer, which must have nothing to say, and a hazard made
//! on purpose, of which it must speak.

#![allow(unsafe_code, reason = "the hazard is made with bare Vulkan")]

use crate::support::case::{Case, Runs, beside_reference, check_logits, plan, square};
use crate::support::gpu;
use crate::support::lone;
use crate::support::lone::{Lone, LoneCase, check_lone};
use crate::support::validation;
use ash::vk;
use pianola_formats::TensorType;
use pianola_plan::{
    DeviceId, DeviceSampler, LogitsTo, Numeric, Recording, SLOTS, SampleRow, Sampling, Step,
    WAIT_LIMIT,
};
use pianola_vulkan::{VulkanDevice, VulkanRecording};

#[test]
fn nothing_is_reported() {
    let reports = validation::reports("validation::play_small_models");
    assert!(reports.is_empty(), "{} reports:\n{}", reports.len(), reports.join("\n"));
}

#[test]
fn nothing_is_reported_of_lone_operations() {
    let reports = validation::reports("validation::play_lone_operations");
    assert!(reports.is_empty(), "{} reports:\n{}", reports.len(), reports.join("\n"));
}

#[test]
fn a_missing_barrier_would_be_reported() {
    let reports = validation::reports("validation::fill_a_buffer_twice");
    assert!(reports.iter().any(|line| line.contains("SYNC-HAZARD-WRITE")), "{reports:?}");
}

/// Plays a step in one slot after another, and waits only for logits.
fn play(recording: &mut VulkanRecording, slot: &mut usize, step: &Step) {
    *slot = (*slot + 1) % SLOTS;
    recording.submit(0, *slot, step, LogitsTo::Host).unwrap();
    if !step.logits.is_empty() {
        recording.wait(*slot, WAIT_LIMIT).unwrap();
    }
}

/// Whole plays and single kernels, of one row, few and many, in both modes.
#[test]
#[ignore = "nothing_is_reported runs it under the layer"]
fn play_small_models() {
    let gpu = gpu::open();
    let quantized = square(TensorType::Q4K, Numeric::Fast);
    let plain = Case { family: "llama", ..square(TensorType::F16, Numeric::Exact) };
    for case in [quantized, plain] {
        let (plan, weights) = plan(&case, VulkanDevice::spec_named("vulkan"));
        let options = gpu::options(&gpu);
        let (mut recording, mut reference_model) = beside_reference(plan, &weights, |plan| {
            VulkanRecording::new(plan, DeviceId(0), &weights, options, &mut |_, _| ())
        });
        let steps: [&Runs; 3] = [&[(0, 0, 20)], &[(1, 0, 1)], &[(0, 20, 3), (1, 1, 1)]];
        for step in steps {
            check_logits(&mut recording, &mut reference_model, &[step], 1).unwrap();
        }
        // With timestamps around every submission.
        assert!(recording.measure_busy(true));
        // Plays without logits are not waited for: the next one is submitted behind them.
        let mut position = 2;
        let mut slot = 0;
        for (rows, logits) in [(20, 0), (20, 0), (20, 0), (4, 4), (1, 0), (1, 0), (1, 1), (1, 1)] {
            let mut step = Step::default();
            for row in 0..rows {
                step.push(row, 1, position + row, row + logits >= rows);
            }
            position += rows;
            play(&mut recording, &mut slot, &step);
        }
        // Tokens chosen on the device: for one row and several, behind one another and behind a
        // play that is not waited for.
        let sampling = Sampling { top_k: 5, ..Sampling::default() };
        let uniforms = [0.5; 3];
        for (rows, plays) in [(1, 3), (2, 3), (2, 1), (1, 1)] {
            let mut step = Step::default();
            step.push(5, 0, 30, false);
            play(&mut recording, &mut slot, &step);
            step.clear();
            (0..rows).for_each(|row| step.push(7, row, 31 + position * row, true));
            let uniforms = &uniforms[..plays];
            let draw = SampleRow {
                stop_tokens: &[3],
                history: &[7],
                ..SampleRow::new(&sampling, uniforms)
            };
            recording.play_sampling(&step, &vec![Some(draw); rows as usize]).unwrap();
        }
    }
}

/// Every operation alone, kernel by kernel and in whole plays.
#[test]
#[ignore = "nothing_is_reported_of_lone_operations runs it under the layer"]
fn play_lone_operations() {
    let gpu = gpu::open();
    for op in Lone::ALL {
        let (plan, weights) =
            lone::plan(op, &LoneCase::usual(), VulkanDevice::spec_named("vulkan"));
        let options = gpu::options(&gpu);
        let (mut recording, mut reference_model) = beside_reference(plan, &weights, |plan| {
            VulkanRecording::new(plan, DeviceId(0), &weights, options, &mut |_, _| ())
        });
        let steps: [(&Runs, u32); 2] = [(&[(0, 0, 5)], 0), (&[(0, 5, 2), (1, 0, 1)], 1)];
        check_lone(&mut recording, &mut reference_model, &steps).unwrap();
    }
}

/// Two writes to one buffer with no barrier between them.
#[test]
#[ignore = "a_missing_barrier_would_be_reported runs it under the layer"]
fn fill_a_buffer_twice() {
    // SAFETY: plain calls in the order the specification wants, but for the barrier; both writes
    // are the same, and their order does not matter.
    unsafe {
        let entry = ash::Entry::load().unwrap();
        let application = vk::ApplicationInfo::default().api_version(vk::API_VERSION_1_3);
        let create = vk::InstanceCreateInfo::default().application_info(&application);
        let instance = entry.create_instance(&create, None).unwrap();
        let physical = instance.enumerate_physical_devices().unwrap()[0];
        let queues = [vk::DeviceQueueCreateInfo::default().queue_priorities(&[1.0])];
        let create = vk::DeviceCreateInfo::default().queue_create_infos(&queues);
        let device = instance.create_device(physical, &create, None).unwrap();
        let create =
            vk::BufferCreateInfo::default().size(256).usage(vk::BufferUsageFlags::TRANSFER_DST);
        let buffer = device.create_buffer(&create, None).unwrap();
        let needs = device.get_buffer_memory_requirements(buffer);
        let allocate = vk::MemoryAllocateInfo::default()
            .allocation_size(needs.size)
            .memory_type_index(needs.memory_type_bits.trailing_zeros());
        let memory = device.allocate_memory(&allocate, None).unwrap();
        device.bind_buffer_memory(buffer, memory, 0).unwrap();
        let pool = device.create_command_pool(&vk::CommandPoolCreateInfo::default(), None).unwrap();
        let allocate =
            vk::CommandBufferAllocateInfo::default().command_pool(pool).command_buffer_count(1);
        let commands = device.allocate_command_buffers(&allocate).unwrap()[0];
        device.begin_command_buffer(commands, &vk::CommandBufferBeginInfo::default()).unwrap();
        device.cmd_fill_buffer(commands, buffer, 0, 256, 1);
        device.cmd_fill_buffer(commands, buffer, 0, 256, 1);
        device.end_command_buffer(commands).unwrap();
        device.destroy_command_pool(pool, None);
        device.destroy_buffer(buffer, None);
        device.free_memory(memory, None);
        device.destroy_device(None);
        instance.destroy_instance(None);
    }
}
