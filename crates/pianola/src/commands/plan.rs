//! `plan`: what will run, before it runs.

mod answer;

use std::sync::Arc;

pub use answer::PlanAnswer;
use clap::Args;
use pianola_engine::{Engine, LoadOptions};
use pianola_model::ModelFile;
use pianola_plan::{Ceilings, Device, DeviceId, Kernel, Plan, PlanOp, PlanText};
use pianola_vulkan::{OpLaunch, VulkanDevice};
use serde_json::{Value, json};

use super::devices::ceilings;
use crate::console::{self, Console};
use crate::failure::Failure;
use crate::model::{self, Found, Located};
use crate::options::{ComputeOptions, NamedModel, chosen, context, positive};
use crate::shapes::ShapeOptions;

/// Show whether a model fits, how fast it will be, and every kernel of its plan.
///
/// The model is not loaded, and a model of the catalogue need not be on this machine. Each kernel has
/// its bytes, operations and shortest time. Of equal layers one is printed; --full prints all. The
/// ceilings (bandwidth and arithmetic) are measured first. The expected speed is the share of such
/// ceilings that benchmarks on other machines reached.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  pianola plan gemma3:4b
  pianola plan -m gemma3:270m --rows 512
  pianola plan -m gemma3:270m --lanes 32 --context-tokens 1000 --kv-memory 4GiB
  pianola plan --shape gemma3:27b --quant q4_0 --context-tokens 8192 --json")]
pub struct Arguments {
    #[command(flatten)]
    model: NamedModel,
    /// Requests in the step, each with its rows
    #[arg(short = 'b', long, value_name = "N", default_value_t = 1, value_parser = positive)]
    lanes: usize,
    /// Rows of the step: 1 for generation, more for a prompt
    #[arg(long, value_name = "T", default_value_t = 1, value_parser = positive)]
    rows: usize,
    /// Tokens that the last row attends to [default: as many as there are rows]
    #[arg(long, value_name = "C", value_parser = positive)]
    context_tokens: Option<usize>,
    /// Tokens of context to plan for [default: as many as the model allows]
    #[arg(long, value_name = "N", value_parser = context)]
    context: Option<usize>,
    /// Print every layer
    #[arg(long)]
    full: bool,
    /// Print a JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    shape: ShapeOptions,
    #[command(flatten)]
    compute: ComputeOptions,
}

pub fn run(arguments: &Arguments, console: Console) -> Result<(), Failure> {
    let mut options = arguments.compute.load(console)?;
    options.context = chosen(arguments.context);
    options.lanes = arguments.lanes;
    let (name, plan) = subject(arguments, &options, console)?;
    let (lanes, rows) = (arguments.lanes, arguments.rows);
    let all = lanes.saturating_mul(rows);
    if all > plan.options.max_rows {
        return Err(Failure::usage(format!(
            "a step has at most {} rows, not {all}; longer prompts take several steps",
            plan.options.max_rows
        )));
    }
    let context = arguments.context_tokens.unwrap_or(rows);
    if context < rows || context > plan.options.context {
        return Err(Failure::usage(format!(
            "--context-tokens must be between the {rows} rows and the context of {}, not {context}",
            plan.options.context
        )));
    }
    let pages = plan.kv_pages.iter().zip(&plan.graph.kv_groups);
    let held = pages.map(|(pages, group)| pages / group.pages_for(context, rows).max(1)).min();
    if let Some(held) = held.filter(|&held| held < lanes) {
        console.notice(&format!(
            "the KV cache holds {held} requests of {context} tokens at once, not {lanes}; the others \
             would wait. --kv-memory grants more"
        ));
    }
    let devices = plan.devices_among(&options.all_devices());
    let ceilings = measured(&plan, &devices)?;
    let text =
        PlanText { plan: &plan, ceilings: &ceilings, lanes, rows, context, full: arguments.full };
    let answer = PlanAnswer::of(name, options.context.is_some(), &plan, &devices, &ceilings)?;
    if answer.fits() {
        model::tell_fit(&plan, &options, console);
    }
    let launches = launches(&plan, &devices, all, lanes)?;
    if arguments.json {
        let mut value = object(&text);
        value["answer"] = answer.object();
        value["device"] = json!(devices[plan.head_device().0].description());
        if let Some(launches) = &launches {
            value["dispatches"] = json!(launches.len());
            value["dispatch_barriers"] = json!(launches.iter().filter(|l| l.barrier).count());
        }
        return console::print_json(&value);
    }
    console::print(&format!("{answer}\n{text}"))?;
    launches.map_or(Ok(()), |launches| console::print(&launched(&plan, &launches)))?;
    for line in decoding(&plan, &devices)? {
        console::print(&line)?;
    }
    Ok(())
}

