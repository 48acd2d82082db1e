//! The engine as a library: many callers, streams, cancellation, refusals, embeddings.

use crate::support::gpu;
use crate::support::tiny;
use crate::support::tiny::{tiny_config, tiny_engine};
use pianola_engine::sampler::Sampling;
use pianola_engine::{
    Engine, EngineError, ErrorKind, Event, EventSink, Finish, LoadOptions, LogitRows, Pooling,
    Request, Service,
};
use pianola_formats::{TensorSource, TensorType};
use pianola_model::RandomWeights;
use std::ops::ControlFlow;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

fn options(lanes: usize, queue: usize) -> LoadOptions {
    let (context, reproducible) = (Some(1024), true);
    LoadOptions { lanes, queue, context, reproducible, ..LoadOptions::default() }
}

fn request(seed: u64, max_tokens: usize) -> Request {
    let prompt = (0..100).map(|at| ((at * 7 + seed) % 90) as u32).collect();
    Request {
        max_tokens: Some(max_tokens),
        sampling: Sampling::default(),
        seed: Some(seed),
        ..Request::new(prompt)
    }
}

#[test]
fn many_callers_get_what_each_would_get_alone() {
    let mut alone = tiny_engine(options(1, 1)).unwrap();
    let expected: Vec<Vec<u32>> = (0..16)
        .map(|seed| {
            let answer = alone.generate(&request(seed, 30), &mut |_| ControlFlow::Continue(()));
            answer.unwrap().tokens
        })
        .collect();
    let service = Service::start(tiny_engine(options(4, 100)).unwrap());
    let threads = expected.into_iter().enumerate().map(|(seed, expected)| {
        let service = service.clone();
        std::thread::spawn(move || {
            let mut stream = service.submit(request(seed as u64, 30)).unwrap();
            let text: String = stream.by_ref().map(Result::unwrap).collect();
            let answer = stream.answer().expect("it has ended");
            assert_eq!(answer.tokens, expected);
            // A model without a tokeniser says its tokens.
            let said: Vec<u32> = text.split_whitespace().map(|id| id.parse().unwrap()).collect();
            assert_eq!(said, expected);
        })
    });
    threads.collect::<Vec<_>>().into_iter().for_each(|thread| thread.join().unwrap());
    let report = service.report().unwrap();
    assert_eq!((report.waiting, report.running, report.cache.held_bytes), (0, 0, 0));
    assert_eq!(report.counters.generated_tokens, 16 * 30);
    assert!(report.counters.rows > report.counters.steps, "nothing was batched");
}

/// Far longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(120);

/// A sink that sends on how its request ended, and the end as it comes.
fn end() -> (EventSink, Receiver<Result<Finish, ErrorKind>>) {
    let (ends, end) = channel();
    let sink: EventSink = Box::new(move |event| {
        let _ = match event {
            Event::Finished(answer) => ends.send(Ok(answer.finish)),
            Event::Failed(error) => ends.send(Err(error.kind())),
            _ => Ok(()),
        };
        ControlFlow::Continue(())
    });
    (sink, end)
}

#[test]
fn a_report_counts_pages_and_seconds() {
    let service = Service::start(tiny_engine(options(2, 10)).unwrap());
    let idle = service.report().unwrap();
    assert_eq!((idle.busy.seconds, idle.cache.free_bytes()), (0.0, idle.cache.bytes));
    let mut stream = service.submit(request(1, 900)).unwrap();
    assert!(stream.next().unwrap().is_ok());
    let early = service.report().unwrap();
    assert_eq!((early.running, early.waiting), (1, 0));
    assert!(early.cache.held_bytes > 0 && early.cache.free_bytes() < early.cache.bytes);
    stream.finish().unwrap();
    let late = service.report().unwrap();
    assert!(late.cache.kept_bytes > 0 && late.cache.held_bytes == 0);
    assert_eq!(late.cache.free_bytes() + late.cache.kept_bytes, late.cache.bytes);
    assert!(0.0 < early.busy.seconds && early.busy.seconds < late.busy.seconds);
    let share = late.busy.seconds / late.busy.wall_seconds;
    assert!((0.0..1.0).contains(&share), "{share}");
}

