//! The tokens still in play for one sample, always in the order of their ids.
//!
//! Every cut finds a threshold on a scratch copy of the values and then sweeps the candidates once.
//! Nothing is sorted, and because the order stays that of the ids, what a random number picks does
//! not depend on how the selection moved things about.

use super::numeric;

/// Ids with a value each: a logit when gathered, a weight after [`Candidates::weigh`].
#[derive(Clone, Debug, Default)]
pub struct Candidates {
    ids: Vec<u32>,
    values: Vec<f32>,
    scratch: Vec<f32>,
}

/// Selection stops taking turns with gathering only when at least this much arrived meanwhile.
const SMALLEST_BATCH: usize = 512;
/// Candidates that are skipped at once, by their sum, when sampling, or by their maximum, when gathering.
const BLOCK: usize = 256;

impl Candidates {
    /// (id, value) in the order of ids.
    pub fn iter(&self) -> impl Iterator<Item = (u32, f32)> {
        self.ids.iter().copied().zip(self.values.iter().copied())
    }

    /// Takes all tokens whose logit is at least `floor`, leaving out -inf and NaN.
    pub fn gather_from(&mut self, logits: &[f32], floor: f32) {
        self.ids.resize(logits.len(), 0);
        self.values.resize(logits.len(), 0.0);
        let mut count = 0;
        // Every token is written, only kept ones move the count on: no branch to mispredict.
        for (id, &logit) in logits.iter().enumerate() {
            self.ids[count] = id as u32;
            self.values[count] = logit;
            count += usize::from(logit >= floor && logit > f32::NEG_INFINITY);
        }
        self.ids.truncate(count);
        self.values.truncate(count);
    }

    /// Takes the `wanted` largest logits (ties: lowest ids), leaving out -inf and NaN.
    pub fn gather_best(&mut self, logits: &[f32], wanted: usize) {
        self.ids.clear();
        self.values.clear();
        let wanted = wanted.min(logits.len());
        if wanted == 0 {
            return;
        }
        // Let some more than wanted gather, cut back, and from then on only take what beats the
        // weakest kept. A cut costs about as much as what it removes, so the whole is linear.
        let limit = wanted + wanted.max(SMALLEST_BATCH);
        self.ids.reserve(limit.min(logits.len()));
        self.values.reserve(limit.min(logits.len()));
        let mut threshold = f32::NEG_INFINITY;
        for (index, block) in logits.chunks(BLOCK).enumerate() {
            if !numeric::any_above(block, threshold) {
                continue;
            }
            for (offset, &logit) in block.iter().enumerate() {
                if logit > threshold {
                    self.ids.push((index * BLOCK + offset) as u32);
                    self.values.push(logit);
                    if self.ids.len() == limit {
                        threshold = self.keep_best(wanted);
                    }
                }
            }
        }
        if self.ids.len() > wanted {
            self.keep_best(wanted);
        }
    }

    /// Turns logits into weights exp((logit - best) / temperature).
    pub fn weigh(&mut self, best: f32, temperature: f32) {
        // A division, not a product with 1 / temperature: that overflows for tiny temperatures.
        for value in &mut self.values {
            *value = numeric::exponential((*value - best) / temperature);
        }
    }

    /// Keeps the fewest heaviest candidates whose weights reach `fraction` of the sum (ties:
    /// lowest ids), and always one.
    pub fn keep_mass(&mut self, fraction: f32) {
        let total = numeric::mass(&self.values);
        let target = total * fraction as f64;

        // A kept weight w has more than (1 - fraction) of the mass in weights no larger than
        // itself, of which there are at most n: so n · w > (1 - fraction) · total. Half of that
        // leaves room for rounding, and still drops nearly all of a large vocabulary.
        let least = (0.5 * (total - target) / self.values.len() as f64) as f32;
        self.scratch.clear();
        self.scratch.reserve(self.values.capacity());
        self.scratch.extend(self.values.iter().filter(|&&weight| weight >= least));

        // Halve the range in which the last kept one lies: each round costs half of the one before.
        let (mut low, mut high) = (0, self.scratch.len());
        let mut mass_before = 0.0;
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            self.scratch[low..high].select_nth_unstable_by(middle - low, |a, b| b.total_cmp(a));
            let mass = numeric::mass(&self.scratch[low..middle]);
            if mass_before + mass >= target {
                high = middle;
            } else {
                mass_before += mass;
                low = middle;
            }
        }
        if let Some(&threshold) = self.scratch.get(low) {
            self.sweep(threshold, low + 1);
        }
    }

    /// Keeps candidates whose weight is at least `least`.
    pub fn keep_from(&mut self, least: f32) {
        self.retain(|weight| weight >= least);
    }

    /// The candidate at which the running sum of weights passes `fraction` (in [0, 1)) of the whole.
    pub fn sample(&self, fraction: f64) -> u32 {
        let blocks = || self.values.chunks(BLOCK).map(numeric::mass);
        let target = fraction * blocks().sum::<f64>();
        let mut sum = 0.0;
        let mut last = None;
        for (index, mass) in blocks().enumerate() {
            if sum + mass > target {
                let start = index * BLOCK;
                for (&id, &weight) in self.ids[start..].iter().zip(&self.values[start..]) {
                    sum += weight as f64;
                    if weight > 0.0 {
                        last = Some(id);
                    }
                    if sum > target {
                        break;
                    }
                }
                break;
            }
            sum += mass;
        }
        // Unset only if rounding lets the sum of blocks fall short of the target it was made from.
        last.or(self.ids.last().copied()).unwrap_or(0)
    }

    /// Keeps the `wanted` largest values, at least one, and returns the smallest of them.
    fn keep_best(&mut self, wanted: usize) -> f32 {
        self.scratch.clear();
        self.scratch.reserve(self.values.capacity());
        self.scratch.extend_from_slice(&self.values);
        let (_, &mut threshold, _) =
            self.scratch.select_nth_unstable_by(wanted - 1, |a, b| b.total_cmp(a));
        self.sweep(threshold, wanted);
        threshold
    }

    /// Keeps `wanted` candidates, of which `threshold` is the smallest value: all above it, and of
    /// those equal to it the first.
    fn sweep(&mut self, threshold: f32, wanted: usize) {
        let above = self.values.iter().filter(|&&value| value > threshold).count();
        let mut equal = wanted.saturating_sub(above);
        self.retain(|value| {
            let tied = value == threshold && equal > 0;
            equal -= usize::from(tied);
            value > threshold || tied
        });
    }

    fn retain(&mut self, mut keep: impl FnMut(f32) -> bool) {
        let mut count = 0;
        for index in 0..self.values.len() {
            let value = self.values[index];
            self.values[count] = value;
            self.ids[count] = self.ids[index];
            count += usize::from(keep(value));
        }
        self.values.truncate(count);
        self.ids.truncate(count);
    }
}
