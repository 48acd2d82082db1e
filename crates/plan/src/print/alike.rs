//! Layers whose kernels are alike: a table shows one of them.

use super::PlanText;

impl PlanText<'_> {
    /// Lists of layers with the same kernels and the same work, each by number, in the order of
    /// their first layers.
    pub(super) fn alike_layers(&self) -> Vec<Vec<usize>> {
        let mut found: Vec<(Vec<String>, Vec<usize>)> = Vec::new();
        for layer in 0..self.plan.layers() {
            let kernels = self.kernels_of(layer);
            match found.iter_mut().find(|(known, _)| *known == kernels) {
                Some((_, layers)) => layers.push(layer),
                None => found.push((kernels, vec![layer])),
            }
        }
        found.into_iter().map(|(_, layers)| layers).collect()
    }

    /// A layer's kernels in words, without its number.
    fn kernels_of(&self, layer: usize) -> Vec<String> {
        let prefix = format!("blk.{layer}.");
        let ops = self.plan.ops.iter().filter(|op| op.layer == Some(layer));
        ops.map(|op| {
            format!("{} {}", op.name.strip_prefix(&prefix).unwrap_or(&op.name), self.columns(op))
        })
        .collect()
    }
}

/// Numbers of layers in words: `layers 0 to 4, 6, 8, 9`.
pub(super) fn layer_list(layers: &[usize]) -> String {
    let runs = layers.chunk_by(|before, after| before + 1 == *after);
    let run = |run: &[usize]| match *run {
        [only] => only.to_string(),
        [first, last] => format!("{first}, {last}"),
        [first, .., last] => format!("{first} to {last}"),
        [] => String::new(),
    };
    format!("layers {}", runs.map(run).collect::<Vec<_>>().join(", "))
}

#[cfg(test)]
mod tests {
    use super::layer_list;

    #[test]
    fn runs_of_layers_are_shortened() {
        assert_eq!(layer_list(&[0, 1, 2, 4, 6, 7]), "layers 0 to 2, 4, 6, 7");
        assert_eq!(layer_list(&[3, 9]), "layers 3, 9");
    }
}
