//! Checks a device: kernels against the reference, counted among the variants that it can launch for a
//! model; then some layers as a whole, then the tokens it samples.
//!
//! ```text
//! subject ─► cases (types) ─► steps (lanes, prompts) ─► each kernel beside the reference
//!                │                                           │ compared variants
//!                └─► Device::variants: those there are ──────┴─► coverage
//! ```
//!
//! Widths are the model's own; layers are one of each kind; contexts go over several pages and
//! beyond the window. The reference computes all columns of sampled rows.

mod cases;
mod draws;
mod kernels;
mod layers;
mod pairs;
mod report;
mod rounded;
mod sequences;
mod steps;
mod subject;

pub use report::{CheckIssue, CheckSection, Coverage, DeviceCheck};
pub use subject::CheckSubject;

use crate::error::EngineError;
use crate::load::default_numeric;
use cases::Case;
use pianola_formats::{TensorSource, TensorType};
use pianola_model::ModelSubset;
use pianola_plan::{
    Device, DeviceId, Graph, KernelVariant, KvType, Numeric, Placement, Plan, PlanError,
    PlanOptions, Recording, kv_bytes,
};
use sequences::{PAGES, Sequences};
use std::collections::HashSet;
use std::sync::Arc;
use std::time::Instant;
use steps::{CONTEXT, LONGEST_WINDOW, SEQUENCES};

/// How thoroughly to check, and what of.
#[derive(Clone, Copy, Debug, Default)]
pub struct CheckOptions {
    /// Only the model's own types, and of each kernel one step.
    pub quick: bool,
    /// Numeric mode that the model is used in; by default that of its weights.
    pub numeric: Option<Numeric>,
    /// Type of keys and values that it is used with; by default that of the mode.
    pub kv_type: Option<KvType>,
    /// The kernels of [`PlanOptions::reproducible`].
    pub reproducible: bool,
}

/// What a check says while it runs.
pub enum CheckEvent<'a> {
    /// Steps of a section are done.
    Progress {
        /// What is being checked.
        section: &'a str,
        /// Steps done.
        done: usize,
        /// Steps in all, of this section.
        all: usize,
    },
    /// A section is done.
    Section(&'a CheckSection),
}

/// Checks `device` with the kernels and weights of `subject`. What is wrong is in the result; an error
/// means that the check could not go on.
pub fn check(
    subject: &CheckSubject,
    device: &Arc<dyn Device>,
    options: CheckOptions,
    events: &mut dyn FnMut(CheckEvent<'_>),
) -> Result<DeviceCheck, EngineError> {
    let mut checker = Checker::new(subject, device, options, events)?;
    let mut cases = checker.cases().into_iter();
    // The types that are used, with the whole vocabulary, to sample from.
    let mut stands = Vec::new();
    if let Some(used) = cases.next() {
        stands.push(checker.check_case(used)?);
    }
    checker.check_layers()?;
    if let Some(whole) = stands.first_mut() {
        checker.check_draws(whole)?;
    }
    for case in cases {
        if checker.is_late() {
            checker.leave_out(&case)?;
            continue;
        }
        let stand = checker.check_case(case)?;
        // A quick check goes on with all of them.
        if options.quick {
            stands.push(stand);
        }
    }
    if options.quick {
        checker.check_further(&mut stands)?;
    }
    let mut result = checker.result;
    result.seconds = checker.start.elapsed().as_secs_f64();
    Ok(result)
}

/// What tells the kernels of a step apart: their variants, their shapes and the rows.
type KernelKey = (Vec<KernelVariant>, String, usize);

struct Checker<'a> {
    start: Instant,
    subject: &'a CheckSubject,
    device: &'a Arc<dyn Device>,
    options: CheckOptions,
    events: &'a mut dyn FnMut(CheckEvent<'_>),
    /// The types that the model is used with.
    used: (KvType, Numeric),
    /// The type of the model's matrices, where they have one.
    own_type: Option<TensorType>,
    /// Kernels that were compared.
    seen: HashSet<KernelKey>,
    /// Steps played, by which sampled rows take turns.
    turn: usize,
    result: DeviceCheck,
}

