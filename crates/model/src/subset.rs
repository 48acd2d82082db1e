//! A model cut down to a few of its layers and tokens, for checks: widths and types stay as they are.

use crate::config::Config;
use crate::role::{Part, Role};
use pianola_formats::{Tensor, TensorInfo, TensorSource, TensorType};
use std::borrow::Cow;
use std::collections::HashMap;

/// Layers of a model that differ from those before them, in window or types: the fewest that have
/// every kernel of the whole.
pub fn distinct_layers(config: &Config, source: &dyn TensorSource) -> Vec<usize> {
    let signature = |layer: usize| {
        let types: Vec<Option<TensorType>> = Role::of_layer(config.family)
            .map(|role| role.locate(config, Some(layer), Part::Weight).name)
            .map(|name| source.info(&name).map(|info| info.ty))
            .collect();
        (config.windows[layer], types)
    };
    let mut known = Vec::new();
    let new = |&layer: &usize| {
        let signature = signature(layer);
        let new = !known.contains(&signature);
        if new {
            known.push(signature);
        }
        new
    };
    (0..config.layers).filter(new).collect()
}

/// Some layers of a model, and the first tokens of its vocabulary.
pub struct ModelSubset<'a> {
    /// The configuration of what is left.
    pub config: Config,
    source: &'a dyn TensorSource,
    /// Names of the source by those that the configuration asks for.
    names: HashMap<String, String>,
    /// Tensors that have a row for each token.
    tables: Vec<String>,
}

impl<'a> ModelSubset<'a> {
    /// These layers of the model, in this order, and `vocabulary` of its tokens.
    ///
    /// # Panics
    /// If the model does not have one of the layers.
    pub fn new(
        config: &Config,
        source: &'a dyn TensorSource,
        layers: &[usize],
        vocabulary: usize,
    ) -> ModelSubset<'a> {
        let windows = layers.iter().map(|&layer| config.windows[layer]).collect();
        let vocabulary = vocabulary.min(config.vocabulary);
        let subset = Config { layers: layers.len(), windows, vocabulary, ..config.clone() };
        let mut names = HashMap::new();
        for (index, &layer) in layers.iter().enumerate() {
            for role in Role::of_layer(config.family) {
                for part in [Part::Weight, Part::Bias] {
                    let name = |layer| role.locate(config, Some(layer), part).name;
                    names.insert(name(index), name(layer));
                }
            }
        }
        let table = |role: Role| role.locate(config, None, Part::Weight).name;
        let tables = vec![table(Role::Embedding), table(Role::Head)];
        ModelSubset { config: subset, source, names, tables }
    }

    fn name<'b>(&'b self, name: &'b str) -> &'b str {
        self.names.get(name).map_or(name, |name| name)
    }

    /// Rows that a tensor keeps, of those that it has.
    fn rows(&self, name: &str, shape: &[usize]) -> Option<usize> {
        let cut = self.tables.iter().any(|table| table == name) && shape.len() == 2;
        cut.then(|| shape[0].min(self.config.vocabulary))
    }
}

impl TensorSource for ModelSubset<'_> {
    fn tensor(&self, name: &str) -> Option<Tensor<'_>> {
        let mut tensor = self.source.tensor(self.name(name))?;
        if let Some(rows) = self.rows(name, &tensor.shape) {
            let bytes = rows * tensor.ty.row_bytes(tensor.shape[1])?;
            tensor.shape[0] = rows;
            tensor.bytes = match tensor.bytes {
                Cow::Borrowed(all) => Cow::Borrowed(all.get(..bytes)?),
                Cow::Owned(mut all) => {
                    all.truncate(bytes);
                    Cow::Owned(all)
                }
            };
        }
        tensor.name = name.to_string();
        Some(tensor)
    }

    fn info(&self, name: &str) -> Option<TensorInfo> {
        let mut info = self.source.info(self.name(name))?;
        if let Some(rows) = self.rows(name, &info.shape) {
            info.bytes = (rows * info.ty.row_bytes(info.shape[1])?) as u64;
            info.shape[0] = rows;
        }
        info.name = name.to_string();
        Some(info)
    }

    fn release(&self, bytes: &[u8]) {
        self.source.release(bytes);
    }

    fn check_read(&self) -> Result<(), pianola_formats::Error> {
        self.source.check_read()
    }

    /// Those of the layers that are left out are listed by the names of the source.
    fn tensor_infos(&self) -> Vec<TensorInfo> {
        self.source.tensor_infos()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::RandomWeights;
    use crate::shapes::shape;

    #[test]
    fn layers_that_differ_are_found_and_keep_their_weights() {
        let config = shape("gemma3:270m").unwrap().config();
        let mixed = |name: &str, _, _| match name {
            "blk.3.ffn_down.weight" => TensorType::Q6K,
            _ => TensorType::Q8_0,
        };
        let weights = RandomWeights::new(&config, 7, mixed);
        let layers = distinct_layers(&config, &weights);
        // The first windowed one, the one with another type, the first global one.
        assert_eq!(layers, [0, 3, 5]);
        let subset = ModelSubset::new(&config, &weights, &layers, 64);
        assert_eq!(subset.config.windows, [Some(512), Some(512), None]);
        let bytes =
            |source: &dyn TensorSource, name: &str| source.tensor(name).unwrap().bytes.into_owned();
        assert_eq!(bytes(&subset, "blk.2.ffn_up.weight"), bytes(&weights, "blk.5.ffn_up.weight"));
        assert_eq!(subset.info("blk.1.ffn_down.weight").unwrap().ty, TensorType::Q6K);
        let table = subset.tensor("token_embd.weight").unwrap();
        assert_eq!(table.shape, [64, 640]);
        assert!(bytes(&weights, "token_embd.weight").starts_with(&table.bytes));
        crate::graph(&subset.config, &subset, None).unwrap();
    }
}
