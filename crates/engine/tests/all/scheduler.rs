//! The scheduler with a recording, under random arrivals, lengths, cancellations and budgets: every
//! text is that of the request alone, no page is lost, nobody starves. What needs no recording is
//! tested at far greater length in `src/scheduler/tests.rs`.

use crate::support::tiny;
use crate::support::tiny::{Random, tiny_config, tiny_engine};
use pianola_engine::sampler::Sampling;
use pianola_engine::{
    Answer, Engine, EngineError, Event, Finish, LoadOptions, LogitRows, Pooling, Request,
    RequestId, Speculation,
};
use pianola_formats::TensorType;
use std::collections::{BTreeMap, HashMap};
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

const CONTEXT: usize = 400;
/// Few rows a play, so that prompts are cut and lanes share.
const ROWS: usize = 48;

fn options(lanes: usize, kv_memory: Option<u64>) -> LoadOptions {
    LoadOptions {
        context: Some(CONTEXT),
        max_rows: ROWS,
        lanes,
        kv_memory,
        queue: 12,
        // A text is that of the request alone however many rows a step has.
        reproducible: true,
        ..LoadOptions::default()
    }
}

/// Prompts that often begin alike, with ends of many lengths.
fn request(random: &mut Random) -> Request {
    let family = random.below(4);
    let shared = random.below(200);
    let longest = if random.below(4) == 0 { 150 } else { 20 };
    let own = 1 + random.below(longest);
    let shared = (0..shared).map(|at| ((at * 31 + family * 7) % 90) as u32);
    let mut prompt: Vec<u32> = shared.collect();
    prompt.extend((0..own).map(|_| random.below(90) as u32));
    let sampling = match random.below(3) {
        0 => Sampling::greedy(),
        1 => Sampling::default(),
        _ => Sampling {
            temperature: 0.8,
            top_k: 20,
            repetition_penalty: 1.2,
            penalty_window: 64,
            ..Sampling::default()
        },
    };
    let most = if random.below(8) == 0 { 300 } else { 40 };
    let max_tokens = Some(random.below(most));
    let seed = Some(random.below(5) as u64);
    let tenant = [0, 0, 0, 1][random.below(4)];
    Request { sampling, seed, max_tokens, tenant, ..Request::new(prompt) }
}

/// What each request generates when it is alone.
struct Alone {
    engine: Engine,
    known: HashMap<String, Vec<u32>>,
}

impl Alone {
    fn tokens(&mut self, request: &Request) -> &[u32] {
        let engine = &mut self.engine;
        self.known.entry(format!("{request:?}")).or_insert_with(|| {
            // Nothing of what came before helps or hinders.
            engine.reset();
            engine.generate(request, &mut |_| ControlFlow::Continue(())).unwrap().tokens
        })
    }
}

/// How requests ended, by their numbers.
type Ends = Arc<Mutex<Vec<(usize, Result<Answer, EngineError>)>>>;

/// Requests under way, by their numbers, with the steps since each became the oldest.
struct Driver {
    engine: Engine,
    open: BTreeMap<usize, (RequestId, Request)>,
    next: usize,
    finished: Vec<(Request, Answer)>,
    oldest: Option<(usize, usize)>,
    ends: Ends,
    /// The request whose sink breaks off.
    broken_off: Arc<AtomicUsize>,
}

impl Driver {
    fn submit(&mut self, request: Request) {
        let number = self.next;
        self.next += 1;
        let (ends, broken_off) = (self.ends.clone(), self.broken_off.clone());
        let sink = Box::new(move |event: Event<'_>| {
            match event {
                Event::Finished(answer) => ends.lock().unwrap().push((number, Ok(answer))),
                Event::Failed(error) => ends.lock().unwrap().push((number, Err(error))),
                _ if broken_off.load(Relaxed) == number => return ControlFlow::Break(()),
                Event::Prompt | Event::Token(_) | Event::Embedding(_) => {}
            }
            ControlFlow::Continue(())
        });
        match self.engine.submit_to(request.clone(), sink) {
            Ok(id) => drop(self.open.insert(number, (id, request))),
            Err(EngineError::QueueFull { .. }) => {}
            Err(error) => panic!("{error}"),
        }
    }

    fn step(&mut self, broken_off: Option<usize>) {
        self.broken_off.store(broken_off.unwrap_or(usize::MAX), Relaxed);
        self.engine.step().unwrap();
        for (number, answer) in self.ends.lock().unwrap().drain(..) {
            let (_, request) = self.open.remove(&number).expect("one end each");
            self.finished.push((request, answer.unwrap()));
        }
        self.engine.check_pages();
        let oldest = self.open.keys().next().copied();
        self.oldest = match (self.oldest, oldest) {
            (Some((before, steps)), Some(now)) if before == now => Some((now, steps + 1)),
            (_, now) => now.map(|now| (now, 0)),
        };
        // A chunk of a prompt a step at worst shared among all, then a token a step.
        let most = CONTEXT + 100;
        assert!(self.oldest.is_none_or(|(_, steps)| steps < most), "the oldest request starves");
    }
}