impl<'a> Checker<'a> {
    fn new(
        subject: &'a CheckSubject,
        device: &'a Arc<dyn Device>,
        options: CheckOptions,
        events: &'a mut dyn FnMut(CheckEvent<'_>),
    ) -> Result<Checker<'a>, EngineError> {
        let start = Instant::now();
        let graph = pianola_model::graph(&subject.config, subject.source(), subject.quantize)?;
        let numeric = options.numeric.unwrap_or_else(|| default_numeric(&graph));
        let kv_type = options.kv_type.unwrap_or_else(|| numeric.kv_type());
        let of_own = Coverage { what: "the model's own types".to_string(), ..Coverage::default() };
        let of_others = Coverage { what: "other types".to_string(), ..Coverage::default() };
        let coverage = if options.quick { vec![of_own] } else { vec![of_own, of_others] };
        let result = DeviceCheck {
            device: device.description(),
            subject: subject.name().to_string(),
            sections: Vec::new(),
            coverage,
            notes: Vec::new(),
            issues: Vec::new(),
            seconds: 0.0,
        };
        let mut checker = Checker {
            start,
            subject,
            device,
            options,
            events,
            used: (kv_type, numeric),
            own_type: only_type(&graph),
            seen: HashSet::new(),
            turn: 0,
            result,
        };
        checker.note_limits();
        Ok(checker)
    }

    /// Says what no check of this model covers.
    fn note_limits(&mut self) {
        let notes = &mut self.result.notes;
        notes.push(format!("steps of more than {SEQUENCES} sequences are not played"));
        if self.subject.shortened {
            notes.push(format!("windows of more than {LONGEST_WINDOW} tokens are that long here"));
        }
        if self.options.quick {
            notes.push("other types of weights are left out by --quick".to_string());
        }
    }

    fn cases(&self) -> Vec<Case> {
        match self.options.quick {
            true => cases::quick(self.used),
            false => cases::full(self.used, self.own_type),
        }
    }

    fn finish(&mut self, section: CheckSection) {
        (self.events)(CheckEvent::Section(&section));
        self.result.sections.push(section);
    }

    /// A plan of a few layers on one device, for the sequences of a check.
    fn plan(
        &self,
        subset: &ModelSubset<'_>,
        (kv_type, numeric): (KvType, Numeric),
        device: &Arc<dyn Device>,
        fusion: bool,
    ) -> Result<Arc<Plan>, EngineError> {
        let graph = pianola_model::graph(&subset.config, subset, self.subject.quantize)?;
        let mut options = PlanOptions {
            numeric,
            kv_type: Some(kv_type),
            max_rows: 512,
            max_logit_rows: SEQUENCES,
            context: CONTEXT,
            sequences: SEQUENCES,
            kv_bytes: Some(kv_bytes(&graph.kv_groups, &vec![PAGES; graph.kv_groups.len()]) as u64),
            fusion,
            reproducible: self.options.reproducible,
        };
        // Pages are shared out by what groups need at most: one may get more than its part.
        loop {
            let placement = Placement::single(&graph, device.spec());
            match Plan::new(graph.clone(), options, placement) {
                Ok(plan) if plan.kv_pages.iter().all(|&pages| pages >= PAGES) => {
                    return Ok(Arc::new(plan));
                }
                Ok(_) | Err(PlanError::KvBudget { .. }) => {
                    options.kv_bytes = options.kv_bytes.map(|bytes| 2 * bytes);
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// A recording whose pages hold nothing but NaN, with those of the long sequence mapped.
    fn record(
        &self,
        device: &Arc<dyn Device>,
        plan: &Arc<Plan>,
        source: &dyn TensorSource,
    ) -> Result<Box<dyn Recording>, EngineError> {
        let mut recording = device.record(plan, DeviceId(0), source, &mut |_, _| ())?;
        recording.poison_kv()?;
        Sequences::map_first(recording.as_mut());
        Ok(recording)
    }
}

/// The type that all matrices have.
fn only_type(graph: &Graph) -> Option<TensorType> {
    let first = graph.matrices().next()?.ty;
    graph.matrices().all(|weight| weight.ty == first).then_some(first)
}
