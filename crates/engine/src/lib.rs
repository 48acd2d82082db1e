//! The engine: a model loaded and recorded, the requests to it, their KV pages, sampling, and what is
//! measured about a model.
//!
//! ```text
//! path ─► Engine::load ─► Engine { text, scheduler, executor }
//!                             │ submit_to, step, cancel, embed     perplexity, compare, bench
//!                             ▼
//!       requests ─► StepPlan ─► play ─► StepOutcome ─► events: tokens, text, the end
//! ```
//!
//! [`Service`] runs an engine on a thread of its own, for many callers:
//!
//! ```no_run
//! use pianola_engine::{Engine, LoadOptions, Request, Service};
//!
//! fn answer(prompt: Vec<u32>) -> Result<String, pianola_engine::EngineError> {
//!     let options = LoadOptions { lanes: 8, ..LoadOptions::default() };
//!     let engine = Engine::load("model.gguf".as_ref(), options, &mut |_, _| ())?;
//!     let service = Service::start(engine);
//!     service.submit(Request::new(prompt))?.collect()
//! }
//! ```
//!
//! Each request has a sink of its events ([`Service::submit_to`], [`Engine::submit_to`]); a
//! [`Stream`] is one of them.
//!
//! The engine never reads a file's bytes itself and never computes a layer: it decides which rows
//! are played next, and what becomes of their logits.

#![forbid(unsafe_code)]

mod bench;
mod cache;
mod check;
mod constraint;
mod draft;
mod embed;
mod engine;
mod error;
mod evaluate;
mod executor;
mod lane;
mod load;
mod options;
mod placement;
mod prefix;
mod request;
pub mod sampler;
mod scenario;
mod scheduler;
mod sequence;
mod service;
mod speculate;
mod split;
mod stop;
mod text;

pub use bench::{BenchOptions, BenchRow, Launches, Repetition, Test, TestKind, WarmUp, bench};
pub use cache::CacheUse;
pub use check::{
    CheckEvent, CheckIssue, CheckOptions, CheckSection, CheckSubject, Coverage, DeviceCheck, check,
};
pub use constraint::Constraint;
pub use draft::{Vocabulary, check_draft};
pub use embed::Pooling;
pub use error::{EngineError, ErrorKind};
pub use evaluate::{Comparison, Deviation, Perplexity, compare, log_softmax_at, perplexity};
pub use executor::{DeviceUse, Span};
pub use load::{Engine, LoadTiming};
pub use options::{DEFAULT_LANES, LoadOptions, Warn};
pub use pianola_plan::{PAGE_TOKENS, TokenLogProbs};
pub use placement::{DevicePart, EnginePlacement};
pub use request::{
    Answer, EmbedRequest, Event, EventSink, Finish, Moment, PenaltyScope, PromptProgress, Request,
    RequestId, Timing, Token, Usage,
};
pub use scenario::{ChatScenario, ScenarioReport, percentile, run_scenario};
pub use scheduler::EngineCounters;
pub use sequence::LogitRows;
pub use service::{BusyTime, MOST_DEVICES, Reopen, Report, Service, ServiceInfo, Stream};
pub use speculate::Speculation;
pub use text::Text;
