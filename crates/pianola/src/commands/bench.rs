//! `bench`: how fast, beside how fast it could be.

use clap::Args;
use pianola_cpu::{CheckReport, CpuDevice, ReferenceModel};
use pianola_engine::{
    BenchOptions, BenchRow, ChatScenario, DEFAULT_LANES, Engine, LoadOptions, LogitRows,
    ScenarioReport, Speculation,
};
use pianola_formats::TensorType;
use pianola_model::Shape;
use pianola_plan::{Ceilings, DeviceId, Plan, Step, WeightShape};
use pianola_vulkan::{Ablation, VulkanRecording};
use serde_json::{Value, json};
use std::path::PathBuf;

use crate::console::{self, Console};
use crate::failure::Failure;
use crate::model;
use crate::options::{ComputeOptions, ModelOption, SpeculationOptions, positive};
use crate::profile;
use crate::shapes::{ShapeOptions, check_memory};

/// Measure tokens a second, beside the ceiling of this machine for the same work.
///
/// pp is the processing of a prompt, tg the generation of tokens one by one from an empty context.
/// The ceiling follows from the plan's bytes and operations and from bandwidth and arithmetic
/// measured on the spot. With --shape the weights are random, and every kernel is first checked
/// against the reference, on the same widths with fewer layers.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  pianola bench -m smollm2:135m
  pianola bench -m gemma3:270m -p 0 -n 64 --threads 1 --json
  pianola bench -m smollm2:135m -p 128 -n 64 -b 1,4,8,16,32
  pianola bench -m smollm2:135m -p 200 -n 50 --scenario chat --rate 2
  pianola bench --shape gemma3:27b --quant q4_0 -p 0 -n 8 --repeat 1")]
pub struct Arguments {
    #[command(flatten)]
    model: ModelOption,
    /// Tokens of a prompt; 0 leaves its test out
    #[arg(short, long, value_name = "N", default_value_t = 512)]
    prompt: usize,
    /// Tokens to generate; 0 leaves that test out
    #[arg(short = 'n', long, value_name = "N", default_value_t = 128)]
    generate: usize,
    /// Requests at once, one or several numbers: each a prompt of -p tokens, then -n tokens of each
    /// generated in common
    #[arg(short = 'b', long = "lanes", value_name = "N,…", value_delimiter = ',', value_parser = positive)]
    lanes: Vec<usize>,
    /// With -b, prompts of a half to twice the length of -p instead of all alike
    #[arg(long, requires = "lanes")]
    mixed: bool,
    /// Requests that arrive over time instead: how long until the first token, and between tokens
    #[arg(long, value_name = "NAME", value_parser = ["chat"], conflicts_with_all = ["mixed", "ablate", "profile"])]
    scenario: Option<String>,
    /// With --scenario, conversations that begin in a second
    #[arg(long, value_name = "R", default_value_t = 1.0, requires = "scenario", value_parser = rate)]
    rate: f64,
    /// With --scenario, conversations in all
    #[arg(long, value_name = "N", default_value_t = 32, requires = "scenario", value_parser = positive)]
    conversations: usize,
    /// Repetitions of each test, after one that does not count
    #[arg(long, value_name = "R", default_value_t = 3, value_parser = positive)]
    repeat: usize,
    /// Check every kernel of a model from a file, too (shapes always are)
    #[arg(long)]
    check: bool,
    /// Afterwards, generate the same without recording once: commands recorded anew for every
    /// token, and besides a buffer allocated for every kernel (Vulkan only)
    #[arg(long)]
    ablate: bool,
    /// Afterwards, time every kernel of a prompt and of some tokens on the device: print a table,
    /// write a Chrome trace to this file
    #[arg(long, value_name = "FILE")]
    profile: Option<PathBuf>,
    /// Tokens of context [default: what the tests need]
    #[arg(long, value_name = "N", value_parser = positive)]
    context: Option<usize>,
    /// Print a JSON array, an object a test
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    shape: ShapeOptions,
    #[command(flatten)]
    speculation: SpeculationOptions,
    #[command(flatten)]
    compute: ComputeOptions,
}

/// What is measured.
struct Subject {
    label: String,
    engine: Engine,
    check: Option<CheckReport>,
    /// The type asked for with --quant.
    asked: Option<TensorType>,
    /// Prompts differ in length.
    mixed: bool,
}