#[test]
fn a_snapshot_does_not_wait_for_the_step_under_way() {
    let service = Service::start(tiny_engine(options(1, 10)).unwrap());
    let pages = service.snapshot().unwrap().cache;
    assert_eq!((pages.free_bytes(), pages.bytes > 0), (pages.bytes, true));
    let (reached, begun) = channel();
    let (release, released) = channel::<()>();
    // The engine's thread stays in this sink until it is released.
    let blocks: EventSink = Box::new(move |event| {
        if matches!(event, Event::Token(_)) {
            let _ = reached.send(());
            let _ = released.recv();
        }
        ControlFlow::Continue(())
    });
    service.submit_to(request(1, 2), blocks).unwrap();
    begun.recv_timeout(PATIENCE).unwrap();
    let (sink, end) = end();
    service.submit_to(request(2, 2), sink).unwrap();
    let (sender, snapshot) = channel();
    let other = service.clone();
    std::thread::spawn(move || {
        let _ = sender.send(other.snapshot());
    });
    let during = snapshot.recv_timeout(PATIENCE).expect("it waits").unwrap();
    assert_eq!(during.running + during.waiting, 2);
    drop(release);
    assert_eq!(end.recv_timeout(PATIENCE), Ok(Ok(Finish::MaxTokens)));
    // Both requests are over, and the engine's thread says so once it is idle.
    let start = Instant::now();
    while service.snapshot().unwrap().counters != service.report().unwrap().counters {
        assert!(start.elapsed() < PATIENCE, "the last step is never published");
    }
    let last = service.snapshot().unwrap();
    assert_eq!((last.running, last.waiting, last.counters.generated_tokens), (0, 0, 4));
    service.stop();
    assert_eq!(service.snapshot(), None);
}

#[test]
fn what_is_served_is_described() {
    let service = Service::start(tiny_engine(options(2, 10)).unwrap());
    let info = service.info();
    assert_eq!((info.architecture.as_str(), info.quantization), ("gemma3", "q8_0"));
    assert_eq!((info.context, info.model_context, info.layers), (1024, 4096, 2));
    // Keys and values of two layers, 32 halves each.
    assert_eq!((info.embedding_width, info.kv_bytes_per_token), (64, 2 * 2 * 32 * 2));
    // The embedding; and of each layer q and output, k and v, gate, up and down, and norms.
    let layer = 2 * 64 * 64 + 2 * 32 * 64 + 3 * 64 * 96;
    let norms = 2 * (4 * 64 + 2 * 32) + 64;
    assert_eq!(info.parameters, 97 * 64 + 2 * layer + norms);
    let per_weight = info.weight_bytes as f64 / info.parameters as f64;
    assert!((1.0..1.5).contains(&per_weight), "{per_weight} bytes a weight");
    assert_eq!((info.placement.layers, info.placement.parts.len()), (2, 1));
    // Measured once nothing else is to be done.
    let start = Instant::now();
    let ceiling = loop {
        if let Some(ceiling) = service.ceiling() {
            break ceiling;
        }
        assert!(start.elapsed() < PATIENCE, "it is never measured");
        std::thread::sleep(Duration::from_millis(5));
    };
    assert!(ceiling > 1000.0, "{ceiling} tokens a second");
    assert_eq!(service.ceiling(), Some(ceiling));
}

#[test]
fn a_request_that_waits_leaves_as_it_is_cancelled() {
    let service = Service::start(tiny_engine(options(1, 10)).unwrap());
    let mut first = service.submit(request(1, 900)).unwrap();
    assert!(first.next().unwrap().is_ok());
    let (sink, end) = end();
    let id = service.submit_to(request(2, 900), sink).unwrap();
    assert_eq!(service.report().unwrap().waiting, 1);
    service.cancel(id);
    assert_eq!(end.recv_timeout(PATIENCE), Ok(Ok(Finish::Cancelled)));
    let report = service.report().unwrap();
    assert_eq!((report.waiting, report.running), (0, 1), "it waited for the first");
    assert!(end.recv().is_err(), "it ends once, and its sink is dropped");
}

