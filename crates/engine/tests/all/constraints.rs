//! Answers under a constraint, beside others: every token is allowed, and the others are what they
//! would be without.

use crate::support::gpu;
use crate::support::tiny;
use crate::support::tiny::{tiny_config, tiny_engine};
use pianola_engine::sampler::Sampling;
use pianola_engine::{
    Answer, Constraint, Engine, EngineError, Event, Finish, LoadOptions, Request, Speculation,
};
use pianola_formats::TensorType;
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex};

const VOCABULARY: u32 = 97;

/// Even and odd tokens in turn, none above `highest`, at most `most` of them.
#[derive(Clone)]
struct Alternating {
    highest: u32,
    most: usize,
    tokens: usize,
}

impl Alternating {
    fn allows(&self, token: u32) -> bool {
        token <= self.highest && token as usize % 2 == self.tokens % 2 && self.tokens < self.most
    }
}

impl Constraint for Alternating {
    fn fill_mask(&mut self, mask: &mut [u32]) {
        assert_eq!(mask.len(), VOCABULARY.div_ceil(32) as usize);
        assert!(mask.iter().all(|&word| word == 0));
        let allowed = (0..VOCABULARY).filter(|&token| self.allows(token));
        allowed.for_each(|token| mask[token as usize / 32] |= 1 << (token % 32));
    }

    fn advance(&mut self, token: u32) -> bool {
        let allowed = self.allows(token);
        self.tokens += usize::from(allowed);
        allowed
    }

    fn rollback(&mut self, count: usize) {
        self.tokens -= count;
    }

    fn is_complete(&self) -> bool {
        self.tokens == self.most
    }

    fn clone_box(&self) -> Box<dyn Constraint> {
        Box::new(self.clone())
    }
}

/// A third of the requests have a constraint; few tokens are allowed, so that texts repeat.
fn request(lane: usize, tokens: usize) -> Request {
    let prompt = (0..30 + lane as u32).map(|at| (at * 5 + lane as u32) % 90).collect();
    let constraint = Alternating { highest: 5, most: tokens - lane % 4, tokens: 0 };
    let constraint: Option<Box<dyn Constraint>> =
        if lane.is_multiple_of(3) { Some(Box::new(constraint)) } else { None };
    let sampling = match lane % 2 {
        0 => Sampling::greedy(),
        _ => Sampling { top_k: 12, ..Sampling::default() },
    };
    let seed = Some(lane as u64);
    Request { constraint, sampling, seed, max_tokens: Some(tokens), ..Request::new(prompt) }
}

/// The answers to requests that run at once.
fn run(engine: &mut Engine, requests: Vec<Request>) -> Vec<Result<Answer, EngineError>> {
    let answers = Arc::new(Mutex::new(Vec::new()));
    for (number, request) in requests.into_iter().enumerate() {
        let answers = answers.clone();
        let sink = Box::new(move |event: Event<'_>| {
            match event {
                Event::Finished(answer) => answers.lock().unwrap().push((number, Ok(answer))),
                Event::Failed(error) => answers.lock().unwrap().push((number, Err(error))),
                Event::Prompt | Event::Token(_) | Event::Embedding(_) => {}
            }
            ControlFlow::Continue(())
        });
        engine.submit_to(request, sink).unwrap();
    }
    while engine.is_busy() {
        engine.step().unwrap();
        engine.check_pages();
    }
    let mut answers = std::mem::take(&mut *answers.lock().unwrap());
    answers.sort_by_key(|(number, _)| *number);
    answers.into_iter().map(|(_, answer)| answer).collect()
}

fn check(mut engine: Engine, lanes: usize, tokens: usize, speculation: Speculation) {
    let alone: Vec<Answer> = (0..lanes)
        .map(|lane| run(&mut engine, vec![request(lane, tokens)]).remove(0).unwrap())
        .collect();
    engine.set_speculation(speculation).unwrap();
    let together = run(&mut engine, (0..lanes).map(|lane| request(lane, tokens)).collect());
    for (lane, answer) in together.into_iter().enumerate() {
        let Answer { tokens: said, finish, .. } = answer.unwrap();
        assert_eq!(said, alone[lane].tokens, "lane {lane}");
        if lane % 3 == 0 {
            let most = tokens - lane % 4;
            assert_eq!((said.len(), finish), (most, Finish::Complete));
            let allowed = |(at, token): (usize, &u32)| *token <= 5 && *token as usize % 2 == at % 2;
            assert!(said.iter().enumerate().all(allowed), "{said:?}");
        } else {
            assert_eq!(finish, Finish::MaxTokens);
        }
    }
    let counters = engine.counters();
    assert_eq!(counters.drafted_tokens > 0, speculation == Speculation::Lookup);
}

#[test]
fn lanes_on_the_processor() {
    let options = || LoadOptions {
        lanes: 32,
        context: Some(256),
        reproducible: true,
        ..LoadOptions::default()
    };
    check(tiny_engine(options()).unwrap(), 32, 60, Speculation::Off);
    check(tiny_engine(options()).unwrap(), 32, 60, Speculation::Lookup);
}

#[test]
fn lanes_on_a_gpu() {
    let gpu = Some(gpu::options(&gpu::open()));
    let devices = tiny::one_thread(gpu);
    let options = LoadOptions { devices, lanes: 6, context: Some(128), ..LoadOptions::default() };
    let name = "tiny".to_string();
    let engine = Engine::random_of(name, tiny_config(), TensorType::F32, options, &mut |_, _| ());
    check(engine.unwrap(), 6, 24, Speculation::Lookup);
}

#[test]
fn a_constraint_that_allows_nothing_fails_its_request_alone() {
    let options = LoadOptions { lanes: 2, context: Some(256), ..LoadOptions::default() };
    let mut engine = tiny_engine(options).unwrap();
    // Behind an even token comes an odd one, and of those up to 0 there is none.
    let dead = Alternating { highest: 0, most: 9, tokens: 0 };
    let dead = Request { constraint: Some(Box::new(dead)), ..request(1, 10) };
    let mut answers = run(&mut engine, vec![dead, request(2, 10)]);
    assert_eq!(answers.pop().unwrap().unwrap().tokens.len(), 10);
    let failed = answers.pop().unwrap().unwrap_err();
    assert!(matches!(failed, EngineError::ConstraintUnmet { position: 32 }), "{failed}");
}
