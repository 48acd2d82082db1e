//! A plan as text: what will run, what it moves, and how fast it can be at best.

mod alike;

use crate::cost::{Cost, Work};
use crate::fuse::Kernel;
use crate::overlap::OverlapTimes;
use crate::placement::DeviceId;
use crate::plan::{Plan, PlanOp};
use crate::segment::Segmentation;
use crate::statistics::Ceilings;
use crate::units::{count, parameters_text, size_text};
use std::fmt::{self, Display, Formatter};

/// Prints a plan for a play of `rows` rows at `context` tokens, of each of `lanes` sequences.
pub struct PlanText<'a> {
    /// The plan.
    pub plan: &'a Plan,
    /// Ceilings of each of its devices.
    pub ceilings: &'a [Ceilings],
    /// Sequences in the play.
    pub lanes: usize,
    /// Rows of each.
    pub rows: usize,
    /// Tokens the last of them sees.
    pub context: usize,
    /// Print every layer; otherwise one of those whose kernels are alike.
    pub full: bool,
}

impl PlanText<'_> {
    /// Work of one kernel in this play.
    pub fn work(&self, op: &PlanOp) -> Work {
        self.work_of(&op.cost)
    }

    fn work_of(&self, cost: &Cost) -> Work {
        cost.work_of(&vec![(self.rows, self.context); self.lanes], self.lanes)
    }

    /// Work of the whole play.
    pub fn total(&self) -> Work {
        self.plan.ops.iter().map(|op| self.work(op)).sum()
    }

    /// Shortest time of the whole play: each kernel waits for the one before.
    pub fn seconds(&self) -> f64 {
        self.plan.best_seconds(self.ceilings, &|cost| self.work_of(cost))
    }

    /// Shortest time of one kernel, on the device it is placed on.
    pub fn seconds_of(&self, op: &PlanOp) -> f64 {
        self.ceilings[op.device.0].seconds(self.work(op))
    }

    fn device(&self, id: DeviceId) -> &str {
        &self.plan.devices[id.0].name
    }

    fn write_model(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Plan { graph, options, .. } = self.plan;
        writeln!(
            f,
            "{}: {}, {} of weights, {} mode, context {}",
            graph.architecture,
            parameters_text(graph.parameters()),
            size_text(self.plan.weight_bytes()),
            options.numeric,
            options.context,
        )?;
        for (index, group) in graph.kv_groups.iter().enumerate() {
            writeln!(
                f,
                "kv {}: {} layers, {} heads of {}, {}, window {}, page {} tokens = {} bytes, {} pages",
                group.name,
                group.layers,
                group.kv_heads,
                group.head_dim,
                group.ty,
                group.window.map_or("none".to_string(), |window| window.to_string()),
                crate::PAGE_TOKENS,
                group.page_bytes(),
                self.plan.kv_pages[index],
            )?;
        }
        writeln!(
            f,
            "arena: {} for {} buffers of {} rows; kv: at most {}",
            size_text(self.plan.arena.bytes as u64),
            self.plan.buffers.len(),
            options.max_rows,
            size_text(self.plan.kv_bytes()),
        )?;
        writeln!(f, "placement: {}", self.plan.placement_text())?;
        for moved in &self.plan.moved {
            let (from, to) = (self.device(moved.from), self.device(moved.to));
            writeln!(f, "{} runs on {to}: {from} has no kernel for it", moved.op)?;
        }
        self.plan.remarks.iter().try_for_each(|remark| writeln!(f, "{remark}"))
    }

    fn write_ops(&self, f: &mut Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{:<5} {:<28} {:<6} {:<12} {:>12} {:>12} {:>10} {:<4} operations",
            "op", "name", "device", "weights", "bytes", "FLOP", "best us", "wait"
        )?;
        let alike = self.alike_layers();
        let mut shown = None;
        for (index, op) in self.plan.ops.iter().enumerate() {
            if let Some(layer) = op.layer.filter(|_| !self.full) {
                // Every layer is in one of the lists.
                let Some(layers) = alike.iter().find(|layers| layers[0] == layer) else { continue };
                if shown != op.layer && layers.len() > 1 {
                    writeln!(f, "each of {}:", alike::layer_list(layers))?;
                }
                shown = op.layer;
            }
            writeln!(f, "{index:<5} {:<28} {}", op.name, self.columns(op))?;
        }
        Ok(())
    }

    /// What a kernel's row says behind its name.
    fn columns(&self, op: &PlanOp) -> String {
        let work = self.work(op);
        format!(
            "{:<6} {:<12} {:>12} {:>12} {:>10} {:<4} {}",
            self.device(op.device),
            weight_types(self.plan, op),
            work.bytes,
            work.operations,
            match self.seconds_of(op) {
                unknown if unknown.is_nan() => "-".to_string(),
                seconds => format!("{:.2}", 1e6 * seconds),
            },
            if op.barrier { "yes" } else { "" },
            kernel_ops(self.plan, op),
        )
    }

    fn write_segment(&self, f: &mut Formatter<'_>, index: usize) -> fmt::Result {
        let segment = &self.plan.segments[index];
        let (device, ops) = (self.device(segment.device), &segment.ops);
        write!(f, "segment {index}: {device}, ops {} to {}", ops.start, ops.end - 1)?;
        for transfer in &segment.receives {
            let name = &self.plan.graph.tensor(transfer.tensor).name;
            write!(f, ", receives {name} ({}) from segment {}", transfer.form, transfer.from)?;
        }
        writeln!(f)
    }

    fn write_segments(&self, f: &mut Formatter<'_>) -> fmt::Result {
        for segmentation in &self.plan.segmentations {
            let Segmentation { name, segments } = segmentation;
            if self.plan.segmentations.len() > 1 {
                writeln!(f, "{name}: {}", count(segments.len(), "segment"))?;
            }
            // Layers are alike.
            let shown = if self.full { segments.len() } else { segments.len().min(MOST_SEGMENTS) };
            for index in segments.clone().take(shown) {
                self.write_segment(f, index)?;
            }
            if shown < segments.len() {
                writeln!(f, "and so on, {} more", segments.len() - shown)?;
            }
        }
        for (index, Segmentation { name, segments }) in self.plan.segmentations.iter().enumerate() {
            let times = self.overlap_times(index);
            if segments.len() > 1 && self.lanes * self.rows > 1 && !times.best().is_nan() {
                writeln!(
                    f,
                    "{name}, in two halves that each read the weights: {:.3} ms instead of {:.3}, {}",
                    1e3 * times.halves,
                    1e3 * times.whole,
                    if times.pays() { "which pays" } else { "which does not pay" },
                )?;
            }
        }
        Ok(())
    }

    /// Predicted times of this play by a segmentation.
    fn overlap_times(&self, segmentation: usize) -> OverlapTimes {
        let sequences = vec![(self.rows, self.context); self.lanes];
        OverlapTimes::predict(self.plan, segmentation, self.ceilings, &sequences)
    }

    /// Shortest time of the play in any of the ways that the plan has.
    fn shortest(&self) -> f64 {
        if self.lanes * self.rows == 1 || self.plan.segments.len() == 1 {
            return self.seconds();
        }
        let times =
            (0..self.plan.segmentations.len()).map(|index| self.overlap_times(index).best());
        times.fold(f64::INFINITY, |least, time| if time.is_nan() { least } else { least.min(time) })
    }
}

