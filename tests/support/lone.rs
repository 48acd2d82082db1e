//! Graphs in which one operation stands alone: it fits no fusion, and reads columns of a wider
//! buffer where its inputs are products.

#![allow(dead_code, reason = "each test uses a part")]

use super::case::{Runs, check_logits, plan_graph, step_of};
use pianola_cpu::ReferenceModel;
use pianola_formats::{Tensor, TensorInfo, TensorSource, TensorType};
use pianola_plan::{
    Activation, AttentionSpec, DeviceSpec, Graph, GraphBuilder, Kernel, KvType, Numeric, Plan,
    Recording, RopePairing, RopeSpec, TensorId, WeightId, WeightShape, WeightSpec,
};
use proptest::prelude::*;
use std::borrow::Cow;

/// The operations that a fusion may take.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lone {
    RmsNorm,
    HeadNorm,
    Rope,
    /// And the KV write before it.
    Attention,
    Gate,
    Add,
    SelectRows,
    /// And a product with quantised weights behind it, which cannot take it in.
    SelectedProduct,
    SoftCap,
}

impl Lone {
    pub const ALL: [Lone; 9] = [
        Lone::RmsNorm,
        Lone::HeadNorm,
        Lone::Rope,
        Lone::Attention,
        Lone::Gate,
        Lone::Add,
        Lone::SelectRows,
        Lone::SelectedProduct,
        Lone::SoftCap,
    ];

    /// What must stand alone, as [`pianola_plan::Op::name`].
    fn names(self) -> &'static [&'static str] {
        match self {
            Lone::RmsNorm | Lone::HeadNorm => &["rms_norm"],
            Lone::Rope => &["rope"],
            Lone::Attention => &["kv_write", "attention"],
            Lone::Gate => &["gate"],
            Lone::Add => &["add"],
            Lone::SelectRows | Lone::SelectedProduct => &["select_rows"],
            Lone::SoftCap => &["soft_cap"],
        }
    }
}

/// Shapes and settings of a graph around one operation.
#[derive(Clone, Debug)]
pub struct LoneCase {
    /// Columns before those that the operation reads: they set its offset and stride.
    pub offset: usize,
    pub kv_heads: usize,
    pub group: usize,
    pub head_dim: usize,
    pub pairing: RopePairing,
    pub activation: Activation,
    /// Rows that want logits are selected before the operation instead of after it.
    pub selected: bool,
    pub window: Option<usize>,
    pub cap: Option<f32>,
    pub numeric: Numeric,
    pub kv_type: Option<KvType>,
    pub seed: u64,
}

impl LoneCase {
    /// A case with a bit of everything.
    pub fn usual() -> LoneCase {
        LoneCase {
            offset: 3,
            kv_heads: 2,
            group: 2,
            head_dim: 32,
            pairing: RopePairing::Adjacent,
            activation: Activation::GeluTanh,
            selected: true,
            window: Some(4),
            cap: Some(8.0),
            numeric: Numeric::Fast,
            kv_type: Some(KvType::Q8),
            seed: 5,
        }
    }

    fn width(&self) -> usize {
        self.kv_heads * self.group * self.head_dim
    }
}

/// Any case whose heads are as wide as one of `head_dims`.
pub fn lone_case(head_dims: Vec<usize>) -> impl Strategy<Value = LoneCase> {
    let shape = (1usize..9, 1usize..4, 1usize..4, prop::sample::select(head_dims));
    let flags = (any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>());
    let attention = (prop::option::of(1usize..60), prop::option::of(5f32..30.0));
    let rest = (prop::sample::select(&KvType::ALL), any::<u64>());
    (shape, flags, attention, rest).prop_map(|(shape, flags, attention, rest)| LoneCase {
        offset: shape.0,
        kv_heads: shape.1,
        group: shape.2,
        head_dim: shape.3,
        pairing: if flags.0 { RopePairing::Halves } else { RopePairing::Adjacent },
        activation: if flags.1 { Activation::Silu } else { Activation::GeluTanh },
        selected: flags.2,
        window: attention.0,
        cap: attention.1,
        numeric: if flags.3 { Numeric::Fast } else { Numeric::Exact },
        kv_type: Some(rest.0),
        seed: rest.1,
    })
}

