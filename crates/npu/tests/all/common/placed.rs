//! Plans whose products, and perhaps attentions, run on the emulated NPU, and the rest on the processor.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use pianola_cpu::{CpuDevice, CpuOptions, Level};
use pianola_formats::TensorSource;
use pianola_npu::emulated::Emulated;
use pianola_npu::package::{
    self, Activation, AttentionSpec, BLayout, Design, ElementType, ImportOptions, MatmulSpec,
    Operation, Package, Shape, import,
};
use pianola_npu::placed::{Clock, NpuCounters, NpuDevice, NpuOptions, NpuRecording};
use pianola_npu::runner::{RunOptions, TiledOptions};
use pianola_npu_model::{Config, Kernel, Model, artefacts, parse_kernels};
use pianola_plan::{
    Device, DeviceError, DeviceId, Graph, KvType, LogitsTo, Node, Numeric, Op, PAGE_TOKENS,
    Placement, Plan, PlanOptions, Probe, Recording, Step, TensorId, WAIT_LIMIT,
};

use super::Scratch;

/// A folder of packages, and the kernels by which the model knows them.
pub struct Folder {
    scratch: Scratch,
    kernels: Vec<(Package, Kernel)>,
}

impl Folder {
    pub fn new(operations: &[Operation]) -> Folder {
        let scratch = Scratch::new();
        let mut kernels = Vec::new();
        for (index, operation) in operations.iter().enumerate() {
            let kernel = parse_kernels(&line(operation)).unwrap().remove(0).kernel;
            let made = artefacts::make(&kernel);
            let (xclbin, stream) = (scratch.0.join("a.xclbin"), scratch.0.join("a.bin"));
            std::fs::write(&xclbin, &made.xclbin).unwrap();
            std::fs::write(&stream, &made.instructions).unwrap();
            let options = ImportOptions::new(&format!("kernel{index}"));
            let folder = scratch.0.join("npu_kernels");
            let package = import(&folder, (&xclbin, &stream), operation, &options).unwrap();
            kernels.push((package, kernel));
        }
        Folder { scratch, kernels }
    }

    /// A further instruction stream of a package's xclbin, for another shape. Models that are made of
    /// packages know it ([`Emulated::of_packages`]).
    pub fn add_stream(&self, package: usize, name: &str, operation: &Operation) -> Package {
        let made = artefacts::make(&self.kernels[package].1);
        let kernel = parse_kernels(&line(operation)).unwrap().remove(0).kernel;
        let (xclbin, stream) = (self.scratch.0.join("a.xclbin"), self.scratch.0.join("a.bin"));
        std::fs::write(&xclbin, &made.xclbin).unwrap();
        std::fs::write(&stream, artefacts::instructions(&kernel)).unwrap();
        import(&self.path(), (&xclbin, &stream), operation, &ImportOptions::new(name)).unwrap()
    }

    pub fn package(&self, index: usize) -> &Package {
        &self.kernels[index].0
    }

    pub fn path(&self) -> PathBuf {
        self.scratch.0.join("npu_kernels")
    }

    /// A few tiles at a time, and as much time as a busy machine may need.
    pub fn options(&self) -> NpuOptions {
        let tiled = TiledOptions { staging_bytes: 2 << 20, chain: 4 };
        let run = RunOptions { timeout: Duration::from_secs(100) };
        NpuOptions { tiled, run, ..NpuOptions::new(self.path()) }
    }

    /// A machine whose model knows the packages; faults can be planned later.
    pub fn machine(&self, config: Config) -> Arc<Emulated> {
        let model = Model::new(config);
        for (package, kernel) in &self.kernels {
            let pdi = package.configuration().unwrap().0;
            model.register(pdi, None, kernel.clone()).unwrap();
        }
        Arc::new(Emulated::new(model))
    }
}

/// A package's operation as the model describes it.
fn line(operation: &Operation) -> String {
    let shape = |Shape { m, k, n }: Shape| format!("{m}x{k}x{n}");
    match operation {
        Operation::Matmul(spec) => {
            let types = match spec.input {
                ElementType::I8 => "i8 i32",
                _ => "bf16 f32",
            };
            let layout = match spec.b_layout {
                BLayout::ColumnMajor => "column",
                _ => "row",
            };
            let (whole, tile) = (shape(spec.shape), shape(spec.tile));
            format!("matmul {types} {whole} tile={tile} columns=4 layout={layout}")
        }
        Operation::Attention(AttentionSpec { heads, kv_heads, queries, keys, .. }) => {
            let AttentionSpec { key_width, value_width, causal, .. } = match operation {
                Operation::Attention(spec) => spec,
                Operation::Matmul(_) => unreachable!(),
            };
            let causal = if *causal { " causal" } else { "" };
            format!(
                "attention heads={heads} kv_heads={kv_heads} lq={queries} lk={keys} dk={key_width} \
                 dv={value_width}{causal}"
            )
        }
    }
}

