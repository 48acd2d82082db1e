//! Segments: runs of kernels on one device, and the tensors that pass between them.
//!
//! A plan may be cut in several ways: the first way has every kernel where it was placed, and in each
//! further *segmentation* another device computes some products instead. Keys and values stay where
//! they were placed in all of them, so that each step may be played by another segmentation than the
//! one before.

use crate::graph::{Graph, TensorId};
use crate::lay_out::tensors_of;
use crate::placement::DeviceId;
use crate::plan::PlanOp;
use std::ops::Range;

/// Type and layout in which a tensor passes from one device to another.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TransferForm {
    /// f32 values, row after row, without gaps.
    RowsF32,
}

impl std::fmt::Display for TransferForm {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            TransferForm::RowsF32 => "f32 rows",
        })
    }
}

/// A tensor that a segment reads and a segment of another device left for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Transfer {
    /// The tensor.
    pub tensor: TensorId,
    /// The segment that computed it.
    pub from: usize,
    /// How it passes.
    pub form: TransferForm,
}

/// A run of kernels on one device: what is submitted and waited for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Segment {
    /// Where.
    pub device: DeviceId,
    /// Kernels, as indices into [`crate::Plan::ops`].
    pub ops: Range<usize>,
    /// What it reads of segments of other devices; it starts once those are done.
    pub receives: Vec<Transfer>,
}

/// One way to cut a plan's kernels into segments.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Segmentation {
    /// In words, such as `ffn on npu`; of the first the names of its devices.
    pub name: String,
    /// Its segments, in [`crate::Plan::segments`].
    pub segments: Range<usize>,
}

/// Cuts kernels into segments, of which kernel `i` runs on `devices[i]`. The first of them will be the
/// `offset`-th of the plan.
pub(crate) fn segments(
    graph: &Graph,
    ops: &[PlanOp],
    devices: &[DeviceId],
    offset: usize,
) -> Vec<Segment> {
    let mut segments: Vec<Segment> = Vec::new();
    for (index, &device) in devices.iter().enumerate() {
        match segments.last_mut() {
            Some(last) if last.device == device => last.ops.end = index + 1,
            _ => segments.push(Segment { device, ops: index..index + 1, receives: Vec::new() }),
        }
    }
    // The segment that writes each tensor.
    let mut writer: Vec<Option<usize>> = vec![None; graph.tensors.len()];
    for index in 0..segments.len() {
        let Segment { device, ops: run, .. } = segments[index].clone();
        let mut receives: Vec<Transfer> = Vec::new();
        for op in &ops[run] {
            let (reads, writes) = tensors_of(graph, &op.kernel);
            for tensor in reads {
                let Some(from) = writer[tensor.0] else { continue };
                let known = receives.iter().any(|transfer| transfer.tensor == tensor);
                if segments[from].device != device && !known {
                    let form = TransferForm::RowsF32;
                    receives.push(Transfer { tensor, from: offset + from, form });
                }
            }
            writes.into_iter().for_each(|tensor| writer[tensor.0] = Some(index));
        }
        // What an earlier segment of this device received is here already.
        let earlier = |tensor: TensorId| {
            let before = segments[..index].iter().filter(|segment| segment.device == device);
            before.flat_map(|segment| &segment.receives).any(|known| known.tensor == tensor)
        };
        receives.retain(|transfer| !earlier(transfer.tensor));
        segments[index].receives = receives;
    }
    segments
}
