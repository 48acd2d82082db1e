//! What is gained by cutting a play in two halves that several devices work on at once.

use crate::plan::Plan;
use crate::statistics::Ceilings;

/// Shortest times of a play on several devices, in seconds.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct OverlapTimes {
    /// All rows together, segment after segment.
    pub whole: f64,
    /// The sequences in two halves, one segment apart. Each half reads the weights again, so that
    /// this pays only where arithmetic, not memory, takes the time.
    pub halves: f64,
}

impl OverlapTimes {
    /// Predicts both for a play of some sequences: the rows of each and the tokens its last row
    /// sees. All rows want logits.
    pub fn predict(
        plan: &Plan,
        ceilings: &[Ceilings],
        sequences: &[(usize, usize)],
    ) -> OverlapTimes {
        let (first, second) = sequences.split_at(sequences.len() / 2);
        OverlapTimes {
            whole: finish_time(plan, ceilings, &[sequences]),
            halves: finish_time(plan, ceilings, &[first, second]),
        }
    }

    /// Whether halves are faster by more than predictions are worth.
    pub fn pays(&self) -> bool {
        self.halves < 0.95 * self.whole
    }
}

/// When the last of several plays is done that are submitted one after another: a segment starts
/// once its play's last segment is done and its device is free. A device that does not work by
/// itself delays the submissions after it.
fn finish_time(plan: &Plan, ceilings: &[Ceilings], plays: &[&[(usize, usize)]]) -> f64 {
    let mut free = vec![0.0f64; plan.devices.len()];
    let (mut host, mut last) = (0.0f64, 0.0f64);
    for sequences in plays.iter().filter(|sequences| !sequences.is_empty()) {
        let mut done = 0.0f64;
        for segment in &plan.segments {
            let device = segment.device.0;
            let ops = &plan.ops[segment.ops.clone()];
            let seconds: f64 = ops
                .iter()
                .map(|op| ceilings[device].seconds(op.cost.work_of(sequences, sequences.len())))
                .sum();
            // What the segment receives is waited for before it is submitted.
            host = host.max(done);
            done = host.max(free[device]) + seconds;
            free[device] = done;
            if !plan.devices[device].asynchronous {
                host = done;
            }
        }
        last = last.max(done);
    }
    last
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
        let times = OverlapTimes::predict(&plan, &[arithmetic; 2], &sequences);
        assert!(times.pays(), "{times:?}");
        // Half of either device's work goes on beside the other's.
        assert!((times.halves / times.whole - 0.75).abs() < 0.01, "{times:?}");
        let memory = Ceilings { bytes_per_second: 1e9, operations_per_second: 1e18 };
        let times = OverlapTimes::predict(&plan, &[memory; 2], &sequences);
        assert!(!times.pays() && times.halves > times.whole, "{times:?}");
    }
}
