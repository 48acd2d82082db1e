//! What is gained by cutting a play in two halves that several devices work on at once.
//!
//! ```text
//! first half    A0 ─► B0 ─► A1 ─► B1
//! second half         A0 ─► B0 ─► A1 ─► B1      A and B are devices
//! ```

use crate::plan::Plan;
use crate::segment::Transfer;
use crate::statistics::Ceilings;
use std::ops::Range;

/// A segment of one of several plays of a step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Turn {
    /// Which play.
    pub play: usize,
    /// Index in [`Plan::segments`].
    pub segment: usize,
}

impl Plan {
    /// Shortest time of a segment in a play of some sequences: the rows of each and the tokens its last
    /// row sees.
    pub fn segment_seconds(
        &self,
        segment: usize,
        ceilings: &[Ceilings],
        sequences: &[(usize, usize)],
    ) -> f64 {
        let segment = &self.segments[segment];
        let seconds = |op: usize| {
            let work = self.ops[op].cost.work_of(sequences, sequences.len());
            ceilings[segment.device.0].seconds(work)
        };
        segment.ops.clone().map(seconds).sum()
    }

    /// Shortest time of copying what a segment receives in a play of `rows` rows, out of one device's
    /// memory and into the other's.
    pub fn transfer_seconds(&self, segment: usize, ceilings: &[Ceilings], rows: usize) -> f64 {
        let segment = &self.segments[segment];
        let width = |transfer: &Transfer| self.graph.tensor(transfer.tensor).width;
        let bytes = 4 * rows * segment.receives.iter().map(width).sum::<usize>();
        match bytes {
            0 => 0.0,
            bytes => 2.0 * bytes as f64 / ceilings[segment.device.0].bytes_per_second,
        }
    }

    /// The order in which segments are submitted where `plays` plays of a segmentation follow one
    /// another one segment apart. On each device a play's segment comes before the same segment of
    /// the next play, which may read the keys and values that it stores. A device that works by
    /// itself is given its turn before one that the host works for.
    pub fn turns(&self, segmentation: usize, plays: usize) -> Vec<Turn> {
        let Range { start, end } = self.segmentations[segmentation].segments;
        let mut turns = Vec::with_capacity((end - start) * plays);
        for moment in 0..(end - start + plays).saturating_sub(1) {
            let first = turns.len();
            let under_way = (0..plays).filter_map(|play| {
                let segment = start + moment.checked_sub(play)?;
                (segment < end).then_some(Turn { play, segment })
            });
            turns.extend(under_way);
            turns[first..].sort_by_key(|turn| {
                !self.devices[self.segments[turn.segment].device.0].asynchronous
            });
        }
        turns
    }

    /// When the last of some plays is done whose segments are submitted in the order of `turns`, if
    /// each takes the seconds that `seconds` says: a segment is submitted once what it receives is
    /// there, and starts once its device is free. A device that does not work by itself delays the
    /// submissions after it. Not a number where one of them is not.
    pub fn finish_time(&self, turns: &[Turn], seconds: &dyn Fn(Turn) -> f64) -> f64 {
        let mut free = vec![0.0f64; self.devices.len()];
        let plays = turns.iter().map(|turn| turn.play + 1).max().unwrap_or(0);
        let mut done = vec![0.0f64; plays];
        let mut host = 0.0f64;
        for &turn in turns {
            let segment = &self.segments[turn.segment];
            let device = segment.device.0;
            if !segment.receives.is_empty() {
                host = host.max(done[turn.play]);
            }
            let took = seconds(turn);
            if took.is_nan() {
                return f64::NAN;
            }
            let end = host.max(free[device]) + took;
            (free[device], done[turn.play]) = (end, end);
            if !self.devices[device].asynchronous {
                host = end;
            }
        }
        done.into_iter().fold(0.0, f64::max)
    }
}

/// Shortest times of a play on several devices, in seconds.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct OverlapTimes {
    /// All rows together, segment after segment.
    pub whole: f64,
    /// The rows in two halves, one segment apart. Each half reads the weights again, so that this
    /// pays only where arithmetic, not memory, takes the time.
    pub halves: f64,
}

impl OverlapTimes {
    /// Predicts both for a play of some sequences: the rows of each and the tokens its last row
    /// sees.
    pub fn predict(
        plan: &Plan,
        segmentation: usize,
        ceilings: &[Ceilings],
        sequences: &[(usize, usize)],
    ) -> OverlapTimes {
        let time = |plays: &[&[(usize, usize)]]| {
            let seconds = |turn: Turn| {
                let play = plays[turn.play];
                let rows = play.iter().map(|sequence| sequence.0).sum();
                plan.segment_seconds(turn.segment, ceilings, play)
                    + plan.transfer_seconds(turn.segment, ceilings, rows)
            };
            plan.finish_time(&plan.turns(segmentation, plays.len()), &seconds)
        };
        let [first, second] = halves(sequences);
        OverlapTimes { whole: time(&[sequences]), halves: time(&[&first, &second]) }
    }

