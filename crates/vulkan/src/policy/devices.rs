//! What policies choose for devices that are not here, from descriptions that were recorded where they are.
//!
//! `devices/NAME.json` is a device as `pianola devices --json` prints it, with a line that says where it was recorded or
//! what it was put together from. `devices/NAME.txt` is what comes out for it: its limits, and for some models every
//! dispatch of plays of some row counts, as the programs that would be recorded there have them. A change of a policy
//! shows as a change of these files: `PIANOLA_WRITE_CHOICES=1 cargo test -p pianola-vulkan --lib policy::devices` writes
//! them anew.

use super::{Limits, fragments, matrix, rotated};
use crate::budget::Budget;
use crate::constants::{matrix as matrix_ids, project_matrix, project_rotated};
use crate::decode::Decode;
use crate::describe::{GpuDescription, GpuKind, Heap, MatrixShape};
use crate::device::VulkanDevice;
use crate::dry_run::DryRun;
use crate::pipeline::{Shader, Variant};
use crate::policy::fragments::Fragments;
use crate::program::{Body, Dispatch, Programmer};
use crate::properties::Properties;
use crate::recording::logit_bucket;
use crate::statistics::named;
use crate::tuning::Tuning;
use pianola_formats::TensorType;
use pianola_model::{RandomWeights, SHAPES};
use pianola_plan::{DeviceId, HeapShare, Numeric, Placement, Plan, PlanOptions, size_text};
use serde_json::Value;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

const DEVICES: [&str; 4] = ["nvidia-h200", "amd-radeon-780m", "intel-arc-a770", "mesa-lavapipe"];
const MODELS: [(&str, TensorType); 4] = [
    ("gemma3:1b", TensorType::Q8_0),
    ("gemma3:4b", TensorType::Q4_0),
    ("gemma3:27b", TensorType::Q4_0),
    ("llama3:8b", TensorType::Q4K),
];
/// Rows of a play, and whether each is of another sequence.
const PLAYS: [(u32, bool); 7] =
    [(1, true), (2, true), (8, true), (32, true), (64, true), (128, false), (512, false)];
const DEVICE: DeviceId = DeviceId(0);
/// Constants that say what the model has, not what was chosen for it.
const GIVEN: [&str; 18] = [
    "TYPE",
    "TYPE_A",
    "TYPE_B",
    "BLOCKS",
    "CHUNKS",
    "WIDTH",
    "SUM",
    "NORM",
    "SELECT",
    "LOGITS",
    "GATE",
    "HEAD_DIM",
    "KV_TYPE",
    "QUERY_NORM",
    "KEY_NORM",
    "ROPE",
    "SUBGROUP",
    "SIDE",
];
/// Every device may have workgroups as large.
const MOST_INVOCATIONS: u32 = 1024;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src/policy/devices")
}

/// A recorded device.
fn read(name: &str) -> (Value, Properties) {
    let text = std::fs::read_to_string(folder().join(format!("{name}.json"))).unwrap();
    let value: Value = serde_json::from_str(&text).unwrap();
    let properties = properties(&value);
    (value, properties)
}

/// A description has names that live as long as the program.
fn leaked(value: &Value) -> &'static str {
    value.as_str().unwrap().to_string().leak()
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value} is no number"))
}

fn small(value: &Value) -> u32 {
    u32::try_from(number(value)).unwrap()
}

fn list<T>(value: &Value, of: impl Fn(&Value) -> T) -> Vec<T> {
    value.as_array().unwrap().iter().map(of).collect()
}

/// `16x16x16 f16 to f32`
fn shape(value: &Value) -> MatrixShape {
    let words: Vec<&'static str> = leaked(value).split(' ').collect();
    let [size, from, "to", to] = words[..] else { panic!("{value} is no shape of a matrix") };
    let sides: Vec<u32> = size.split('x').map(|side| side.parse().unwrap()).collect();
    MatrixShape { size: sides.try_into().unwrap(), types: [from, to] }
}

