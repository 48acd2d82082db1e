//! Kernels one by one beside the reference, for the types and steps of a case.

use super::cases::{Case, CaseWeights, FEW_TOKENS};
use super::report::{CheckIssue, CheckSection, Coverage};
use super::sequences::Sequences;
use super::steps::{RowLimits, StepKind, sample_rows};
use super::{CheckEvent, Checker};
use crate::error::EngineError;
use crate::load::random_weights;
use pianola_cpu::ReferenceModel;
use pianola_formats::TensorSource;
use pianola_model::{ModelSubset, RandomWeights, distinct_layers};
use pianola_plan::{DeviceId, Kernel, PAGE_TOKENS, Plan, Recording, bucket};
use std::collections::HashSet;
use std::time::{Duration, Instant};

/// Nothing but the steps of the types that are used begins after this in a quick check.
const QUICK: Duration = Duration::from_secs(70);

/// A case's recording and the reference beside it, at the same place.
pub(super) struct Stand {
    case: Case,
    pub recording: Box<dyn Recording>,
    pub reference: ReferenceModel,
    pub sequences: Sequences,
}

impl Stand {
    /// Lets the sequences begin that share pages of the long one.
    pub fn branch(&mut self) {
        let branches = self.sequences.branch();
        Sequences::map_branches(self.recording.as_mut(), &branches);
        for (sequence, pages) in branches {
            (0..pages).for_each(|page| self.reference.share_page(0, sequence, page));
        }
    }
}

impl Checker<'_> {
    fn limits(&self) -> RowLimits {
        match self.options.quick {
            true => RowLimits { rows: 4, logits: 2 },
            false => RowLimits { rows: 8, logits: 3 },
        }
    }

    /// Whether a quick check has no time left for more than the types that are used.
    pub(super) fn is_late(&self) -> bool {
        self.options.quick && self.start.elapsed() > QUICK
    }

    /// Counts and names a case of the subject's own weights that there is no time for.
    pub(super) fn leave_out(&mut self, case: &Case) -> Result<(), EngineError> {
        let limit = QUICK.as_secs();
        self.result.notes.push(format!("{case}: a quick check begins none after {limit} s"));
        let source = self.subject.source();
        self.count_variants(case, source, &distinct_layers(&self.subject.config, source))
    }

    /// Checks the steps of a case, and returns what played them.
    pub(super) fn check_case(&mut self, case: Case) -> Result<Stand, EngineError> {
        let start = Instant::now();
        let mut section = CheckSection { name: case.to_string(), ..CheckSection::default() };
        let mut stand = self.open_case(case)?;
        let steps = ordered(&stand.case, stand.recording.plan());
        for (index, &(kind, filler)) in steps.iter().enumerate() {
            self.check_step(kind, filler, &mut stand, &mut section)?;
            let (done, all) = (index + 1, steps.len());
            (self.events)(CheckEvent::Progress { section: &section.name, done, all });
        }
        section.seconds = start.elapsed().as_secs_f64();
        self.finish(section);
        Ok(stand)
    }

    /// Loads and records a case.
    fn open_case(&mut self, case: Case) -> Result<Stand, EngineError> {
        let random: RandomWeights;
        let source: &dyn TensorSource = match case.weights {
            CaseWeights::Own => self.subject.source(),
            CaseWeights::Random(ty) => {
                random = random_weights(&self.subject.config, ty);
                &random
            }
        };
        let layers = distinct_layers(&self.subject.config, source);
        let vocabulary = if case.whole { usize::MAX } else { FEW_TOKENS };
        self.count_variants(&case, source, &layers)?;
        let subset = ModelSubset::new(&self.subject.config, source, &layers, vocabulary);
        let plan = self.plan(&subset, (case.kv_type, case.numeric), self.device, true)?;
        Ok(Stand {
            reference: ReferenceModel::new((*plan).clone(), &subset)?,
            recording: self.record(self.device, &plan, &subset)?,
            sequences: Sequences::new(plan.graph.vocabulary),
            case,
        })
    }

    /// Checks further steps of some cases while there is time.
    pub(super) fn check_further(&mut self, stands: &mut [Stand]) -> Result<(), EngineError> {
        let start = Instant::now();
        let name = "further row counts".to_string();
        let mut section = CheckSection { name, ..CheckSection::default() };
        let all: usize = stands.iter().map(|stand| stand.case.further.len()).sum();
        for stand in stands {
            for kind in stand.case.further.clone() {
                if self.is_late() {
                    break;
                }
                self.check_step(kind, false, stand, &mut section)?;
                let done = section.steps;
                (self.events)(CheckEvent::Progress { section: &section.name, done, all });
            }
        }
        if section.steps < all {
            self.result.notes.push(format!(
                "{} of {all} further steps: a quick check begins none after {} s",
                all - section.steps,
                QUICK.as_secs()
            ));
        }
        section.seconds = start.elapsed().as_secs_f64();
        self.finish(section);
        Ok(())
    }

    /// Rows that want logits, counted from the last. A head of the whole vocabulary takes the
    /// reference most of the time.
    fn wanted(&self, case: &Case, kind: StepKind) -> usize {
        match kind {
            StepKind::Prompt(_) => 1,
            StepKind::Lanes(1 | 8 | 64) => kind.rows(),
            _ if self.options.quick && case.whole => 1,
            StepKind::Lanes(lanes) => lanes,
            StepKind::Mixed(_, lanes) => 1 + lanes,
        }
    }

    /// Counts what the device can launch in a case, with the whole vocabulary.
    fn count_variants(
        &mut self,
        case: &Case,
        source: &dyn TensorSource,
        layers: &[usize],
    ) -> Result<(), EngineError> {
        let whole = ModelSubset::new(&self.subject.config, source, layers, usize::MAX);
        let plan = self.plan(&whole, (case.kv_type, case.numeric), self.device, true)?;
        let reachable = self.device.variants(&plan, DeviceId(0))?;
        self.coverage(case).reachable.extend(reachable);
        let asked = match case.weights {
            CaseWeights::Own => self.subject.random_type(),
            CaseWeights::Random(ty) => Some(ty),
        };
        if let Some(ty) = asked {
            let other = plan.graph.matrices().any(|weight| weight.ty != ty);
            let note = format!(
                "some matrices are q8_0 instead of {ty}: their rows are no whole number of blocks"
            );
            if other && !self.result.notes.contains(&note) {
                self.result.notes.push(note);
            }
        }
        Ok(())
    }

    fn coverage(&mut self, case: &Case) -> &mut Coverage {
        let index = usize::from(case.weights != CaseWeights::Own);
        &mut self.result.coverage[index]
    }

    /// Plays a step kernel by kernel; of those that were compared like this before, and of steps
    /// that only fill the context, none is compared again.
    fn check_step(
        &mut self,
        kind: StepKind,
        filler: bool,
        stand: &mut Stand,
        section: &mut CheckSection,
    ) -> Result<(), EngineError> {
        if !matches!(kind, StepKind::Prompt(_)) {
            stand.branch();
        }
        let Stand { case, recording, reference, sequences, .. } = stand;
        let step = &sequences.step(kind, self.wanted(case, kind));
        let sampled = sample_rows(step, self.limits(), self.turn);
        self.turn += 1;
        let mut compared = HashSet::new();
        let ops = recording.plan().ops.len();
        for op in (0..ops).filter(|_| !filler) {
            let variants = recording.variants(op, step)?;
            let shape = shape_of(recording.plan(), op);
            let rows = match recording.plan().is_head(op) {
                true => step.logits.len(),
                false => step.rows.len(),
            };
            let rows = if self.options.quick { bucket(rows).unwrap_or(rows) } else { rows };
            if !variants.is_empty() && self.seen.insert((variants.clone(), shape, rows)) {
                compared.insert(op);
                self.coverage(case).compared.extend(variants);
            }
        }
        recording.poison()?;
        let compared_op = |op: usize| compared.contains(&op);
        let report = reference.check_rows(recording.as_mut(), step, &sampled, &compared_op)?;
        section.steps += 1;
        section.compared += report.kernels;
        section.values += report.values;
        section.worst_share = section.worst_share.max(report.worst_share).max(report.worst_row);
        for failure in report.failures {
            let plan = recording.plan();
            let op = plan.ops.iter().position(|op| op.name == failure.kernel);
            let variants = op.map(|op| recording.variants(op, step)).transpose()?;
            let launched: Vec<String> =
                variants.into_iter().flatten().map(|variant| variant.to_string()).collect();
            let shape = op.map_or(String::new(), |op| shape_of(recording.plan(), op));
            self.result.fail(CheckIssue {
                section: section.name.clone(),
                step: format!("{kind}, compared rows {:?}", sampled.rows),
                kernel: format!("{} {shape}, launched as {}", failure.kernel, launched.join(" + ")),
                reason: failure.reason,
            });
        }
        Ok(())
    }
}

