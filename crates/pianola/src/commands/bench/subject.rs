//! The engine that is measured: loaded, and checked against the reference where requested.

use pianola_cpu::{CheckReport, ReferenceModel};
use pianola_engine::{Engine, LoadOptions, LogitRows, Speculation};
use pianola_formats::TensorType;
use pianola_model::Shape;
use pianola_plan::{Plan, Step, WeightShape};

use super::Arguments;
use crate::console::Console;
use crate::failure::Failure;
use crate::model;
use crate::shapes::check_memory;

/// What is measured.
pub(super) struct Subject {
    pub label: String,
    pub engine: Engine,
    pub check: Option<CheckReport>,
    /// The type given with --quant.
    pub asked: Option<TensorType>,
    /// Prompts differ in length.
    pub mixed: bool,
}

pub(super) fn of_file(
    arguments: &Arguments,
    options: LoadOptions,
    console: Console,
) -> Result<Subject, Failure> {
    let located = model::locate(&arguments.model.model, console)?;
    let reference_model = match arguments.check {
        true => Some(Engine::reference_model(&located.path, &options)?),
        false => None,
    };
    let mut engine = model::load_with_draft(&located, options, &arguments.speculation, console)?;
    let check =
        reference_model.map(|reference_model| check(&mut engine, reference_model)).transpose()?;
    Ok(Subject { label: located.label, engine, check, asked: None, mixed: arguments.mixed })
}

pub(super) fn of_shape(
    shape: &Shape,
    arguments: &Arguments,
    options: LoadOptions,
    console: Console,
) -> Result<Subject, Failure> {
    /// One layer has every kernel; a small vocabulary is enough for the head.
    const CHECKED_LAYERS: usize = 1;
    const CHECKED_VOCABULARY: usize = 2048;
    if arguments.speculation.draft.is_some() {
        return Err(Failure::usage("--draft guesses for a model from a file, not for --shape"));
    }
    let ty = arguments.shape.quant;
    if options.gpu().is_none() {
        check_memory(shape, &Engine::plan_of_random(shape, ty, &options)?)?;
    }
    let reduced = shape.reduced(CHECKED_LAYERS, CHECKED_VOCABULARY);
    let context = Some(CHECKED_ROWS + 1);
    let small = LoadOptions { context, layers_on_first: None, ..options.clone() };
    let reference_model = Engine::random_reference_model(&reduced, ty, &small)?;
    let report = check(&mut Engine::random(&reduced, ty, small, &mut |_, _| ())?, reference_model)?;
    let mut bar = console
        .bar("drawing weights [{bar:24}] {decimal_bytes} of {decimal_total_bytes}, {eta} left");
    let asked = options.clone();
    let mut engine = Engine::random(shape, ty, options, &mut |done, all| bar.reach(done, all))?;
    drop(bar);
    if arguments.speculation.speculate {
        engine.set_speculation(Speculation::Lookup)?;
    }
    model::tell_fit(engine.plan(), &asked, console);
    console.detail(&format!("placement: {}", engine.placement()));
    model::tell_kv(engine.plan(), asked.kv_memory, console);
    let matrices = engine.plan().graph.weights.iter();
    let matrices = matrices.filter(|weight| matches!(weight.shape, WeightShape::Matrix { .. }));
    let other = matrices.filter(|weight| weight.ty != ty).count();
    if other > 0 {
        console.notice(&format!(
            "{other} matrices are q8_0 instead: their rows are no whole number of {ty} blocks"
        ));
    }
    let (label, asked) = (shape.name.to_string(), Some(ty));
    Ok(Subject { label, engine, check: Some(report), asked, mixed: arguments.mixed })
}

/// Rows of the prompt whose kernels are checked.
const CHECKED_ROWS: usize = 16;

/// Checks the kernels of a prompt and of a generated token, each against the reference.
fn check(engine: &mut Engine, mut reference_model: ReferenceModel) -> Result<CheckReport, Failure> {
    let vocabulary = engine.config().vocabulary;
    let count = (CHECKED_ROWS + 1).min(engine.context());
    let tokens: Vec<u32> = (0..count).map(|at| ((at * 7919 + 13) % vocabulary) as u32).collect();
    // Played once, so that every position has its page; then the same rows again, kernel by kernel.
    engine.feed(&tokens, usize::MAX, LogitRows::Last, &mut |_, _| ())?;
    let sequence = engine.fed_slot().unwrap_or(0) as u32;
    let mut worst = CheckReport::default();
    for rows in [0..count - 1, count - 1..count] {
        let mut step = Step::default();
        for at in rows.clone() {
            step.push(tokens[at], sequence, at as u32, at + 1 == rows.end);
        }
        if step.rows.is_empty() {
            continue;
        }
        let checked = reference_model.check_step(engine.probe_mut(), &step);
        let report = checked.map_err(pianola_engine::EngineError::from)?.map_err(|failure| {
            Failure::failed(format!(
                "the check against the reference failed for {} rows: {failure}; its speed would \
                 mean nothing, please report this with the output of `pianola devices`",
                rows.len()
            ))
        })?;
        worst.kernels = worst.kernels.max(report.kernels);
        worst.values += report.values;
        worst.worst_share = worst.worst_share.max(report.worst_share);
        worst.worst_relative_norm = worst.worst_relative_norm.max(report.worst_relative_norm);
    }
    engine.reset();
    Ok(worst)
}

pub(super) fn describe_check(report: &CheckReport) -> String {
    format!(
        "checked: {} kernels against the reference, worst error {:.0} % of its bound",
        report.kernels,
        100.0 * report.worst_share
    )
}

/// The type that most matrices have.
fn dominant_type(plan: &Plan) -> Option<TensorType> {
    let matrices = plan.graph.weights.iter();
    let types: Vec<TensorType> = matrices
        .filter(|weight| matches!(weight.shape, WeightShape::Matrix { .. }))
        .map(|weight| weight.ty)
        .collect();
    let count = |ty: &TensorType| types.iter().filter(|other| *other == ty).count();
    types.iter().copied().max_by_key(count)
}

pub(super) fn quant(subject: &Subject) -> String {
    let ty = subject.asked.or_else(|| dominant_type(subject.engine.plan()));
    ty.map_or("none".to_string(), |ty| ty.to_string())
}
