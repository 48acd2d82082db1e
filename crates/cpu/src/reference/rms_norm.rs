/// `x / sqrt(mean(x^2) + epsilon) * weight`, over groups as long as `weight`.
pub fn rms_norm(x: &[f32], weight: &[f32], epsilon: f32, out: &mut [f32]) {
    let width = weight.len();
    for (x, out) in x.chunks_exact(width).zip(out.chunks_exact_mut(width)) {
        let squares: f64 = x.iter().map(|&x| f64::from(x) * f64::from(x)).sum();
        let factor = 1.0 / (squares / width as f64 + f64::from(epsilon)).sqrt();
        for ((out, x), weight) in out.iter_mut().zip(x).zip(weight) {
            *out = (f64::from(*x) * factor * f64::from(*weight)) as f32;
        }
    }
}
