//! Keys and values beyond the range of what they are stored in: the same in the pages as on the
//! processor, and attention over them gives numbers.

use crate::support::case::{Case, map_pages, plan, usual};
use crate::support::gpu;
use pianola_cpu::{CpuDevice, CpuOptions};
use pianola_formats::TensorType;
use pianola_plan::{
    Attend, Device, DeviceId, DeviceSpec, Kernel, KvType, Plan, Recording, Step, TensorId,
};
use pianola_vulkan::{VulkanDevice, VulkanOptions};
use std::sync::Arc;

const HEAD_DIM: usize = 64;
const KV_WIDTH: usize = 2 * HEAD_DIM;

/// What a layer stored for each row, and what its attention made of it.
#[derive(Debug)]
struct Outcome {
    stored: [Vec<f32>; 2],
    output: Vec<f32>,
}

/// The first attention of the plan.
fn attention(plan: &Plan) -> (usize, Attend) {
    let attends = plan.ops.iter().enumerate().find_map(|(index, op)| match &op.kernel {
        Kernel::Attend(attend) => Some((index, attend.clone())),
        _ => None,
    });
    attends.expect("a model attends")
}

/// Plays one attention of `rows` rows, whose keys and values are `of(row, column)`.
fn play(
    recording: &mut dyn Recording,
    rows: usize,
    key: &dyn Fn(usize, usize) -> f32,
    value: &dyn Fn(usize, usize) -> f32,
) -> Outcome {
    map_pages(recording);
    let plan = recording.plan().clone();
    let (op, attend) = attention(&plan);
    let mut step = Step::default();
    (0..rows).for_each(|row| step.push(1, 0, row as u32, false));
    recording.poison().unwrap();
    recording.begin(&step).unwrap();
    let mut write = |tensor: TensorId, of: &dyn Fn(usize, usize) -> f32| {
        let width = plan.graph.tensor(tensor).width;
        let values: Vec<f32> = (0..rows * width).map(|at| of(at / width, at % width)).collect();
        recording.write_tensor(tensor, &values).unwrap();
    };
    write(attend.query, &|row, column| ((row + column) % 7) as f32 * 1e-6);
    write(attend.key, key);
    write(attend.value, value);
    // Cosines, then sines: nothing is rotated.
    let (_, angles) = attend.rope.expect("keys are rotated");
    write(angles, &|_, column| if column < HEAD_DIM / 2 { 1.0 } else { 0.0 });
    recording.play_op(op, &step).unwrap();
    let stored = recording.read_kv(attend.spec.kv, &step.rows).unwrap();
    Outcome { stored, output: recording.read_tensor(attend.output, rows).unwrap() }
}

/// The same on both devices: the processor's, then the GPU's.
fn both(
    ty: KvType,
    rows: usize,
    key: &dyn Fn(usize, usize) -> f32,
    value: &dyn Fn(usize, usize) -> f32,
) -> [Outcome; 2] {
    let case = Case {
        family: "llama",
        window: None,
        head_dim: HEAD_DIM,
        kv_type: Some(ty),
        ..usual(TensorType::Q8_0)
    };
    let gpu = VulkanDevice::new(VulkanOptions::new(gpu::open()));
    let cpu = CpuDevice { options: CpuOptions::default() };
    let play_on = |device: &dyn Device, spec: DeviceSpec| {
        let (plan, weights) = plan(&case, spec);
        let mut recording =
            device.record(&Arc::new(plan), DeviceId(0), &weights, &mut |_, _| ()).unwrap();
        play(recording.as_mut(), rows, key, value)
    };
    [play_on(&cpu, CpuDevice::spec()), play_on(&gpu, VulkanDevice::spec_named("vulkan"))]
}

fn close(a: f32, b: f32) -> bool {
    a == b || (a.is_nan() && b.is_nan()) || (a - b).abs() <= 2e-3 * a.abs().max(b.abs())
}

fn assert_same(what: &str, [cpu, gpu]: &[Outcome; 2]) {
    for (name, cpu, gpu) in [
        ("keys", &cpu.stored[0], &gpu.stored[0]),
        ("values", &cpu.stored[1], &gpu.stored[1]),
        ("output", &cpu.output, &gpu.output),
    ] {
        let differs = cpu.iter().zip(gpu).position(|(&a, &b)| !close(a, b));
        assert_eq!(differs, None, "{what}, {name}: {differs:?} of {cpu:?} and {gpu:?}");
    }
}

/// Large numbers of both signs, some beyond the largest half float.
fn large(row: usize, column: usize) -> f32 {
    let sign = if (row + column).is_multiple_of(3) { -1.0 } else { 1.0 };
    sign * [1e6, 65_504.0, 65_530.0, 12.5, 7e4, 3e9][column % 6]
}

#[test]
fn what_is_out_of_range_is_cut_as_on_the_processor() {
    for ty in KvType::ALL {
        // One row is stored by the kernel that attends, several by one of their own.
        for rows in [1, 3] {
            let found = both(ty, rows, &large, &|row, column| -large(row, column));
            assert_same(&format!("{ty}, {rows} rows"), &found);
            for outcome in &found {
                let mut all = outcome.stored.iter().flatten().chain(&outcome.output);
                assert!(all.all(|x| x.is_finite()), "{ty}, {rows} rows: {outcome:?}");
            }
            if ty == KvType::F16 {
                let largest =
                    |values: &[f32]| values.iter().fold(0f32, |most, x| most.max(x.abs()));
                assert_eq!(largest(&found[1].stored[0]), 65_504.0);
            }
        }
    }
}

/// Half floats cut an infinity, bytes say that it is no number, and what is no number stays none.
#[test]
fn infinities_and_what_is_no_number() {
    for ty in [KvType::F16, KvType::Q8] {
        for rows in [1, 3] {
            for odd in [f32::INFINITY, f32::NEG_INFINITY, f32::NAN] {
                // In the first head's values only: a key's partner in the rotation would meet it.
                let value = |_: usize, column: usize| if column == 5 { odd } else { 0.25 };
                let found = both(ty, rows, &|_, column| column as f32, &value);
                let what = format!("{odd} in {ty}, {rows} rows");
                for outcome in &found {
                    let head = &outcome.stored[1][..HEAD_DIM];
                    let broken = head.iter().filter(|x| x.is_nan()).count();
                    let expected = match (ty, odd.is_nan()) {
                        (KvType::F16, false) => 0,
                        (KvType::F16, true) => 1,
                        _ => HEAD_DIM,
                    };
                    assert_eq!(broken, expected, "{what}: {head:?}");
                    let other = &outcome.stored[1][HEAD_DIM..KV_WIDTH];
                    assert!(other.iter().all(|x| (x - 0.25).abs() < 1e-3), "{what}: {other:?}");
                }
            }
        }
    }
}
