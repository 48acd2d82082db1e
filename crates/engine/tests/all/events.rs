//! What a caller is told: tokens, log probabilities, ends, seeds; and the order of service.

use crate::support::gpu;
use crate::support::tiny;
use crate::support::tiny::{tiny_config, tiny_engine};
use pianola_engine::sampler::Sampling;
use pianola_engine::{
    Answer, Engine, EngineError, ErrorKind, Event, EventSink, Finish, LoadOptions, LogitRows,
    PenaltyScope, Pooling, Request, Service, log_softmax_at,
};
use pianola_formats::TensorType;
use pianola_vulkan::Gpu;
use std::ops::ControlFlow;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};

fn options(lanes: usize) -> LoadOptions {
    LoadOptions { lanes, context: Some(512), ..LoadOptions::default() }
}

/// A model of f32 weights on a GPU, where kernels for one row and for many agree closely.
fn on_gpu(gpu: &Arc<Gpu>, lanes: usize) -> Engine {
    let mut options = options(lanes);
    options.devices = tiny::one_thread(Some(gpu::options(gpu)));
    let name = "tiny".to_string();
    Engine::random_of(name, tiny_config(), TensorType::F32, options, &mut |_, _| ()).unwrap()
}

fn prompt(seed: u32) -> Vec<u32> {
    (0..40).map(|at| (at * 7 + seed) % 90).collect()
}

fn request(seed: u32, max_tokens: usize) -> Request {
    Request { max_tokens: Some(max_tokens), ..Request::new(prompt(seed)) }
}

fn answer(engine: &mut Engine, request: &Request) -> Answer {
    engine.generate(request, &mut |_| ControlFlow::Continue(())).unwrap()
}

/// Tokens with the log probabilities that came with them, and the end.
type Heard = Arc<Mutex<(Vec<(u32, f32, Vec<(u32, f32)>)>, Option<Answer>)>>;

fn listen(heard: &Heard) -> EventSink {
    let heard = heard.clone();
    Box::new(move |event| {
        let mut heard = heard.lock().unwrap();
        match event {
            Event::Token(token) => {
                let logprobs = token.logprobs.expect("they were asked for");
                heard.0.push((token.id, logprobs.sampled, logprobs.top.to_vec()));
            }
            Event::Finished(answer) => heard.1 = Some(answer),
            Event::Failed(error) => panic!("{error}"),
            Event::Prompt | Event::Embedding(_) => {}
        }
        ControlFlow::Continue(())
    })
}

fn check_logprobs(mut engine: Engine, tolerance: f64) {
    let heard = Heard::default();
    // Penalties, biases and temperature leave the model's own distribution as it is.
    let sampling = Sampling {
        top_k: 20,
        repetition_penalty: 1.3,
        penalty_window: 64,
        logit_bias: vec![(5, 3.0)],
        ..Sampling::default()
    };
    let asked = Request { logprobs: Some(4), sampling, seed: Some(3), ..request(1, 12) };
    engine.submit_to(asked, listen(&heard)).unwrap();
    // One without, beside it.
    engine.submit(request(2, 20)).unwrap();
    while engine.is_busy() {
        engine.step().unwrap();
    }
    let (tokens, end) = std::mem::take(&mut *heard.lock().unwrap());
    let end = end.expect("it has ended");
    assert_eq!(tokens.iter().map(|token| token.0).collect::<Vec<_>>(), end.tokens);
    let mut fed = prompt(1);
    fed.extend(&end.tokens);
    engine.reset();
    let mut row = 0;
    engine
        .feed(&fed[..fed.len() - 1], usize::MAX, LogitRows::From(39), &mut |_, logits| {
            let (id, sampled, top) = &tokens[row];
            row += 1;
            let near = |id: u32, found: f32| {
                let expected = log_softmax_at(logits, id);
                assert!((f64::from(found) - expected).abs() < tolerance, "{found}, not {expected}");
            };
            near(*id, *sampled);
            assert_eq!(top.len(), 4);
            assert!(top.windows(2).all(|pair| pair[0].1 >= pair[1].1));
            top.iter().for_each(|&(id, found)| near(id, found));
            let best = logits.iter().copied().fold(f32::MIN, f32::max);
            assert!(logits[top[0].0 as usize] >= best - tolerance as f32);
        })
        .unwrap();
    assert_eq!(row, 12);
}