/// What is planned, and what to call it.
fn subject(
    arguments: &Arguments,
    options: &LoadOptions,
    console: Console,
) -> Result<(String, Plan), Failure> {
    if let Some(shape) = arguments.shape.shape {
        let name = format!("{} in {}", shape.name, arguments.shape.quant);
        return Ok((name, Engine::plan_of_random(shape, arguments.shape.quant, options)?));
    }
    let name = arguments.model.name();
    match model::find(name, console)? {
        Found::Here(located) => Ok((located.label.clone(), plan_of_file(&located, options)?)),
        Found::Catalogued(entry) => {
            console.notice(&format!(
                "{0} is not on this machine; this is the plan of its shape in {1}. `pianola pull {0}` fetches it",
                entry.name, entry.quantisation
            ));
            let plan = Engine::plan_of_shape(entry.shape(), &entry.mixture(), options)?;
            Ok((entry.name.to_string(), plan))
        }
    }
}

/// The plan of a model on this machine.
pub fn plan_of_file(located: &Located, options: &LoadOptions) -> Result<Plan, Failure> {
    let file = ModelFile::open(&located.path)?;
    let config = file.config();
    let config = config.map_err(|error| Failure::from(error).about(&located.path))?;
    let plan = Engine::plan_of(&file, &config, options);
    plan.map_err(|error| Failure::from(error).about(&located.path))
}

/// The ceilings of the plan's devices, measured now.
pub fn measured(plan: &Plan, devices: &[Arc<dyn Device>]) -> Result<Vec<Ceilings>, Failure> {
    let measure = |device: &Arc<dyn Device>| match device.is_emulated() {
        true => Ok(Ceilings::UNKNOWN),
        false => ceilings(device.as_ref(), plan.options.numeric),
    };
    devices.iter().map(measure).collect()
}

/// What GPUs of the plan would launch; none where it has none.
fn launches(
    plan: &Plan,
    devices: &[Arc<dyn Device>],
    rows: usize,
    lanes: usize,
) -> Result<Option<Vec<OpLaunch>>, Failure> {
    let mut all = None;
    for (id, device) in plan.device_ids().zip(devices) {
        if let Some(VulkanDevice { options, .. }) = device.as_any().downcast_ref() {
            let found = pianola_vulkan::launches(options, plan, id, rows, lanes);
            let found = found.map_err(pianola_engine::EngineError::from)?;
            all.get_or_insert_with(Vec::new).extend(found);
        }
    }
    Ok(all)
}

/// How GPUs of the plan play single tokens.
fn decoding(plan: &Plan, devices: &[Arc<dyn Device>]) -> Result<Vec<String>, Failure> {
    let mut lines = Vec::new();
    for (id, device) in plan.device_ids().zip(devices) {
        if let Some(VulkanDevice { name, options }) = device.as_any().downcast_ref() {
            let words = pianola_vulkan::decode_in_words(options, plan, id);
            let words = words.map_err(pianola_engine::EngineError::from)?;
            lines.push(format!("a single token on {name}: {words}\n"));
        }
    }
    Ok(lines)
}

