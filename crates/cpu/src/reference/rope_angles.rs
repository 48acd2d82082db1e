use pianola_plan::{RopeSpec, Row};

/// Cosines, then sines, of `position * frequency`. The product is rounded to f32 first, as the
/// models were trained.
pub(crate) fn rope_angles(rope: &RopeSpec, rows: &[Row], out: &mut [f32]) {
    let pairs = rope.frequencies.len();
    for (row, out) in rows.iter().zip(out.chunks_exact_mut(2 * pairs)) {
        for (pair, frequency) in rope.frequencies.iter().enumerate() {
            let angle = f64::from(row.position as f32 * frequency);
            out[pair] = (angle.cos() * f64::from(rope.magnitude)) as f32;
            out[pairs + pair] = (angle.sin() * f64::from(rope.magnitude)) as f32;
        }
    }
}