#[test]
fn tokens_carry_the_models_own_log_probabilities() {
    // Otherwise the head of a few rows has more bits than that of many.
    let reproducible = LoadOptions { reproducible: true, ..options(2) };
    check_logprobs(tiny_engine(reproducible).unwrap(), 1e-4);
    check_logprobs(on_gpu(&gpu::open(), 2), 1e-3);
}

#[test]
fn an_end_says_what_ended_it() {
    let mut engine = tiny_engine(options(1)).unwrap();
    let whole = answer(&mut engine, &request(1, 20));
    assert_eq!((whole.finish, whole.stop_text.as_deref()), (Finish::MaxTokens, None));
    assert_eq!((whole.usage.prompt_tokens, whole.usage.generated_tokens), (40, 20));
    let next = [prompt(1), whole.tokens.clone(), vec![1]].concat();
    let next = answer(&mut engine, &Request { max_tokens: Some(1), ..Request::new(next) });
    // The last token was said, and not read yet.
    assert_eq!((next.usage.prompt_tokens, next.usage.cached_tokens), (61, 59));
    let last = whole.tokens[7];
    let first = whole.tokens.iter().position(|&token| token == last).unwrap();
    let stopped = answer(&mut engine, &Request { stop_tokens: vec![last], ..request(1, 20) });
    assert_eq!((stopped.finish, &stopped.tokens[..]), (Finish::StopToken, &whole.tokens[..=first]));
    // A model without a tokeniser says its tokens.
    let text = format!(" {last} ");
    let stop = vec!["never".to_string(), text.clone()];
    let stopped = answer(&mut engine, &Request { stop, ..request(1, 20) });
    assert_eq!((stopped.finish, stopped.stop_text), (Finish::StopText, Some(text)));
    let unknown = engine.submit(Request { stop_tokens: vec![97], ..request(1, 1) });
    assert!(matches!(unknown, Err(EngineError::UnknownToken { token: 97, .. })));
}

#[test]
fn a_random_seed_is_told_and_gives_the_answer_again() {
    let mut engine = tiny_engine(options(1)).unwrap();
    let free = Request { sampling: Sampling::default(), ..request(1, 30) };
    let (first, second) = (answer(&mut engine, &free), answer(&mut engine, &free));
    assert_ne!((first.seed, &first.tokens), (second.seed, &second.tokens));
    let again = answer(&mut engine, &Request { seed: Some(first.seed), ..free });
    assert_eq!((again.seed, again.tokens), (first.seed, first.tokens));
}

#[test]
fn penalties_look_at_the_answer_alone_where_asked() {
    let mut engine = tiny_engine(options(1)).unwrap();
    let sampling = Sampling { frequency_penalty: 1e6, ..Sampling::greedy() };
    let both = Request { sampling, ..request(1, 40) };
    let alone = Request { penalties: PenaltyScope::Answer, ..both.clone() };
    let repeats = |tokens: &[u32]| (1..tokens.len()).any(|at| tokens[..at].contains(&tokens[at]));
    let both = answer(&mut engine, &both).tokens;
    assert!(!both.iter().any(|token| prompt(1).contains(token)) && !repeats(&both));
    let alone = answer(&mut engine, &alone).tokens;
    assert!(alone.iter().any(|token| prompt(1).contains(token)) && !repeats(&alone));
}

