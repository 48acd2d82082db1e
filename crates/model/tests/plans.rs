//! Plans of known shapes: fused as intended, every node once, memory as the numbers say.

use pianola_formats::TensorType;
use pianola_model::{RandomWeights, SHAPES, shape};
use pianola_plan::{
    Ceilings, DeviceKind, Kernel, KvType, Layout, Numeric, Op, Plan, PlanError, PlanOptions,
    PlanText,
};

const OPTIONS: PlanOptions = PlanOptions {
    device: DeviceKind::Cpu,
    numeric: Numeric::Fast,
    kv_type: None,
    max_rows: 512,
    max_logit_rows: 1,
    context: 4096,
    sequences: 1,
    kv_bytes: None,
    cpu_layers: 0,
};

fn plan(name: &str, options: PlanOptions) -> Result<Plan, PlanError> {
    let config = shape(name).unwrap().config();
    let weights = RandomWeights::new(&config, 1, |_, _, _| TensorType::Q4_0);
    Plan::new(pianola_model::graph(&config, &weights, None).unwrap(), options)
}

#[test]
fn a_layer_is_five_kernels_and_every_node_is_in_one() {
    for shape in SHAPES {
        let plan = plan(shape.name, OPTIONS).unwrap();
        let layers: usize = plan.graph.kv_groups.iter().map(|group| group.layers).sum();
        let single = |kernel: &Kernel| match kernel {
            Kernel::Single(node) => Some(plan.graph.nodes[*node].op.clone()),
            _ => None,
        };
        let singles: Vec<Op> = plan.ops.iter().filter_map(|op| single(&op.kernel)).collect();
        // Only the embedding and the rotary angles stand alone; the head is one product.
        let alone = |op: &Op| matches!(op, Op::Embed { .. } | Op::RopeAngles { .. });
        assert!(singles.iter().all(alone), "{}: {singles:?}", shape.name);
        assert_eq!(plan.ops.len(), singles.len() + 5 * layers + 1, "{}", shape.name);
        let mut nodes: Vec<usize> = plan.ops.iter().flat_map(|op| op.nodes.clone()).collect();
        nodes.sort_unstable();
        assert_eq!(nodes, (0..plan.graph.nodes.len()).collect::<Vec<_>>());
        assert_eq!(plan.segments.len(), 1);
        assert_eq!(plan.segments[0].ops, 0..plan.ops.len());
    }
}

/// The numbers that everyone quotes for Gemma 3 27B.
#[test]
fn gemma3_27b_has_its_known_size() {
    let plan = plan("gemma3:27b", OPTIONS).unwrap();
    assert!((plan.graph.parameters() as f64 / 1e9 - 27.01).abs() < 0.01);
    // 434 projections and the tied embedding, stored once.
    let tiles = (DeviceKind::Cpu, Layout::Tiles16);
    let matrices = plan.layouts.iter().filter(|kept| kept[..] == [tiles]).count();
    assert_eq!(matrices, 62 * 7 + 1);
    let text = PlanText {
        plan: &plan,
        ceilings: Ceilings { bytes_per_second: 4.66e12, operations_per_second: 790e12 },
        host: None,
        lanes: 1,
        rows: 1,
        context: 1,
    };
    // 54 GFLOP a token; 4.5 bits a weight in Q4_0.
    assert!((text.total().operations as f64 / 1e9 - 54.0).abs() < 0.2);
    assert!((text.total().bytes as f64 / 1e9 - 27.01 * 4.5 / 8.0).abs() < 0.05);
    // Two kernels that run side by side need no barrier; the chain behind them does.
    assert!(!plan.ops[0].barrier);
    assert!(plan.ops.iter().filter(|op| op.barrier).count() >= 62 * 5);
}

/// Fused tensors are counted once, head norms and tied heads as they are.
#[test]
fn families_have_their_known_sizes() {
    let known =
        [("gemma2:9b", 9.24), ("qwen3:8b", 8.19), ("mistral:7b", 7.24), ("phi3:mini", 3.82)];
    for (name, billions) in known {
        let parameters = plan(name, OPTIONS).unwrap().graph.parameters() as f64 / 1e9;
        assert!((parameters - billions).abs() < 0.005, "{name}: {parameters}");
    }
}

#[test]
fn window_groups_hold_their_window_and_modes_choose_the_kv_type() {
    let fast = plan("gemma3:1b", OPTIONS).unwrap();
    let exact = plan("gemma3:1b", PlanOptions { numeric: Numeric::Exact, ..OPTIONS }).unwrap();
    let window = fast.graph.kv_groups.iter().position(|group| group.window == Some(512)).unwrap();
    let global = fast.graph.kv_groups.iter().position(|group| group.window.is_none()).unwrap();
    assert_eq!(fast.graph.kv_groups[window].layers, 22);
    assert_eq!(fast.kv_pages[global], 4096 / 64);
    assert_eq!(fast.kv_pages[window], (512 + 512) / 64 + 1);
    assert!(fast.graph.kv_groups.iter().all(|group| group.ty == KvType::F16));
    assert_eq!(exact.kv_bytes(), 2 * fast.kv_bytes());
    // Asked for by name, a type stands in either mode: heads of 256 bytes and a scale.
    for numeric in [Numeric::Fast, Numeric::Exact] {
        let options = PlanOptions { numeric, kv_type: Some(KvType::Q8), ..OPTIONS };
        assert_eq!(plan("gemma3:1b", options).unwrap().kv_bytes() * 512, fast.kv_bytes() * 260);
    }
}

