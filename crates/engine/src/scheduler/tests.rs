//! The scheduler without a device, under random arrivals, tenants, priorities, lengths,
//! cancellations, failures and numbers of pages: every answer is that of the request alone, no page is
//! lost or shared between tenants, and nobody starves.

mod device;

use super::*;
use crate::cache::CacheLayout;
use crate::constraint::Constraint;
use crate::embed::Pooling;
use crate::error::ErrorKind;
use device::{Alternating, Device, VOCABULARY, alone, embed_alone, groups};
use std::collections::BTreeMap;
use std::fmt::Write;

const CONTEXT: usize = 400;
/// Few rows a step, so that prompts are cut and lanes share.
const ROWS: usize = 48;
/// Steps in all.
const STEPS: usize = 700_000;
/// The oldest request is done within this many steps of becoming the oldest: it may be overtaken
/// some times by requests of higher priority, each of which runs for its whole answer.
const PATIENCE: usize = 20 * CONTEXT;

struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        ((self.0 >> 33) as usize) % end.max(1)
    }
}

/// Lanes, and pages for this many sequences of full length.
#[derive(Clone, Copy)]
struct Case {
    lanes: usize,
    sequences: f64,
    speculation: Speculation,
    max_sample_rows: usize,
}

fn options(case: Case) -> SchedulerOptions {
    let groups = groups();
    let whole = groups.iter().map(|group| group.pages_for(CONTEXT, ROWS));
    let pages = whole.map(|pages| (pages as f64 * case.sequences).ceil() as usize).collect();
    SchedulerOptions {
        limits: Limits {
            vocabulary: VOCABULARY,
            context: CONTEXT,
            model_context: CONTEXT,
            lanes: case.lanes,
            queue: 12,
        },
        pages: CacheLayout { groups, pages, context: CONTEXT, slots: case.lanes },
        max_rows: ROWS,
        max_logit_rows: 16,
        max_sample_rows: case.max_sample_rows,
        max_tokens_per_submit: if case.max_sample_rows > 0 { 8 } else { 1 },
        rounds_rows: case.lanes.is_multiple_of(2),
        tokens_per_submit: None,
    }
}

/// Mostly one of a few, now and then one that never comes again.
fn tenant(random: &mut Random) -> u64 {
    match random.below(12) {
        0 => random.0,
        1..=2 => 1,
        3..=4 => 2,
        _ => 0,
    }
}

/// Prompts that often begin alike, with ends of many lengths.
fn request(random: &mut Random) -> Request {
    let family = random.below(4);
    let shared = random.below(200);
    let longest = if random.below(4) == 0 { 150 } else { 20 };
    let own = 1 + random.below(longest);
    let shared = (0..shared).map(|at| ((at * 31 + family * 7) % VOCABULARY) as u32);
    let mut prompt: Vec<u32> = shared.collect();
    prompt.extend((0..own).map(|_| random.below(VOCABULARY) as u32));
    let most = if random.below(8) == 0 { 300 } else { 40 };
    let max_tokens = Some(random.below(most));
    let priority = [0, 0, 0, 1, 3][random.below(5)];
    let alternating: Box<dyn Constraint> = Box::new(Alternating::default());
    let constraint = (random.below(4) == 0).then_some(alternating);
    Request { max_tokens, priority, constraint, tenant: tenant(random), ..Request::new(prompt) }
}

/// A request under way, and the text that came so far.
struct Open {
    request: Request,
    text: String,
}

fn pooling_of(request: &Request) -> Pooling {
    if request.prompt.len().is_multiple_of(2) { Pooling::Mean } else { Pooling::Last }
}

/// A scheduler, its device, and what is expected of them.
struct Driver {
    scheduler: Scheduler,
    device: Device,
    random: Random,
    open: BTreeMap<RequestId, Open>,
    earlier: Vec<Request>,
    oldest: Option<(RequestId, usize)>,
    answers: usize,
    failures: usize,
    losses: usize,
    embeddings: usize,
}

/// Whether an answer is that of the request alone, as far as it goes.
fn check_answer(open: &Open, answer: &Answer) {
    let Request { prompt, max_tokens, .. } = &open.request;
    let room = CONTEXT + 1 - prompt.len();
    let count = max_tokens.map_or(room, |most| most.min(room));
    let wanted = match answer.finish {
        Finish::Cancelled => answer.tokens.len(),
        Finish::ContextFull => room,
        _ => count,
    };
    assert_eq!(answer.tokens, alone(&open.request, wanted), "{:?}", open.request);
    let mut text = String::new();
    answer.tokens.iter().for_each(|token| write!(text, "{token} ").unwrap());
    match answer.finish {
        Finish::Cancelled => assert!(text.starts_with(&open.text)),
        _ => assert_eq!(open.text, text),
    }
}