#[test]
fn a_sink_that_breaks_off_ends_its_request_within_the_step() {
    let mut options = options(2);
    options.max_rows = 32;
    let mut engine = tiny_engine(options).unwrap();
    let (ends, end) = channel();
    let sink: EventSink = Box::new(move |event| match event {
        // Of the first part of the prompt: nothing more of it is computed.
        Event::Prompt => ControlFlow::Break(()),
        Event::Finished(answer) => {
            ends.send((answer.finish, answer.tokens.len())).unwrap();
            ControlFlow::Continue(())
        }
        event => panic!("{event:?} after it broke off"),
    });
    let long = Request::new((0..200).map(|at| at % 90).collect());
    engine.submit_to(long, sink).unwrap();
    engine.step().unwrap();
    assert_eq!(end.recv(), Ok((Finish::Cancelled, 0)));
    assert!(end.recv().is_err(), "its sink is dropped");
    assert!(!engine.is_busy());
    assert_eq!((engine.counters().rows, engine.cache_use().held_bytes), (32, 0));
    engine.check_pages();
}

fn tell_end(number: usize, ends: Sender<usize>) -> EventSink {
    Box::new(move |event| {
        if event.is_end() {
            ends.send(number).unwrap();
        }
        ControlFlow::Continue(())
    })
}

#[test]
fn a_higher_priority_goes_first_and_nobody_waits_for_ever() {
    let mut engine = tiny_engine(options(1)).unwrap();
    let (ends, order) = channel();
    for (number, priority) in [0, 0, 2, 1].into_iter().enumerate() {
        let request = Request { priority, ..request(number as u32, 3) };
        engine.submit_to(request, tell_end(number, ends.clone())).unwrap();
    }
    while engine.is_busy() {
        engine.step().unwrap();
    }
    assert_eq!(order.try_iter().collect::<Vec<_>>(), [2, 3, 0, 1]);
    // However many of a higher priority come, the first is served in the end.
    engine.submit_to(request(0, 3), tell_end(1000, ends.clone())).unwrap();
    for number in 0..100 {
        let request = Request { priority: 3, ..request(number as u32, 1) };
        engine.submit_to(request, tell_end(number, ends.clone())).unwrap();
        engine.step().unwrap();
    }
    let before = order.try_iter().take_while(|&number| number != 1000).count();
    assert!((8..20).contains(&before), "{before} went first");
}

#[test]
fn embeddings_are_rows_beside_generation() {
    let gpu = gpu::open();
    for mut engine in [tiny_engine(options(3)).unwrap(), on_gpu(&gpu, 3)] {
        let text: Vec<u32> = (0..70).map(|at| at * 3 % 97).collect();
        let alone = engine.embed(&text, Pooling::Mean).unwrap();
        let expected = answer(&mut engine, &request(1, 30)).tokens;
        let ends = Heard::default();
        let asked = Request { logprobs: Some(0), ..request(1, 30) };
        engine.submit_to(asked, listen(&ends)).unwrap();
        engine.step().unwrap();
        let steps = engine.counters().steps;
        let beside = engine.embed(&text, Pooling::Mean).unwrap();
        let apart: f32 = alone.iter().zip(&beside).map(|(a, b)| (a - b).abs()).sum();
        assert!(apart < 1e-3, "{apart} apart");
        assert!(engine.counters().steps - steps <= 2, "it was played in steps of its own");
        while engine.is_busy() {
            engine.step().unwrap();
        }
        engine.check_pages();
        assert_eq!(ends.lock().unwrap().1.as_ref().unwrap().tokens, expected);
        assert_eq!(engine.cache_use().held_bytes, 0);
    }
}

