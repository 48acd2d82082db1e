//! A step that is given up half-way: soon, and as if it had never been begun.

use crate::support::gpu;
use pianola_cpu::CpuOptions;
use pianola_engine::{Answer, Engine, Finish, LoadOptions, Moment, Request};
use pianola_vulkan::VulkanOptions;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

fn load(gpus: Vec<VulkanOptions>) -> Engine {
    let folder = std::env::var_os("PIANOLA_TEST_MODELS")
        .expect("PIANOLA_TEST_MODELS is not set: run scripts/test, which fetches the models");
    let model = PathBuf::from(folder).join("smollm2.gguf");
    let cpu = CpuOptions { memory: Some(16 << 30), ..CpuOptions::default() };
    let devices = LoadOptions::devices(gpus, cpu);
    let options = LoadOptions { devices, context: Some(2048), ..LoadOptions::default() };
    Engine::load(&model, options, &mut |_, _| ()).unwrap()
}

/// A prompt that differs from those of other seeds from its first token on.
fn prompt(seed: usize, tokens: usize) -> Vec<u32> {
    (0..tokens).map(|index| 1000 + ((seed + index) * 7919 % 20_000) as u32).collect()
}

/// Some tokens behind a short prompt.
fn answer(engine: &mut Engine) -> Answer {
    let request = Request { max_tokens: Some(3), ignore_end: true, ..Request::new(prompt(0, 8)) };
    engine.generate(&request, &mut |_| ControlFlow::Continue(())).unwrap()
}

/// Time that a prompt of one chunk takes.
fn time_of_a_chunk(engine: &mut Engine, prompt: Vec<u32>) -> Duration {
    let request = Request { max_tokens: Some(1), ..Request::new(prompt) };
    let begun = Instant::now();
    engine.generate(&request, &mut |_| ControlFlow::Continue(())).unwrap();
    begun.elapsed()
}

/// Sets the flag while a prompt is processed, and returns how long the engine took to notice; none if
/// the prompt was done before.
fn interrupt(
    engine: &mut Engine,
    flag: &Arc<AtomicBool>,
    prompt: Vec<u32>,
    after: Duration,
) -> Option<Duration> {
    let timer = {
        let flag = flag.clone();
        std::thread::spawn(move || {
            std::thread::sleep(after);
            flag.store(true, Ordering::Relaxed);
            Instant::now()
        })
    };
    let given_up =
        engine.generate(&Request::new(prompt), &mut |_| ControlFlow::Continue(())).unwrap();
    let end = Instant::now();
    let set = timer.join().unwrap();
    flag.store(false, Ordering::Relaxed);
    engine.check_pages();
    let noticed = given_up.finish == Finish::Cancelled && given_up.tokens.is_empty();
    noticed.then(|| end.saturating_duration_since(set))
}

/// Gives prompts of one chunk up after this share of their time, until one took less than a quarter of
/// that time to be noticed: the machine may be busy. An engine that finishes what it has begun never does.
fn is_given_up_soon(
    engine: &mut Engine,
    flag: &Arc<AtomicBool>,
    tokens: usize,
    share: f64,
) -> bool {
    // No prompt twice, because what is kept of one takes no time.
    let first = (1000.0 * share) as usize * 40;
    (first..first + 40).step_by(2).any(|seed| {
        let chunk = time_of_a_chunk(engine, prompt(seed, tokens));
        let took = interrupt(engine, flag, prompt(seed + 1, tokens), chunk.mul_f64(share));
        println!("after {share} of {chunk:?}: {took:?}");
        took.is_some_and(|took| took < chunk / 4)
    })
}

#[test]
fn a_prompt_is_given_up_soon_and_leaves_nothing_wrong() {
    let expected = answer(&mut load(Vec::new())).tokens;
    let mut engine = load(Vec::new());
    let flag = Arc::new(AtomicBool::new(false));
    engine.set_interrupt(&flag);
    for share in [0.02, 0.2, 0.5] {
        assert!(is_given_up_soon(&mut engine, &flag, 512, share), "after {share} of a chunk");
        assert_eq!(answer(&mut engine).tokens, expected);
    }
    // What was processed before is kept, what was given up is computed again.
    let chunk = time_of_a_chunk(&mut engine, prompt(6, 512));
    interrupt(&mut engine, &flag, prompt(7, 1100), chunk.mul_f64(1.5));
    let whole = Request { max_tokens: Some(4), ..Request::new(prompt(7, 1100)) };
    let again = engine.generate(&whole, &mut |_| ControlFlow::Continue(())).unwrap();
    let fresh = load(Vec::new()).generate(&whole, &mut |_| ControlFlow::Continue(())).unwrap();
    assert_eq!(again.tokens, fresh.tokens);
}

#[test]
#[ignore = "takes a software driver most of a minute: scripts/acceptance runs it"]
fn a_gpu_is_not_waited_for() {
    let gpu = gpu::open();
    let on_gpu = || load(vec![VulkanOptions::new(gpu.clone())]);
    let expected = answer(&mut on_gpu()).tokens;
    let mut engine = on_gpu();
    let flag = Arc::new(AtomicBool::new(false));
    engine.set_interrupt(&flag);
    // One chunk, which a software driver takes seconds for. What a first play of its kind compiles and
    // records is not given up.
    assert!(is_given_up_soon(&mut engine, &flag, 128, 0.1));
    // What was submitted finishes first, and does no harm.
    assert_eq!(answer(&mut engine).tokens, expected);
}

#[test]
fn prompts_tell_how_far_they_are() {
    let mut engine = load(Vec::new());
    let mut seen = Vec::new();
    let request = Request { max_tokens: Some(1), ..Request::new(prompt(0, 1100)) };
    let mut watch = |moment: Moment<'_>| {
        if let Moment::Prompt(progress) = moment {
            seen.push((progress.processed, progress.cached, progress.total));
        }
        ControlFlow::Continue(())
    };
    engine.generate_watched(&request, &mut watch).unwrap();
    assert_eq!(seen, [(512, 0, 1100), (1024, 0, 1100)]);
    let mut breaks = |moment: Moment<'_>| match moment {
        Moment::Prompt(_) => ControlFlow::Break(()),
        Moment::Text(_) => ControlFlow::Continue(()),
    };
    let other = Request::new(prompt(0, 1100).into_iter().rev().collect());
    let answer = engine.generate_watched(&other, &mut breaks).unwrap();
    assert_eq!((answer.finish, answer.tokens.len()), (Finish::Cancelled, 0));
}