/// How the kernels of a Vulkan plan are launched: in all, and in a layer.
fn launched(plan: &Plan, launches: &[OpLaunch]) -> String {
    let counted = |list: &[&OpLaunch]| {
        let barriers = list.iter().filter(|launch| launch.barrier).count();
        format!("{} dispatches, {barriers} barriers", list.len())
    };
    let all: Vec<&OpLaunch> = launches.iter().collect();
    let mut text = format!("launches: {} a play\n", counted(&all));
    // The second layer on a device is like those that follow; the first forms its own input.
    let second = launches.iter().filter_map(|launch| plan.ops[launch.op].layer).min();
    let second = second.map(|first| first + 1);
    let layer: Vec<&OpLaunch> = launches
        .iter()
        .filter(|launch| second.is_some() && plan.ops[launch.op].layer == second)
        .collect();
    if !layer.is_empty() {
        let kernels: Vec<&str> = layer.iter().map(|launch| launch.kernel).collect();
        text += &format!("a layer: {}: {}\n", counted(&layer), kernels.join(", "));
    }
    text
}

fn object(text: &PlanText<'_>) -> Value {
    let PlanText { plan, ceilings, lanes, rows, context, .. } = *text;
    let total = text.total();
    json!({
        "architecture": plan.graph.architecture,
        "parameters": plan.graph.parameters(),
        "weight_bytes": plan.weight_bytes(),
        "arena_bytes": plan.arena.bytes,
        "kv_bytes": plan.kv_bytes(),
        "numeric": plan.options.numeric.to_string(),
        "kv_types": plan.graph.kv_groups.iter().map(|group| group.ty.to_string()).collect::<Vec<_>>(),
        "context": plan.options.context,
        "layers": plan.layers(),
        "devices": plan.device_ids().map(|id| device(plan, id)).collect::<Vec<_>>(),
        "placement": plan.placement_text(),
        "remarks": plan.remarks,
        "segmentations": plan.segmentations.iter().map(|way| json!({
            "name": way.name, "segments": way.segments.len(),
        })).collect::<Vec<_>>(),
        "lanes": lanes,
        "rows": rows,
        "context_tokens": context,
        "ops": plan.ops.iter().map(|op| operation(text, plan, op)).collect::<Vec<_>>(),
        "barriers": plan.ops.iter().filter(|op| op.barrier).count(),
        "bytes": total.bytes,
        "operations": total.operations,
        "ceilings": ceilings.iter().map(|ceilings| json!({
            "bytes_per_second": ceilings.bytes_per_second,
            "operations_per_second": ceilings.operations_per_second,
        })).collect::<Vec<_>>(),
        "seconds": text.seconds(),
        "tokens_per_second": (rows * lanes) as f64 / text.seconds(),
    })
}

/// A device's part of the plan.
fn device(plan: &Plan, id: DeviceId) -> Value {
    json!({
        "name": plan.devices[id.0].name,
        "layers": plan.layers_on(id).len(),
        "head": id == plan.head_device(),
        "weight_bytes": plan.weight_bytes_on(id),
    })
}

fn operation(text: &PlanText<'_>, plan: &Plan, op: &PlanOp) -> Value {
    let work = text.work(op);
    let weights: Vec<String> = match &op.kernel {
        Kernel::Project(project) => {
            let types = project.parts.iter().map(|part| plan.graph.weight(part.weight).ty);
            types.map(|ty| ty.to_string()).collect()
        }
        _ => Vec::new(),
    };
    let nodes: Vec<&str> = op.nodes.iter().map(|&node| plan.graph.nodes[node].op.name()).collect();
    json!({
        "name": op.name,
        "device": plan.devices[op.device.0].name,
        "layer": op.layer,
        "operations_of": nodes,
        "weights": weights,
        "bytes": work.bytes,
        "operations": work.operations,
        "seconds": text.seconds_of(op),
        "barrier": op.barrier,
    })
}
