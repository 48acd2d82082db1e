//! Models whose products the emulated NPU computes, kernel by kernel against plain computations within
//! bounds that follow from the types, and as a whole against the processor's exact mode.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crate::common::placed::{
    Folder, NPU, Player, Share, half_pages, matmul_bf16, matmul_i8, plan, plan_options, reference,
    step,
};
use pianola_formats::{TensorSource, npy};
use pianola_model::ModelFile;
use pianola_npu::package::Operation;
use pianola_npu::placed::{NpuDevice, NpuOptions, OpenError, Precision};
use pianola_plan::{
    Activation, AllocationKind, Device, DeviceError, FusedNorm, Graph, Kernel, KvType, LogitsTo,
    Plan, PlanOptions, Project, Step, WAIT_LIMIT, WeightId, WeightShape, WeightSpec,
};

fn folder(case: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden").join(case)
}

/// A golden model with its tokens.
struct Golden {
    file: ModelFile,
    tokens: Vec<u32>,
}

impl Golden {
    fn new(case: &str) -> Golden {
        let file = ModelFile::open(&folder(case)).unwrap();
        Golden { file, tokens: npy::read_tokens(folder(case).join("tokens.npy")).unwrap() }
    }

    fn graph(&self) -> Graph {
        pianola_model::graph(&self.file.config().unwrap(), self.file.source(), None).unwrap()
    }

    fn source(&self) -> &dyn TensorSource {
        self.file.source()
    }

    fn step(&self) -> Step {
        step(&self.tokens, 0, 0, 1)
    }

    fn player(&self, npu: &Arc<NpuDevice>, share: Share, options: PlanOptions) -> Player {
        let plan = plan(self.graph(), share, npu, options);
        Player::with_npu(plan, npu.clone(), self.source()).unwrap()
    }
}

fn device(options: NpuOptions) -> Arc<NpuDevice> {
    Arc::new(NpuDevice::emulated(options).unwrap())
}

/// The unit of bf16's rounding: 8 significant bits, to the nearest.
const BF16: f64 = 1.0 / 256.0;
/// What norms, rotations and sums in f32 add, relative to the magnitudes that are summed.
const F32: f64 = 1e-5;

/// A value with what it may be off by.
#[derive(Clone, Copy)]
struct Bounded {
    value: f64,
    bound: f64,
}

/// How inputs and weights are rounded.
#[derive(Clone, Copy)]
struct Rounding {
    precision: Precision,
    piece: usize,
    rotation: bool,
}

/// Rows in the coordinates in which they are rounded.
fn rotated(x: &[f64], rounding: Rounding) -> Vec<f64> {
    let mut block = 1;
    while block < 128 && x.len().is_multiple_of(2 * block) {
        block *= 2;
    }
    if rounding.precision == Precision::Bf16 || !rounding.rotation {
        return x.to_vec();
    }
    let sign = |row: usize, column: usize| {
        if (row & column).count_ones().is_multiple_of(2) { 1.0 } else { -1.0 }
    };
    let scale = 1.0 / (block as f64).sqrt();
    let rotate = |x: &[f64]| -> Vec<f64> {
        (0..block)
            .map(|row| scale * x.iter().enumerate().map(|(at, x)| sign(row, at) * x).sum::<f64>())
            .collect()
    };
    x.chunks_exact(block).flat_map(rotate).collect()
}

