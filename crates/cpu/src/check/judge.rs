//! Whether what a kernel left is what the reference expects.

use super::CheckReport;
use super::error::{TensorError, effective_count};

/// Deviations that a value may be off by: with signs by chance, at most one in twenty thousand
/// million is off by more.
pub(super) const DEVIATIONS: f64 = 7.0;
/// Deviations that the square of a row's error may be off its mean by.
const ROW_DEVIATIONS: f64 = 5.0;
/// How much larger a row's error may be because the signs of its roundings do not fall by chance: inputs
/// that are alike are rounded alike.
const KINSHIP: f64 = 1.25;

/// A tensor as the reference has it.
pub(super) struct Expected<'a> {
    pub name: &'a str,
    /// Values of a row.
    pub width: usize,
    /// Rows of the step that the values are of, by which messages name them.
    pub rows: &'a [usize],
    pub values: &'a [f32],
    pub error: &'a TensorError,
}

/// How far the rows of a tensor were off, beside what their roundings come to by chance.
#[derive(Clone, Debug)]
pub struct Noise {
    /// Kernel and tensor, by the plan's names.
    pub tensor: String,
    /// Error of all rows, over the deviation that is expected of it.
    pub found: f64,
    /// The most that this may be in a single row, on average.
    pub limit: f64,
}

/// Compares the values of a tensor with what is expected: each is within its bound and within some
/// deviations, and each row's error is no larger than its roundings explain.
pub(super) fn judge(
    kernel: &str,
    expected: &Expected<'_>,
    found: &[f32],
    report: &mut CheckReport,
) -> Result<(), String> {
    let Expected { name, values, .. } = *expected;
    if values.len() != found.len() {
        return Err(format!("{name}: {} values, expected {}", found.len(), values.len()));
    }
    let Some(worst) = WorstValue::of(expected, found) else { return Ok(()) };
    let rows = RowErrors::of(expected, found);
    report.values += values.len();
    report.worst_share = report.worst_share.max(worst.share);
    report.worst_row = report.worst_row.max(rows.worst.share());
    let tensor = format!("{kernel}: {name}");
    report.noise.push(Noise { tensor, found: rows.found(), limit: rows.limit });
    let place = worst.describe(expected);
    if worst.share > 1.0 {
        return Err(place);
    }
    if rows.worst.share() > 1.0 {
        let RowError { index, part, error, noise, limit } = rows.worst;
        let (row, part) = (expected.rows[index], part.in_words());
        return Err(format!(
            "{name}: row {row} is off by {error:e} {part}, {:.2} times the noise of its roundings, \
             where {limit:.2} times is the most; {place}",
            error / noise,
        ));
    }
    Ok(())
}

/// The worst value of a tensor.
struct WorstValue {
    index: usize,
    found: f32,
    /// What it may be off by.
    limit: f64,
    /// What it is off by, over that; infinite where it is no number.
    share: f64,
}

impl WorstValue {
    fn of(expected: &Expected<'_>, found: &[f32]) -> Option<WorstValue> {
        let TensorError { bound, variance, .. } = expected.error;
        let value = |index: usize| {
            let limit = bound[index].min(DEVIATIONS * variance[index].sqrt());
            let off = (f64::from(expected.values[index]) - f64::from(found[index])).abs();
            let share = if off == 0.0 { 0.0 } else { off / limit };
            let share = if share.is_nan() { f64::INFINITY } else { share };
            WorstValue { index, found: found[index], limit, share }
        };
        (0..found.len()).map(value).max_by(|a, b| a.share.total_cmp(&b.share))
    }

    fn describe(&self, expected: &Expected<'_>) -> String {
        let Expected { name, width, rows, values, .. } = *expected;
        let (row, column) = (rows[self.index / width], self.index % width);
        let (found, limit) = (self.found, self.limit);
        let value = values[self.index];
        format!(
            "{name}, row {row}, column {column}, is {found:e}, expected {value:e} within {limit:e}"
        )
    }
}

/// What of a row's errors is judged together.
#[derive(Clone, Copy, PartialEq, Eq)]
enum RowPart {
    /// All of them.
    Whole,
    /// Their mean.
    Mean,
    /// What they are without their mean.
    Remainder,
}

impl RowPart {
    fn in_words(self) -> &'static str {
        match self {
            RowPart::Whole => "in all",
            RowPart::Mean => "on average",
            RowPart::Remainder => "in all, without the average",
        }
    }
}

/// How far a row is off.
#[derive(Clone, Copy)]
struct RowError {
    /// Which of the compared rows.
    index: usize,
    part: RowPart,
    /// Norm of its error, or the mean.
    error: f64,
    /// What is expected of that by its roundings.
    noise: f64,
    /// How many times that it may be.
    limit: f64,
}

impl RowError {
    fn share(&self) -> f64 {
        if self.error == 0.0 { 0.0 } else { self.error / (self.limit * self.noise) }
    }