pub fn run(arguments: &Arguments, console: Console) -> Result<(), Failure> {
    if arguments.prompt.max(arguments.generate) == 0 {
        return Err(Failure::usage("there is nothing to measure; -p or -n must be above 0"));
    }
    let bench = BenchOptions {
        prompt: arguments.prompt,
        generate: arguments.generate,
        repeat: arguments.repeat,
        lanes: arguments.lanes.clone(),
        mixed: arguments.mixed,
    };
    let scenario = arguments.scenario.as_ref().map(|_| ChatScenario {
        conversations: arguments.conversations,
        rate: arguments.rate,
        prompt: arguments.prompt.max(1),
        generate: arguments.generate.max(1),
        seed: 1,
    });
    if scenario.is_some() && arguments.lanes.len() > 1 {
        return Err(Failure::usage("--scenario runs with one number of lanes; give -b one number"));
    }
    let mut options = arguments.compute.load(console)?;
    let needed = scenario.as_ref().map_or(bench.context(), ChatScenario::context);
    options.context = Some(arguments.context.unwrap_or(needed));
    options.lanes = match (arguments.lanes.iter().max(), &scenario) {
        (Some(&lanes), _) => lanes,
        (None, Some(_)) => DEFAULT_LANES,
        (None, None) => 1,
    };
    // A single sequence is compared with other programs one token a submission; lanes are played as
    // a service would play them.
    let one = (options.lanes == 1).then_some(1);
    options.tokens_per_submit = arguments.compute.tokens_per_submit.or(one);
    let mut subject = match arguments.shape.shape {
        Some(shape) => of_shape(shape, arguments, options, console)?,
        None => of_file(arguments, options, console)?,
    };
    if let Some(report) = &subject.check {
        console.notice(&describe_check(report));
    }
    let engine = &mut subject.engine;
    if let Some(scenario) = scenario {
        return chat_scenario(&mut subject, &scenario, arguments.json);
    }
    let (rows, ceilings) =
        pianola_engine::bench(engine, &bench, &mut Engine::measure, &mut |test, speed| {
            console.detail(&format!("{test}: {speed:.2} tokens/s"));
        })?;
    let ablations = match arguments.ablate {
        true => ablate(engine, &bench, &ceilings)?,
        false => Vec::new(),
    };
    if let Some(path) = &arguments.profile {
        const TOKENS: usize = 16;
        profile::start(engine, path)?;
        let timed = BenchOptions { repeat: 1, generate: bench.generate.min(TOKENS), ..bench };
        pianola_engine::bench(engine, &timed, &mut |_| Some(ceilings.clone()), &mut |_, _| ())?;
        profile::finish(engine, path, console)?;
    }
    if arguments.json {
        let measured = rows.iter().map(|row| object(&subject, row));
        let ablated = ablations.iter().map(|(name, row)| {
            let mut value = object(&subject, row);
            value["ablation"] = json!(name);
            value
        });
        return console::print_json(&Value::Array(measured.chain(ablated).collect()));
    }
    print(&subject, &rows)?;
    if !ablations.is_empty() {
        print_ablations(&ablations)?;
    }
    for (device, ceilings) in subject.engine.plan().devices.iter().zip(&ceilings) {
        console.notice(&format!(
            "ceilings of {} measured here: {:.1} GB/s read, {:.0} GOP/s",
            device.name,
            ceilings.bytes_per_second / 1e9,
            ceilings.operations_per_second / 1e9,
        ));
    }
    Ok(())
}