/// `x . w` with its bound.
///
/// bf16: x (1 + e) w (1 + f) with |e|, |f| <= 2^-8 is off by at most (2^-7 + 2^-16) |x w|. Sums of K
/// terms in f32 add K 2^-24 of the magnitudes.
///
/// int8: within a piece, a code is off by at most half, so that x is off by s / 2 and w by t / 2, where
/// s and t are their scales: a term by |x| t / 2 + |w| s / 2 + s t / 4. A rotation changes x and w and
/// not their product. Scales and the rotation in f32 are good to some 1e-6 of the largest value of a
/// piece, which is a thousandth of the half step.
fn product(x: &[f64], w: &[f64], rounding: Rounding) -> Bounded {
    let value = x.iter().zip(w).map(|(x, w)| x * w).sum();
    let magnitude: f64 = x.iter().zip(w).map(|(x, w)| (x * w).abs()).sum();
    let sums = (F32 + x.len() as f64 / f64::from(1 << 24)) * magnitude;
    let bound = match rounding.precision {
        Precision::Bf16 => (2.0 * BF16 + BF16 * BF16) * magnitude,
        Precision::Int8Pieces => {
            let scale = |x: &[f64]| x.iter().fold(0.0f64, |most, x| most.max(x.abs())) / 127.0;
            let piece = |(x, w): (&[f64], &[f64])| {
                let (s, t) = (scale(x), scale(w));
                let term = |(x, w): (&f64, &f64)| (x.abs() * t + w.abs() * s + s * t / 2.0) / 2.0;
                x.iter().zip(w).map(term).sum::<f64>()
            };
            let (x, w) = (rotated(x, rounding), rotated(w, rounding));
            let pieces = x.chunks(rounding.piece).zip(w.chunks(rounding.piece));
            1.001 * pieces.map(piece).sum::<f64>()
        }
    };
    Bounded { value, bound: bound + sums }
}

/// Weights of a model in f64, by their ids.
struct Plain<'a> {
    plan: Arc<Plan>,
    source: &'a dyn TensorSource,
}

impl Plain<'_> {
    fn vector(&self, id: WeightId) -> Vec<f64> {
        let values = self.plan.graph.weight(id).fetch_vector(self.source).unwrap();
        values.into_iter().map(f64::from).collect()
    }

    fn rows(&self, id: WeightId, columns: usize) -> Vec<Vec<f64>> {
        let values = self.plan.graph.weight(id).fetch(self.source).unwrap().to_f32();
        let row = |row: &[f32]| row.iter().map(|&w| f64::from(w)).collect();
        values.chunks_exact(columns).map(row).collect()
    }

    fn norm(&self, x: &mut [f64], norm: FusedNorm) {
        let mean = x.iter().map(|x| x * x).sum::<f64>() / x.len() as f64;
        let factor = 1.0 / (mean + f64::from(norm.epsilon)).sqrt();
        x.iter_mut().zip(self.vector(norm.weight)).for_each(|(x, w)| *x *= factor * w);
    }

    /// A product's input, from what the recording had before it.
    fn input(&self, project: &Project, player: &mut Player, rows: usize) -> Vec<Vec<f64>> {
        let mut read = |tensor| -> Vec<Vec<f64>> {
            let width = self.plan.graph.tensor(tensor).width;
            let values = player.read(tensor, rows);
            let row = |row: &[f32]| row.iter().map(|&x| f64::from(x)).collect();
            values.chunks_exact(width).map(row).collect()
        };
        let mut x = match project.residual {
            None => read(project.input),
            Some(residual) => {
                let (base, mut delta) = (read(residual.base), read(residual.delta));
                for (delta, base) in delta.iter_mut().zip(base) {
                    if let Some(norm) = residual.norm {
                        self.norm(delta, norm);
                    }
                    delta.iter_mut().zip(base).for_each(|(delta, base)| *delta += base);
                }
                delta
            }
        };
        if let Some(norm) = project.norm {
            x.iter_mut().for_each(|x| self.norm(x, norm));
        }
        x
    }

    /// What a part alone gives for a row.
    fn part(&self, project: &Project, part: usize, x: &[f64], rounding: Rounding) -> Vec<Bounded> {
        let part = project.parts[part];
        let bias = part.bias.map(|id| self.vector(id));
        let weights = self.rows(part.weight, x.len());
        let output = |(index, w): (usize, &Vec<f64>)| {
            let mut sum = product(x, w, rounding);
            sum.value += bias.as_ref().map_or(0.0, |bias| bias[index]);
            sum
        };
        weights.iter().enumerate().map(output).collect()
    }
}

/// A gate of values that may be off: slopes of both activations stay under 1.13.
fn gated(gate: Bounded, up: Bounded, activation: Activation) -> Bounded {
    let x = gate.value;
    let active = match activation {
        Activation::Silu => x / (1.0 + (-x).exp()),
        Activation::GeluTanh => {
            let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x);
            0.5 * x * (1.0 + inner.tanh())
        }
    };
    let off = 1.13 * gate.bound;
    let bound = off * (up.value.abs() + up.bound) + (active.abs() + off) * up.bound;
    let value = active * up.value;
    Bounded { value, bound: bound + F32 * (value.abs() + up.value.abs()) }
}