fn matmul(input: ElementType, output: ElementType, k: usize, b_layout: BLayout) -> Operation {
    Operation::Matmul(MatmulSpec {
        design: Design::WholeArray,
        input,
        output,
        shape: Shape { m: 128, k, n: 64 },
        tile: Shape { m: 16, k: 8, n: 16 },
        b_layout,
        activation: Activation::None,
    })
}

/// A product of bytes; `k` columns are a piece.
pub fn matmul_i8(k: usize) -> Operation {
    matmul(ElementType::I8, ElementType::I32, k, BLayout::ColumnMajor)
}

/// A product of bf16.
pub fn matmul_bf16(k: usize) -> Operation {
    matmul(ElementType::Bf16, ElementType::F32, k, BLayout::RowMajor)
}

/// The same product with other rows and columns.
pub fn shaped(operation: &Operation, m: usize, n: usize) -> Operation {
    let Operation::Matmul(spec) = operation else { panic!("a product") };
    let shape = Shape { m, n, ..spec.shape };
    Operation::Matmul(MatmulSpec { shape, ..spec.clone() })
}

/// Causal attention of 256 positions.
pub fn flash(heads: usize, kv_heads: usize, width: usize) -> Operation {
    let (queries, keys) = (256, 256);
    Operation::Attention(package::AttentionSpec {
        heads,
        kv_heads,
        queries,
        keys,
        key_width: width,
        value_width: width,
        causal: true,
    })
}

/// A clock that tests set.
#[derive(Debug, Default)]
pub struct TestClock(Mutex<Duration>);

impl TestClock {
    pub fn advance(&self, by: Duration) {
        *self.0.lock().unwrap() += by;
    }
}

impl Clock for TestClock {
    fn now(&self) -> Duration {
        *self.0.lock().unwrap()
    }
}

/// What the NPU does of a model.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Share {
    /// Products of layers, with norms, sums and gates around them.
    Products,
    /// Those and attention.
    Layers,
    /// Attention alone.
    Attention,
    /// The whole first layer.
    First,
    /// Nothing, until a test adds segments.
    Nothing,
}

const CPU: DeviceId = DeviceId(0);
pub const NPU: DeviceId = DeviceId(1);

fn place(share: Share, node: &Node) -> DeviceId {
    let attends = match node.op {
        Op::Rope { .. } | Op::KvWrite { .. } | Op::Attention(_) => true,
        Op::RmsNorm { groups, .. } => groups > 1,
        _ => false,
    };
    let on_npu = node.layer.is_some()
        && match share {
            Share::Products => !attends,
            Share::Layers => true,
            Share::Attention => attends,
            Share::First => node.layer == Some(0),
            Share::Nothing => false,
        };
    if on_npu { NPU } else { CPU }
}

/// Options of small plans.
pub fn plan_options() -> PlanOptions {
    PlanOptions {
        numeric: Numeric::Exact,
        kv_type: None,
        max_rows: 256,
        max_logit_rows: 64,
        context: 256,
        sequences: 2,
        kv_bytes: None,
        fusion: true,
        reproducible: false,
    }
}

/// A plan with the NPU as its second device.
pub fn plan(graph: Graph, share: Share, npu: &NpuDevice, options: PlanOptions) -> Arc<Plan> {
    let nodes = graph.nodes.iter().map(|node| place(share, node)).collect();
    let placement = Placement { devices: vec![CpuDevice::spec(), npu.spec()], nodes };
    let context = graph.context.min(options.context);
    Arc::new(Plan::new(graph, PlanOptions { context, ..options }, placement).unwrap())
}

/// A plan on the processor alone, exact.
pub fn reference(graph: Graph, source: &dyn TensorSource, options: PlanOptions) -> Player {
    let placement = Placement::single(&graph, CpuDevice::spec());
    let context = graph.context.min(options.context);
    let plan = Arc::new(Plan::new(graph, PlanOptions { context, ..options }, placement).unwrap());
    Player::new(plan, &[Arc::new(cpu())], source).unwrap()
}

fn cpu() -> CpuDevice {
    CpuDevice { options: CpuOptions::bare(Level::best(), 1) }
}

/// Plays a plan as the executor does, and kernel by kernel.
pub struct Player {
    pub plan: Arc<Plan>,
    pub recordings: Vec<Box<dyn Recording>>,
    slot: usize,
}