/// Drives an engine for so many steps, and until all is done.
fn drive(engine: Engine, seed: u64, steps: usize) -> Driver {
    let mut random = Random(seed);
    let mut earlier: Vec<Request> = Vec::new();
    let mut driver = Driver {
        engine,
        open: BTreeMap::new(),
        next: 0,
        finished: Vec::new(),
        oldest: None,
        ends: Ends::default(),
        broken_off: Arc::default(),
    };
    for _ in 0..steps {
        // Waves of many arrivals and of few.
        let busy = random.below(100) < 30;
        if busy || driver.open.is_empty() {
            // Now and then what was asked before, to the letter.
            let again = earlier.get(random.below(8 * earlier.len().max(1))).cloned();
            let request = again.unwrap_or_else(|| request(&mut random));
            earlier.push(request.clone());
            driver.submit(request);
        }
        let victim = driver.open.keys().nth(random.below(driver.open.len().max(1))).copied();
        let mut broken_off = None;
        match (random.below(40), victim) {
            (0, Some(number)) => {
                let id = driver.open[&number].0;
                let answer = driver.engine.cancel(id).expect("it is under way");
                assert_eq!(answer.finish, Finish::Cancelled);
                assert!(driver.engine.cancel(id).is_none(), "it ends once");
            }
            (1, number) => broken_off = number,
            _ => {}
        }
        driver.step(broken_off);
    }
    while driver.engine.is_busy() {
        driver.step(None);
    }
    assert!(driver.open.is_empty());
    assert_eq!(driver.engine.cache_use().held_bytes, 0, "pages are still held");
    driver
}

#[test]
fn every_text_is_that_of_the_request_alone() {
    let mut alone = Alone { engine: tiny_engine(options(1, None)).unwrap(), known: HashMap::new() };
    // From room for one sequence and a little, to room for all.
    let one = alone.engine.cache_use().bytes;
    let cases = [(1, one), (2, one), (4, one + one / 2), (6, 2 * one), (3, 10 * one), (8, 4 * one)];
    let (mut preemptions, mut evictions, mut cached) = (0, 0, 0);
    for (seed, (lanes, kv_memory)) in cases.into_iter().enumerate() {
        let mut engine = tiny_engine(options(lanes, Some(kv_memory))).unwrap();
        match seed % 3 {
            0 => {}
            1 => engine.set_speculation(Speculation::Lookup).unwrap(),
            _ => engine.set_draft(draft(lanes)).unwrap(),
        }
        let driver = drive(engine, seed as u64 + 1, 250);
        assert!(driver.finished.len() > 10, "{} finished", driver.finished.len());
        for (request, answer) in &driver.finished {
            let expected = alone.tokens(request);
            match answer.finish {
                Finish::Cancelled => assert!(expected.starts_with(&answer.tokens)),
                _ => assert_eq!(answer.tokens, expected, "{request:?} with {lanes} lanes"),
            }
        }
        let counters = driver.engine.counters();
        assert_eq!(counters.drafted_tokens > 0, seed % 3 > 0);
        preemptions += counters.preemptions;
        cached += counters.cached_tokens;
        evictions += driver.engine.cache_use().evictions;
        assert!(driver.engine.cache_use().bytes <= kv_memory, "over budget");
    }
    // The hard ways were walked.
    assert!(preemptions > 5, "{preemptions} preemptions");
    assert!(evictions > 30 && cached > 300, "{evictions} evictions, {cached} cached");
}

#[test]
fn a_prompt_is_found_again_by_its_own_tenant_only() {
    // Whole pages, and then the tail behind them, which goes to the first that continues there.
    let prompt: Vec<u32> = (0..150).map(|token| token % 90).collect();
    let ask = |tenant, tokens| {
        let prompt = prompt[..tokens].to_vec();
        Request { tenant, max_tokens: Some(4), ..Request::new(prompt) }
    };
    for drafted in [false, true] {
        let mut engine = tiny_engine(options(2, None)).unwrap();
        if drafted {
            engine.set_draft(tiny_engine(options(2, None)).unwrap()).unwrap();
        }
        let expected = answer(&mut engine, &ask(0, 150));
        assert_eq!(expected.usage.cached_tokens, 0);
        for tenant in [7, u64::MAX] {
            let other = answer(&mut engine, &ask(tenant, 150));
            assert_eq!((other.usage.cached_tokens, &other.tokens), (0, &expected.tokens));
            let again = answer(&mut engine, &ask(tenant, 150));
            assert_eq!((again.usage.cached_tokens, &again.tokens), (128, &expected.tokens));
        }
        assert_eq!(answer(&mut engine, &ask(0, 100)).usage.cached_tokens, 64);
        // What is fed or embedded is nobody's.
        engine.reset();
        engine.feed(&prompt, usize::MAX, LogitRows::Last, &mut |_, _| ()).unwrap();
        engine.embed(&prompt, Pooling::Mean).unwrap();
        assert_eq!(answer(&mut engine, &ask(0, 150)).usage.cached_tokens, 0);
        engine.check_pages();
    }
}