/// Plays a step kernel by kernel; the largest error of the NPU's products as a share of the bound, and
/// the relative error of all of them together.
fn check_products(player: &mut Player, plain: &Plain<'_>, rounding: Rounding) -> (f64, f64) {
    let plan = player.plan.clone();
    let tokens: Vec<u32> = (0..20).map(|at| (at * 37 + 5) % plan.graph.vocabulary as u32).collect();
    let step = step(&tokens, 1, 0, 1);
    let (mut worst, mut errors, mut values) = (0.0f64, 0.0, 0.0);
    player.begin(&step);
    for (index, op) in plan.ops.iter().enumerate() {
        let Kernel::Project(project) = &op.kernel else {
            player.play_op(index, &step);
            continue;
        };
        if op.device != NPU {
            player.play_op(index, &step);
            continue;
        }
        player.play_op(index, &step);
        let rows = step.rows.len();
        let inputs = plain.input(project, player, rows);
        let outputs: Vec<_> = match project.gate {
            Some((_, output)) => vec![output],
            None => project.parts.iter().map(|part| part.output).collect(),
        };
        for (part, output) in outputs.into_iter().enumerate() {
            let found = player.read(output, rows);
            let width = plan.graph.tensor(output).width;
            for row in [0, 7, rows - 1] {
                let x = &inputs[row];
                let mut expected = plain.part(project, part, x, rounding);
                if let Some((activation, _)) = project.gate {
                    let up = plain.part(project, 1, x, rounding);
                    for (gate, up) in expected.iter_mut().zip(up) {
                        *gate = gated(*gate, up, activation);
                    }
                }
                let found = &found[row * width..(row + 1) * width];
                assert_eq!(found.len(), expected.len());
                for (&found, expected) in found.iter().zip(expected) {
                    let error = (f64::from(found) - expected.value).abs();
                    assert!(
                        error <= expected.bound,
                        "{}: {found} for {} within {}",
                        op.name,
                        expected.value,
                        expected.bound
                    );
                    worst = worst.max(error / expected.bound);
                    errors += error * error;
                    values += expected.value * expected.value;
                }
            }
        }
    }
    (worst, (errors / values).sqrt())
}

#[test]
fn products_stay_within_the_bounds_of_their_types() {
    let forms = [
        (
            "bf16",
            matmul_bf16(32),
            Rounding { precision: Precision::Bf16, piece: 0, rotation: false },
        ),
        (
            "int8",
            matmul_i8(64),
            Rounding { precision: Precision::Int8Pieces, piece: 64, rotation: false },
        ),
        (
            "int8 rotated",
            matmul_i8(32),
            Rounding { precision: Precision::Int8Pieces, piece: 32, rotation: true },
        ),
    ];
    for (name, operation, rounding) in forms {
        let kernels = Folder::new(&[operation]);
        let options = NpuOptions { rotation: rounding.rotation, ..kernels.options() };
        let npu = device(options);
        // Norms after products, biases, a gate of another activation.
        for case in ["gemma3", "llama-bias", "qwen3"] {
            let golden = Golden::new(case);
            let mut player = golden.player(&npu, Share::Products, plan_options());
            let plain = Plain { plan: player.plan.clone(), source: golden.source() };
            let (worst, relative) = check_products(&mut player, &plain, rounding);
            println!("{case}, {name}: {worst:.2} of the bound, relative error {relative:.5}");
            assert!(worst > 0.02, "a bound that nothing comes near shows nothing");
            assert_eq!(player.counters().on_host, 0);
            assert!(player.counters().on_device > 0);
        }
    }
}

/// The largest difference, as a part of the range of the expected values.
fn difference(found: &[f32], expected: &[f32]) -> f32 {
    assert_eq!(found.len(), expected.len());
    assert!(found.iter().all(|logit| logit.is_finite()));
    let most = expected.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let least = expected.iter().copied().fold(f32::INFINITY, f32::min);
    let error = found.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    error / (most - least)
}

