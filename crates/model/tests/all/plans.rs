//! Plans of known shapes: fused as intended, every node once, memory as the numbers say.

use pianola_formats::TensorType;
use pianola_model::{RandomWeights, SHAPES, shape};
use pianola_plan::{
    Ceilings, DeviceId, DeviceSpec, Kernel, KvType, Numeric, Op, Placement, Plan, PlanError,
    PlanOptions, PlanText, TransferForm,
};

const OPTIONS: PlanOptions = PlanOptions {
    numeric: Numeric::Fast,
    kv_type: None,
    max_rows: 512,
    max_logit_rows: 1,
    context: 4096,
    sequences: 1,
    kv_bytes: None,
    fusion: true,
    reproducible: false,
};

fn spec(name: &str) -> DeviceSpec {
    DeviceSpec {
        name: name.to_string(),
        layout: "rows",
        fuses: true,
        rounds_rows: false,
        asynchronous: true,
        lacks: Vec::new(),
    }
}

fn plan(name: &str, options: PlanOptions) -> Result<Plan, PlanError> {
    split(name, options, |layers| vec![(spec("cpu"), layers)])
}

/// A plan on several devices, each with its number of layers.
fn split(
    name: &str,
    options: PlanOptions,
    devices: impl Fn(usize) -> Vec<(DeviceSpec, usize)>,
) -> Result<Plan, PlanError> {
    let config = shape(name).unwrap().config();
    let weights = RandomWeights::new(&config, 1, |_, _, _| TensorType::Q4_0);
    let graph = pianola_model::graph(&config, &weights, None).unwrap();
    let placement = Placement::by_layers(&graph, &devices(graph.layers));
    Plan::new(graph, options, placement)
}