    /// Whether halves are faster by more than predictions are worth.
    pub fn pays(&self) -> bool {
        self.halves < 0.95 * self.whole
    }

    /// The shorter of the two; not a number where either is not.
    pub fn best(&self) -> f64 {
        if self.halves.is_nan() { f64::NAN } else { self.whole.min(self.halves) }
    }
}

/// The rows of some sequences in two halves; a sequence in the middle is cut.
fn halves(sequences: &[(usize, usize)]) -> [Vec<(usize, usize)>; 2] {
    let all: usize = sequences.iter().map(|sequence| sequence.0).sum();
    let mut left = all / 2;
    let mut halves = [Vec::new(), Vec::new()];
    for &(rows, context) in sequences {
        let before = rows.min(left);
        left -= before;
        let after = rows - before;
        if before > 0 {
            halves[0].push((before, context.saturating_sub(after)));
        }
        if after > 0 {
            halves[1].push((after, context));
        }
    }
    halves
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::builder::GraphBuilder;
    use crate::graph::Graph;
    use crate::weight::{WeightShape, WeightSpec};
    use crate::{DeviceSpec, Numeric, Placement, PlanOptions};
    use pianola_formats::TensorType;

    /// Two square products, one on each device.
    fn plan() -> Plan {
        let mut builder = GraphBuilder::new("toy", 64, 256);
        let weight = |builder: &mut GraphBuilder, name: &str| {
            let shape = WeightShape::Matrix { rows: 256, columns: 256 };
            let name = name.to_string();
            builder.weight(WeightSpec::whole(name, shape, TensorType::F32))
        };
        let table = weight(&mut builder, "table");
        let mut x = builder.embed(table, 1.0);
        for layer in 0..2 {
            builder.set_layer(Some(layer));
            let matrix = weight(&mut builder, &format!("matrix.{layer}"));
            x = builder.matmul("product", x, matrix, None);
        }
        let graph: Graph = builder.finish(x);
        let spec = |name: &str, asynchronous| DeviceSpec {
            name: name.to_string(),
            layout: "rows",
            fuses: true,
            rounds_rows: false,
            asynchronous,
            lacks: Vec::new(),
        };
        let devices = [(spec("host", false), 1), (spec("card", true), 1)];
        let placement = Placement::by_layers(&graph, &devices);
        let options = PlanOptions {
            numeric: Numeric::Exact,
            kv_type: None,
            max_rows: 64,
            max_logit_rows: 64,
            context: 64,
            sequences: 64,
            kv_bytes: None,
            fusion: true,
            reproducible: false,
        };
        Plan::new(graph, options, placement).unwrap()
    }

    #[test]
    fn halves_pay_where_arithmetic_takes_the_time() {
        let plan = plan();
        let sequences = vec![(1, 1); 32];
        let arithmetic = Ceilings { bytes_per_second: 1e15, operations_per_second: 1e9 };
        let times = OverlapTimes::predict(&plan, 0, &[arithmetic; 2], &sequences);
        assert!(times.pays(), "{times:?}");
        // Half of either device's work goes on beside the other's.
        assert!((times.halves / times.whole - 0.75).abs() < 0.01, "{times:?}");
        let memory = Ceilings { bytes_per_second: 1e9, operations_per_second: 1e18 };
        let times = OverlapTimes::predict(&plan, 0, &[memory; 2], &sequences);
        assert!(!times.pays() && times.halves > times.whole, "{times:?}");
    }

    #[test]
    fn sequences_are_cut_in_the_middle() {
        assert_eq!(halves(&[(512, 700)]), [vec![(256, 444)], vec![(256, 700)]]);
        assert_eq!(halves(&[(1, 5), (1, 9), (1, 2)]), [vec![(1, 5)], vec![(1, 9), (1, 2)]]);
    }

    /// Two devices that work by themselves and take a second for every segment are both busy but for
    /// the first and the last second.
    #[test]
    fn two_plays_keep_two_devices_busy() {
        let mut plan = plan();
        plan.devices.iter_mut().for_each(|device| device.asynchronous = true);
        let turns = plan.turns(0, 2);
        let order: Vec<(usize, usize)> =
            turns.iter().map(|turn| (turn.play, turn.segment)).collect();
        assert_eq!(order, [(0, 0), (0, 1), (1, 0), (1, 1)]);
        assert_eq!(plan.finish_time(&turns, &|_| 1.0), 3.0);
        assert_eq!(plan.finish_time(&plan.turns(0, 1), &|_| 1.0), 2.0);
        // What the host computes itself comes after what it only has to submit.
        plan.devices[1].asynchronous = false;
        let order: Vec<(usize, usize)> =
            plan.turns(0, 2).iter().map(|turn| (turn.play, turn.segment)).collect();
        assert_eq!(order, [(0, 0), (1, 0), (0, 1), (1, 1)]);
    }
}