#[test]
fn a_row_that_the_gpu_cannot_sample_goes_to_the_host_alone() {
    let gpu = gpu::open();
    let mut engine = on_gpu(&gpu, 3);
    // More log probabilities than the GPU reports.
    let many = Some(21);
    let free =
        Request { sampling: Sampling::default(), seed: Some(4), logprobs: many, ..request(2, 25) };
    let requests = [request(1, 25), free, request(3, 25)];
    let unsupported = requests.each_ref().map(|r| engine.sampling_unsupported(r).is_some());
    assert_eq!(unsupported, [false, true, false]);
    let alone = requests.each_ref().map(|request| answer(&mut engine, request).tokens);
    let heard = [(); 3].map(|()| Heard::default());
    for (request, heard) in requests.into_iter().zip(&heard) {
        let heard = heard.clone();
        let sink: EventSink = Box::new(move |event| {
            if let Event::Finished(answer) = event {
                heard.lock().unwrap().1 = Some(answer);
            }
            ControlFlow::Continue(())
        });
        engine.submit_to(request, sink).unwrap();
    }
    while engine.is_busy() {
        engine.step().unwrap();
    }
    for (heard, alone) in heard.iter().zip(alone) {
        assert_eq!(heard.lock().unwrap().1.as_ref().unwrap().tokens, alone);
    }
}

/// A sink that sends on all text and the end, and loses the device at the fifth token: on the
/// engine's thread, where nothing is in flight.
fn lose_at_fifth(gpu: &Arc<Gpu>, pieces: Sender<Result<String, EngineError>>) -> EventSink {
    let gpu = gpu.clone();
    let mut tokens = 0;
    Box::new(move |event| {
        match event {
            Event::Token(token) => {
                tokens += 1;
                if tokens == 5 {
                    gpu.lose();
                }
                pieces.send(Ok(token.text.to_string())).unwrap();
            }
            Event::Failed(error) => pieces.send(Err(error)).unwrap(),
            Event::Prompt | Event::Finished(_) | Event::Embedding(_) => {}
        }
        ControlFlow::Continue(())
    })
}

#[test]
fn a_lost_device_is_opened_again_and_requests_go_on() {
    let gpu = gpu::open();
    let expected = answer(&mut on_gpu(&gpu, 2), &request(1, 120)).tokens;
    let reopened = Arc::new(Mutex::new(0));
    let count = reopened.clone();
    let service = Service::start_with(
        on_gpu(&gpu, 2),
        Box::new(move || {
            *count.lock().unwrap() += 1;
            Ok(on_gpu(&gpu::open(), 2))
        }),
    );
    let info = service.info();
    assert_eq!((info.model.as_str(), info.context, info.lanes), ("tiny", 512, 2));
    assert!(info.devices.starts_with("vulkan"), "{}", info.devices);
    let (pieces, text) = channel();
    service.submit_to(request(1, 120), lose_at_fifth(&gpu, pieces)).unwrap();
    let beside = service.submit(request(2, 120)).unwrap();
    let text: String = text.into_iter().map(Result::unwrap).collect();
    let said: Vec<u32> = text.split_whitespace().map(|id| id.parse().unwrap()).collect();
    assert_eq!(said, expected, "a part is missing, or was said twice");
    assert_eq!(beside.finish().unwrap().1.tokens.len(), 120);
    assert_eq!(*reopened.lock().unwrap(), 1);
    assert_eq!(service.report().unwrap().counters.generated_tokens, 240);
}

#[test]
fn a_device_that_is_lost_for_good_is_said_to_be() {
    let gpu = gpu::open();
    let service = Service::start(on_gpu(&gpu, 2));
    let (pieces, text) = channel();
    service.submit_to(request(1, 400), lose_at_fifth(&gpu, pieces)).unwrap();
    let end = text.into_iter().find_map(Result::err).expect("it fails");
    assert!(matches!(end, EngineError::DeviceLost(_)), "{end}");
    let refused = service.submit(request(2, 1)).err().expect("it is refused");
    assert!(matches!(refused, EngineError::DeviceLost(_)), "{refused}");
    assert_eq!(refused.kind(), ErrorKind::DeviceLost);
    assert_eq!(service.is_lost(), Some(refused.to_string()));
}
