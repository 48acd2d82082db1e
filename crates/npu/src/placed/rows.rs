//! What kernels do to rows around their products, in f32 with sums in f64.

use pianola_plan::{Activation, RopePairing};

/// `x / sqrt(mean(x^2) + epsilon) * weight` in place, over groups as long as `weight`.
pub(super) fn rms_norm(x: &mut [f32], weight: &[f32], epsilon: f32) {
    for group in x.chunks_exact_mut(weight.len()) {
        let squares: f64 = group.iter().map(|&x| f64::from(x) * f64::from(x)).sum();
        let factor = 1.0 / (squares / weight.len() as f64 + f64::from(epsilon)).sqrt();
        for (x, weight) in group.iter_mut().zip(weight) {
            *x = (f64::from(*x) * factor) as f32 * weight;
        }
    }
}

/// `x += y`
pub(super) fn add(x: &mut [f32], y: &[f32]) {
    x.iter_mut().zip(y).for_each(|(x, y)| *x += y);
}

/// `gate = activation(gate) * up`
pub(super) fn gate(gate: &mut [f32], up: &[f32], activation: Activation) {
    for (gate, up) in gate.iter_mut().zip(up) {
        let x = *gate;
        let active = match activation {
            Activation::Silu => x / (1.0 + (-x).exp()),
            Activation::GeluTanh => {
                let inner = (2.0 / std::f32::consts::PI).sqrt() * (x + 0.044715 * x * x * x);
                0.5 * x * (1.0 + inner.tanh())
            }
        };
        *gate = active * up;
    }
}

/// `cap * tanh(x / cap)` in place.
pub(super) fn soft_cap(x: &mut [f32], cap: f32) {
    x.iter_mut().for_each(|x| *x = cap * (*x / cap).tanh());
}

/// Rotates each pair of each head of a row by its angle; `angles` are cosines, then sines.
pub(super) fn rope(x: &mut [f32], angles: &[f32], pairing: RopePairing) {
    let pairs = angles.len() / 2;
    for head in x.chunks_exact_mut(angles.len()) {
        for pair in 0..pairs {
            let (first, second) = match pairing {
                RopePairing::Halves => (pair, pairs + pair),
                RopePairing::Adjacent => (2 * pair, 2 * pair + 1),
            };
            let (cosine, sine) = (angles[pair], angles[pairs + pair]);
            let (a, b) = (head[first], head[second]);
            head[first] = a * cosine - b * sine;
            head[second] = b * cosine + a * sine;
        }
    }
}
