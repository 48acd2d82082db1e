//! The engine that is measured: loaded, and checked against the reference where requested.

use pianola_engine::{CheckOptions, CheckSubject, DeviceCheck, Engine, LoadOptions, Speculation};
use pianola_formats::TensorType;
use pianola_model::{ModelFile, Shape};
use pianola_plan::{Device, Plan};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;

use super::Arguments;
use crate::commands::check;
use crate::console::Console;
use crate::failure::Failure;
use crate::model;
use crate::options::chosen;
use crate::shapes::check_memory;

/// What is measured.
pub(super) struct Subject {
    pub label: String,
    pub engine: Engine,
    /// The check of each device; none where none was made.
    pub checks: Option<Vec<DeviceCheck>>,
    /// The type given with --quant.
    pub asked: Option<TensorType>,
    /// Prompts differ in length.
    pub mixed: bool,
}

/// Refuses tests that are longer than the context, before a model is loaded for them.
fn check_context(arguments: &Arguments, most: usize) -> Result<(), Failure> {
    let needed = arguments.needed_context();
    let holds = chosen(arguments.context).map_or(most, |asked| asked.min(most));
    if needed <= holds {
        return Ok(());
    }
    let whose = if holds < most { "--context" } else { "the model" };
    let depth = arguments.depth.iter().max().unwrap_or(&0);
    Err(Failure::usage(format!(
        "-p {}, -n {} and -d {depth} need {needed} tokens of context, and {whose} allows {holds}; \
         lower them",
        arguments.prompt, arguments.generate,
    )))
}

pub(super) fn of_file(
    arguments: &Arguments,
    options: LoadOptions,
    console: Console,
) -> Result<Subject, Failure> {
    let located = model::locate(arguments.model.name(), console)?;
    check_context(arguments, ModelFile::open(&located.path)?.config()?.context)?;
    let checks = match arguments.check {
        true => {
            let subject =
                CheckSubject::file(located.label.clone(), &located.path, options.quantize)?;
            let file = ModelFile::open(&located.path)?;
            let plan = Engine::plan_of(&file, &file.config()?, &options)?;
            Some(quick_checks(&subject, &plan, &options, console)?)
        }
        false => None,
    };
    let engine = model::load_with_draft(&located, options, &arguments.speculation, console)?;
    Ok(Subject { label: located.label, engine, checks, asked: None, mixed: arguments.mixed })
}

pub(super) fn of_shape(
    shape: &Shape,
    arguments: &Arguments,
    options: LoadOptions,
    console: Console,
) -> Result<Subject, Failure> {
    if arguments.speculation.draft.is_some() {
        return Err(Failure::usage("--draft guesses for a model from a file, not for --shape"));
    }
    check_context(arguments, shape.config().context)?;
    let ty = arguments.shape.quant;
    let on_cpu = options.gpu().is_none();
    let mut checks = None;
    if on_cpu || !arguments.no_check {
        let plan = Engine::plan_of_random(shape, ty, &options)?;
        if on_cpu {
            check_memory(shape, &plan, arguments.compute.cpu())?;
        }
        if !arguments.no_check {
            let subject = CheckSubject::shape(shape, ty);
            checks = Some(quick_checks(&subject, &plan, &options, console)?);
        }
    }
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
    let other = engine.plan().graph.matrices().filter(|weight| weight.ty != ty).count();
    if other > 0 {
        console.notice(&format!(
            "{other} matrices are q8_0 instead: their rows are not a whole number of {ty} blocks"
        ));
    }
    let (label, asked) = (shape.name.to_string(), Some(ty));
    Ok(Subject { label, engine, checks, asked, mixed: arguments.mixed })
}

/// Checks every device of a plan by itself, as `pianola check --quick` does. What is wrong is an
/// error: speed would mean nothing.
fn quick_checks(
    subject: &CheckSubject,
    plan: &Plan,
    options: &LoadOptions,
    console: Console,
) -> Result<Vec<DeviceCheck>, Failure> {
    let how = CheckOptions {
        quick: true,
        numeric: options.numeric,
        kv_type: options.kv_type,
        reproducible: options.reproducible,
    };
    // What cannot run a whole model has a check of its own.
    let whole = |device: &&Arc<dyn Device>| device.spec().lacks.is_empty();
    let devices = plan.devices_among(&options.all_devices());
    let checks = devices
        .iter()
        .filter(whole)
        .map(|device| check::check(subject, device, how, false, console));
    let checks = checks.collect::<Result<Vec<DeviceCheck>, Failure>>()?;
    check::verdict(&checks)?;
    Ok(checks)
}

pub(super) fn describe_check(check: &DeviceCheck) -> String {
    let coverage: Vec<String> = check
        .coverage
        .iter()
        .map(|coverage| format!("{} of {}", coverage.covered(), coverage.reachable.len()))
        .collect();
    format!(
        "checked: `pianola check --quick`: {}: {} comparisons, {} kernel variants, worst error {:.0} % \
         of its bound, {:.1} s",
        check.device,
        check.compared(),
        coverage.join(" and "),
        100.0 * check.worst_share(),
        check.seconds,
    )
}

/// The check for machines: of the device that computes the head, which is the first.
pub(super) fn check_object(subject: &Subject) -> Option<Value> {
    let check = subject.checks.as_ref()?.first()?;
    let coverage = check.coverage.first()?;
    Some(json!({
        "command": "pianola check --quick",
        "comparisons": check.compared(),
        "covered_variants": coverage.covered(),
        "variants": coverage.reachable.len(),
        "worst_share_of_bound": check.worst_share(),
        "seconds": check.seconds,
    }))
}

/// The types of the matrices, those of most values first: a file that is called Q4_K_M has several,
/// and the one that most of its matrices have may be another.
fn types(plan: &Plan) -> Vec<TensorType> {
    let mut values = BTreeMap::<TensorType, usize>::new();
    for weight in plan.graph.matrices() {
        let (rows, columns) = weight.shape.rows();
        *values.entry(weight.ty).or_default() += rows * columns;
    }
    let mut types: Vec<(TensorType, usize)> = values.into_iter().collect();
    types.sort_by_key(|&(_, count)| std::cmp::Reverse(count));
    types.into_iter().map(|(ty, _)| ty).collect()
}

pub(super) fn quant(subject: &Subject) -> String {
    let types = subject.asked.map_or_else(|| types(subject.engine.plan()), |ty| vec![ty]);
    let names: Vec<String> = types.iter().map(TensorType::to_string).collect();
    if names.is_empty() { "none".to_string() } else { names.join("+") }
}
