//! Names of the kernels that are launched, and how they round.

use pianola_plan::{
    AttentionSpec, Kernel, KernelVariant, Op, Plan, Rounding, Row, Step, WeightId, WeightShape,
};

use super::attend::{Way, flash_for, flash_spec, sequences, way};
use super::options::Precision;
use super::packages::Kernels;
use crate::package::{ElementType, MatmulSpec, Shape};

fn variant(kernel: &str, choices: impl Into<String>) -> KernelVariant {
    KernelVariant { kernel: kernel.to_string(), choices: choices.into() }
}

/// `matmul_i8 (512x512x512)`
pub(super) fn matmul(spec: &MatmulSpec) -> KernelVariant {
    let Shape { m, k, n } = spec.shape;
    let kernel = match spec.input {
        ElementType::I8 => "matmul_i8",
        _ => "matmul_bf16",
    };
    variant(kernel, format!("{m}x{k}x{n}"))
}

fn attention(kernels: &Kernels, way: Way) -> KernelVariant {
    let choices = match way {
        Way::Host => "processor".to_string(),
        Way::Products => match kernels.attention_spec() {
            Some(spec) => matmul(spec).to_string(),
            None => "processor".to_string(),
        },
        Way::Flash(index) => match flash_spec(kernels, index) {
            Some(spec) => format!("flash, {} keys", spec.keys),
            None => "processor".to_string(),
        },
    };
    variant("attention", choices)
}

/// The attention of a kernel.
pub(super) fn attends(plan: &Plan, op: usize) -> Option<AttentionSpec> {
    match &plan.ops[op].kernel {
        Kernel::Attend(attend) => Some(attend.spec),
        Kernel::Single(node) => match plan.graph.nodes[*node].op {
            Op::Attention(spec) => Some(spec),
            _ => None,
        },
        Kernel::Project(_) => None,
    }
}

/// The operation of a kernel without products.
pub(super) fn plain(plan: &Plan, op: usize) -> Option<&'static str> {
    match plan.ops[op].kernel {
        Kernel::Single(node) => {
            let op = &plan.graph.nodes[node].op;
            (!matches!(op, Op::MatMul { .. } | Op::Attention(_))).then(|| op.name())
        }
        _ => None,
    }
}

fn ways(kernels: &Kernels, spec: &AttentionSpec, rows: &[Row]) -> Vec<Way> {
    let mut ways: Vec<Way> = sequences(rows).map(|run| way(kernels, spec, &rows[run])).collect();
    ways.dedup();
    ways
}

/// The weights that a kernel multiplies by.
fn weights(plan: &Plan, op: usize) -> Vec<WeightId> {
    match &plan.ops[op].kernel {
        Kernel::Project(project) => project.parts.iter().map(|part| part.weight).collect(),
        Kernel::Single(node) => match plan.graph.nodes[*node].op {
            Op::MatMul { weight, .. } => vec![weight],
            _ => Vec::new(),
        },
        Kernel::Attend(_) => Vec::new(),
    }
}

/// Rows that a kernel's products have in a step.
fn rows_of(plan: &Plan, op: usize, step: &Step) -> usize {
    match &plan.ops[op].kernel {
        Kernel::Project(project) if project.select => step.logits.len(),
        Kernel::Project(project) => plan.rows(project.parts[0].output, step),
        _ => step.rows.len(),
    }
}

/// The products of a kernel for so many rows.
fn products(kernels: &Kernels, plan: &Plan, op: usize, rows: usize) -> Vec<KernelVariant> {
    let outputs = weights(plan, op).into_iter().map(|id| match plan.graph.weight(id).shape {
        WeightShape::Matrix { rows, .. } => rows,
        WeightShape::Vector { .. } => 1,
    });
    let mut all: Vec<KernelVariant> =
        outputs.map(|columns| matmul(kernels.product_spec_for(rows, columns))).collect();
    all.sort();
    all.dedup();
    all
}

/// What playing a kernel for a step launches.
pub(super) fn of_step(
    kernels: &Kernels,
    plan: &Plan,
    op: usize,
    step: &Step,
) -> Vec<KernelVariant> {
    match (attends(plan, op), plain(plan, op)) {
        (Some(spec), _) => {
            let ways = ways(kernels, &spec, &step.rows);
            let mut all: Vec<KernelVariant> =
                ways.into_iter().map(|way| attention(kernels, way)).collect();
            all.sort();
            all.dedup();
            all
        }
        (None, Some(name)) => vec![variant(name, "processor")],
        (None, None) => products(kernels, plan, op, rows_of(plan, op, step)),
    }
}

/// What any step of these kernels can launch.
pub(super) fn of_ops(kernels: &Kernels, plan: &Plan, ops: &[usize]) -> Vec<KernelVariant> {
    let mut all = Vec::new();
    for &op in ops {
        let Some(spec) = attends(plan, op) else {
            match plain(plan, op) {
                Some(name) => all.push(variant(name, "processor")),
                None => all.extend(
                    (1..=plan.options.max_rows).flat_map(|rows| products(kernels, plan, op, rows)),
                ),
            }
            continue;
        };
        all.push(attention(kernels, Way::Host));
        if plan.options.max_rows >= super::attend::DEVICE_ROWS {
            let products = kernels.attention_spec().map(|_| Way::Products);
            let flash = flash_for(kernels, &spec).into_iter().map(Way::Flash);
            all.extend(products.into_iter().chain(flash).map(|way| attention(kernels, way)));
        }
    }
    all.sort();
    all.dedup();
    all
}

/// How a kernel rounds the inputs of its products, by the nearest name that plans have for it.
pub(super) fn rounding(kernels: &Kernels, plan: &Plan, op: usize, step: &Step) -> Rounding {
    match (attends(plan, op), plain(plan, op), kernels.precision) {
        (Some(spec), _, _) => match ways(kernels, &spec, &step.rows)[..] {
            [Way::Host] | [] => Rounding::None,
            _ => Rounding::Halves,
        },
        (None, Some(_), _) => Rounding::None,
        (None, None, Precision::Int8Pieces) => Rounding::Int8,
        (None, None, Precision::Bf16) => Rounding::Halves,
    }
}