impl Driver {
    fn new(case: Case, seed: u64) -> Driver {
        let options = options(case);
        let device = Device::new(&options.pages.pages, case.lanes, CONTEXT);
        let mut scheduler = Scheduler::new(options, None);
        scheduler.set_speculation(case.speculation);
        Driver {
            scheduler,
            device,
            random: Random(seed),
            open: BTreeMap::new(),
            earlier: Vec::new(),
            oldest: None,
            answers: 0,
            failures: 0,
            losses: 0,
            embeddings: 0,
        }
    }

    fn arrive(&mut self) {
        let Driver { random, earlier, scheduler, open, .. } = self;
        // Now and then what was asked before, to the letter, and sometimes by another.
        let again = earlier.get(random.below(8 * earlier.len().max(1))).cloned();
        let mut request = again.unwrap_or_else(|| request(random));
        if random.below(16) == 0 {
            request.tenant = tenant(random);
        }
        let place = random.below(32);
        match earlier.len() < 32 {
            true => earlier.push(request.clone()),
            false => earlier[place] = request.clone(),
        }
        if random.below(10) == 0 {
            return self.arrive_to_embed(request);
        }
        let by = if random.below(6) == 0 { SampledBy::Host } else { SampledBy::Device };
        let id = scheduler.next_id();
        match scheduler.submit(id, request.clone(), by) {
            Ok(()) => drop(open.insert(id, Open { request, text: String::new() })),
            Err(EngineError::QueueFull { .. }) => {}
            Err(error) => panic!("{error}"),
        }
    }

    fn arrive_to_embed(&mut self, request: Request) {
        let id = self.scheduler.next_id();
        let (tokens, pooling) = (request.prompt.clone(), pooling_of(&request));
        let Request { priority, tenant, .. } = request;
        let embed = EmbedRequest { tokens, pooling, priority, tenant };
        match self.scheduler.submit_embedding(id, embed) {
            Ok(()) => drop(self.open.insert(id, Open { request, text: String::new() })),
            Err(EngineError::QueueFull { .. }) => {}
            Err(error) => panic!("{error}"),
        }
    }

    fn cancel(&mut self, id: RequestId) {
        let answer = self.scheduler.cancel(id).expect("it is under way");
        assert_eq!(answer.finish, Finish::Cancelled);
        check_answer(&self.open.remove(&id).unwrap(), &answer);
        assert!(self.scheduler.cancel(id).is_none(), "it ends once");
    }

    fn step(
        &mut self,
        plan: &mut StepPlan,
        outcome: &mut StepOutcome,
        broken_off: Option<RequestId>,
    ) {
        let Driver { scheduler, device, random, open, answers, failures, embeddings, .. } = self;
        let mut lost = false;
        let has_rows = scheduler.plan_step(plan, &mut |_| panic!("there is no draft model"));
        device.change_pages(&plan.pages);
        for Running { lane, slot, .. } in &scheduler.running {
            device.set_tenant(*slot, lane.request.tenant);
        }
        if has_rows {
            scheduler.fill_masks(plan);
            let broken = (random.below(500) == 0).then(|| random.below(plan.samples.len()));
            device.play(plan, broken.filter(|_| !plan.samples.is_empty()), outcome);
            if random.below(1500) == 0 {
                device.spoil(plan);
                let reason = "it was unplugged".to_string();
                lost = random.below(2) == 0;
                let kind = ErrorKind::Internal;
                outcome.failure = Some(StepFailure { reason, kind, lost });
            }
            scheduler.complete(plan, outcome, &mut |id, event| {
                match event {
                    Event::Prompt => {}
                    Event::Embedding(values) => {
                        let Open { request, .. } = open.remove(&id).expect("one end each");
                        assert_eq!(values, embed_alone(&request, pooling_of(&request)));
                        *embeddings += 1;
                        return ControlFlow::Continue(());
                    }
                    Event::Token(token) => {
                        open.get_mut(&id).unwrap().text.push_str(token.text);
                    }
                    Event::Finished(answer) => {
                        check_answer(&open.remove(&id).expect("one end each"), &answer);
                        *answers += 1;
                        return ControlFlow::Continue(());
                    }
                    Event::Failed(_) => {
                        open.remove(&id).expect("one end each");
                        *failures += 1;
                        return ControlFlow::Continue(());
                    }
                }
                match Some(id) == broken_off {
                    true => ControlFlow::Break(()),
                    false => ControlFlow::Continue(()),
                }
            });
        }
        scheduler.cache.check();
        if lost {
            self.reopen();
        }
        let oldest = self.open.keys().next().copied();
        self.oldest = match (self.oldest, oldest) {
            (Some((before, steps)), Some(now)) if before == now => Some((now, steps + 1)),
            (_, now) => now.map(|now| (now, 0)),
        };
        assert!(self.oldest.is_none_or(|(_, steps)| steps < PATIENCE), "the oldest starves");
    }

