/// The rows named by `selected`.
pub(crate) fn select_rows(x: &[f32], selected: &[u32], width: usize, out: &mut [f32]) {
    for (&row, out) in selected.iter().zip(out.chunks_exact_mut(width)) {
        out.copy_from_slice(&x[row as usize * width..][..width]);
    }
}
