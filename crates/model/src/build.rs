//! Building a graph: weights by role, checked as they are named.

use crate::config::{Architecture, Config, Dialect};
use crate::error::ModelError;
use crate::names::Role;
use crate::rope::rope_spec;
use crate::{gemma3, llama, qwen2};
use pianola_formats::{TensorInfo, TensorSource, TensorType};
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
    let graph = GraphBuilder::new(config.architecture.name(), config.context, config.vocabulary);
    let mut build = Build { config, source, quantize, graph, layer: None };
    let logits = match config.architecture {
        Architecture::Llama => llama::forward(&mut build)?,
        Architecture::Qwen2 => qwen2::forward(&mut build)?,
        Architecture::Gemma3 => gemma3::forward(&mut build)?,
    };
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

    fn info(&self, name: &str, expected: &[usize]) -> Result<TensorInfo, ModelError> {
        let info =
            self.source.info(name).ok_or_else(|| ModelError::MissingTensor(name.to_string()))?;
        if info.shape != expected {
            let (expected, found) = (expected.to_vec(), info.shape);
            return Err(ModelError::Shape { name: name.to_string(), expected, found });
        }
        Ok(info)
    }

    fn matrix(&mut self, role: Role, rows: usize, columns: usize) -> Result<WeightId, ModelError> {
        let name = role.name(self.config, self.layer, "weight");
        let ty = self.info(&name, &[rows, columns])?.ty;
        let ty = match self.quantize {
            Some(wanted) if !ty.is_quantized() => quantized(role, wanted, columns).unwrap_or(ty),
            _ => ty,
        };
        let shape = WeightShape::Matrix { rows, columns };
        Ok(self.graph.weight(WeightSpec { name, shape, ty, offset: 0.0 }))
    }

    fn vector(
        &mut self,
        role: Role,
        kind: &str,
        length: usize,
        offset: f32,
    ) -> Result<WeightId, ModelError> {
        let name = role.name(self.config, self.layer, kind);
        self.info(&name, &[length])?;
        let shape = WeightShape::Vector { length };
        Ok(self.graph.weight(WeightSpec { name, shape, ty: TensorType::F32, offset }))
    }

    fn norm_weight(&mut self, role: Role, width: usize) -> Result<WeightId, ModelError> {
        // Gemma's norms multiply by 1 + w; GGUF files hold the sum already.
        let gemma = self.config.architecture == Architecture::Gemma3;
        let plus_one = gemma && self.config.dialect == Dialect::HuggingFace;
        self.vector(role, "weight", width, if plus_one { 1.0 } else { 0.0 })
    }

    /// Token embeddings, times `scale`.
    pub fn embed(&mut self, scale: f32) -> Result<TensorId, ModelError> {
        let table = self.matrix(Role::Embedding, self.config.vocabulary, self.config.hidden)?;
        Ok(self.graph.embed(table, scale))
    }

    /// RMS norm of the residual stream.
    pub fn norm(&mut self, role: Role, x: TensorId) -> Result<TensorId, ModelError> {
        let weight = self.norm_weight(role, self.config.hidden)?;
        Ok(self.graph.rms_norm(role.short(), x, weight, self.config.epsilon))
    }

    /// RMS norm of each head.
    pub fn norm_heads(
        &mut self,
        role: Role,
        x: TensorId,
        heads: usize,
    ) -> Result<TensorId, ModelError> {
        let weight = self.norm_weight(role, self.config.head_dim)?;
        Ok(self.graph.rms_norm_heads(role.short(), x, weight, self.config.epsilon, heads))
    }

    /// A linear layer from `input` to `output` features.
    pub fn linear(
        &mut self,
        role: Role,
        x: TensorId,
        input: usize,
        output: usize,
    ) -> Result<TensorId, ModelError> {
        let weight = self.matrix(role, output, input)?;
        let biased = match role {
            Role::Query | Role::Key | Role::Value => self.config.attention_bias,
            Role::Output => self.config.output_bias,
            Role::Gate | Role::Up | Role::Down => self.config.feed_forward_bias,
            _ => false,
        };
        let bias = if biased { Some(self.vector(role, "bias", output, 0.0)?) } else { None };
        Ok(self.graph.matmul(role.short(), x, weight, bias))
    }

    /// Queries, keys and values of the layer, not yet rotated.
    pub fn qkv(&mut self, x: TensorId) -> Result<[TensorId; 3], ModelError> {
        let Config { hidden, heads, kv_heads, head_dim, .. } = *self.config;
        Ok([
            self.linear(Role::Query, x, hidden, heads * head_dim)?,
            self.linear(Role::Key, x, hidden, kv_heads * head_dim)?,
            self.linear(Role::Value, x, hidden, kv_heads * head_dim)?,
        ])
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

    /// The output projection of attention.
    pub fn attention_output(&mut self, x: TensorId) -> Result<TensorId, ModelError> {
        let Config { hidden, heads, head_dim, .. } = *self.config;
        self.linear(Role::Output, x, heads * head_dim, hidden)
    }

    /// `down(activation(gate x) * up x)`
    pub fn feed_forward(&mut self, x: TensorId) -> Result<TensorId, ModelError> {
        let Config { hidden, feed_forward, activation, .. } = *self.config;
        let gate = self.linear(Role::Gate, x, hidden, feed_forward)?;
        let up = self.linear(Role::Up, x, hidden, feed_forward)?;
        let gated = self.graph.gate(gate, up, activation);
        self.linear(Role::Down, gated, feed_forward, hidden)
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
        let weight = self.matrix(role, self.config.vocabulary, self.config.hidden)?;
        let logits = self.graph.matmul("logits", x, weight, None);
        Ok(match self.config.final_soft_cap {
            Some(cap) => self.graph.soft_cap("capped_logits", logits, cap),
            None => logits,
        })
    }
}

/// The type a matrix is quantised to; none if its rows are no whole number of blocks.
fn quantized(role: Role, wanted: TensorType, columns: usize) -> Option<TensorType> {
    let embedding = matches!(role, Role::Embedding | Role::Head);
    let ty = if embedding { TensorType::Q8_0 } else { wanted };
    columns.is_multiple_of(ty.block_len()).then_some(ty)
}