    /// Another device, with nothing in its pages: all requests go on there.
    fn reopen(&mut self) {
        let options = self.scheduler.options.clone();
        self.device = Device::new(&options.pages.pages, options.limits.lanes, CONTEXT);
        let mut scheduler = Scheduler::new(options, None);
        scheduler.set_speculation(self.scheduler.speculation);
        let waiting = self.scheduler.take_waiting();
        assert!(!self.scheduler.is_busy(), "a request stayed behind");
        assert!(scheduler.adopt(waiting, &|_| SampledBy::Device).is_empty());
        self.scheduler = scheduler;
        self.losses += 1;
    }

    /// Drives the scheduler for `steps` steps, and until all requests are done.
    fn drive(&mut self, steps: usize) {
        let (mut plan, mut outcome) = (StepPlan::default(), StepOutcome::default());
        for step in 0..steps {
            // Waves of many arrivals and of few.
            let rate = if (step / 1000).is_multiple_of(2) { 30 } else { 8 };
            if self.random.below(100) < rate || self.open.is_empty() {
                self.arrive();
            }
            let victim = self.random.below(self.open.len().max(1));
            let victim = self.open.keys().nth(victim).copied();
            let mut broken_off = None;
            match (self.random.below(40), victim) {
                (0, Some(id)) => self.cancel(id),
                (1, Some(id)) => broken_off = Some(id),
                _ => {}
            }
            self.step(&mut plan, &mut outcome, broken_off);
        }
        while self.scheduler.is_busy() {
            self.step(&mut plan, &mut outcome, None);
        }
        assert!(self.open.is_empty());
        let usage = self.scheduler.cache_use();
        assert_eq!(usage.held_bytes, 0, "pages are still held");
        assert_eq!(usage.free_bytes() + usage.kept_bytes, usage.bytes);
    }
}

#[test]
fn every_answer_is_that_of_the_request_alone() {
    use Speculation::{Lookup, Off};
    let case = |lanes, sequences, speculation, max_sample_rows| Case {
        lanes,
        sequences,
        speculation,
        max_sample_rows,
    };
    // From room for one sequence, to room for all.
    let cases = [
        case(1, 1.0, Lookup, 0),
        case(2, 1.0, Off, 16),
        case(4, 1.2, Lookup, 16),
        case(4, 1.5, Off, 0),
        case(6, 2.0, Lookup, 5),
        case(3, 10.0, Off, 16),
        case(8, 4.0, Lookup, 16),
        case(8, 3.0, Off, 6),
    ];
    let (mut preemptions, mut evictions, mut cached, mut accepted) = (0, 0, 0, 0);
    for (seed, case) in cases.into_iter().enumerate() {
        let mut driver = Driver::new(case, seed as u64 + 1);
        driver.drive(STEPS / cases.len());
        let counters = driver.scheduler.counters();
        assert!(driver.answers > 500, "{} answers of {}", driver.answers, case.lanes);
        assert!(driver.failures > 20, "{} failures", driver.failures);
        assert!(driver.embeddings > 50, "{} embeddings", driver.embeddings);
        assert!(driver.losses > 2, "{} lost devices", driver.losses);
        assert_eq!(counters.drafted_tokens > 0, case.speculation == Lookup);
        preemptions += counters.preemptions;
        cached += counters.cached_tokens;
        accepted += counters.accepted_tokens;
        evictions += driver.scheduler.cache_use().evictions;
    }
    // The hard ways were walked.
    assert!(preemptions > 1000, "{preemptions} preemptions");
    assert!(evictions > 10_000 && cached > 100_000, "{evictions} evictions, {cached} cached");
    assert!(accepted > 10_000, "{accepted} right guesses");
}