fn of_file(
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

fn of_shape(
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

fn describe_check(report: &CheckReport) -> String {
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

fn quant(subject: &Subject) -> String {
    let ty = subject.asked.or_else(|| dominant_type(subject.engine.plan()));
    ty.map_or("none".to_string(), |ty| ty.to_string())
}

fn object(subject: &Subject, row: &BenchRow) -> Value {
    let devices = subject.engine.devices().iter();
    let cpu = devices.filter_map(|device| device.as_any().downcast_ref::<CpuDevice>()).next();
    let cpu = cpu.map(|cpu| cpu.options);
    let plan = subject.engine.plan();
    let head = plan.head_device();
    let layers = |id: DeviceId| json!({ "device": plan.devices[id.0].name, "layers": plan.layers_on(id).len() });
    let check = subject.check.as_ref().map(
        |report| json!({ "kernels": report.kernels, "worst_share_of_bound": report.worst_share }),
    );
    json!({
        "model": subject.label,
        "quant": quant(subject),
        "device": plan.devices[head.0].name,
        "device_name": subject.engine.devices()[head.0].description(),
        "placement": plan.device_ids().map(layers).collect::<Vec<_>>(),
        "test": row.test.to_string(),
        "lanes": row.test.lanes(),
        "lanes_at_once": row.at_once,
        "drafted_tokens": row.drafted,
        "accepted_tokens": row.accepted,
        "tokens_per_second": row.tokens_per_second,
        "stddev": row.deviation,
        "ceiling_tokens_per_second": row.ceiling,
        "fraction_of_ceiling": row.fraction(),
        "host_microseconds_per_step": row.host_microseconds,
        "busy_share": row.busy,
        "submits_per_step": row.launches.map(|launches| launches.submits),
        "dispatches_per_step": row.launches.map(|launches| launches.dispatches),
        "allocations_per_step": row.launches.map(|launches| launches.allocations),
        "threads": cpu.map(|cpu| cpu.threads),
        "simd": cpu.map(|cpu| cpu.level.name()),
        "numeric": subject.engine.plan().options.numeric.to_string(),
        "mixed": subject.mixed,
        "check": check,
    })
}

/// A number above 0.
fn rate(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(rate) if rate.is_finite() && rate > 0.0 => Ok(rate),
        _ => Err("it must be a number above 0".to_string()),
    }
}

/// Conversations that begin over time: what their users see.
fn chat_scenario(
    subject: &mut Subject,
    scenario: &ChatScenario,
    json: bool,
) -> Result<(), Failure> {
    let report = pianola_engine::run_scenario(&mut subject.engine, scenario)?;
    let ScenarioReport { first_token, between_tokens, .. } = &report;
    if json {
        let percentiles = |times: &[f64]| {
            let at = |share: f64| pianola_engine::percentile(times, share);
            json!({ "p50": at(0.5), "p95": at(0.95), "p99": at(0.99) })
        };
        return console::print_json(&json!({
            "model": subject.label,
            "quant": quant(subject),
            "device_name": subject.engine.runs_on(),
            "scenario": "chat",
            "lanes": subject.engine.plan().options.sequences,
            "conversations": scenario.conversations,
            "conversations_per_second": scenario.rate,
            "requests": report.requests,
            "seconds": report.seconds,
            "generated_tokens": report.generated_tokens,
            "prompt_tokens": report.prompt_tokens,
            "cached_tokens": report.cached_tokens,
            "preemptions": report.preemptions,
            "tokens_per_second": report.generated_tokens as f64 / report.seconds,
            "first_token_seconds": percentiles(first_token),
            "between_tokens_seconds": percentiles(between_tokens),
        }));
    }
    console::print_line(&format!(
        "{} {} on {}: {} conversations of {} turns, {} begun a second, {} lanes",
        subject.label,
        quant(subject),
        subject.engine.runs_on(),
        scenario.conversations,
        ChatScenario::TURNS,
        scenario.rate,
        subject.engine.plan().options.sequences,
    ))?;
    let mut table = vec![["milliseconds", "p50", "p95", "p99"].map(String::from).to_vec()];
    for (name, times) in [("to the first token", first_token), ("between tokens", between_tokens)] {
        let cell = |share: f64| format!("{:.1}", 1e3 * pianola_engine::percentile(times, share));
        table.push(vec![name.to_string(), cell(0.5), cell(0.95), cell(0.99)]);
    }
    console::print(&console::table(&table))?;
    console::print_line(&format!(
        "{} requests in {:.1} s: {:.1} tokens/s generated; {} of {} prompt tokens cached, {} preemptions",
        report.requests,
        report.seconds,
        report.generated_tokens as f64 / report.seconds,
        report.cached_tokens,
        report.prompt_tokens,
        report.preemptions,
    ))
}

fn print(subject: &Subject, rows: &[BenchRow]) -> Result<(), Failure> {
    console::print_line(&format!(
        "{} {} on {}, {} mode{}",
        subject.label,
        quant(subject),
        subject.engine.runs_on(),
        subject.engine.plan().options.numeric,
        if subject.mixed { ", prompts of a half to twice the length" } else { "" },
    ))?;
    let mut head = vec!["test", "tokens/s", "+/-", "ceiling", "reached", "busy", "host us/step"];
    if rows.iter().any(|row| row.launches.is_some()) {
        head.extend(["submits", "dispatches", "allocations"]);
    }
    let mut table = vec![head.into_iter().map(String::from).collect::<Vec<_>>()];
    for row in rows {
        let mut cells = vec![
            row.test.to_string(),
            format!("{:.2}", row.tokens_per_second),
            format!("{:.2}", row.deviation),
            format!("{:.2}", row.ceiling),
            format!("{:.1} %", 100.0 * row.fraction()),
            format!("{:.1} %", 100.0 * row.busy),
            format!("{:.1}", row.host_microseconds),
        ];
        if let Some(launches) = row.launches {
            let counts = [launches.submits, launches.dispatches, launches.allocations];
            cells.extend(counts.map(|count| format!("{count:.1}")));
        }
        table.push(cells);
    }
    console::print(&console::table(&table))?;
    for row in rows.iter().filter(|row| row.at_once < row.test.lanes()) {
        console::print_line(&format!(
            "{}: the KV pages hold {} requests at once, the others waited or were computed anew; give \
             more --kv-memory",
            row.test, row.at_once
        ))?;
    }
    for row in rows.iter().filter(|row| row.drafted > 0) {
        let (right, all) = (row.accepted, row.drafted);
        let share = 100.0 * right as f64 / all as f64;
        let off = if let Some(reason) = subject.engine.draft_failure() {
            &format!("; the draft model failed: {reason}")
        } else if subject.engine.is_speculation_off() {
            "; switched off, because it lost"
        } else {
            ""
        };
        console::print_line(&format!(
            "{}: {right} of {all} guesses right ({share:.0} %){off}",
            row.test
        ))?;
    }
    Ok(())
}

/// The founding experiment: the same tokens, with what recording once saves done anew for each.
fn ablate(
    engine: &mut Engine,
    options: &BenchOptions,
    ceilings: &[Ceilings],
) -> Result<Vec<(&'static str, BenchRow)>, Failure> {
    if options.generate == 0 {
        return Err(Failure::usage("--ablate measures generation; -n must be above 0"));
    }
    let kinds = [
        ("recorded once", Ablation::Nothing),
        ("recorded for every token", Ablation::Record),
        ("and a buffer allocated for every kernel", Ablation::Allocate),
    ];
    let mut rows = Vec::new();
    for (name, kind) in kinds {
        set_ablation(engine, Some(kind))?;
        let options = BenchOptions { prompt: 0, lanes: Vec::new(), ..options.clone() };
        let (found, _) = pianola_engine::bench(
            engine,
            &options,
            &mut |_| Some(ceilings.to_vec()),
            &mut |_, _| (),
        )?;
        rows.extend(found.into_iter().map(|row| (name, row)));
    }
    set_ablation(engine, None)?;
    Ok(rows)
}

fn set_ablation(engine: &mut Engine, kind: Option<Ablation>) -> Result<(), Failure> {
    let device = engine.runs_on();
    let whole = engine.devices().len() == 1;
    let recording = engine.recording_mut::<VulkanRecording>().filter(|_| whole);
    let recording = recording.ok_or_else(|| {
        Failure::usage(format!("--ablate needs a model wholly on a Vulkan device, not on {device}"))
    })?;
    Ok(recording.ablate(kind).map_err(pianola_engine::EngineError::from)?)
}

fn print_ablations(rows: &[(&'static str, BenchRow)]) -> Result<(), Failure> {
    let head = ["generation", "tokens/s", "+/-", "of recorded once", "host us/step", "allocations"];
    let mut table = vec![head.map(String::from).to_vec()];
    for (name, row) in rows {
        table.push(vec![
            name.to_string(),
            format!("{:.2}", row.tokens_per_second),
            format!("{:.2}", row.deviation),
            format!("{:.1} %", 100.0 * row.tokens_per_second / rows[0].1.tokens_per_second),
            format!("{:.1}", row.host_microseconds),
            format!("{:.1}", row.launches.map_or(0.0, |launches| launches.allocations)),
        ]);
    }
    console::print(&console::table(&table))
}