/// Random weights of a graph built by hand: matrices around zero, vectors around one.
pub struct GraphWeights {
    specs: Vec<WeightSpec>,
    seed: u64,
}

impl TensorSource for GraphWeights {
    fn tensor(&self, name: &str) -> Option<Tensor<'_>> {
        let info = self.info(name)?;
        let mut state = name.bytes().fold(self.seed | 1, |state, byte| {
            (state ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
        });
        let mut signed = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 40) as f32 / (1 << 23) as f32 - 1.0
        };
        let values: usize = info.shape.iter().product();
        let mut value = || if info.shape.len() == 1 { 1.0 + 0.3 * signed() } else { signed() };
        let bytes = (0..values).flat_map(|_| value().to_le_bytes()).collect();
        let TensorInfo { name, ty, shape, .. } = info;
        Some(Tensor { name, ty, shape, bytes: Cow::Owned(bytes) })
    }

    fn info(&self, name: &str) -> Option<TensorInfo> {
        let spec = self.specs.iter().find(|spec| spec.name == name)?;
        let shape = match spec.shape {
            WeightShape::Matrix { rows, columns } => vec![rows, columns],
            WeightShape::Vector { length } => vec![length],
        };
        // Quantised at load where the graph wants another type.
        let (ty, bytes) = (TensorType::F32, 4 * shape.iter().product::<usize>() as u64);
        Some(TensorInfo { name: name.to_string(), ty, shape, bytes })
    }

    fn tensor_infos(&self) -> Vec<TensorInfo> {
        self.specs.iter().filter_map(|spec| self.info(&spec.name)).collect()
    }
}

fn weight(builder: &mut GraphBuilder, name: &str, shape: WeightShape) -> WeightId {
    let (name, ty) = (name.to_string(), TensorType::F32);
    builder.weight(WeightSpec::whole(name, shape, ty))
}

/// Products of one input, side by side in one buffer. They are three or more: two would fuse with
/// a gate.
fn products(builder: &mut GraphBuilder, x: TensorId, widths: &[usize]) -> Vec<TensorId> {
    let mut product = |(index, &rows): (usize, &usize)| {
        let name = format!("product.{index}");
        let matrix = weight(builder, &name, WeightShape::Matrix { rows, columns: HIDDEN });
        builder.matmul(&name, x, matrix, None)
    };
    widths.iter().enumerate().map(&mut product).collect()
}

/// Input columns of the products.
const HIDDEN: usize = 32;

/// A graph with `op` by itself. Its result, the rows of it that want logits, is as wide as the
/// vocabulary.
fn graph(op: Lone, case: &LoneCase) -> Graph {
    let (width, heads) = (case.width(), case.kv_heads * case.group);
    let mut builder = GraphBuilder::new("lone", 512, width);
    let table = weight(&mut builder, "table", WeightShape::Matrix { rows: width, columns: HIDDEN });
    let x = builder.embed(table, 1.0);
    if op == Lone::Attention {
        let attended = attention(&mut builder, x, case);
        let selected = builder.select_rows(attended);
        return builder.finish(selected);
    }
    if op == Lone::SelectedProduct {
        let logits = selected_product(&mut builder, x, width);
        return builder.finish(logits);
    }
    let inputs = products(&mut builder, x, &[case.offset, width, width]);
    let [mut a, mut b] = [inputs[1], inputs[2]];
    // Of these there is one row for each of the step's.
    let whole = matches!(op, Lone::Rope | Lone::Gate | Lone::SelectRows);
    let early = case.selected && !whole;
    if early {
        [a, b] = [builder.select_rows(a), builder.select_rows(b)];
    }
    let result = match op {
        Lone::RmsNorm => {
            let scale = weight(&mut builder, "norm", WeightShape::Vector { length: width });
            builder.rms_norm("normed", a, scale, 1e-5)
        }
        Lone::HeadNorm => {
            let scale = weight(&mut builder, "norm", WeightShape::Vector { length: case.head_dim });
            builder.rms_norm_heads("normed", a, scale, 1e-5, heads)
        }
        Lone::Rope => {
            let rope = rope_table(&mut builder, case);
            builder.rope("rotated", a, rope, heads)
        }
        Lone::Gate => builder.gate(a, b, case.activation),
        Lone::Add => builder.add("sum", a, b),
        Lone::SoftCap => builder.soft_cap("capped", a, case.cap.unwrap_or(3.0)),
        Lone::SelectRows | Lone::SelectedProduct | Lone::Attention => a,
    };
    let result = if early { result } else { builder.select_rows(result) };
    builder.finish(result)
}

