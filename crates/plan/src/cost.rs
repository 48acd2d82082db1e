//! Costs: bytes and operations of a kernel, symbolic in rows and context.

use crate::fuse::Kernel;
use crate::graph::{AttentionSpec, Graph, Op, RowSet, TensorId, WeightId};
use crate::kv::KvGroup;

/// What a kernel moves and computes, apart from what T and the context decide.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Cost {
    /// Bytes of weights read once, whatever T is.
    pub weight_bytes: u64,
    /// Bytes of weights read per row (an embedding's row).
    pub row_weight_bytes: u64,
    /// Bytes of activations read and written per row.
    pub row_bytes: u64,
    /// Operations per row; a multiplication and an addition are two.
    pub row_operations: u64,
    /// Bytes of keys and values per visible token.
    pub kv_token_bytes: u64,
    /// Operations per row and visible token.
    pub kv_token_operations: u64,
    /// Window that bounds the visible tokens.
    pub window: Option<usize>,
    /// Rows counted are only those with logits.
    pub logits_only: bool,
}

/// Bytes and operations of one play.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Work {
    /// Bytes moved.
    pub bytes: u64,
    /// Operations.
    pub operations: u64,
}

impl std::ops::Add for Work {
    type Output = Work;
    fn add(self, other: Work) -> Work {
        Work { bytes: self.bytes + other.bytes, operations: self.operations + other.operations }
    }
}

impl std::iter::Sum for Work {
    fn sum<I: Iterator<Item = Work>>(items: I) -> Work {
        items.fold(Work::default(), |total, item| total + item)
    }
}

impl Cost {
    /// A play of `rows` rows of one sequence whose last row sees `context` tokens (itself
    /// included), with `logits` rows of logits.
    pub fn work(&self, rows: usize, logits: usize, context: usize) -> Work {
        self.work_of(&[(rows, context)], logits)
    }

    /// A play of several sequences, each given as its rows and the tokens that its last row sees.
    pub fn work_of(&self, sequences: &[(usize, usize)], logits: usize) -> Work {
        let all: usize = sequences.iter().map(|sequence| sequence.0).sum();
        let counted = if self.logits_only { logits } else { all } as u64;
        if counted == 0 {
            return Work::default();
        }
        let visible = |position: u64| match self.window {
            Some(window) => position.min(window as u64),
            None => position,
        };
        // Visible tokens summed over the rows, and the span of keys the play touches at all.
        let (mut seen, mut span) = (0, 0);
        for &(rows, context) in sequences.iter().filter(|sequence| sequence.0 > 0) {
            let last = context as u64;
            let first = last.saturating_sub(rows as u64) + 1;
            seen += (first..=last).map(visible).sum::<u64>();
            span += last - first + visible(first);
        }
        Work {
            bytes: self.weight_bytes
                + counted * (self.row_weight_bytes + self.row_bytes)
                + span * self.kv_token_bytes,
            operations: counted * self.row_operations + seen * self.kv_token_operations,
        }
    }
}

pub(crate) fn cost_of(graph: &Graph, kernel: &Kernel) -> Cost {
    let width = |id: TensorId| graph.tensor(id).width as u64;
    match kernel {
        Kernel::Single(node) => single(graph, *node),
        Kernel::Attend(attend) => {
            let spec = attend.spec;
            let group = &graph.kv_groups[spec.kv.group];
            let stored = group.token_bytes() as u64;
            let inputs = width(attend.query) + width(attend.key) + width(attend.value);
            Cost {
                row_bytes: 4 * (inputs + width(attend.output)) + stored,
                row_operations: 6 * (width(attend.query) + width(attend.key)),
                ..attention(spec, group)
            }
        }
        Kernel::Project(project) => {
            let mut cost = Cost { logits_only: project.select, ..Cost::default() };
            let input = project.residual.map_or(project.input, |residual| residual.base);
            let reads = 1 + u64::from(project.residual.is_some());
            let kept = u64::from(project.residual.is_some_and(|residual| residual.kept));
            cost.row_bytes += 4 * width(input) * (reads + kept);
            for part in &project.parts {
                product(graph, part.weight, &mut cost);
                cost.weight_bytes += part.bias.map_or(0, |bias| graph.weight(bias).bytes());
            }
            let outputs: u64 = project.parts.iter().map(|part| width(part.output)).sum();
            let written = project.gate.map_or(outputs, |gate| width(gate.1));
            cost.row_bytes += 4 * written;
            cost
        }
    }
}

fn product(graph: &Graph, weight: WeightId, cost: &mut Cost) {
    let spec = graph.weight(weight);
    cost.weight_bytes += spec.bytes();
    if let crate::WeightShape::Matrix { rows, columns } = spec.shape {
        cost.row_operations += 2 * (rows * columns) as u64;
    }
}

fn attention(spec: AttentionSpec, group: &KvGroup) -> Cost {
    Cost {
        kv_token_bytes: group.token_bytes() as u64,
        kv_token_operations: 4 * (spec.heads * spec.head_dim) as u64,
        window: spec.window,
        ..Cost::default()
    }
}

fn single(graph: &Graph, index: usize) -> Cost {
    let node = &graph.nodes[index];
    let touched = node.inputs.iter().chain(node.output.iter());
    let row_bytes = 4 * touched.map(|&id| graph.tensor(id).width as u64).sum::<u64>();
    let out = node.output.map_or(0, |id| graph.tensor(id).width as u64);
    let logits_only = node.output.is_some_and(|id| graph.tensor(id).rows == RowSet::Logits);
    let base = Cost { row_bytes, logits_only, ..Cost::default() };
    match node.op {
        Op::Embed { table, .. } => {
            let spec = graph.weight(table);
            let row = spec.ty.row_bytes(out as usize).unwrap_or(0) as u64;
            Cost { row_weight_bytes: row, row_operations: out, ..base }
        }
        Op::MatMul { weight, .. } => {
            let mut cost = base;
            product(graph, weight, &mut cost);
            cost
        }
        Op::Attention(spec) => {
            Cost { row_bytes, ..attention(spec, &graph.kv_groups[spec.kv.group]) }
        }
        Op::RmsNorm { .. } | Op::Gate { .. } => Cost { row_operations: 4 * out, ..base },
        _ => Cost { row_operations: out, ..base },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attention_counts_visible_tokens() {
        let cost = Cost { kv_token_bytes: 10, kv_token_operations: 100, ..Cost::default() };
        let work = cost.work(4, 0, 4);
        assert_eq!((work.bytes, work.operations), (40, 1000));
        let windowed = Cost { window: Some(2), ..cost };
        assert_eq!(windowed.work(1, 0, 100).operations, 200);
        assert_eq!(windowed.work(1, 0, 100).bytes, 20);
        // Ten rows see the last of their tokens and one before the first.
        assert_eq!(windowed.work(10, 0, 100).bytes, 110);
        // The weights are read once for all sequences.
        let weighty = Cost { weight_bytes: 1000, ..windowed };
        let alone = windowed.work(1, 0, 100) + windowed.work(1, 0, 7);
        let together = weighty.work_of(&[(1, 100), (0, 0), (1, 7)], 0);
        assert_eq!(together, Work { bytes: alone.bytes + 1000, ..alone });
    }
}
