use crate::pack::PackedMatrix;
use pianola_plan::Row;

/// The table's row of each token, times `scale`.
pub(crate) fn embed(table: &PackedMatrix, scale: f32, rows: &[Row], out: &mut [f32]) {
    for (row, out) in rows.iter().zip(out.chunks_exact_mut(table.columns)) {
        table.row(row.token as usize, out);
        out.iter_mut().for_each(|value| *value *= scale);
    }
}
