//! Building a graph: weights by role, checked as they are named.

use crate::config::{Config, Dialect};
use crate::error::ModelError;
use crate::role::{Part, Role};
use crate::rope::rope_spec;
use pianola_formats::{ErrorKind, TensorSource, TensorType};
use pianola_plan::{
    AttentionSpec, Graph, GraphBuilder, TensorId, WeightId, WeightShape, WeightSpec,
};

/// The graph of a model. `quantize` is the type that matrices of f32, f16 or bf16 are converted
/// to at load; embeddings stay at eight bits or more, because every token passes through them.
pub fn graph(
    config: &Config,
    source: &dyn TensorSource,
    quantize: Option<TensorType>,
) -> Result<Graph, ModelError> {
    let graph = GraphBuilder::new(config.family.name, config.context, config.vocabulary);
    let mut build = Build { config, source, quantize, graph, layer: None };
    let logits = (config.family.forward)(&mut build)?;
    Ok(build.graph.finish(logits))
}

/// What architecture files write with.
pub(crate) struct Build<'a> {
    pub config: &'a Config,
    source: &'a dyn TensorSource,
    quantize: Option<TensorType>,
    graph: GraphBuilder,
    layer: Option<usize>,
}

impl Build<'_> {
    /// Names from here on belong to `layer`.
    pub fn enter_layer(&mut self, layer: usize) {
        self.layer = Some(layer);
        self.graph.set_layer(Some(layer));
    }

    fn leave_layers(&mut self) {
        self.layer = None;
        self.graph.set_layer(None);
    }

    /// The weight or the bias of a role: the file has it, in the shape that the configuration says.
    fn weight(&mut self, role: Role, part: Part) -> Result<WeightId, ModelError> {
        let shape = role.shape(self.config, part);
        let location = role.locate(self.config, self.layer, part);
        let info = self.source.info(&location.name);
        let info = info.ok_or_else(|| missing(self.source, &location.name))?;
        let expected = location.file_shape(shape);
        if info.shape != expected {
            return Err(ModelError::Shape { name: location.name, expected, found: info.shape });
        }
        let ty = match (shape, self.quantize) {
            (WeightShape::Vector { .. }, _) => TensorType::F32,
            (WeightShape::Matrix { columns, .. }, Some(wanted)) if !info.ty.is_quantized() => {
                quantized(role, wanted, columns).unwrap_or(info.ty)
            }
            (WeightShape::Matrix { .. }, _) => info.ty,
        };
        let offset = match self.config.dialect {
            Dialect::HuggingFace if role.is_norm() => self.config.family.hugging_face.norm_offset,
            _ => 0.0,
        };
        let (name, first_row, file_rows) = (location.name, location.first_row, location.file_rows);
        Ok(self.graph.weight(WeightSpec { name, shape, first_row, file_rows, ty, offset }))
    }

    /// Token embeddings, scaled where the family does so.
    pub fn embed(&mut self) -> Result<TensorId, ModelError> {
        let table = self.weight(Role::Embedding, Part::Weight)?;
        let scaled = self.config.family.scaled_embedding;
        let scale = if scaled { (self.config.hidden as f32).sqrt() } else { 1.0 };
        Ok(self.graph.embed(table, scale))
    }

    /// RMS norm of the residual stream.
    pub fn norm(&mut self, role: Role, x: TensorId) -> Result<TensorId, ModelError> {
        let weight = self.weight(role, Part::Weight)?;
        Ok(self.graph.rms_norm(role.short(), x, weight, self.config.epsilon))
    }

    /// RMS norm of each head.
    fn norm_heads(
        &mut self,
        role: Role,
        x: TensorId,
        heads: usize,
    ) -> Result<TensorId, ModelError> {
        let weight = self.weight(role, Part::Weight)?;
        Ok(self.graph.rms_norm_heads(role.short(), x, weight, self.config.epsilon, heads))
    }

    /// A linear layer, with a bias where the configuration has one.
    pub fn linear(&mut self, role: Role, x: TensorId) -> Result<TensorId, ModelError> {
        let weight = self.weight(role, Part::Weight)?;
        let biased = role.is_biased(self.config);
        let bias = if biased { Some(self.weight(role, Part::Bias)?) } else { None };
        Ok(self.graph.matmul(role.short(), x, weight, bias))
    }

    /// Queries, keys and values of the layer, with norms on the heads of q and k where the family
    /// has them; not yet rotated.
    pub fn qkv(&mut self, x: TensorId) -> Result<[TensorId; 3], ModelError> {
        let mut q = self.linear(Role::Query, x)?;
        let mut k = self.linear(Role::Key, x)?;
        let v = self.linear(Role::Value, x)?;
        if self.config.family.head_norms {
            q = self.norm_heads(Role::QueryNorm, q, self.config.heads)?;
            k = self.norm_heads(Role::KeyNorm, k, self.config.kv_heads)?;
        }
        Ok([q, k, v])
    }

    /// Rotates q and k as the layer does, then attends.
    pub fn attention(&mut self, layer: usize, q: TensorId, k: TensorId, v: TensorId) -> TensorId {
        let config = self.config;
        let window = config.windows[layer];
        let rope = match (&config.window_rope, window) {
            (Some(rope), Some(_)) => rope,
            _ => &config.rope,
        };
        let rope = self.graph.rope_table(rope_spec(rope, config.head_dim, config.pairing));
        let q = self.graph.rope("attn_q_rope", q, rope, config.heads);
        let k = self.graph.rope("attn_k_rope", k, rope, config.kv_heads);
        let name = if window.is_some() { "window" } else { "global" };
        let group = self.graph.kv_group(name, window, config.kv_heads, config.head_dim);
        let kv = self.graph.kv_layer(group);
        let spec = AttentionSpec {
            kv,
            heads: config.heads,
            kv_heads: config.kv_heads,
            head_dim: config.head_dim,
            scale: config.attention_scale,
            window,
            soft_cap: config.attention_soft_cap,
        };
        self.graph.attention(q, k, v, spec)
    }

    /// `down(activation(gate x) * up x)`
    pub fn feed_forward(&mut self, x: TensorId) -> Result<TensorId, ModelError> {
        let gate = self.linear(Role::Gate, x)?;
        let up = self.linear(Role::Up, x)?;
        let gated = self.graph.gate(gate, up, self.config.activation);
        self.linear(Role::Down, gated)
    }

    /// `x + y`
    pub fn add(&mut self, name: &str, x: TensorId, y: TensorId) -> TensorId {
        self.graph.add(name, x, y)
    }

    /// Final norm and head, for the rows that want logits.
    pub fn head(&mut self, x: TensorId) -> Result<TensorId, ModelError> {
        self.leave_layers();
        let x = self.graph.select_rows(x);
        let x = self.norm(Role::FinalNorm, x)?;
        let role = if self.config.tied { Role::Embedding } else { Role::Head };
        let weight = self.weight(role, Part::Weight)?;
        let logits = self.graph.matmul("logits", x, weight, None);
        Ok(match self.config.final_soft_cap {
            Some(cap) => self.graph.soft_cap("capped_logits", logits, cap),
            None => logits,
        })
    }
}

/// Why there is no such tensor: it may be there in a type that is not supported.
fn missing(source: &dyn TensorSource, name: &str) -> ModelError {
    match source.try_tensor(name) {
        Err(error) if error.kind() == ErrorKind::Unsupported => error.into(),
        _ => ModelError::MissingTensor(name.to_string()),
    }
}

/// The type a matrix is quantised to; none if its rows are no whole number of blocks.
fn quantized(role: Role, wanted: TensorType, columns: usize) -> Option<TensorType> {
    let embedding = matches!(role, Role::Embedding | Role::Head);
    let ty = if embedding { TensorType::Q8_0 } else { wanted };
    columns.is_multiple_of(ty.block_len()).then_some(ty)
}
