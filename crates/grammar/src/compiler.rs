//! Compiles grammars within limits of stack and time.

use crate::GrammarError;
use crate::vocabulary::first_line;
use llguidance::api::TopLevelGrammar;
use llguidance::{ParserFactory, TokenParser};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The compiler recurses over schemas and grammars. Their depth is limited to what fits here with
/// room to spare; memory is taken as it is used.
const STACK: usize = 128 << 20;
/// How long a request waits for all its grammars. The compiler cannot be stopped; limits on the size of schemas and grammars
/// end its work some time later.
const SECONDS: u64 = 5;
/// Grammars being compiled at once, including those whose caller timed out.
const MAX_COMPILING: usize = 8;

/// When a request stops waiting for its grammars.
#[derive(Clone, Copy)]
pub(crate) struct Deadline(Instant);

impl Deadline {
    pub fn of_new_request() -> Deadline {
        Deadline(Instant::now() + Duration::from_secs(SECONDS))
    }

    fn left(self) -> Duration {
        self.0.saturating_duration_since(Instant::now())
    }
}

/// Compiles grammars, each on a thread of its own. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Compiler {
    factory: Arc<ParserFactory>,
    places: Arc<Places>,
}

impl Compiler {
    pub fn new(factory: ParserFactory) -> Compiler {
        Compiler { factory: Arc::new(factory), places: Arc::default() }
    }

    pub fn compile(
        &self,
        what: &'static str,
        grammar: TopLevelGrammar,
        deadline: Deadline,
    ) -> Result<TokenParser, GrammarError> {
        let too_slow = GrammarError::TooSlow { seconds: SECONDS };
        if deadline.left().is_zero() {
            return Err(too_slow);
        }
        let factory = Arc::clone(&self.factory);
        let place = Place::take(&self.places, deadline)?;
        let (sender, receiver) = mpsc::sync_channel(1);
        let compile = move || {
            let parser = factory.create_parser(grammar);
            drop(place);
            // Whoever has given up waiting receives nothing.
            drop(sender.send(parser));
        };
        let refused = |reason: String| GrammarError::Refused { what, reason };
        std::thread::Builder::new()
            .stack_size(STACK)
            .spawn(compile)
            .map_err(|error| refused(format!("no thread to compile it on: {error}")))?;
        match receiver.recv_timeout(deadline.left()) {
            Ok(parser) => parser.map_err(|error| refused(first_line(&format!("{error:#}")))),
            Err(RecvTimeoutError::Timeout) => Err(too_slow),
            // llguidance catches its own panics.
            Err(RecvTimeoutError::Disconnected) => Err(refused("its compiler panicked".into())),
        }
    }
}

/// How many grammars are being compiled.
#[derive(Default)]
struct Places {
    taken: Mutex<usize>,
    freed: Condvar,
}

/// One of them.
struct Place(Arc<Places>);

impl Place {
    fn take(places: &Arc<Places>, deadline: Deadline) -> Result<Place, GrammarError> {
        let taken = places.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let is_full = |taken: &mut usize| *taken >= MAX_COMPILING;
        let waited = places.freed.wait_timeout_while(taken, deadline.left(), is_full);
        let (mut taken, _) = waited.unwrap_or_else(PoisonError::into_inner);
        if *taken >= MAX_COMPILING {
            return Err(GrammarError::Busy { compiling: *taken });
        }
        *taken += 1;
        Ok(Place(Arc::clone(places)))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        *self.0.taken.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
        self.0.freed.notify_one();
    }
}