/// The relative error of a product whose inputs and weights are rounded alike, by chance. bf16: uniform
/// within a unit of 2^-8, so 2^-8 / sqrt(3) for each of both. int8: uniform within half a step, so
/// s / sqrt(12), with the largest of a piece at three deviations.
fn relative(precision: Precision) -> f32 {
    let each = match precision {
        Precision::Bf16 => 1.0 / 256.0 / 3f32.sqrt(),
        Precision::Int8Pieces => 3.0 / 127.0 / 12f32.sqrt(),
    };
    2f32.sqrt() * each
}

/// As a whole: errors of a model's products add up by chance, each bringing its relative error; twice that
/// is allowed. (Kernels are held to their own bounds above. A tensor that is passed on wrongly would be
/// off by the range itself.) Attention is two products, of bf16.
#[test]
fn whole_models_are_near_the_exact_ones() {
    let kernels = Folder::new(&[matmul_i8(64), matmul_bf16(64)]);
    for precision in [Precision::Bf16, Precision::Int8Pieces] {
        let npu = device(NpuOptions { precision: Some(precision), ..kernels.options() });
        for case in ["gemma2", "gemma3", "mistral", "phi3-short", "qwen2-window", "qwen3"] {
            let golden = Golden::new(case);
            let mut exact = reference(golden.graph(), golden.source(), plan_options());
            let expected = exact.play(&golden.step()).unwrap();
            let shares = [
                (Share::Products, 4.0, 0.0),
                (Share::Layers, 4.0, 2.0),
                (Share::Attention, 0.0, 2.0),
            ];
            for (share, products, attentions) in shares {
                let mut player = golden.player(&npu, share, plan_options());
                let found = player.play(&golden.step()).unwrap();
                let off = difference(&found, &expected);
                println!("{case}, {precision}, {share:?}: {off:.4} of the range");
                let layers = player.plan.layers() as f32;
                let variance = products * relative(precision).powi(2)
                    + attentions * relative(Precision::Bf16).powi(2);
                let limit = 2.0 * (layers * variance).sqrt();
                assert!(off < limit, "{case}, {precision}, {share:?}: {off} of {limit}");
            }
        }
    }
}

/// A row's bits do not depend on what else is in its step: chunks of a prompt, single tokens, two
/// sequences in turn.
#[test]
fn steps_of_any_form_give_the_same() {
    let kernels = Folder::new(&[matmul_i8(64)]);
    let npu = device(kernels.options());
    let golden = Golden::new("gemma3");
    let tokens = &golden.tokens;
    for options in [plan_options(), half_pages(plan_options())] {
        let mut whole = golden.player(&npu, Share::Layers, options);
        let expected = whole.play(&golden.step()).unwrap();
        let mut player = golden.player(&npu, Share::Layers, options);
        let mut found = Vec::new();
        let cut = tokens.len() - 3;
        for sequence in 0..2 {
            found = player.play(&step(&tokens[..cut], sequence, 0, 0)).unwrap();
            assert!(found.is_empty());
        }
        for at in cut..tokens.len() {
            let mut both = step(&tokens[at..=at], 0, at as u32, 1);
            both.push(tokens[at], 1, at as u32, true);
            found = player.play(&both).unwrap();
        }
        let (first, second) = found.split_at(expected.len());
        assert_eq!((first, second), (&expected[..], &expected[..]));
    }
}

