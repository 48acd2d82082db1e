//! Compiles grammars within limits of stack and time.

use crate::GrammarError;
use crate::vocabulary::first_line;
use llguidance::api::TopLevelGrammar;
use llguidance::{ParserFactory, TokenParser};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

/// The compiler recurses over schemas and grammars. Their depth is limited to what fits here with
/// room to spare; memory is taken as it is used.
const STACK: usize = 256 << 20;
/// How long a caller waits. Limits on the size of schemas and grammars end the work of the compiler
/// itself, for the worst of them after a minute.
const SECONDS: u64 = 5;
/// Grammars being compiled at once, with those that nobody waits for any more.
const MAX_COMPILING: usize = 8;

/// Compiles grammars, each on a thread of its own. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Compiler {
    factory: Arc<ParserFactory>,
    compiling: Arc<AtomicUsize>,
}

impl Compiler {
    pub fn new(factory: ParserFactory) -> Compiler {
        Compiler { factory: Arc::new(factory), compiling: Arc::default() }
    }

    pub fn compile(
        &self,
        what: &'static str,
        grammar: TopLevelGrammar,
    ) -> Result<TokenParser, GrammarError> {
        let factory = Arc::clone(&self.factory);
        let place = Place::take(&self.compiling)?;
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
        match receiver.recv_timeout(Duration::from_secs(SECONDS)) {
            Ok(parser) => parser.map_err(|error| refused(first_line(&format!("{error:#}")))),
            Err(RecvTimeoutError::Timeout) => Err(GrammarError::TooSlow { what, seconds: SECONDS }),
            // llguidance catches its own panics.
            Err(RecvTimeoutError::Disconnected) => Err(refused("its compiler panicked".into())),
        }
    }
}

/// One of the places of grammars being compiled.
struct Place(Arc<AtomicUsize>);

impl Place {
    fn take(compiling: &Arc<AtomicUsize>) -> Result<Place, GrammarError> {
        let place = Place(Arc::clone(compiling));
        match compiling.fetch_add(1, Ordering::Relaxed) {
            others if others < MAX_COMPILING => Ok(place),
            compiling => Err(GrammarError::Busy { compiling }),
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
