//! What a plan's part costs besides its arithmetic: changes of the array's configuration, and the conversion
//! of weights at load.

use std::time::{Duration, Instant};

use pianola_plan::{Plan, Row, Step};

use super::assigned::Assigned;
use super::attend::{Way, way};
use super::encode::{Encoded, Form};
use super::options::Precision;
use super::packages::Kernels;
use super::variants::{attends, plain};
use crate::package::Package;

/// The time that a change of the array's configuration takes. By others' measurements on npu1; not ours.
pub(super) const CONFIGURATION_SWITCH: Duration = Duration::from_millis(2);

/// What a play of a plan's part changes the array's configuration for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Switches {
    /// Rows of the play, all of one sequence from its beginning.
    pub rows: usize,
    /// Changes, the one back to the first configuration included: another play follows.
    pub count: usize,
    /// The time of all, by others' measurements of one on npu1.
    pub time: Duration,
}

impl Switches {
    /// Of the longest play of a prompt.
    pub(super) fn of(kernels: &Kernels, plan: &Plan, assigned: &Assigned) -> Switches {
        let rows = plan.options.max_rows.min(plan.options.context);
        let mut step = Step::default();
        (0..rows as u32).for_each(|position| step.push(0, 0, position, false));
        let used: Vec<&str> = (assigned.ops.iter())
            .filter_map(|&op| package(kernels, plan, op, &step.rows))
            .map(|package| package.manifest().xclbin.sha256.as_str())
            .collect();
        let next = used.iter().cycle().skip(1);
        let count = used.iter().zip(next).filter(|(one, next)| one != next).count();
        Switches { rows, count, time: CONFIGURATION_SWITCH * count as u32 }
    }
}

/// The package that a kernel runs; none where the processor computes it.
fn package<'a>(kernels: &'a Kernels, plan: &Plan, op: usize, rows: &[Row]) -> Option<&'a Package> {
    let Some(spec) = attends(plan, op) else {
        return plain(plan, op).is_none().then(|| &kernels.products[0]);
    };
    match (way(kernels, &spec, rows), kernels.precision) {
        (Way::Host, _) => None,
        (Way::Products, Precision::Bf16) => Some(&kernels.products[0]),
        (Way::Products, Precision::Int8Pieces) => kernels.attention.first(),
        (Way::Flash(index), _) => kernels.flash.get(index),
    }
}

/// Values that the processor turns into the array's form in a second, all of its threads together, measured
/// here and now. Reading and decoding the file is not in it.
pub(super) fn conversion_speed(form: Form) -> f64 {
    const ROWS: usize = 256;
    const COLUMNS: usize = 2048;
    let values: Vec<f32> = (0..ROWS * COLUMNS).map(|at| (at % 251) as f32 - 125.0).collect();
    let mut encoded = Encoded::new(form, ROWS, COLUMNS);
    let mut once = || {
        let mut values = values.clone();
        let start = Instant::now();
        encoded.set(form, 0, &mut values);
        start.elapsed()
    };
    // The first run pays for fresh pages.
    let best = (0..3).map(|_| once()).min().unwrap_or_default();
    (ROWS * COLUMNS) as f64 / best.as_secs_f64().max(1e-9)
}