/// A product of selected rows which something else reads too.
fn selected_product(builder: &mut GraphBuilder, x: TensorId, rows: usize) -> TensorId {
    let selected = builder.select_rows(x);
    builder.add("twice", selected, selected);
    let shape = WeightShape::Matrix { rows, columns: HIDDEN };
    let (name, ty) = ("head".to_string(), TensorType::Q8_0);
    let head = builder.weight(WeightSpec::whole(name, shape, ty));
    builder.matmul("logits", selected, head, None)
}

fn rope_table(builder: &mut GraphBuilder, case: &LoneCase) -> usize {
    let frequency = |pair: usize| 0.5f32.powi(pair as i32);
    let frequencies = (0..case.head_dim / 2).map(frequency).collect();
    builder.rope_table(RopeSpec { frequencies, magnitude: 1.0, pairing: case.pairing, long: None })
}

/// Attention whose queries are rotated and keys are not, which no fusion takes.
fn attention(builder: &mut GraphBuilder, x: TensorId, case: &LoneCase) -> TensorId {
    let LoneCase { kv_heads, head_dim, window, .. } = *case;
    let (heads, keys) = (kv_heads * case.group, kv_heads * head_dim);
    let rope = rope_table(builder, case);
    let inputs = products(builder, x, &[case.offset, heads * head_dim, keys, keys]);
    let query = builder.rope("rotated", inputs[1], rope, heads);
    let group = builder.kv_group("all", window, kv_heads, head_dim);
    let spec = AttentionSpec {
        kv: builder.kv_layer(group),
        heads,
        kv_heads,
        head_dim,
        scale: 1.0 / (head_dim as f32).sqrt(),
        window,
        soft_cap: case.cap,
    };
    builder.attention(query, inputs[2], inputs[3], spec)
}

/// Plan and weights of a graph with `op` alone.
///
/// # Panics
/// If a fusion took the operation.
pub fn plan(op: Lone, case: &LoneCase, device: DeviceSpec) -> (Plan, GraphWeights) {
    let graph = graph(op, case);
    let weights = GraphWeights { specs: graph.weights.clone(), seed: case.seed };
    let plan = plan_graph(graph, device, case.numeric, case.kv_type);
    for name in op.names() {
        let alone = |kernel: &Kernel| match kernel {
            Kernel::Single(node) => plan.graph.nodes[*node].op.name() == *name,
            _ => false,
        };
        assert!(plan.ops.iter().any(|planned| alone(&planned.kernel)), "{name} is fused");
    }
    (plan, weights)
}

/// Checks each step kernel by kernel, then plays it whole: the logits must be the same bits.
pub fn check_lone(
    recording: &mut dyn Recording,
    reference_model: &mut ReferenceModel,
    steps: &[(&Runs, u32)],
) -> Result<(), String> {
    for &(runs, wanted) in steps {
        check_logits(recording, reference_model, &[runs], wanted)?;
        let graph = &recording.plan().graph;
        let (logits, width) = (graph.logits.unwrap(), graph.vocabulary);
        let step = step_of(runs, width as u32, wanted);
        let apart = recording.read_tensor(logits, step.logits.len()).unwrap();
        recording.poison().unwrap();
        recording.play(&step).unwrap();
        for (index, row) in apart.chunks_exact(width).enumerate() {
            let whole = recording.logits(0, index);
            if whole.iter().zip(row).any(|(a, b)| a.to_bits() != b.to_bits()) {
                return Err(format!("row {index} of {runs:?} differs where all kernels play"));
            }
        }
    }
    Ok(())
}
