use crate::pack::PackedMatrix;

/// `x . weight^T + bias`, the weight dequantised row by row.
pub(crate) fn matmul(x: &[f32], weight: &PackedMatrix, bias: Option<&[f32]>, out: &mut [f32]) {
    let mut row = vec![0.0; weight.columns];
    for output in 0..weight.rows {
        weight.row(output, &mut row);
        let start = bias.map_or(0.0, |bias| f64::from(bias[output]));
        for (x, out) in x.chunks_exact(weight.columns).zip(out.chunks_exact_mut(weight.rows)) {
            let products = x.iter().zip(&row).map(|(&x, &w)| f64::from(x) * f64::from(w));
            out[output] = (start + products.sum::<f64>()) as f32;
        }
    }
}