#[test]
fn an_engine_that_is_stopped_tells_everyone() {
    let service = Service::start(tiny_engine(options(1, 10)).unwrap());
    assert_eq!(service.is_lost(), None);
    let (sink, running) = end();
    service.submit_to(request(1, 900), sink).unwrap();
    let (sink, waiting) = end();
    service.submit_to(request(2, 900), sink).unwrap();
    let other = service.clone();
    service.stop();
    assert_eq!(running.recv_timeout(PATIENCE), Ok(Err(ErrorKind::Stopped)));
    assert_eq!(waiting.recv_timeout(PATIENCE), Ok(Err(ErrorKind::Stopped)));
    let reason = other.is_lost().expect("it was stopped");
    assert!(reason.contains("stopped"), "{reason}");
    assert!(matches!(other.submit(request(3, 1)), Err(EngineError::Stopped)));
    assert!(matches!(other.report(), Err(EngineError::Stopped)));
}

#[test]
fn the_last_clone_may_be_dropped_in_a_sink() {
    let service = Service::start(tiny_engine(options(1, 10)).unwrap());
    let mut last = Some(service.clone());
    let (dropped, others) = channel();
    let drops: EventSink = Box::new(move |event| {
        if matches!(event, Event::Token(_)) && last.is_some() {
            // The main thread's clone goes first.
            others.recv().unwrap();
            drop(last.take());
        }
        ControlFlow::Continue(())
    });
    let (sink, waiting) = end();
    service.submit_to(request(1, 900), drops).unwrap();
    service.submit_to(request(2, 900), sink).unwrap();
    drop(service);
    dropped.send(()).unwrap();
    assert_eq!(waiting.recv_timeout(PATIENCE), Ok(Err(ErrorKind::Stopped)));
}

#[test]
fn a_thread_that_panicked_is_noticed() {
    let service = Service::start(tiny_engine(options(2, 10)).unwrap());
    let (sink, beside) = end();
    service.submit_to(request(1, 900), sink).unwrap();
    let panics: EventSink = Box::new(|_| panic!("on purpose"));
    service.submit_to(request(2, 900), panics).unwrap();
    // Its sink is dropped.
    assert!(beside.recv_timeout(PATIENCE).is_err());
    assert!(service.is_lost().is_some());
    assert!(matches!(service.submit(request(3, 1)), Err(EngineError::Stopped)));
}

#[test]
fn streams_are_cancelled_by_word_and_by_dropping_them() {
    let service = Service::start(tiny_engine(options(2, 10)).unwrap());
    let mut long = service.submit(request(1, 900)).unwrap();
    let dropped = service.submit(request(2, 900)).unwrap();
    assert!(long.next().unwrap().is_ok());
    drop(dropped);
    long.cancel();
    let (_, answer) = long.finish().unwrap();
    assert_eq!(answer.finish, Finish::Cancelled);
    assert!(answer.tokens.len() < 900);
    // Both lanes are free again.
    let (_, answer) = service.submit(request(3, 5)).unwrap().finish().unwrap();
    assert_eq!((answer.finish, answer.tokens.len()), (Finish::MaxTokens, 5));
    assert_eq!(service.report().unwrap().cache.held_bytes, 0);
}

