//! What quantising cost: original weights against decoded ones.

use std::fmt;

/// Differences between a tensor and its approximation, all computed in f64.
///
/// A NaN on either side makes every figure but `count` NaN, and comparisons with a bound false:
/// a broken decoder never passes for a good one.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Distortion {
    /// Number of weights compared.
    pub count: usize,
    /// Root of the mean squared error, in the unit of the weights.
    pub rmse: f64,
    /// `rmse` over the root mean square of the original; 0 if both are 0.
    pub relative_rmse: f64,
    /// The largest absolute error.
    pub max_error: f64,
    /// Signal power over error power in decibels; infinite if there is no error.
    pub signal_to_noise_db: f64,
    /// Cosine of the angle between the two as vectors; 1 if both are 0.
    pub cosine: f64,
}

impl Distortion {
    /// Compares an approximation with the original.
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn measure(original: &[f32], approximation: &[f32]) -> Distortion {
        assert_eq!(original.len(), approximation.len(), "tensors of different length compared");
        let (mut signal, mut other, mut product, mut noise) = (0.0f64, 0.0f64, 0.0f64, 0.0f64);
        let mut max_error = 0.0f64;
        for (&a, &b) in original.iter().zip(approximation) {
            let (a, b) = (f64::from(a), f64::from(b));
            let error = (a - b).abs();
            signal += a * a;
            other += b * b;
            product += a * b;
            noise += error * error;
            // `f64::max` would drop a NaN.
            if error > max_error || error.is_nan() {
                max_error = error;
            }
        }
        if noise.is_nan() {
            max_error = f64::NAN;
        }
        let count = original.len();
        let ratio = |numerator: f64, denominator: f64, if_both_zero: f64| {
            if numerator == 0.0 && denominator == 0.0 {
                if_both_zero
            } else {
                numerator / denominator
            }
        };
        Distortion {
            count,
            rmse: (noise / count.max(1) as f64).sqrt(),
            relative_rmse: ratio(noise, signal, 0.0).sqrt(),
            max_error,
            signal_to_noise_db: 10.0 * ratio(signal, noise, f64::INFINITY).log10(),
            cosine: ratio(product, (signal * other).sqrt(), 1.0),
        }
    }
}

impl fmt::Display for Distortion {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            formatter,
            "relative rmse {:.3e}, max error {:.3e}, SNR {:.1} dB, cosine {:.6}",
            self.relative_rmse, self.max_error, self.signal_to_noise_db, self.cosine
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_by_hand() {
        let d = Distortion::measure(&[3.0, 4.0], &[3.0, 4.5]);
        assert_eq!(d.count, 2);
        assert!((d.rmse - 0.125f64.sqrt()).abs() < 1e-15);
        assert!((d.relative_rmse - 0.1).abs() < 1e-15);
        assert_eq!(d.max_error, 0.5);
        assert!((d.signal_to_noise_db - 20.0).abs() < 1e-12);
        assert!((d.cosine - 27.0 / (5.0 * 29.25f64.sqrt())).abs() < 1e-15);
    }

    #[test]
    fn no_error_and_no_signal() {
        let same = Distortion::measure(&[1.0, -2.0], &[1.0, -2.0]);
        assert_eq!((same.relative_rmse, same.max_error), (0.0, 0.0));
        assert_eq!((same.signal_to_noise_db, same.cosine), (f64::INFINITY, 1.0));
        let zeros = Distortion::measure(&[0.0], &[0.0]);
        assert_eq!((zeros.relative_rmse, zeros.cosine), (0.0, 1.0));
        assert_eq!(Distortion::measure(&[0.0], &[1.0]).relative_rmse, f64::INFINITY);
    }

    #[test]
    fn nan_passes_no_bound() {
        for pair in [([1.0, f32::NAN], [1.0, 1.0]), ([1.0, 1.0], [f32::NAN, 5.0])] {
            let d = Distortion::measure(&pair.0, &pair.1);
            assert!(d.relative_rmse.is_nan() && d.max_error.is_nan() && d.cosine.is_nan());
            assert!(d.signal_to_noise_db.is_nan());
        }
    }
}