fn properties(value: &Value) -> Properties {
    let kinds = [GpuKind::Discrete, GpuKind::Integrated, GpuKind::Virtual, GpuKind::Software];
    let heap = |heap: &Value| Heap {
        size: number(&heap["bytes"]),
        budget: number(&heap["budget_bytes"]),
        used: number(&heap["used_bytes"]),
        device_local: heap["device_local"].as_bool().unwrap(),
    };
    let subgroup = &value["subgroup"];
    let api = list(&value["api"], small);
    let description = GpuDescription {
        index: value["device"].as_str().unwrap().strip_prefix("vulkan:").unwrap().parse().unwrap(),
        name: value["name"].as_str().unwrap().to_string(),
        driver: value["driver"].as_str().unwrap().to_string(),
        kind: kinds.into_iter().find(|kind| value["type"] == kind.to_string()).unwrap(),
        api: (api[0], api[1], api[2]),
        heaps: list(&value["heaps"], heap),
        subgroup: (
            small(&subgroup["default"]),
            small(&subgroup["least"]),
            small(&subgroup["most"]),
        ),
        matrices: list(&value["cooperative_matrices"], shape),
        integer_dot: value["integer_dot_accelerated"].as_bool().unwrap(),
        shared_memory: small(&value["shared_memory_bytes"]),
        units: small(&value["units"]),
        largest_binding: number(&value["largest_binding_bytes"]),
        largest_allocation: number(&value["largest_allocation_bytes"]),
        tick: value["timestamp_nanoseconds"].as_f64().map(|tick| tick as f32),
        missing: list(&value["missing"], leaked),
    };
    let fragments = value["matrix_fragments"].as_object().map(|found| Fragments {
        sharers: small(&found["sharers"]),
        first_rows_first: found["first_rows_first"].as_bool().unwrap(),
        second_rows_first: found["second_rows_first"].as_bool().unwrap(),
        token_side: small(&found["token_side"]),
    });
    let weight_heaps = list(&value["weight_heaps"], |heap| number(heap) as usize);
    let exchange_lacks = list(&value["exchange_missing"], leaked);
    Properties { description, weight_heaps, fragments, exchange_lacks }
}

/// A model as a server would load it: lanes for 64 requests.
fn plan((name, ty): (&str, TensorType)) -> Plan {
    let config = SHAPES.iter().find(|shape| shape.name == name).unwrap().config();
    let weights = RandomWeights::new(&config, 1, |_, _, columns| {
        if columns % ty.block_len() == 0 { ty } else { TensorType::Q8_0 }
    });
    let graph = pianola_model::graph(&config, &weights, None).unwrap();
    let options = PlanOptions {
        numeric: Numeric::Fast,
        kv_type: None,
        max_rows: 512,
        max_logit_rows: 64,
        context: 4096,
        sequences: 64,
        kv_bytes: None,
        fusion: true,
        reproducible: false,
    };
    let placement = Placement::single(&graph, VulkanDevice::spec_named("vulkan"));
    Plan::new(graph, options, placement).unwrap()
}

