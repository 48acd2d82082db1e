use pianola_plan::RopePairing;

/// Rotates each pair `(a, b)` of each of a row's `heads` by its angle.
pub(crate) fn rope(
    x: &[f32],
    angles: &[f32],
    heads: usize,
    head_dim: usize,
    pairing: RopePairing,
    out: &mut [f32],
) {
    let pairs = head_dim / 2;
    for (index, (x, out)) in
        x.chunks_exact(head_dim).zip(out.chunks_exact_mut(head_dim)).enumerate()
    {
        let angles = &angles[index / heads * head_dim..][..head_dim];
        for pair in 0..pairs {
            let (first, second) = match pairing {
                RopePairing::Halves => (pair, pairs + pair),
                RopePairing::Adjacent => (2 * pair, 2 * pair + 1),
            };
            let (cosine, sine) = (f64::from(angles[pair]), f64::from(angles[pairs + pair]));
            let (a, b) = (f64::from(x[first]), f64::from(x[second]));
            out[first] = (a * cosine - b * sine) as f32;
            out[second] = (b * cosine + a * sine) as f32;
        }
    }
}
