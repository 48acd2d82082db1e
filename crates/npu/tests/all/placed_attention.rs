//! Attention by a package of whole attentions, by products, and on the processor: each within what its
//! roundings allow of a plain computation.

use std::sync::Arc;

use crate::common::placed::{
    Folder, NPU, Player, Share, flash, matmul_bf16, matmul_i8, plan, plan_options, step,
};
use pianola_formats::TensorType;
use pianola_model::{Config, Dialect, Family, RandomWeights, RopeConfig, RopeScaling};
use pianola_npu::package::Operation;
use pianola_npu::placed::NpuDevice;
use pianola_plan::{Activation, Attend, AttentionSpec, Device, Kernel, RopePairing, Row, Step};

const HEADS: usize = 4;
const KV_HEADS: usize = 2;
const HEAD: usize = 64;

/// Two layers, the first with a window; grouped heads.
fn config(window: Option<usize>, cap: Option<f32>) -> Config {
    Config {
        family: Family::named("llama").unwrap(),
        dialect: Dialect::Gguf,
        prefix: String::new(),
        name: None,
        context: 512,
        vocabulary: 97,
        hidden: 64,
        feed_forward: 96,
        layers: 2,
        heads: HEADS,
        kv_heads: KV_HEADS,
        head_dim: HEAD,
        epsilon: 1e-6,
        activation: Activation::Silu,
        attention_scale: 1.5 / (HEAD as f32).sqrt(),
        rope: RopeConfig { base: 10_000.0, scaling: RopeScaling::None },
        window_rope: None,
        pairing: RopePairing::Adjacent,
        windows: vec![window, None],
        attention_soft_cap: cap,
        final_soft_cap: None,
        tied: false,
        attention_bias: false,
        output_bias: false,
        feed_forward_bias: false,
    }
}

fn player(operations: &[Operation], config: &Config) -> Player {
    let kernels = Folder::new(operations);
    let npu = Arc::new(NpuDevice::emulated(kernels.options()).unwrap());
    let weights = RandomWeights::new(config, 11, |_, _, _| TensorType::F32);
    let graph = pianola_model::graph(config, &weights, None).unwrap();
    let plan = plan(graph, Share::Attention, &npu, plan_options());
    Player::with_npu(plan, npu, &weights).unwrap()
}

fn rotated(x: &[f32], angles: &[f32]) -> Vec<f64> {
    let pairs = HEAD / 2;
    let mut out = vec![0.0; x.len()];
    for (at, pair) in x.chunks_exact(2).enumerate() {
        let (cosine, sine) = (f64::from(angles[at % pairs]), f64::from(angles[pairs + at % pairs]));
        let (a, b) = (f64::from(pair[0]), f64::from(pair[1]));
        out[2 * at] = a * cosine - b * sine;
        out[2 * at + 1] = b * cosine + a * sine;
    }
    out
}

/// What the device's ways round.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Way {
    Host,
    Products,
    Flash,
}

/// The unit of bf16's rounding to nearest, and to zero.
const NEAREST: f64 = 1.0 / 256.0;
const CUT: f64 = 1.0 / 128.0;

/// The error of a head's output as a part of the weighted magnitudes of the values, where scores have up
/// to `largest` and their products' magnitudes sum up to `magnitude`.
///
/// Products: q and k are rounded, so that a score is off by d = (2 u + u^2) magnitude; weights, relative to
/// their sum, by exp(2 d) and twice the rounding of weights to bf16; values by their own rounding.
///
/// Flash: the same for its inputs. Besides it keeps scores in bf16 cut off (`largest` steps), weights and
/// the running output, too, the latter converted once for 64 keys, and its exponentials come from a table
/// of 2^-6, as the package's self-test has it.
fn allowed(way: Way, largest: f64, magnitude: f64, keys: usize) -> f64 {
    let u = NEAREST;
    let off = (2.0 * u + u * u) * magnitude;
    let products = (2.0 * off).exp() * (1.0 + u).powi(2) / (1.0 - u) - 1.0;
    1e-4 + match way {
        Way::Host => 0.0,
        Way::Products => products,
        Way::Flash => products + (largest + 2.0 + keys as f64 / 64.0) * CUT + 1.0 / 64.0,
    }
}