impl Player {
    /// Records the plan; the NPU, if any, is the second device.
    pub fn with_npu(
        plan: Arc<Plan>,
        npu: Arc<NpuDevice>,
        source: &dyn TensorSource,
    ) -> Result<Player, DeviceError> {
        Player::new(plan, &[Arc::new(cpu()), npu], source)
    }

    fn new(
        plan: Arc<Plan>,
        devices: &[Arc<dyn Device>],
        source: &dyn TensorSource,
    ) -> Result<Player, DeviceError> {
        let record = |id: DeviceId| devices[id.0].record(&plan, id, source, &mut |_, _| ());
        let recordings = plan.device_ids().map(record).collect::<Result<Vec<_>, _>>()?;
        let mut player = Player { plan, recordings, slot: 0 };
        player.map_pages();
        Ok(player)
    }

    /// Gives sequences pages that are interleaved.
    fn map_pages(&mut self) {
        let entries = self.plan.options.context.div_ceil(PAGE_TOKENS);
        let sequences = self.plan.options.sequences;
        for (group, &pages) in self.plan.kv_pages.iter().enumerate() {
            for index in 0..entries.min(pages / sequences) {
                for sequence in 0..sequences {
                    let page = (index * sequences + sequence) as u32;
                    for recording in &mut self.recordings {
                        recording.map_page(group, sequence, index, page);
                    }
                }
            }
        }
    }

    /// Plays a step and returns its logits.
    pub fn play(&mut self, step: &Step) -> Result<Vec<f32>, DeviceError> {
        let (plan, slot) = (self.plan.clone(), self.slot);
        self.slot = (slot + 1) % 2;
        for (index, segment) in plan.segments.iter().enumerate() {
            if plan.is_idle(index, step) {
                continue;
            }
            for transfer in &segment.receives {
                let from = plan.segments[transfer.from].device;
                let spec = plan.graph.tensor(transfer.tensor);
                let mut rows = vec![0.0; plan.rows(transfer.tensor, step) * spec.width];
                self.recordings[from.0].wait(slot, WAIT_LIMIT)?;
                self.recordings[from.0].export(slot, transfer.tensor, &mut rows)?;
                self.recordings[segment.device.0].import(slot, transfer.tensor, &rows)?;
            }
            self.recordings[segment.device.0].submit(index, slot, step, LogitsTo::Host)?;
        }
        for recording in &mut self.recordings {
            recording.wait(slot, WAIT_LIMIT)?;
        }
        let head = &mut self.recordings[plan.head_device().0];
        Ok((0..step.logits.len()).flat_map(|index| head.logits(slot, index).to_vec()).collect())
    }

    /// Makes ready to play the kernels of a step one by one.
    pub fn begin(&mut self, step: &Step) {
        self.recordings.iter_mut().for_each(|recording| recording.begin(step).unwrap());
    }

    /// Plays a kernel by itself, with what it receives of other devices.
    pub fn play_op(&mut self, op: usize, step: &Step) {
        let plan = self.plan.clone();
        let device = plan.ops[op].device;
        if let Some(segment) = plan.segments.iter().find(|segment| segment.ops.start == op) {
            for transfer in &segment.receives {
                let from = plan.segments[transfer.from].device;
                let rows = plan.rows(transfer.tensor, step);
                let values = self.recordings[from.0].read_tensor(transfer.tensor, rows).unwrap();
                self.recordings[device.0].write_tensor(transfer.tensor, &values).unwrap();
            }
        }
        self.recordings[device.0].play_op(op, step).unwrap();
    }

    /// The first rows of a tensor on the NPU.
    pub fn read(&mut self, tensor: TensorId, rows: usize) -> Vec<f32> {
        self.npu_mut().read_tensor(tensor, rows).unwrap()
    }

    fn npu_mut(&mut self) -> &mut NpuRecording {
        self.recordings[NPU.0].as_any_mut().downcast_mut().expect("the NPU's recording")
    }

    pub fn counters(&self) -> NpuCounters {
        let recording: Option<&NpuRecording> = self.recordings[NPU.0].as_any().downcast_ref();
        recording.expect("the NPU's recording").counters()
    }
}

/// Rows of one sequence; the last `logits` of them want logits.
pub fn step(tokens: &[u32], sequence: u32, first: u32, logits: usize) -> Step {
    let mut step = Step::default();
    for (index, &token) in tokens.iter().enumerate() {
        step.push(token, sequence, first + index as u32, index + logits >= tokens.len());
    }
    step
}

/// Keys and values in f16.
pub fn half_pages(options: PlanOptions) -> PlanOptions {
    PlanOptions { kv_type: Some(KvType::F16), ..options }
}