#[test]
fn a_layer_is_five_kernels_and_every_node_is_in_one() {
    for shape in SHAPES {
        let context = OPTIONS.context.min(shape.config().context);
        let plan = plan(shape.name, PlanOptions { context, ..OPTIONS }).unwrap();
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
    let matrix = |ty: TensorType| ty.is_quantized();
    let matrices = plan.graph.weights.iter().filter(|weight| matrix(weight.ty)).count();
    assert_eq!(matrices, 62 * 7 + 1);
    assert!(plan.readers.iter().all(|readers| readers[..] == [DeviceId(0)]));
    let text = PlanText {
        plan: &plan,
        ceilings: &[Ceilings { bytes_per_second: 4.66e12, operations_per_second: 790e12 }],
        lanes: 1,
        rows: 1,
        context: 1,
        full: false,
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
    let known = [
        ("gemma2:9b", 9.24),
        ("qwen3:8b", 8.19),
        ("mistral:7b", 7.24),
        ("phi3:mini", 3.82),
        ("smollm2:1.7b", 1.71),
        ("tinyllama:1.1b", 1.10),
        ("llama3.1:8b", 8.03),
        ("llama3.2:1b", 1.24),
        ("llama3.2:3b", 3.21),
        ("mistral:7b-v0.3", 7.25),
        ("mistral-nemo:12b", 12.25),
        ("qwen2.5:7b", 7.62),
        ("qwen3:0.6b", 0.60),
        ("qwen3:1.7b", 1.72),
        ("qwen3:4b", 4.02),
        ("qwen3:14b", 14.77),
    ];
    for (name, billions) in known {
        let options = PlanOptions { context: 2048, ..OPTIONS };
        let parameters = plan(name, options).unwrap().graph.parameters() as f64 / 1e9;
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

/// The first layers on one device, the others and the head on another: one cut, no kernel spans
/// it, and all that passes over it is the residual stream.
#[test]
fn layers_are_placed_on_two_devices() {
    // Gemma's first global layer is its sixth, so that both devices need both rotary tables.
    let plan =
        split("gemma3:1b", OPTIONS, |layers| vec![(spec("cpu"), 6), (spec("vulkan"), layers - 6)]);
    let plan = plan.unwrap();
    let names = |ops: std::ops::Range<usize>| ops.map(|op| plan.ops[op].name.as_str());
    let [cpu, gpu] = &plan.segments[..] else { panic!("{:?}", plan.segments) };
    assert_eq!((cpu.device, gpu.device), (DeviceId(0), DeviceId(1)));
    assert_eq!((cpu.ops.start, cpu.ops.end, gpu.ops.end), (0, gpu.ops.start, plan.ops.len()));
    assert_eq!(names(cpu.ops.clone()).next_back(), Some("blk.5.ffn_residual"));
    for op in &plan.ops {
        let layers = op.nodes.iter().filter_map(|&node| plan.graph.nodes[node].layer);
        let devices: Vec<bool> = layers.map(|layer| layer < 6).collect();
        assert!(devices.iter().all(|&first| first == (op.device == DeviceId(0))), "{}", op.name);
    }
    assert!(cpu.receives.is_empty());
    let [received] = &gpu.receives[..] else { panic!("{:?}", gpu.receives) };
    assert_eq!(plan.graph.tensor(received.tensor).name, "blk.5.ffn_residual");
    assert_eq!((received.from, received.form), (0, TransferForm::RowsF32));
    assert_eq!(plan.sends(0).collect::<Vec<_>>(), [received.tensor]);
    // Each device computes its own angles: 26 layers of two kinds, two devices.
    let angles = |op: &&Op| matches!(op, Op::RopeAngles { .. });
    assert_eq!(plan.graph.nodes.iter().map(|node| &node.op).filter(angles).count(), 4);
    // The tied embedding is read on both sides; every other matrix on one.
    let readers = |name: &str| {
        let index = plan.graph.weights.iter().position(|weight| weight.name == name).unwrap();
        plan.readers[index].clone()
    };
    assert_eq!(readers("token_embd.weight"), [DeviceId(0), DeviceId(1)]);
    assert_eq!(readers("blk.5.ffn_down.weight"), [DeviceId(0)]);
    assert_eq!(readers("blk.5.post_ffw_norm.weight"), [DeviceId(0)]);
    assert_eq!(readers("blk.6.ffn_up.weight"), [DeviceId(1)]);
    assert_eq!((plan.layers_on(DeviceId(0)), plan.layers_on(DeviceId(1))), (0..6, 6..26));
    let both = plan.weight_bytes_on(DeviceId(0)) + plan.weight_bytes_on(DeviceId(1));
    assert!(both > plan.weight_bytes());
    let text = plan.placement_text();
    assert!(text.starts_with("layers 0 to 5 on cpu, 2"), "{text}");
    assert!(text.contains(" MB of weights; layers 6 to 25 and the head on vulkan, 4"), "{text}");
}

#[test]
fn the_head_can_be_alone_on_a_device() {
    let plan =
        split("gemma3:1b", OPTIONS, |layers| vec![(spec("cpu"), layers), (spec("vulkan"), 0)]);
    let plan = plan.unwrap();
    assert_eq!(plan.segments[1].ops.len(), 1);
    assert_eq!(plan.head_device(), DeviceId(1));
    let text = plan.placement_text();
    assert!(text.contains("; the head on vulkan"), "{text}");
}

#[test]
fn without_fusion_every_node_is_a_kernel() {
    let plan = plan("gemma3:1b", PlanOptions { fusion: false, ..OPTIONS }).unwrap();
    assert_eq!(plan.ops.len(), plan.graph.nodes.len());
    for op in &plan.ops {
        let [node] = op.nodes[..] else { panic!("{}: {:?}", op.name, op.nodes) };
        let product = matches!(plan.graph.nodes[node].op, Op::MatMul { .. });
        assert_eq!(matches!(op.kernel, Kernel::Project(_)), product, "{}", op.name);
    }
}

/// Attention on one device and the rest on another: any placement of nodes is a plan.
#[test]
fn nodes_may_lie_anywhere() {
    let config = shape("gemma3:1b").unwrap().reduced(2, 512).config();
    let weights = RandomWeights::new(&config, 1, |_, _, _| TensorType::Q4_0);
    let graph = pianola_model::graph(&config, &weights, None).unwrap();
    let mut placement = Placement::single(&graph, spec("gpu"));
    placement.devices.push(spec("npu"));
    for (node, device) in graph.nodes.iter().zip(&mut placement.nodes) {
        if matches!(node.op, Op::KvWrite { .. } | Op::Attention(_)) {
            *device = DeviceId(1);
        }
    }
    let plan = Plan::new(graph, OPTIONS, placement).unwrap();
    assert_eq!(plan.segments.len(), 5, "{:?}", plan.segments);
    for segment in plan.segments.iter().filter(|segment| segment.device == DeviceId(1)) {
        // Keys and queries are normed and rotated before they pass; values as they are.
        assert_eq!(segment.receives.len(), 3);
        assert_eq!(segment.ops.len(), 1);
    }
}
