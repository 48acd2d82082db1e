//! Every kernel of small random models against the reference: all weight types, all instruction
//! sets, ragged shapes, both numeric modes, chunked and mixed steps.

use pianola_cpu::{CheckReport, CpuOptions, CpuRecording, Level};
use pianola_formats::TensorType;
use pianola_model::{Architecture, Config, Dialect, RandomWeights, RopeConfig, RopeScaling};
use pianola_plan::{
    Activation, DeviceKind, Numeric, PAGE_TOKENS, Plan, PlanOptions, Recording, RopePairing, Step,
};
use proptest::prelude::*;

/// What a random model may vary in.
#[derive(Clone, Debug)]
struct Case {
    gemma: bool,
    pairing: RopePairing,
    hidden: usize,
    feed_forward: usize,
    vocabulary: usize,
    kv_heads: usize,
    group: usize,
    head_dim: usize,
    window: Option<usize>,
    caps: bool,
    biases: bool,
    ty: TensorType,
    numeric: Numeric,
    threads: usize,
    seed: u64,
}

fn config(case: &Case) -> Config {
    Config {
        architecture: if case.gemma { Architecture::Gemma3 } else { Architecture::Llama },
        dialect: Dialect::Gguf,
        prefix: String::new(),
        name: None,
        context: 512,
        vocabulary: case.vocabulary,
        hidden: case.hidden,
        feed_forward: case.feed_forward,
        layers: 2,
        heads: case.kv_heads * case.group,
        kv_heads: case.kv_heads,
        head_dim: case.head_dim,
        epsilon: 1e-6,
        activation: if case.gemma { Activation::GeluTanh } else { Activation::Silu },
        attention_scale: 1.0 / (case.head_dim as f32).sqrt(),
        rope: RopeConfig { base: 10_000.0, scaling: RopeScaling::None },
        window_rope: None,
        pairing: case.pairing,
        windows: vec![case.window, None],
        attention_soft_cap: case.caps.then_some(20.0),
        final_soft_cap: case.caps.then_some(30.0),
        tied: case.gemma,
        attention_bias: case.biases,
        output_bias: case.biases,
        feed_forward_bias: case.biases,
    }
}

fn record(case: &Case, level: Level) -> CpuRecording {
    let config = config(case);
    // What is no whole number of blocks stays in f32, as a converter would leave it.
    let weights = RandomWeights::new(&config, case.seed, |_, _, columns| {
        if columns % case.ty.block_len() == 0 { case.ty } else { TensorType::F32 }
    });
    let graph = pianola_model::graph(&config, &weights, None).unwrap();
    let options = PlanOptions {
        device: DeviceKind::Cpu,
        numeric: case.numeric,
        max_rows: 64,
        max_logit_rows: 8,
        context: 512,
        sequences: 2,
    };
    let plan = Plan::new(graph, options).unwrap();
    let cpu = CpuOptions { level, threads: case.threads };
    let mut recording = CpuRecording::new(plan, &weights, cpu, &mut |_, _| ()).unwrap();
    // Two sequences whose pages are interleaved and not in order.
    for group in 0..recording.plan().graph.kv_groups.len() {
        let pages = recording.plan().kv_pages(group) as u32;
        for index in 0..(pages / 2).min(512 / PAGE_TOKENS as u32) {
            recording.map_page(group, 0, index as usize, pages - 1 - 2 * index);
            recording.map_page(group, 1, index as usize, pages - 2 - 2 * index);
        }
    }
    recording
}

/// Plays steps `(sequence, first position, rows)` together, kernel by kernel beside the reference.
fn check(
    recording: &mut CpuRecording,
    steps: &[&[(u32, u32, u32)]],
) -> Result<CheckReport, String> {
    let vocabulary = recording.plan().graph.vocabulary as u32;
    let mut worst = CheckReport::default();
    for runs in steps {
        let mut step = Step::default();
        for &(sequence, first, rows) in *runs {
            for position in first..first + rows {
                let token = (position * 31 + sequence * 17 + 5) % vocabulary;
                step.push(token, sequence, position, position + 1 == first + rows);
            }
        }
        recording.poison();
        let report = recording.check_step(&step).unwrap().map_err(|failure| failure.to_string())?;
        worst.kernels += report.kernels;
        worst.worst_share = worst.worst_share.max(report.worst_share);
    }
    Ok(worst)
}

