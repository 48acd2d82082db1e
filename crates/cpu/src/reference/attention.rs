use crate::kv::KvPages;
use pianola_plan::{AttentionSpec, Row};

/// `softmax(scale * q . k) . v` of each head over the tokens its row sees. Queries are rotated as the
/// stored keys are (`KvGroup::key_rotation`).
pub(crate) fn attention(
    queries: &[f32],
    spec: &AttentionSpec,
    pages: &KvPages,
    rows: &[Row],
    out: &mut [f32],
) {
    let AttentionSpec { heads, kv_heads, head_dim, scale, window, soft_cap, kv } = *spec;
    for (index, row) in rows.iter().enumerate() {
        let (sequence, position) = (row.sequence as usize, row.position as usize);
        let first = window.map_or(0, |window| (position + 1).saturating_sub(window));
        for head in 0..heads {
            let kv_head = head / (heads / kv_heads);
            let at = (index * heads + head) * head_dim;
            let query = &queries[at..at + head_dim];
            let score = |token: usize| {
                let products = query.iter().enumerate().map(|(d, &q)| {
                    f64::from(q) * f64::from(pages.get(sequence, token, kv, kv_head, false, d))
                });
                let score = f64::from(scale) * products.sum::<f64>();
                soft_cap.map_or(score, |cap| f64::from(cap) * (score / f64::from(cap)).tanh())
            };
            let scores: Vec<f64> = (first..=position).map(score).collect();
            let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let weights: Vec<f64> = scores.iter().map(|score| (score - largest).exp()).collect();
            let total: f64 = weights.iter().sum();
            for d in 0..head_dim {
                let sum: f64 = weights
                    .iter()
                    .enumerate()
                    .map(|(token, weight)| {
                        weight * f64::from(pages.get(sequence, first + token, kv, kv_head, true, d))
                    })
                    .sum();
                out[at + d] = (sum / total) as f32;
            }
        }
    }
}