/// Segments of a segmentation that are printed where not all are asked for.
const MOST_SEGMENTS: usize = 6;

/// The operations that a kernel computes, such as `add+rms_norm+matmul`.
pub(crate) fn kernel_ops(plan: &Plan, op: &PlanOp) -> String {
    let names: Vec<&str> = op.nodes.iter().map(|&node| plan.graph.nodes[node].op.name()).collect();
    let runs = names.chunk_by(|before, after| before == after).map(|run| match run.len() {
        1 => run[0].to_string(),
        count => format!("{}x{count}", run[0]),
    });
    runs.collect::<Vec<_>>().join("+")
}

fn weight_types(plan: &Plan, op: &PlanOp) -> String {
    let Kernel::Project(project) = &op.kernel else { return String::new() };
    let mut types: Vec<String> =
        project.parts.iter().map(|part| plan.graph.weight(part.weight).ty.to_string()).collect();
    types.dedup();
    types.join("+")
}

impl Display for PlanText<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        self.write_model(f)?;
        writeln!(
            f,
            "play: {}, {}, context {}",
            count(self.rows * self.lanes, "row"),
            count(self.lanes, "sequence"),
            self.context
        )?;
        self.write_ops(f)?;
        self.write_segments(f)?;
        let total = self.total();
        let barriers = self.plan.ops.iter().filter(|op| op.barrier).count();
        writeln!(
            f,
            "total: {} ops, {barriers} barriers, {}, {:.3} GFLOP",
            self.plan.ops.len(),
            size_text(total.bytes),
            total.operations as f64 / 1e9,
        )?;
        for (device, ceilings) in self.plan.devices.iter().zip(self.ceilings) {
            if !ceilings.is_known() {
                writeln!(f, "ceilings of {}: none, it has no speed of its own", device.name)?;
                continue;
            }
            writeln!(
                f,
                "ceilings of {}: {:.1} GB/s read, {:.0} GOP/s",
                device.name,
                ceilings.bytes_per_second / 1e9,
                ceilings.operations_per_second / 1e9,
            )?;
        }
        let shared = self.plan.segmentations.len() > 1 && self.rows > 1;
        let unknown = self.ceilings.iter().any(|ceilings| !ceilings.is_known());
        if self.seconds().is_nan() || (shared && unknown) {
            return writeln!(f, "at best: not known, because a device has no speed of its own");
        }
        writeln!(
            f,
            "at best: {:.3} ms a play, {:.1} tokens/s",
            1e3 * self.shortest(),
            (self.rows * self.lanes) as f64 / self.shortest(),
        )
    }
}