/// The largest error of a step's rows as a share of what is allowed.
fn worst(player: &mut Player, attend: &Attend, step: &Step, way: Way) -> f64 {
    let rows = step.rows.len();
    let spec: AttentionSpec = attend.spec;
    let query = player.read(attend.query, rows);
    let angles = player.read(attend.rope.unwrap().1, rows);
    let found = player.read(attend.output, rows);
    let last = step.rows[rows - 1].position;
    let sequence = step.rows[0].sequence;
    let all: Vec<Row> =
        (0..=last).map(|position| Row { sequence, position, ..Row::default() }).collect();
    let [keys, values] = player.recordings[NPU.0].read_kv(spec.kv, &all).unwrap();
    let head_of = |all: &[f32], position: usize, head: usize| -> Vec<f64> {
        let at = (position * KV_HEADS + head) * HEAD;
        all[at..at + HEAD].iter().map(|&x| f64::from(x)).collect()
    };
    let mut worst = 0.0f64;
    for (row, at) in step.rows.iter().enumerate() {
        let position = at.position as usize;
        let first = spec.window.map_or(0, |window| (position + 1).saturating_sub(window));
        for head in 0..HEADS {
            let from = (row * HEADS + head) * HEAD;
            let q = rotated(&query[from..from + HEAD], &angles[row * HEAD..(row + 1) * HEAD]);
            let kv_head = head / (HEADS / KV_HEADS);
            let (mut scores, mut magnitude) = (Vec::new(), 0.0f64);
            for key in first..=position {
                let k = head_of(&keys, key, kv_head);
                let terms = || q.iter().zip(&k).map(|(q, k)| f64::from(spec.scale) * q * k);
                magnitude = magnitude.max(terms().map(f64::abs).sum());
                let score: f64 = terms().sum();
                let cap = spec.soft_cap.map(f64::from);
                scores.push(cap.map_or(score, |cap| cap * (score / cap).tanh()));
            }
            let most = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let total: f64 = scores.iter().map(|score| (score - most).exp()).sum();
            let largest = scores.iter().fold(0.0f64, |largest, score| largest.max(score.abs()));
            let (mut out, mut sums) = ([0.0; HEAD], [0.0; HEAD]);
            for (key, score) in (first..=position).zip(&scores) {
                let weight = (score - most).exp() / total;
                for (at, v) in head_of(&values, key, kv_head).into_iter().enumerate() {
                    out[at] += weight * v;
                    sums[at] += weight * v.abs();
                }
            }
            let part = allowed(way, largest, magnitude, position + 1);
            for at in 0..HEAD {
                let error = (f64::from(found[from + at]) - out[at]).abs();
                assert!(error.is_finite());
                worst = worst.max(error / (part * sums[at]));
            }
        }
    }
    worst
}

/// Plays steps kernel by kernel, each attention in the way that is expected of its layer.
fn check(player: &mut Player, steps: &[(Step, [Way; 2])]) {
    let plan = player.plan.clone();
    for (step, ways) in steps {
        let mut layer = 0;
        player.begin(step);
        for (index, op) in plan.ops.iter().enumerate() {
            player.play_op(index, step);
            let Kernel::Attend(attend) = &op.kernel else { continue };
            let way = ways[layer];
            layer += 1;
            let variants = player.recordings[NPU.0].variants(index, step).unwrap();
            let choices = match way {
                Way::Host => "processor",
                Way::Products => "matmul_bf16 (128x64x64)",
                Way::Flash => "flash, 256 keys",
            };
            assert_eq!(variants.len(), 1);
            assert_eq!(variants[0].choices, choices);
            let share = worst(player, attend, step, way);
            let (first, rows) = (step.rows[0].position, step.rows.len());
            println!("{rows} rows from {first}, layer {}: {way:?}, {share:.3}", layer - 1);
            assert!(share <= 1.0, "{way:?}: {share} of what is allowed");
        }
    }
    assert_eq!(player.counters().on_host, 0);
}

