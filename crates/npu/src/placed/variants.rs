//! Names of the kernels that are launched, and how they round.

use pianola_plan::{AttentionSpec, Kernel, KernelVariant, Op, Plan, Rounding, Row, Step};

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
fn attends(plan: &Plan, op: usize) -> Option<AttentionSpec> {
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
fn plain(plan: &Plan, op: usize) -> Option<&'static str> {
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
        (None, None) => vec![matmul(kernels.product_spec())],
    }
}

/// What any step of these kernels can launch.
pub(super) fn of_ops(kernels: &Kernels, plan: &Plan, ops: &[usize]) -> Vec<KernelVariant> {
    let mut all = Vec::new();
    for &op in ops {
        let Some(spec) = attends(plan, op) else {
            all.extend(of_step(kernels, plan, op, &Step::default()));
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
