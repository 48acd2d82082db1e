//! Measurements: what is played behind a context, what its ceiling counts, what is said of the time.

use crate::support::tiny::tiny_config;
use pianola_engine::{BenchOptions, BenchRow, Engine, EngineError, LoadOptions, bench};
use pianola_formats::TensorType;
use pianola_plan::Ceilings;

const OPTIONS: BenchOptions = BenchOptions {
    prompt: 40,
    generate: 8,
    repeat: 2,
    warm_up: BenchOptions::WARM_UP,
    lanes: Vec::new(),
    mixed: false,
    depths: Vec::new(),
};

/// As if every device read one byte and computed without end: ceilings are those of the bytes.
fn bytes_only(engine: &Engine) -> Option<Vec<Ceilings>> {
    let ceilings = Ceilings { bytes_per_second: 1e6, operations_per_second: 1e18 };
    Some(vec![ceilings; engine.devices().len()])
}

fn engine(lanes: usize) -> Engine {
    let options = LoadOptions { lanes, context: Some(512), ..LoadOptions::default() };
    let name = "tiny".to_string();
    Engine::random_of(name, tiny_config(), TensorType::Q8_0, options, &mut |_, _| ()).unwrap()
}

fn run(engine: &mut Engine, options: &BenchOptions) -> Vec<BenchRow> {
    bench(engine, options, &mut bytes_only, &mut |_, _| ()).unwrap().0
}

fn names(rows: &[BenchRow]) -> Vec<String> {
    rows.iter().map(|row| row.test.to_string()).collect()
}

#[test]
fn a_ceiling_counts_the_keys_and_values_of_its_depth() {
    let mut engine = engine(1);
    let options = BenchOptions { prompt: 0, depths: vec![0, 64, 256], ..OPTIONS };
    let rows = run(&mut engine, &options);
    assert_eq!(names(&rows), ["tg8", "tg8 @ d64", "tg8 @ d256"]);
    // Seconds of a token at a megabyte a second are megabytes.
    let megabytes: Vec<f64> = rows.iter().map(|row| 1.0 / row.ceiling).collect();
    for (row, megabytes) in rows.iter().zip(&megabytes) {
        let bytes = row.bytes_per_token.expect("one token a play");
        assert!((bytes / 1e6 / megabytes - 1.0).abs() < 1e-6, "{bytes} bytes, {megabytes} MB");
    }
    // Each group of layers keeps a token's keys and values, up to its window.
    let plan = engine.plan();
    let kept = |depth: usize| -> f64 {
        let seen = |cost: &pianola_plan::Cost| cost.window.map_or(depth, |w| w.min(depth));
        plan.ops.iter().map(|op| (seen(&op.cost) as u64 * op.cost.kv_token_bytes) as f64).sum()
    };
    for (row, depth) in [(1, 64), (2, 256)] {
        let found = 1e6 * (megabytes[row] - megabytes[0]);
        // The test behind nothing begins behind one token.
        let expected = kept(depth + 4) - kept(5);
        assert!((found / expected - 1.0).abs() < 0.02, "depth {depth}: {found} of {expected}");
    }
}

#[test]
fn prompts_of_lanes_go_on_from_their_context() {
    const LANES: usize = 3;
    const DEPTH: usize = 128;
    let mut engine = engine(LANES);
    let options = BenchOptions { lanes: vec![LANES], depths: vec![DEPTH], ..OPTIONS };
    let before = engine.counters();
    let rows = run(&mut engine, &options);
    assert_eq!(names(&rows), ["pp40 x 3 @ d128", "tg8 x 3 @ d128", "pp40+tg8 x 3 @ d128"]);
    // All prompts are one step, so that nothing is generated beside them: both take as long as one after the other.
    for repetition in 0..options.repeat {
        let speed = |row: usize| rows[row].repetitions[repetition].tokens_per_second;
        let [prompted, generated] = [options.prompt, options.generate].map(|n| (n * LANES) as f64);
        let expected = (prompted + generated) / (prompted / speed(0) + generated / speed(1));
        assert!((speed(2) / expected - 1.0).abs() < 1e-6, "{} of {expected}", speed(2));
    }
    let after = engine.counters();
    let rounds = rows[0].warm_up.rounds + options.repeat;
    let cached = (after.cached_tokens - before.cached_tokens) as usize;
    assert_eq!(cached, rounds * LANES * DEPTH, "the context is there before the clock starts");
    let prompted = (after.prompt_tokens - before.prompt_tokens) as usize;
    assert_eq!(prompted, rounds * LANES * (DEPTH + DEPTH + options.prompt));
}

#[test]
fn rounds_before_the_repetitions_are_counted_and_busy_is_theirs() {
    let mut engine = engine(1);
    let rows = run(&mut engine, &BenchOptions { depths: vec![0], ..OPTIONS });
    assert_eq!(names(&rows), ["pp40", "tg8"]);
    for row in &rows {
        assert!((2..=10).contains(&row.warm_up.rounds), "{:?}", row.warm_up);
        assert_eq!(row.repetitions.len(), OPTIONS.repeat);
        let busy = row.busy.expect("workers count their time");
        assert!(busy > 0.0 && busy <= 1.0, "{busy}");
        // A share of a step, which is tokens long for a prompt and one for a token.
        let tokens = row.test.tokens as f64 / if row.test.tokens == 8 { 8.0 } else { 1.0 };
        let step = 1e6 * tokens / row.tokens_per_second;
        assert!(row.host_microseconds > 0.0 && row.host_microseconds < step, "{row:?}");
    }
}

#[test]
fn a_depth_beyond_the_context_is_refused() {
    let options = BenchOptions { depths: vec![0, 480], ..OPTIONS };
    let failure = bench(&mut engine(1), &options, &mut bytes_only, &mut |_, _| ());
    assert!(matches!(failure, Err(EngineError::ContextLength { needed: 520, .. })));
}