fn rows(sequence: u32, first: u32, count: u32) -> Step {
    let tokens: Vec<u32> = (first..first + count).map(|at| (at * 31 + sequence) % 97).collect();
    step(&tokens, sequence, first, 1)
}

#[test]
fn grouped_heads_by_every_way() {
    use Way::{Flash, Host, Products};
    let attention = flash(HEADS, KV_HEADS, HEAD);
    let all: [(&[Operation], Way); 3] = [
        (&[matmul_i8(64)], Host),
        (&[matmul_i8(64), matmul_bf16(64)], Products),
        (&[matmul_i8(64), matmul_bf16(64), attention], Flash),
    ];
    for (operations, way) in all {
        let mut player = player(operations, &config(None, None));
        // A prompt, its continuation, a few rows, a token; another sequence.
        let steps = [
            (rows(0, 0, 100), [way; 2]),
            (rows(0, 100, 60), [way; 2]),
            (rows(0, 160, 7), [Host; 2]),
            (rows(0, 167, 1), [Host; 2]),
            (rows(1, 0, 8), [way; 2]),
        ];
        check(&mut player, &steps);
        let npu = &player.recordings[NPU.0];
        assert_eq!(npu.statistics().submits, 0, "kernels were played one by one");
    }
}

/// A package of whole attentions has neither; products have both.
#[test]
fn windows_and_caps_are_applied_between_products() {
    use Way::{Flash, Host, Products};
    let operations = [matmul_bf16(64), flash(HEADS, KV_HEADS, HEAD)];
    let mut windowed = player(&operations, &config(Some(50), None));
    let steps = [
        // The window binds from position 50 on, in the first layer.
        (rows(0, 0, 50), [Flash, Flash]),
        (rows(0, 50, 90), [Products, Flash]),
        (rows(0, 140, 3), [Host, Host]),
        (rows(1, 0, 51), [Products, Flash]),
    ];
    check(&mut windowed, &steps);
    let mut capped = player(&operations, &config(Some(50), Some(2.0)));
    check(&mut capped, &[(rows(0, 0, 70), [Products; 2]), (rows(0, 70, 2), [Host; 2])]);
    // Other heads, other attention.
    let operations = [matmul_bf16(64), flash(2 * HEADS, KV_HEADS, HEAD)];
    check(&mut player(&operations, &config(None, None)), &[(rows(0, 0, 20), [Products; 2])]);
}

/// All kernel variants that steps launch are listed beforehand.
#[test]
fn variants_are_listed() {
    let kernels = Folder::new(&[matmul_i8(64), matmul_bf16(64), flash(HEADS, KV_HEADS, HEAD)]);
    let npu = Arc::new(NpuDevice::emulated(kernels.options()).unwrap());
    let config = config(Some(50), None);
    let weights = RandomWeights::new(&config, 11, |_, _, _| TensorType::F32);
    let graph = pianola_model::graph(&config, &weights, None).unwrap();
    let plan = plan(graph, Share::Layers, &npu, plan_options());
    let listed: Vec<String> =
        npu.variants(&plan, NPU).unwrap().iter().map(ToString::to_string).collect();
    assert_eq!(
        listed,
        [
            // The last layer's sum, whose reader is the processor's head.
            "add (processor)",
            "attention (flash, 256 keys)",
            "attention (matmul_bf16 (128x64x64))",
            "attention (processor)",
            "matmul_i8 (128x64x64)"
        ]
    );
}