/// A plan may list kernels of another device in further segments: they are the NPU's, too, fused as the
/// other device has them, the head with its selection of rows included.
#[test]
fn kernels_of_another_device_are_played_where_a_segment_says_so() {
    let kernels = Folder::new(&[matmul_bf16(64)]);
    let npu = device(kernels.options());
    let golden = Golden::new("gemma3");
    let mut plan = Arc::unwrap_or_clone(plan(golden.graph(), Share::Nothing, &npu, plan_options()));
    let products: Vec<usize> = (0..plan.ops.len())
        .filter(|&op| matches!(plan.ops[op].kernel, Kernel::Project(_)))
        .collect();
    let first = plan.segments.len();
    for &op in &products {
        let mut segment = plan.segments[0].clone();
        (segment.device, segment.ops) = (NPU, op..op + 1);
        plan.segments.push(segment);
    }
    let mut player = Player::with_npu(Arc::new(plan), npu, golden.source()).unwrap();
    let plan = player.plan.clone();
    let step = step(&golden.tokens, 0, 0, 3);
    player.begin(&step);
    for (op, kernel) in plan.ops.iter().enumerate() {
        player.recordings[0].play_op(op, &step).unwrap();
        let Kernel::Project(project) = &kernel.kernel else { continue };
        let index = products.iter().position(|&product| product == op).unwrap();
        let inputs = match project.residual {
            Some(residual) => vec![residual.base, residual.delta],
            None => vec![project.input],
        };
        for tensor in inputs {
            let rows = player.recordings[0].read_tensor(tensor, plan.rows(tensor, &step)).unwrap();
            player.recordings[NPU.0].import(1, tensor, &rows).unwrap();
        }
        player.recordings[NPU.0].submit(first + index, 1, &step, LogitsTo::Host).unwrap();
        player.recordings[NPU.0].wait(1, WAIT_LIMIT).unwrap();
        let output = project.gate.map_or(project.parts[0].output, |gate| gate.1);
        let expected = player.recordings[0].read_tensor(output, plan.rows(output, &step)).unwrap();
        let mut found = vec![0.0; expected.len()];
        player.recordings[NPU.0].export(1, output, &mut found).unwrap();
        let off = difference(&found, &expected);
        assert!(off < 0.01, "{}: {off}", kernel.name);
        if project.select {
            let row = player.recordings[NPU.0].logits(1, 2).to_vec();
            assert_eq!(row, found[2 * row.len()..]);
        }
    }
    let selects = |op: &&usize| matches!(&plan.ops[**op].kernel, Kernel::Project(p) if p.select);
    assert_eq!(products.iter().filter(selects).count(), 1);
}

/// Without fusion every node is a kernel of its own.
#[test]
fn lone_operations_give_what_fused_ones_do() {
    let kernels = Folder::new(&[matmul_bf16(64)]);
    let npu = device(kernels.options());
    for case in ["gemma2", "llama-bias"] {
        let golden = Golden::new(case);
        let play = |fusion| {
            let options = PlanOptions { fusion, ..plan_options() };
            golden.player(&npu, Share::Layers, options).play(&golden.step()).unwrap()
        };
        let (fused, lone) = (play(true), play(false));
        assert!(difference(&lone, &fused) < 1e-3, "{case}");
    }
}

#[test]
fn what_the_npu_cannot_do_is_said() {
    let kernels = Folder::new(&[matmul_i8(64)]);
    let npu = device(kernels.options());
    let golden = Golden::new("gemma3");
    let options = PlanOptions { kv_type: Some(KvType::Q8), ..plan_options() };
    let plan_q8 = plan(golden.graph(), Share::Layers, &npu, options);
    let error = npu.record(&plan_q8, NPU, golden.source(), &mut |_, _| ()).err().unwrap();
    assert!(matches!(&error, DeviceError::Unsupported(_)), "{error}");
    assert!(error.to_string().contains("q8_0"), "{error}");
    // Products alone have nothing to do with keys and values.
    let products = plan(golden.graph(), Share::Products, &npu, options);
    npu.record(&products, NPU, golden.source(), &mut |_, _| ()).unwrap();
    assert!(npu.measure(options.numeric).is_none(), "a model has no speed");
    let name = npu.description();
    assert!(name.starts_with("npu (emulated)"), "{name}");
}

#[test]
fn the_copy_of_the_weights_is_counted() {
    let golden = Golden::new("gemma3");
    for (operation, bytes) in [(matmul_i8(64), 1.0..1.2), (matmul_bf16(64), 2.0..2.01)] {
        let kernels = Folder::new(&[operation]);
        let npu = device(kernels.options());
        let plan = plan(golden.graph(), Share::Layers, &npu, plan_options());
        let values: u64 = (0..plan.graph.weights.len())
            .filter(|&index| plan.reads(NPU, index))
            .map(|index| &plan.graph.weights[index])
            .filter(|spec| matches!(spec.shape, WeightShape::Matrix { .. }))
            .map(WeightSpec::elements)
            .sum();
        let weights = npu.weight_bytes(&plan, NPU);
        assert!(bytes.contains(&(weights as f64 / values as f64)), "{weights} of {values}");
        let all = npu.allocations(&plan, NPU).unwrap();
        let kind = |kind| all.iter().filter(move |item| item.kind == kind);
        let counted: u64 = kind(AllocationKind::Weights).map(|item| item.bytes).sum();
        assert!(counted >= weights && counted < weights + 4 * values / 10, "vectors, too");
        assert!(kind(AllocationKind::Weights).all(|item| item.layer.is_some()));
        assert_eq!(kind(AllocationKind::Kv).count(), plan.layers());
        assert!(npu.holds(&all));
    }
}

