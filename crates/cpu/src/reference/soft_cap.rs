/// `cap * tanh(x / cap)`
pub(crate) fn soft_cap(x: &[f32], cap: f32, out: &mut [f32]) {
    for (out, &x) in out.iter_mut().zip(x) {
        *out = (f64::from(cap) * (f64::from(x) / f64::from(cap)).tanh()) as f32;
    }
}