/// The steps of a case: prompts first, the longest first, then as many more as it takes to go
/// beyond the window (told apart by the flag), then lanes.
fn ordered(case: &Case, plan: &Plan) -> Vec<(StepKind, bool)> {
    const LEAST: usize = 320;
    const BEYOND: usize = 128;
    let windows = plan.graph.kv_groups.iter().filter_map(|group| group.window);
    let target = match case.whole || case.further.is_empty() {
        true => windows.max().map_or(LEAST, |window| (window + BEYOND).max(LEAST)),
        // A quick check goes beyond the window with the types that are used.
        false => 2 * PAGE_TOKENS,
    };
    let (mut prompts, lanes): (Vec<StepKind>, Vec<StepKind>) =
        case.kinds.iter().partition(|kind| matches!(kind, StepKind::Prompt(_)));
    prompts.sort_by_key(|kind| std::cmp::Reverse(kind.rows()));
    let read: usize = prompts.iter().map(|kind| kind.rows()).sum();
    let longest = prompts.first().map_or(0, |kind| kind.rows()).max(64);
    let fillers = if lanes.is_empty() { 0 } else { target.saturating_sub(read).div_ceil(longest) };
    let fillers = std::iter::repeat_n((StepKind::Prompt(longest), true), fillers);
    let told = |kind: StepKind| (kind, false);
    prompts.into_iter().map(told).chain(fillers).chain(lanes.into_iter().map(told)).collect()
}

/// What a kernel's work depends on besides its variants: shapes and types of weights, the window.
fn shape_of(plan: &Plan, op: usize) -> String {
    match &plan.ops[op].kernel {
        Kernel::Project(project) => {
            let parts = project.parts.iter().map(|part| {
                let weight = &plan.graph.weights[part.weight.0];
                let (rows, columns) = weight.shape.rows();
                format!("{rows} x {columns} {}", weight.ty)
            });
            parts.collect::<Vec<_>>().join(" + ")
        }
        Kernel::Attend(attend) => {
            let spec = &attend.spec;
            let window = spec.window.map_or("all".to_string(), |window| window.to_string());
            format!(
                "{} heads on {} of {}, {window} tokens",
                spec.heads, spec.kv_heads, spec.head_dim
            )
        }
        Kernel::Single(node) => {
            let node = &plan.graph.nodes[*node];
            let widths = node.inputs.iter().chain(&node.output);
            let widths: Vec<String> =
                widths.map(|&id| plan.graph.tensor(id).width.to_string()).collect();
            format!("{} of {}", node.op.name(), widths.join(", "))
        }
    }
}