/// Packages that take turns cost a change of the array's configuration each time; one package costs none.
#[test]
fn changes_of_configuration_are_counted() {
    let golden = Golden::new("gemma3");
    let of = |operations: &[Operation], share: Share| {
        let kernels = Folder::new(operations);
        let npu = device(kernels.options());
        let plan = plan(golden.graph(), share, &npu, plan_options());
        (npu.switches(&plan, NPU), npu.remarks(&plan, NPU), plan.layers())
    };
    let (switches, remarks, _) = of(&[matmul_i8(64)], Share::Products);
    assert_eq!((switches.count, switches.time), (0, Duration::ZERO));
    assert_eq!(remarks.len(), 1, "{remarks:?}");
    assert!(remarks[0].contains("converts the weights of npu (emulated) at load"), "{remarks:?}");
    // Products of bytes, attention's of bf16: there and back in each layer.
    let (switches, remarks, layers) = of(&[matmul_i8(64), matmul_bf16(64)], Share::Layers);
    assert_eq!((switches.count, switches.rows), (2 * layers, 256));
    assert_eq!(switches.time, Duration::from_millis(4 * layers as u64));
    let words = format!("configuration {} times in a step of 256 rows", 2 * layers);
    assert!(remarks[0].contains(&words) && remarks[0].contains("2 ms each"), "{remarks:?}");
    // In bf16 one package does both, and without one the processor attends.
    assert_eq!(of(&[matmul_bf16(64)], Share::Layers).0.count, 0);
    assert_eq!(of(&[matmul_i8(64)], Share::Layers).0.count, 0);
}

/// Why packages cannot be used, with the way out.
#[test]
fn packages_that_cannot_be_used_are_named() {
    let kernels = Folder::new(&[matmul_bf16(64)]);
    let other = NpuOptions { kernels: kernels.path().join("nowhere"), ..kernels.options() };
    let Err(error) = NpuDevice::emulated(other) else { panic!("no packages") };
    assert!(matches!(error, OpenError::NoPackages { .. }));
    assert!(error.to_string().contains("docs/how-to/try-an-npu.md"), "{error}");
    let int8 = NpuOptions { precision: Some(Precision::Int8Pieces), ..kernels.options() };
    let Err(error) = NpuDevice::emulated(int8) else { panic!("bf16 only") };
    let error = error.to_string();
    assert!(error.contains("in int8") && error.contains("docs/how-to/try-an-npu.md"), "{error}");
    // A device that computes wrongly.
    let machine = kernels.machine(Default::default());
    machine.model().set_faults("wrong@1".parse().unwrap());
    let Err(error) = NpuDevice::emulated_by(kernels.options(), machine) else { panic!("wrong") };
    assert!(matches!(error, OpenError::NoneUsable { .. }));
    assert!(error.to_string().contains("kernel0") && error.to_string().contains("refused"));
    let both: [Operation; 3] = [matmul_i8(64), matmul_i8(32), matmul_bf16(64)];
    let kernels = Folder::new(&both);
    let facts = NpuDevice::emulated(kernels.options()).unwrap().facts();
    assert_eq!((facts.precision, &facts.products[0][..]), (Precision::Int8Pieces, "kernel0"));
    assert_eq!(facts.attention, ["kernel2"]);
    let plain = NpuDevice::emulated(NpuOptions { rotation: false, ..kernels.options() }).unwrap();
    assert_eq!(plain.facts().precision, Precision::Bf16, "int8 is chosen where it is rotated");
    assert_eq!((facts.configurations, facts.unused[0].package.as_str()), (2, "kernel1"));
}