    /// A row as a whole, or its mean and the remainder where it is known how large these should be.
    fn of(expected: &Expected<'_>, found: &[f32], index: usize) -> Vec<RowError> {
        let &Expected { width, values, error, .. } = expected;
        let part = index * width..(index + 1) * width;
        let variances = &error.variance[part.clone()];
        let noise: f64 = variances.iter().sum();
        let pairs = values[part.clone()].iter().zip(&found[part]);
        let off: Vec<f64> = pairs.map(|(&a, &b)| f64::from(b) - f64::from(a)).collect();
        let squares = |shift: f64| off.iter().map(|off| (off - shift).powi(2)).sum::<f64>();
        let values = effective_count(variances.iter().copied());
        let Some(mean) = error.means.get(index) else {
            return vec![RowError {
                index,
                part: RowPart::Whole,
                error: squares(0.0).sqrt(),
                noise: noise.sqrt(),
                limit: row_limit(error.freedom[index], values),
            }];
        };
        let count = width as f64;
        let average = off.iter().sum::<f64>() / count;
        let remainder = RowError {
            index,
            part: RowPart::Remainder,
            error: squares(average).sqrt(),
            noise: (noise - count * mean.counted).max(0.0).sqrt(),
            limit: row_limit(mean.freedom, values),
        };
        let mean = RowError {
            index,
            part: RowPart::Mean,
            error: average.abs(),
            noise: mean.variance.sqrt(),
            limit: row_limit(1.0, 1.0),
        };
        vec![remainder, mean]
    }
}

/// How far the rows of a tensor are off.
struct RowErrors {
    worst: RowError,
    /// Squares of all errors but those of means, and what is expected of them.
    error: f64,
    noise: f64,
    /// Mean limit of the rows.
    limit: f64,
}

impl RowErrors {
    fn of(expected: &Expected<'_>, found: &[f32]) -> RowErrors {
        let rows = 0..expected.values.len() / expected.width;
        let all: Vec<RowError> =
            rows.flat_map(|index| RowError::of(expected, found, index)).collect();
        let rows: Vec<&RowError> = all.iter().filter(|row| row.part != RowPart::Mean).collect();
        let sum = |of: fn(&RowError) -> f64| rows.iter().map(|row| of(row)).sum::<f64>();
        RowErrors {
            worst: *all.iter().max_by(|a, b| a.share().total_cmp(&b.share())).expect("a row"),
            error: sum(|row| row.error.powi(2)),
            noise: sum(|row| row.noise.powi(2)),
            limit: sum(|row| row.limit) / rows.len() as f64,
        }
    }

    /// Error of all rows, over what is expected.
    fn found(&self) -> f64 {
        if self.error == 0.0 { 0.0 } else { (self.error / self.noise).sqrt() }
    }
}

/// How many times its expected deviation the error of a row may be, which comes from some independent
/// roundings and counts for some values. A sum of squares of few scatters more than one of many: the
/// quantile of a chi-square distribution, by Wilson and Hilferty.
fn row_limit(freedom: f64, values: f64) -> f64 {
    let freedom = (1.0 / (1.0 / freedom + 1.0 / values)).max(1.0);
    let ninth = 2.0 / (9.0 * freedom);
    KINSHIP * (1.0 - ninth + ROW_DEVIATIONS * ninth.sqrt()).powf(1.5)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_of_many_roundings_is_held_to_little_more_than_its_noise() {
        let limit = |count: u32| row_limit(f64::INFINITY, f64::from(count));
        assert!(limit(300) < 1.55 && limit(5376) < 1.35, "{} {}", limit(300), limit(5376));
        // One value alone may be some deviations off.
        assert!(limit(1) > 5.0 && limit(1) < 8.0, "{}", limit(1));
    }

    /// Five outputs of 5,376 that are their neighbours', in a row whose inputs were rounded to int8: as
    /// noisy as the kernels are. Any one of them is noticed, and the row would be were no value looked at by
    /// itself.
    #[test]
    fn five_wrong_outputs_of_5376_are_noticed() {
        let (width, deviation) = (5376, 0.0055);
        let mut state = 7u64;
        // Sums of twelve draws, about normal.
        let mut normal = || {
            let mut draw = || {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (state >> 40) as f32 / (1 << 24) as f32
            };
            (0..12).map(|_| draw()).sum::<f32>() - 6.0
        };
        let values: Vec<f32> = (0..width).map(|_| normal()).collect();
        let mut found: Vec<f32> =
            values.iter().map(|value| value + deviation as f32 * normal()).collect();
        let error = TensorError {
            bound: vec![f64::INFINITY; width],
            variance: vec![deviation * deviation; width],
            freedom: vec![f64::INFINITY],
            means: Vec::new(),
        };
        let expected =
            Expected { name: "down", width, rows: &[42], values: &values, error: &error };
        judge("ffn_down", &expected, &found, &mut CheckReport::default()).expect("noise alone");
        for at in (1..width).step_by(1100) {
            found[at] = values[at - 1];
        }
        let failure = judge("ffn_down", &expected, &found, &mut CheckReport::default());
        let reason = failure.expect_err("five wrong outputs");
        assert!(reason.contains("down, row 42, column"), "{reason}");
        let row = RowErrors::of(&expected, &found).worst;
        assert!(row.share() > 2.0, "{}", row.share());
    }
}
