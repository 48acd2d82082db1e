//! `LoadOptions::reproducible` on a Vulkan device: answers are those of the request alone, whatever
//! else runs, however prompts are cut, and with guesses.

use crate::support::gpu;
use crate::support::tiny;
use crate::support::tiny::tiny_engine;
use pianola_engine::sampler::Sampling;
use pianola_engine::{Engine, Event, LoadOptions, Request, Speculation};
use pianola_vulkan::Gpu;
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex};

fn engine(gpu: &Arc<Gpu>, lanes: usize, max_rows: usize) -> Engine {
    let options = LoadOptions {
        devices: tiny::one_thread(Some(gpu::options(gpu))),
        reproducible: true,
        context: Some(256),
        lanes,
        max_rows,
        ..LoadOptions::default()
    };
    tiny_engine(options).unwrap()
}

/// Requests of many lengths, greedy and sampled, some of which begin alike and repeat themselves.
fn requests() -> Vec<Request> {
    (0..12u32)
        .map(|index| {
            let prompt = (0..4 + 13 * index).map(|at| (at % 9 * 5 + index % 3) % 90).collect();
            let sampling = match index % 3 {
                0 => Sampling::greedy(),
                1 => Sampling { temperature: 3.0, ..Sampling::default() },
                _ => Sampling { temperature: 2.0, top_k: 20, ..Sampling::default() },
            };
            let (seed, max_tokens) = (Some(u64::from(index)), Some(24));
            Request { sampling, seed, max_tokens, ..Request::new(prompt) }
        })
        .collect()
}

/// Answers of requests that run at once.
fn together(engine: &mut Engine, requests: &[Request]) -> Vec<Vec<u32>> {
    let answers = Arc::new(Mutex::new(vec![Vec::new(); requests.len()]));
    for (index, request) in requests.iter().enumerate() {
        let answers = answers.clone();
        let sink = move |event: Event<'_>| {
            if let Event::Finished(answer) = event {
                answers.lock().unwrap()[index] = answer.tokens;
            }
            ControlFlow::Continue(())
        };
        engine.submit_to(request.clone(), Box::new(sink)).unwrap();
    }
    while engine.is_busy() {
        engine.step().unwrap();
    }
    Arc::try_unwrap(answers).unwrap().into_inner().unwrap()
}

#[test]
fn answers_are_those_of_the_request_alone() {
    let gpu = gpu::open();
    let requests = requests();
    let mut alone = engine(&gpu, 1, 128);
    let expected: Vec<Vec<u32>> = requests
        .iter()
        .map(|request| {
            alone.reset();
            alone.generate(request, &mut |_| ControlFlow::Continue(())).unwrap().tokens
        })
        .collect();
    assert!(expected.iter().all(|tokens| tokens.len() == 24), "{expected:?}");
    for (lanes, max_rows, speculation) in [(8, 24, None), (3, 64, Some(Speculation::Lookup))] {
        let mut engine = engine(&gpu, lanes, max_rows);
        if let Some(speculation) = speculation {
            engine.set_speculation(speculation).unwrap();
        }
        assert_eq!(together(&mut engine, &requests), expected, "{lanes} lanes");
        let drafted = engine.counters().drafted_tokens;
        assert_eq!(drafted > 0, speculation.is_some(), "{drafted} guesses");
    }
}
