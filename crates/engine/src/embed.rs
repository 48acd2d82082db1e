//! Embeddings: what the last layer makes of a text, as one vector.

use crate::engine::apply_pages;
use crate::error::EngineError;
use crate::load::Engine;
use pianola_formats::TensorSource;
use pianola_plan::{DeviceError, FusedNorm, Graph, Kernel, Plan, TensorId};

/// How the rows of a text become one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Pooling {
    /// Their mean.
    #[default]
    Mean,
    /// The last row, which has seen all others.
    Last,
}

/// A norm, as the processor computes it.
struct Norm {
    weight: Vec<f32>,
    epsilon: f32,
}

impl Norm {
    fn of(
        norm: Option<FusedNorm>,
        graph: &Graph,
        source: &dyn TensorSource,
    ) -> Result<Option<Norm>, DeviceError> {
        let Some(FusedNorm { weight, epsilon }) = norm else { return Ok(None) };
        let spec = graph.weight(weight);
        let tensor = source.tensor(&spec.name);
        let tensor = tensor.ok_or_else(|| DeviceError::MissingTensor(spec.name.clone()))?;
        spec.check(&tensor)?;
        let mut weight = tensor.to_f32();
        weight.iter_mut().for_each(|value| *value += spec.offset);
        Ok(Some(Norm { weight, epsilon }))
    }

    fn apply(&self, row: &mut [f32]) {
        let squares: f64 = row.iter().map(|&value| f64::from(value).powi(2)).sum();
        let mean = squares / row.len() as f64;
        let factor = 1.0 / (mean + f64::from(self.epsilon)).sqrt();
        for (value, weight) in row.iter_mut().zip(&self.weight) {
            *value = (f64::from(*value) * factor) as f32 * weight;
        }
    }
}

/// The head's input, which the head's kernel forms for itself: how to form it from what lies in the
/// arena after a play.
pub(crate) struct HeadInput {
    base: TensorId,
    delta: Option<TensorId>,
    delta_norm: Option<Norm>,
    norm: Option<Norm>,
    width: usize,
}

impl HeadInput {
    /// None where the head is no product of the last layer's rows.
    pub fn of(plan: &Plan, source: &dyn TensorSource) -> Result<Option<HeadInput>, DeviceError> {
        let Some(Kernel::Project(head)) = plan.ops.last().map(|op| &op.kernel) else {
            return Ok(None);
        };
        let graph = &plan.graph;
        let base = head.residual.map_or(head.input, |residual| residual.base);
        let delta_norm = head.residual.and_then(|residual| residual.norm);
        Ok(Some(HeadInput {
            base,
            delta: head.residual.map(|residual| residual.delta),
            delta_norm: Norm::of(delta_norm, graph, source)?,
            norm: Norm::of(head.norm, graph, source)?,
            width: graph.tensor(base).width,
        }))
    }
}

impl Engine {
    /// The meaning of some tokens as a vector of length one: the last layer's rows, normed as the
    /// head would read them, pooled. Requests that run go on afterwards.
    pub fn embed(&mut self, tokens: &[u32], pooling: Pooling) -> Result<Vec<f32>, EngineError> {
        self.scheduler.limits().check_prompt(tokens)?;
        let slot = self.scheduler.borrow_slot()?;
        let pooled = self.pool(slot, tokens, pooling);
        self.scheduler.return_slot(slot);
        let mut pooled = pooled?;
        let squares: f64 = pooled.iter().map(|&value| f64::from(value).powi(2)).sum();
        if !squares.is_finite() {
            return Err(EngineError::NotANumber { position: tokens.len() });
        }
        let length = squares.sqrt().max(f64::MIN_POSITIVE);
        pooled.iter_mut().for_each(|value| *value = (f64::from(*value) / length) as f32);
        Ok(pooled)
    }

    /// The rows of `tokens`, added up or the last of them alone.
    fn pool(
        &mut self,
        slot: usize,
        tokens: &[u32],
        pooling: Pooling,
    ) -> Result<Vec<f32>, EngineError> {
        let rows = self.plan().options.max_rows;
        let head_input = self.head_input.take();
        let result = (|| {
            let Some(head_input) = &head_input else {
                return Err(EngineError::Option(
                    "this model has no rows that would embed a text".to_string(),
                ));
            };
            let mut sum = vec![0.0; head_input.width];
            for (index, part) in tokens.chunks(rows).enumerate() {
                let start = index * rows;
                self.scheduler.make_room(slot, start + part.len())?;
                apply_pages(&mut self.executor, self.scheduler.cache.drain_changes());
                let step = &mut self.buffers.plan.step;
                step.clear();
                for (at, &token) in part.iter().enumerate() {
                    step.push(token, slot as u32, (start + at) as u32, false);
                }
                self.executor.play(step)?;
                self.scheduler.cache.append_unshared(slot, part);
                let mut base =
                    self.executor.probe_mut().read_tensor(head_input.base, part.len())?;
                let delta = head_input
                    .delta
                    .map(|delta| self.executor.probe_mut().read_tensor(delta, part.len()));
                let mut delta = delta.transpose()?;
                for row in 0..part.len() {
                    let range = row * head_input.width..(row + 1) * head_input.width;
                    let values = &mut base[range.clone()];
                    if let Some(delta) = &mut delta {
                        let delta = &mut delta[range];
                        head_input.delta_norm.iter().for_each(|norm| norm.apply(delta));
                        values.iter_mut().zip(delta).for_each(|(sum, delta)| *sum += *delta);
                    }
                    head_input.norm.iter().for_each(|norm| norm.apply(values));
                    match pooling {
                        Pooling::Mean => {
                            sum.iter_mut().zip(values).for_each(|(sum, value)| *sum += *value);
                        }
                        Pooling::Last => sum.copy_from_slice(values),
                    }
                }
            }
            Ok(sum)
        })();
        self.head_input = head_input;
        result
    }
}
