//! The engine as a library: many callers, streams, cancellation, refusals, embeddings.

#[path = "../../../tests/support/gpu.rs"]
mod gpu;
#[path = "../../../tests/support/tiny.rs"]
mod tiny;

use pianola_engine::sampler::Sampling;
use pianola_engine::{
    Engine, EngineError, Finish, LoadOptions, LogitRows, Pooling, Request, Service,
};
use pianola_formats::{TensorSource, TensorType};
use pianola_model::RandomWeights;
use std::ops::ControlFlow;
use tiny::{tiny_config, tiny_engine};

fn options(lanes: usize, queue: usize) -> LoadOptions {
    LoadOptions { lanes, queue, context: Some(1024), ..LoadOptions::default() }
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
    assert!(matches!(refused(hot), EngineError::Sampling(_)));
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
