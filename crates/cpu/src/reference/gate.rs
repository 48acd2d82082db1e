use pianola_plan::Activation;

/// `activation(gate) * up`
pub(crate) fn gate(gate: &[f32], up: &[f32], activation: Activation, out: &mut [f32]) {
    for ((out, &gate), &up) in out.iter_mut().zip(gate).zip(up) {
        let x = f64::from(gate);
        let active = match activation {
            Activation::Silu => x / (1.0 + (-x).exp()),
            Activation::GeluTanh => {
                let u = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x);
                0.5 * x * (1.0 + u.tanh())
            }
        };
        *out = (active * f64::from(up)) as f32;
    }
}
