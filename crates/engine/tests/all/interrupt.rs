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
    let devices = LoadOptions::devices(gpus, CpuOptions::default());
    let options = LoadOptions { devices, context: Some(2048), ..LoadOptions::default() };
    Engine::load(&model, options, &mut |_, _| ()).unwrap()
}

fn prompt(tokens: usize) -> Vec<u32> {
    (0..tokens).map(|index| 1000 + (index * 7919 % 20_000) as u32).collect()
}

/// Some tokens behind a short prompt.
fn answer(engine: &mut Engine) -> Answer {
    let request = Request { max_tokens: Some(3), ignore_end: true, ..Request::new(prompt(8)) };
    engine.generate(&request, &mut |_| ControlFlow::Continue(())).unwrap()
}

/// Sets the flag while a long prompt is processed, and returns how long the engine took to notice.
fn interrupt(
    engine: &mut Engine,
    flag: &Arc<AtomicBool>,
    tokens: usize,
    after: Duration,
) -> Duration {
    let timer = {
        let flag = flag.clone();
        std::thread::spawn(move || {
            std::thread::sleep(after);
            flag.store(true, Ordering::Relaxed);
            Instant::now()
        })
    };
    let given_up =
        engine.generate(&Request::new(prompt(tokens)), &mut |_| ControlFlow::Continue(())).unwrap();
    let end = Instant::now();
    let set = timer.join().unwrap();
    assert_eq!((given_up.finish, given_up.tokens.len()), (Finish::Cancelled, 0));
    flag.store(false, Ordering::Relaxed);
    engine.check_pages();
    end.saturating_duration_since(set)
}

#[test]
fn a_prompt_is_given_up_soon_and_leaves_nothing_wrong() {
    let expected = answer(&mut load(Vec::new())).tokens;
    let mut engine = load(Vec::new());
    let flag = Arc::new(AtomicBool::new(false));
    engine.set_interrupt(&flag);
    for milliseconds in [5, 60, 200] {
        let took = interrupt(&mut engine, &flag, 1500, Duration::from_millis(milliseconds));
        // A chunk of this prompt takes several times as long.
        assert!(took < Duration::from_millis(100), "{took:?}");
        assert_eq!(answer(&mut engine).tokens, expected);
    }
    // What was processed before is kept, what was given up is computed again.
    let whole = Request { max_tokens: Some(4), ..Request::new(prompt(1500)) };
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
    // What a first play of its kind compiles and records is not given up.
    let other = prompt(128).into_iter().rev().collect();
    let warm = Request { max_tokens: Some(1), ..Request::new(other) };
    engine.generate(&warm, &mut |_| ControlFlow::Continue(())).unwrap();
    let flag = Arc::new(AtomicBool::new(false));
    engine.set_interrupt(&flag);
    // One chunk, which a software driver takes many times as long for.
    let took = interrupt(&mut engine, &flag, 128, Duration::from_millis(200));
    assert!(took < Duration::from_millis(500), "{took:?}");
    // What was submitted finishes first, and does no harm.
    assert_eq!(answer(&mut engine).tokens, expected);
}

#[test]
fn prompts_tell_how_far_they_are() {
    let mut engine = load(Vec::new());
    let mut seen = Vec::new();
    let request = Request { max_tokens: Some(1), ..Request::new(prompt(1100)) };
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
    let other = Request::new(prompt(1100).into_iter().rev().collect());
    let answer = engine.generate_watched(&other, &mut breaks).unwrap();
    assert_eq!((answer.finish, answer.tokens.len()), (Finish::Cancelled, 0));
}
