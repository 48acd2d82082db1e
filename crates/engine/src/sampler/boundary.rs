//! Whether two samplers that round differently may disagree on a token.

use super::Sampling;

/// A token's share of [0, 1), from which the host samples it, and how near the cuts are to keeping
/// one token more or less. Worked out by sorting, in f64, from the logits after bias and penalties.
struct Share {
    start: f64,
    end: f64,
    nearest_cut: f64,
}

impl Share {
    fn of(sampling: &Sampling, logits: &[f32], token: u32) -> Share {
        let usable = |&id: &usize| logits[id] > f32::NEG_INFINITY;
        let mut order: Vec<usize> = (0..logits.len()).filter(usable).collect();
        // Zeros of both signs are equal, and the sort is stable: ties go to low ids. NaN is not usable.
        order.sort_by(|&a, &b| {
            logits[b].partial_cmp(&logits[a]).unwrap_or(std::cmp::Ordering::Equal)
        });
        if sampling.top_k > 0 {
            order.truncate(sampling.top_k);
        }
        let Some(&best) = order.first() else {
            return Share { start: 0.0, end: 0.0, nearest_cut: 1.0 };
        };
        let best = f64::from(logits[best]);
        let temperature = f64::from(sampling.temperature);
        let weight = |id: usize| ((f64::from(logits[id]) - best) / temperature).exp();
        let sum = |ids: &[usize]| ids.iter().map(|&id| weight(id)).sum::<f64>();
        let mut nearest_cut = 1f64;
        if sampling.top_p < 1.0 {
            let (mut kept, mut mass) = (0, 0.0);
            let total = sum(&order);
            while kept == 0 || (kept < order.len() && mass / total < f64::from(sampling.top_p)) {
                mass += weight(order[kept]);
                kept += 1;
                nearest_cut = nearest_cut.min((mass / total - f64::from(sampling.top_p)).abs());
            }
            order.truncate(kept);
        }
        if sampling.min_p > 0.0 {
            order.retain(|&id| {
                nearest_cut = nearest_cut.min((weight(id) - f64::from(sampling.min_p)).abs());
                weight(id) >= f64::from(sampling.min_p)
            });
        }
        order.sort_unstable();
        let total = sum(&order);
        let before: Vec<usize> =
            order.iter().copied().take_while(|&id| id < token as usize).collect();
        let start = sum(&before) / total;
        let kept = order.contains(&(token as usize));
        let end = start + if kept { weight(token as usize) / total } else { 0.0 };
        Share { start, end, nearest_cut }
    }
}

/// Whether the host may as well have sampled this token from `logits`, which have bias and penalties
/// in them: the uniform number lies in or near its share, or a cut is so near that rounding decides
/// it.
pub fn is_at_boundary(sampling: &Sampling, logits: &[f32], number: f64, token: u32) -> bool {
    // A uniform number and the sums of f32 are good to about 1e-7.
    const NEAR: f64 = 2e-6;
    let share = Share::of(sampling, logits, token);
    let near = (share.start - NEAR..share.end + NEAR).contains(&number);
    near || share.nearest_cut < NEAR
}
