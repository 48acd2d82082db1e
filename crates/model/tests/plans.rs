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
    max_rows: 512,
    max_logit_rows: 1,
    context: 4096,
    sequences: 1,
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
    let matrices = plan.layouts.iter().filter(|layout| **layout == Layout::Tiles16).count();
    assert_eq!(matrices, 62 * 7 + 1);
    let text = PlanText {
        plan: &plan,
        ceilings: Ceilings { bytes_per_second: 4.66e12, operations_per_second: 790e12 },
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

#[test]
fn window_groups_hold_their_window_and_modes_choose_the_kv_type() {
    let fast = plan("gemma3:1b", OPTIONS).unwrap();
    let exact = plan("gemma3:1b", PlanOptions { numeric: Numeric::Exact, ..OPTIONS }).unwrap();
    let window = fast.graph.kv_groups.iter().position(|group| group.window == Some(512)).unwrap();
    let global = fast.graph.kv_groups.iter().position(|group| group.window.is_none()).unwrap();
    assert_eq!(fast.graph.kv_groups[window].layers, 22);
    assert_eq!(fast.kv_pages(global), 4096 / 64);
    assert_eq!(fast.kv_pages(window), (512 + 512) / 64 + 1);
    assert!(fast.graph.kv_groups.iter().all(|group| group.ty == KvType::F16));
    assert_eq!(exact.kv_bytes(), 2 * fast.kv_bytes());
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