/// A model that is not the one it guesses for, but has its vocabulary.
fn draft(lanes: usize) -> Engine {
    let mut config = tiny_config();
    config.layers = 1;
    config.windows = vec![None];
    let mut options = options(lanes, None);
    options.devices = tiny::one_thread(None);
    let name = "smaller".to_string();
    Engine::random_of(name, config, TensorType::Q8_0, options, &mut |_, _| ()).unwrap()
}

fn answer(engine: &mut Engine, request: &Request) -> Answer {
    engine.generate(request, &mut |_| ControlFlow::Continue(())).unwrap()
}

#[test]
fn a_draft_that_is_the_model_itself_is_always_right() {
    let mut engine = tiny_engine(options(1, None)).unwrap();
    engine.set_draft(tiny_engine(options(1, None)).unwrap()).unwrap();
    let request = Request {
        max_tokens: Some(14),
        sampling: Sampling::default(),
        seed: Some(3),
        ..Request::new((0..70).map(|token| token % 90).collect())
    };
    let usage = answer(&mut engine, &request).usage;
    assert!(usage.drafted_tokens >= 8, "{usage:?}");
    assert_eq!(usage.drafted_tokens, usage.accepted_tokens);
}

#[test]
fn drafts_of_another_vocabulary_are_refused() {
    let mut config = tiny_config();
    config.vocabulary = 96;
    let name = "other".to_string();
    let other = Engine::random_of(name, config, TensorType::Q8_0, options(1, None), &mut |_, _| ());
    let mut engine = tiny_engine(options(1, None)).unwrap();
    let refused = engine.set_draft(other.unwrap()).unwrap_err().to_string();
    assert!(refused.contains("other") && refused.contains("96") && refused.contains("97"));
    let refused = engine.set_draft(draft(2)).unwrap_err().to_string();
    assert!(refused.contains("2 lanes"), "{refused}");
    assert!(engine.set_speculation(Speculation::Draft).is_err());
}

#[test]
fn guessed_tokens_follow_the_distribution_of_the_model() {
    const DRAWS: u64 = 4000;
    let prompt: Vec<u32> = (0..40).map(|token| token * 2).collect();
    let mut engine = tiny_engine(options(1, None)).unwrap();
    engine.set_draft(draft(1)).unwrap();
    let mut seconds: HashMap<u32, Vec<u32>> = HashMap::new();
    let sampling = Sampling { temperature: 0.7, ..Sampling::default() };
    for seed in 0..DRAWS {
        // It would find out that this is slower here; from the start it has not yet.
        if seed % 8 == 0 {
            engine.set_speculation(Speculation::Draft).unwrap();
        }
        // The second token is the first that may have been guessed.
        let request = Request {
            max_tokens: Some(3),
            sampling: sampling.clone(),
            seed: Some(seed),
            ..Request::new(prompt.clone())
        };
        let tokens = answer(&mut engine, &request).tokens;
        seconds.entry(tokens[0]).or_default().push(tokens[1]);
    }
    let counters = engine.counters();
    assert!(counters.drafted_tokens > 200 && counters.accepted_tokens > 20, "{counters:?}");
    let (first, seconds) = seconds.into_iter().max_by_key(|(_, seconds)| seconds.len()).unwrap();
    engine.reset();
    let mut weights = Vec::new();
    let tokens: Vec<u32> = prompt.iter().copied().chain([first]).collect();
    engine
        .feed(&tokens, usize::MAX, LogitRows::Last, &mut |_, logits| {
            weights = logits.iter().map(|logit| f64::from(logit / 0.7).exp()).collect();
        })
        .unwrap();
    let total: f64 = weights.iter().sum();
    // Pearson's sum over the tokens that are expected often enough, the rest together.
    let count = seconds.len() as f64;
    let (mut sum, mut rest, mut cells) = (0.0, (0.0, 0.0), 0);
    for (token, weight) in weights.iter().enumerate() {
        let expected = count * weight / total;
        let found = seconds.iter().filter(|&&second| second == token as u32).count() as f64;
        if expected < 8.0 {
            rest = (rest.0 + expected, rest.1 + found);
        } else {
            sum += (found - expected).powi(2) / expected;
            cells += 1;
        }
    }
    sum += (rest.1 - rest.0).powi(2) / rest.0.max(1.0);
    // Its mean is the number of cells, its variance twice that.
    let limit = f64::from(cells) + 5.0 * (2.0 * f64::from(cells)).sqrt();
    assert!(cells >= 3 && sum < limit, "{sum} over {cells} cells of {count} draws");
}