#[test]
fn the_arena_is_reused_from_layer_to_layer() {
    let plan = plan("gemma3:27b", OPTIONS).unwrap();
    let total: usize = plan.buffers.iter().map(|buffer| 4 * 512 * buffer.width).sum();
    assert!(plan.arena.bytes * 50 < total, "{} of {total}", plan.arena.bytes);
}

#[test]
fn impossible_options_are_refused() {
    let context = PlanOptions { context: 1 << 30, ..OPTIONS };
    assert!(matches!(plan("gemma3:1b", context), Err(PlanError::Limit { most: 32_768, .. })));
    let rows = PlanOptions { max_rows: 0, ..OPTIONS };
    assert!(matches!(plan("gemma3:1b", rows), Err(PlanError::Limit { .. })));
}

/// The first layers on the processor, the others and the head on the GPU: one cut, and what passes
/// over it is the residual stream, what the last layer adds to it, and the rotary angles.
#[test]
fn layers_are_placed_on_two_devices() {
    // Gemma's first global layer is its sixth, so that both rotary tables are made before the cut.
    let options = PlanOptions { device: DeviceKind::Vulkan, cpu_layers: 6, ..OPTIONS };
    let plan = plan("gemma3:1b", options).unwrap();
    let names = |ops: std::ops::Range<usize>| ops.map(|op| plan.ops[op].name.as_str());
    let [cpu, gpu] = &plan.segments[..] else { panic!("{:?}", plan.segments) };
    assert_eq!((cpu.device, gpu.device), (DeviceKind::Cpu, DeviceKind::Vulkan));
    assert_eq!((cpu.ops.start, cpu.ops.end, gpu.ops.end), (0, gpu.ops.start, plan.ops.len()));
    assert_eq!((&cpu.waits[..], &cpu.signals[..]), (&[][..], &[1][..]));
    assert_eq!((&gpu.waits[..], &gpu.signals[..]), (&[0][..], &[][..]));
    assert_eq!(names(cpu.ops.clone()).next_back(), Some("blk.5.ffn_down"));
    assert!(names(gpu.ops.clone()).all(|name| !name.starts_with("blk.5.")));
    assert!(cpu.receives.is_empty());
    let mut received: Vec<&str> =
        gpu.receives.iter().map(|&buffer| plan.buffers[buffer].name.as_str()).collect();
    received.sort_unstable();
    let expected = ["blk.0.angles.0", "blk.5.angles.1", "blk.5.attn_residual", "blk.5.ffn_down"];
    assert_eq!(received, expected);
    // The tied embedding is read on both sides; every other matrix on one.
    let kept = |name: &str| {
        let index = plan.graph.weights.iter().position(|weight| weight.name == name).unwrap();
        plan.layouts[index].clone()
    };
    let (tiles, planes) =
        ((DeviceKind::Cpu, Layout::Tiles16), (DeviceKind::Vulkan, Layout::Planes));
    assert_eq!(kept("token_embd.weight"), [tiles, planes]);
    assert_eq!(kept("blk.5.ffn_down.weight"), [tiles]);
    assert_eq!(kept("blk.6.ffn_up.weight"), [planes]);
    // The norm behind layer 5 is computed by the first kernel behind the cut.
    assert_eq!(kept("blk.5.post_ffw_norm.weight"), [(DeviceKind::Vulkan, Layout::Vector)]);
    let both = plan.weight_bytes_on(DeviceKind::Cpu) + plan.weight_bytes_on(DeviceKind::Vulkan);
    assert!(both > plan.weight_bytes());
    let text = plan.placement();
    assert!(text.starts_with("layers 0 to 5 on cpu, 2"), "{text}");
    assert!(text.contains(" MB of weights; layers 6 to 25 and the head on vulkan, 4"), "{text}");
}

#[test]
fn the_head_can_be_alone_on_the_gpu_and_layers_cannot_be_invented() {
    let options = PlanOptions { device: DeviceKind::Vulkan, cpu_layers: 26, ..OPTIONS };
    let all = plan("gemma3:1b", options).unwrap();
    assert_eq!(all.segments[1].ops.len(), 1);
    assert!(all.placement().contains("no layer and the head on vulkan"), "{}", all.placement());
    for (device, cpu_layers) in [(DeviceKind::Vulkan, 27), (DeviceKind::Cpu, 1)] {
        let refused = plan("gemma3:1b", PlanOptions { device, cpu_layers, ..OPTIONS });
        assert!(matches!(refused, Err(PlanError::Limit { .. })), "{device} {cpu_layers}");
    }
}