fn case() -> impl Strategy<Value = Case> {
    let shape = (1usize..6, 1usize..10, 17usize..90, 1usize..4, 1usize..4);
    let heads = (prop::sample::select(vec![8, 16, 24, 32, 64]), prop::option::of(1usize..150));
    let flags = (any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>());
    let rest = (prop::sample::select(TensorType::ALL.to_vec()), 1usize..4, any::<u64>());
    (shape, heads, flags, rest).prop_map(|(shape, heads, flags, rest)| {
        let (ty, threads, seed) = rest;
        // Unquantised types need no whole blocks: odd widths for them.
        let unit = if ty.is_quantized() { ty.block_len() } else { 6 };
        Case {
            gemma: flags.0,
            pairing: if flags.1 { RopePairing::Halves } else { RopePairing::Adjacent },
            hidden: shape.0 * unit,
            feed_forward: shape.1 * 32,
            vocabulary: shape.2,
            kv_heads: shape.3,
            group: shape.4,
            head_dim: heads.0,
            window: heads.1,
            caps: flags.2,
            biases: flags.3,
            ty,
            numeric: if flags.4 { Numeric::Fast } else { Numeric::Exact },
            threads,
            seed,
        }
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, max_shrink_iters: 30, ..ProptestConfig::default() })]

    #[test]
    fn kernels_match_the_reference(case in case()) {
        for level in Level::ALL.into_iter().filter(|level| level.available() && *level != Level::Reference) {
            let mut recording = record(&case, level);
            let steps: [&[(u32, u32, u32)]; 4] = [
                &[(0, 0, 37)],
                &[(1, 0, 1)],
                // Ragged: a chunk of one sequence beside a single row of the other.
                &[(0, 37, 40), (1, 1, 1)],
                &[(1, 2, 9), (0, 77, 1)],
            ];
            if let Err(reason) = check(&mut recording, &steps) {
                prop_assert!(false, "{level}: {reason}");
            }
        }
    }
}

#[test]
fn every_type_on_every_level() {
    for &ty in TensorType::ALL {
        for level in
            Level::ALL.into_iter().filter(|level| level.available() && *level != Level::Reference)
        {
            let case = Case {
                gemma: true,
                pairing: RopePairing::Halves,
                hidden: 256,
                feed_forward: 512,
                vocabulary: 100,
                kv_heads: 2,
                group: 2,
                head_dim: 64,
                window: Some(20),
                caps: false,
                biases: false,
                ty,
                numeric: Numeric::Fast,
                threads: 2,
                seed: 3,
            };
            let report =
                check(&mut record(&case, level), &[&[(0, 0, 64)], &[(0, 64, 5)], &[(0, 69, 1)]]);
            let report = report.unwrap_or_else(|reason| panic!("{ty} on {level}: {reason}"));
            println!("{ty} {level}: worst error {:.0} % of its bound", 100.0 * report.worst_share);
        }
    }
}

/// A check that cannot fail proves nothing: a kernel that drops columns must be noticed.
#[test]
fn the_check_notices_a_wrong_kernel() {
    let case = Case {
        gemma: false,
        pairing: RopePairing::Adjacent,
        hidden: 64,
        feed_forward: 96,
        vocabulary: 40,
        kv_heads: 1,
        group: 2,
        head_dim: 16,
        window: None,
        caps: false,
        biases: false,
        ty: TensorType::Q4_0,
        numeric: Numeric::Fast,
        threads: 1,
        seed: 1,
    };
    let mut recording = record(&case, Level::best());
    let mut step = Step::default();
    step.push(3, 0, 0, true);
    recording.break_kernel();
    let failure = recording.check_step(&step).unwrap().unwrap_err();
    println!("noticed: {failure}");
}