/// Everything that is chosen for a device.
fn choices(properties: &Properties) -> String {
    let Properties { description, weight_heaps, fragments, .. } = properties;
    let limits = Limits::of(description, *fragments);
    let heaps: Vec<Heap> = weight_heaps.iter().map(|&heap| description.heaps[heap]).collect();
    let budget = Budget::of_heaps(&heaps, description, limits);
    let mut text = format!("{} ({})\n", description.name, description.driver);
    let Limits { subgroup, parallelism, units, shared_memory, matrices, byte_depth, .. } = limits;
    let _ = writeln!(text, "subgroups of {subgroup}, {parallelism} invocations, {units} units");
    let _ = writeln!(
        text,
        "{shared_memory} bytes of shared memory, slices of {} bytes",
        budget.largest_slice
    );
    let _ = writeln!(
        text,
        "matrices of {matrices}, of int8 by {byte_depth}, in registers: {fragments:?}"
    );
    let _ =
        writeln!(text, "memory for weights, pages and activations: {}", size_text(budget.bytes()));
    for model in MODELS {
        let plan = plan(model);
        let dry_run = DryRun::within(&budget, limits, &plan, DEVICE).unwrap();
        let tuning = Tuning::default();
        let programmer = dry_run.programmer(&plan, DEVICE, &tuning);
        let _ = writeln!(text, "\n{} {}", model.0, model.1);
        let prompt = budget.keeps_prompt_weights(&plan, DEVICE).unwrap();
        let sizes: Vec<u64> =
            budget.allocations(&plan, DEVICE).unwrap().iter().map(|one| one.bytes).collect();
        let fit = match budget.share(&sizes) {
            None => "does not fit".to_string(),
            Some(heaps) => {
                let share = |heap: &HeapShare| format!("{} {}", heap.name, size_text(heap.taken));
                heaps.iter().map(share).collect::<Vec<_>>().join(", ")
            }
        };
        let weights = if prompt { "weights of their own" } else { "no weights of their own" };
        let _ = writeln!(text, "  memory: {fit}; prompts have {weights}");
        let chain = programmer.chain(Decode::Chained, &properties.exchange_lacks);
        let chained = chain.map_or_else(|why| why.to_string(), |_| "possible".to_string());
        let _ = writeln!(text, "  --decode chained: {chained}");
        for (rows, one_row_per_sequence) in PLAYS {
            let of = if one_row_per_sequence { "each of a sequence" } else { "of one sequence" };
            let _ = writeln!(text, "  {rows} rows, {of}");
            let logits = if one_row_per_sequence { rows } else { 1 };
            let body = Body { segment: 0, rows, one_row_per_sequence };
            text += &lines(&programmer, body, logit_bucket(logits as usize, &plan));
        }
    }
    text
}

/// The dispatches of a play; those of further layers that are like one before are counted.
fn lines(programmer: &Programmer<'_>, body: Body, logits: u32) -> String {
    let mut dispatches = programmer.body(body).unwrap();
    dispatches.extend(programmer.head(body.segment, logits).unwrap());
    let mut lines: Vec<(String, usize)> = Vec::new();
    for dispatch in &dispatches {
        check(dispatch, &programmer.limits);
        // There is nothing to choose for these.
        if matches!(dispatch.variant.shader, Shader::Embed | Shader::RopeAngles) {
            continue;
        }
        let name = without_layer(&programmer.plan.ops[dispatch.op].name);
        let line = format!("{name}: {}", chosen(dispatch, &programmer.limits));
        match lines.iter_mut().find(|(known, _)| *known == line) {
            Some((_, count)) => *count += 1,
            None => lines.push((line, 1)),
        }
    }
    lines.into_iter().map(|(line, count)| format!("    {count:2} {line}\n")).collect()
}

/// A launch in words: kernel, workgroups, subgroups of each, and the constants that were chosen and are not 0.
fn chosen(dispatch: &Dispatch, limits: &Limits) -> String {
    let variant = named(&dispatch.variant);
    let [x, y, z] = dispatch.groups;
    let groups = match (y, z) {
        (1, 1) => x.to_string(),
        (_, 1) => format!("{x}x{y}"),
        _ => format!("{x}x{y}x{z}"),
    };
    let mut text = format!("{} {groups}", variant.kernel);
    for (name, value) in variant.choices.split(", ").filter_map(|choice| choice.split_once(' ')) {
        match (name, value) {
            ("WORKGROUP", invocations) => {
                let subgroups = invocations.parse::<u32>().unwrap() / limits.subgroup;
                let _ = write!(text, ", {subgroups} subgroups");
            }
            (_, "0") => {}
            (name, value) if !GIVEN.contains(&name) => {
                let _ = write!(text, ", {} {value}", name.to_lowercase());
            }
            _ => {}
        }
    }
    text
}

/// `blk.3.attn_output` as `attn_output`.
fn without_layer(name: &str) -> &str {
    match name.strip_prefix("blk.") {
        Some(rest) => rest.split_once('.').map_or(rest, |(_, name)| name),
        None => name,
    }
}

