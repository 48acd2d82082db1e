//! Laying out: names of kernels, the tensors they touch, and a place in the arena for each tensor.

use crate::arena::{Arena, Lifetime};
use crate::fuse::Kernel;
use crate::graph::{Graph, RowSet, TensorId};
use crate::options::PlanOptions;
use crate::plan::{Buffer, PlanOp, View};

/// Rows of a tensor or buffer in the largest play.
pub(crate) fn rows_in(options: &PlanOptions, rows: RowSet) -> usize {
    match rows {
        RowSet::All => options.max_rows,
        RowSet::Logits => options.max_logit_rows,
    }
}

/// Bytes of a buffer in the largest play.
pub(crate) fn buffer_bytes(options: &PlanOptions, buffer: &Buffer) -> usize {
    rows_in(options, buffer.rows) * buffer.width * 4
}

/// Gives the tensors that `kernel` writes a buffer.
pub(crate) fn materialise(
    graph: &Graph,
    kernel: &Kernel,
    buffers: &mut Vec<Buffer>,
    views: &mut [Option<View>],
) {
    let mut place = |ids: &[TensorId], name: &str| {
        let first = graph.tensor(ids[0]);
        let mut column = 0;
        for id in ids {
            views[id.0] = Some(View { buffer: buffers.len(), column });
            column += graph.tensor(*id).width;
        }
        buffers.push(Buffer { name: name.to_string(), rows: first.rows, width: column });
    };
    match kernel {
        Kernel::Single(node) => {
            if let Some(output) = graph.nodes[*node].output {
                place(&[output], &graph.tensor(output).name);
            }
        }
        Kernel::Attend(attend) => place(&[attend.output], &graph.tensor(attend.output).name),
        Kernel::Project(project) => {
            if let Some(residual) = project.residual.filter(|residual| residual.kept) {
                place(&[residual.output], &graph.tensor(residual.output).name);
            }
            let epilogue = project.gate.map(|gate| gate.1).or(project.soft_cap.map(|cap| cap.1));
            let outputs: Vec<TensorId> = match epilogue {
                Some(output) => vec![output],
                None => project.parts.iter().map(|part| part.output).collect(),
            };
            place(&outputs, &kernel_name(graph, kernel));
        }
    }
}

/// Name of a kernel for printing.
pub(crate) fn kernel_name(graph: &Graph, kernel: &Kernel) -> String {
    match kernel {
        Kernel::Single(node) => match graph.nodes[*node].output {
            Some(output) => graph.tensor(output).name.clone(),
            None => graph.nodes[*node].op.name().to_string(),
        },
        Kernel::Attend(attend) => graph.tensor(attend.output).name.clone(),
        Kernel::Project(project) => {
            let names: Vec<&str> =
                project.parts.iter().map(|part| graph.tensor(part.output).name.as_str()).collect();
            match names[..] {
                [only] => only.to_string(),
                [first, ..] => {
                    let short = |name: &str| name.rsplit('.').next().unwrap_or(name).to_string();
                    let rest: Vec<String> = names[1..].iter().map(|name| short(name)).collect();
                    format!("{first}+{}", rest.join("+"))
                }
                [] => String::new(),
            }
        }
    }
}

/// Tensors a kernel reads and writes in the arena.
pub(crate) fn tensors_of(graph: &Graph, kernel: &Kernel) -> (Vec<TensorId>, Vec<TensorId>) {
    match kernel {
        Kernel::Single(node) => {
            let node = &graph.nodes[*node];
            (node.inputs.clone(), node.output.into_iter().collect())
        }
        Kernel::Attend(attend) => {
            let mut reads = vec![attend.query, attend.key, attend.value];
            reads.extend(attend.rope.map(|rope| rope.1));
            (reads, vec![attend.output])
        }
        Kernel::Project(project) => {
            let mut writes = Vec::new();
            let reads = match project.residual {
                Some(residual) => {
                    writes.extend(residual.kept.then_some(residual.output));
                    vec![residual.base, residual.delta]
                }
                None => vec![project.input],
            };
            match (project.gate, project.soft_cap) {
                (Some((_, output)), _) | (_, Some((_, output))) => writes.push(output),
                _ => writes.extend(project.parts.iter().map(|part| part.output)),
            }
            (reads, writes)
        }
    }
}

/// An arena in which every buffer has a place while it is needed.
pub(crate) fn lay_out(
    graph: &Graph,
    options: &PlanOptions,
    ops: &[PlanOp],
    buffers: &[Buffer],
    views: &[Option<View>],
) -> Arena {
    let mut lifetimes: Vec<Lifetime> = buffers
        .iter()
        .map(|buffer| Lifetime { bytes: buffer_bytes(options, buffer), first: usize::MAX, last: 0 })
        .collect();
    for (index, op) in ops.iter().enumerate() {
        let (reads, writes) = tensors_of(graph, &op.kernel);
        for id in reads.iter().chain(&writes) {
            let view = views[id.0].expect("a materialised tensor");
            let life = &mut lifetimes[view.buffer];
            life.first = life.first.min(index);
            life.last = life.last.max(index);
        }
    }
    // The logits are read after the play.
    if let Some(view) = graph.logits.and_then(|logits| views[logits.0]) {
        lifetimes[view.buffer].last = ops.len();
    }
    Arena::assign(&lifetimes)
}