#[test]
fn what_cannot_be_served_is_refused_at_once() {
    let service = Service::start(tiny_engine(options(1, 2)).unwrap());
    let refused = |request: Request| match service.submit(request) {
        Err(error) => error,
        Ok(_) => panic!("it was accepted"),
    };
    assert!(matches!(refused(Request::new(vec![])), EngineError::EmptyPrompt));
    assert!(matches!(refused(Request::new(vec![97])), EngineError::UnknownToken { .. }));
    assert!(matches!(refused(Request::new(vec![1; 1025])), EngineError::ContextLength { .. }));
    let sampling = Sampling { temperature: -1.0, ..Sampling::default() };
    let hot = Request { sampling, ..Request::new(vec![1]) };
    assert!(matches!(refused(hot.clone()), EngineError::Sampling(_)));
    let sampling = Sampling { logit_bias: vec![(97, 1.0)], ..Sampling::default() };
    let kind = |request: Request| refused(request).kind();
    for (field, request) in [
        ("prompt", Request::new(vec![])),
        ("prompt", Request::new(vec![97])),
        ("stop_tokens", Request { stop_tokens: vec![97], ..Request::new(vec![1]) }),
        ("stop_tokens", Request { stop_tokens: vec![1; 98], ..Request::new(vec![1]) }),
        ("stop", Request { stop: vec!["a".to_string(); 65], ..Request::new(vec![1]) }),
        ("stop", Request { stop: vec!["a".repeat(5000)], ..Request::new(vec![1]) }),
        ("logprobs", Request { logprobs: Some(5000), ..Request::new(vec![1]) }),
        ("logit_bias", Request { sampling, ..Request::new(vec![1]) }),
        ("temperature", hot),
    ] {
        assert_eq!(kind(request), ErrorKind::InvalidRequest(field));
    }
    let long = ErrorKind::ContextLength { tokens: 1025, context: 1024 };
    assert_eq!(kind(Request::new(vec![1; 1025])), long);
    let streams: Vec<_> = (0..3).map(|seed| service.submit(request(seed, 900)).unwrap()).collect();
    assert!(matches!(refused(request(9, 1)), EngineError::QueueFull { waiting: 2 }));
    drop(streams);
}

#[test]
fn an_embedding_is_what_the_head_reads() {
    let config = tiny_config();
    let weights = RandomWeights::new(&config, 7, |_, _, _| TensorType::F32);
    let table = weights.tensor("token_embd.weight").unwrap().to_f32();
    let prompt: Vec<u32> = (0..150).map(|at| (at * 3 % 97) as u32).collect();
    let gpu = gpu::open();
    for gpu in [None, Some(gpu::options(&gpu))] {
        let mut options = options(2, 10);
        options.devices = tiny::one_thread(gpu);
        // Cut in three.
        options.max_rows = 64;
        let name = "tiny".to_string();
        let ty = TensorType::F32;
        let engine = Engine::random_of(name, tiny_config(), ty, options, &mut |_, _| ());
        let mut engine = engine.unwrap();
        // While another request is under way.
        engine.submit(request(5, 40)).unwrap();
        engine.step().unwrap();
        let last = engine.embed(&prompt, Pooling::Last).unwrap();
        let mean = engine.embed(&prompt, Pooling::Mean).unwrap();
        engine.check_pages();
        let length: f32 = last.iter().map(|value| value * value).sum();
        assert!((length - 1.0).abs() < 1e-5);
        let alike: f32 = last.iter().zip(&mean).map(|(a, b)| a * b).sum();
        assert!(alike < 0.999, "pooling makes no difference: {alike}");
        let mut logits = Vec::new();
        engine
            .feed(&prompt, usize::MAX, LogitRows::Last, &mut |_, row| logits = row.to_vec())
            .unwrap();
        let product = |token: usize| -> f32 {
            let row = &table[token * config.hidden..(token + 1) * config.hidden];
            row.iter().zip(&last).map(|(weight, value)| weight * value).sum()
        };
        let products: Vec<f32> = (0..config.vocabulary).map(product).collect();
        let largest = (0..products.len()).max_by(|&a, &b| products[a].total_cmp(&products[b]));
        let factor = logits[largest.unwrap()] / products[largest.unwrap()];
        for (logit, product) in logits.iter().zip(&products) {
            let off = (logit - factor * product).abs();
            assert!(off <= 1e-4 * factor.abs(), "{logit} against {}", factor * product);
        }
    }
}

#[test]
fn embeddings_are_refused_as_requests_are() {
    let mut engine = tiny_engine(options(1, 1)).unwrap();
    assert!(matches!(engine.embed(&[], Pooling::Mean), Err(EngineError::EmptyPrompt)));
    let unknown = engine.embed(&[500], Pooling::Mean);
    assert!(matches!(unknown, Err(EngineError::UnknownToken { .. })));
    let long = engine.embed(&vec![1; 1025], Pooling::Mean);
    assert!(matches!(long, Err(EngineError::ContextLength { .. })));
}