/// Holds a dispatch to what the device allows.
fn check(dispatch: &Dispatch, limits: &Limits) {
    let Variant { shader, constants } = &dispatch.variant;
    let value = |id: u32| {
        let found = constants.iter().find(|constant| constant.0 == id);
        found.unwrap_or_else(|| panic!("{} has no constant {id}", dispatch.variant)).1
    };
    let variant = named(&dispatch.variant);
    let workgroup =
        variant.choices.split(", ").find_map(|choice| choice.strip_prefix("WORKGROUP "));
    if let Some(workgroup) = workgroup {
        let workgroup: u32 = workgroup.parse().unwrap();
        assert!(workgroup.is_multiple_of(limits.subgroup), "{}", dispatch.variant);
        assert!(workgroup <= MOST_INVOCATIONS, "{}", dispatch.variant);
    }
    assert!(dispatch.groups.iter().all(|&groups| (1..=65_535).contains(&groups)), "{dispatch:?}");
    let shared = match shader {
        Shader::ProjectMatrix => {
            let shape = matrix::MatrixShape {
                rows_each: value(matrix_ids::ROWS_EACH),
                tokens_each: value(matrix_ids::TOKENS_EACH),
                across: value(matrix_ids::ACROSS),
                along: value(matrix_ids::ALONG),
                split: value(matrix_ids::SPLIT),
                step: value(project_matrix::STEP),
            };
            shape.shared_memory(limits)
        }
        // The sums of all subgroups that share a piece.
        Shader::ProjectFragments => {
            let rows = value(matrix_ids::ROWS_EACH);
            16 * value(matrix_ids::SPLIT) * value(matrix_ids::SIDE) * (rows / 4 + 1)
        }
        Shader::ProjectRotated => {
            let shape = rotated::RotatedShape {
                rows_each: value(project_rotated::ROWS_EACH),
                tokens_each: value(project_rotated::TOKENS_EACH),
                across: value(project_rotated::ACROSS),
                along: value(project_rotated::ALONG),
            };
            shape.shared_memory(limits)
        }
        _ => 0,
    };
    assert!(shared <= limits.shared_memory, "{}: {shared} bytes", dispatch.variant);
}

/// A recorded device is read as it was written.
#[test]
fn properties_are_read_as_they_were_written() {
    for name in DEVICES {
        let (recorded, properties) = read(name);
        let written = properties.to_json();
        for (key, value) in written.as_object().unwrap() {
            assert_eq!(value, &recorded[key], "{name}: {key}");
        }
        // What a device answered is of the matrices that the policy asked for.
        if let Some(fragments) = properties.fragments {
            let side = Limits::of(&properties.description, None).matrices;
            let asked = fragments::token_side(&properties.description, side);
            assert_eq!(fragments.token_side, asked, "{name}");
        }
        let source = recorded["source"].as_str().unwrap();
        assert!(source.starts_with("recorded") || source.starts_with("transcribed"), "{name}");
    }
}

#[test]
fn choices_are_those_that_were_written_down() {
    let mut differ = Vec::new();
    for name in DEVICES {
        let found = choices(&read(name).1);
        let file = folder().join(format!("{name}.txt"));
        if std::env::var_os("PIANOLA_WRITE_CHOICES").is_some() {
            std::fs::write(&file, &found).unwrap();
        }
        let expected = std::fs::read_to_string(&file).unwrap_or_default();
        let apart = found.lines().zip(expected.lines()).find(|(found, expected)| found != expected);
        if let Some((found, expected)) = apart {
            differ.push(format!("{name}:\n  {found}\n  instead of\n  {expected}"));
        } else if found != expected {
            differ.push(format!("{name}: {} bytes instead of {}", found.len(), expected.len()));
        }
    }
    assert!(
        differ.is_empty(),
        "{}\nIf that is meant, PIANOLA_WRITE_CHOICES=1 writes it down.",
        differ.join("\n")
    );
}
