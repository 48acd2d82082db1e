//! Embeddings: what the last layer makes of a text, as one vector.
//!
//! A text to embed is a request like others: its rows are played beside those of requests that
//! generate, without logits. After each step the rows are read from the device, normed as the head
//! would read them, and pooled.

use crate::error::EngineError;
use crate::executor::Executor;
use crate::load::Engine;
use crate::request::{EmbedRequest, Event, RequestId};
use crate::scheduler::{EmbedRows, StepOutcome, StepPlan};
use pianola_formats::TensorSource;
use pianola_plan::{DeviceError, FusedNorm, Graph, Kernel, Plan, Probe, RowSet, TensorId};
use std::ops::ControlFlow;

/// How the rows of a text become one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Pooling {
    /// Their mean.
    #[default]
    Mean,
    /// The last row, which has seen all others.
    Last,
}

impl Pooling {
    /// Adds a row to those before it.
    fn add(self, pooled: &mut [f32], row: &[f32]) {
        match self {
            Pooling::Mean => pooled.iter_mut().zip(row).for_each(|(sum, value)| *sum += *value),
            Pooling::Last => pooled.copy_from_slice(row),
        }
    }
}

/// Rows of a text, pooled as far as they were computed.
pub(crate) struct Pooled {
    pooling: Pooling,
    values: Vec<f32>,
}

impl Pooled {
    pub fn new(pooling: Pooling) -> Pooled {
        Pooled { pooling, values: Vec::new() }
    }

    pub fn pooling(&self) -> Pooling {
        self.pooling
    }

    /// Begins anew: what was computed is lost.
    pub fn clear(&mut self) {
        self.values.clear();
    }

    /// Adds what was pooled of the next rows.
    pub fn add(&mut self, values: &[f32]) {
        self.values.resize(values.len(), 0.0);
        self.pooling.add(&mut self.values, values);
    }

    /// The vector of length one; none where a value is not a number.
    pub fn finish(self) -> Option<Vec<f32>> {
        let mut values = self.values;
        let squares: f64 = values.iter().map(|&value| f64::from(value).powi(2)).sum();
        let length = squares.sqrt().max(f64::MIN_POSITIVE);
        values.iter_mut().for_each(|value| *value = (f64::from(*value) / length) as f32);
        squares.is_finite().then_some(values)
    }
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
        Ok(Some(Norm { weight: graph.weight(weight).fetch_vector(source)?, epsilon }))
    }

    fn apply(&self, row: &mut [f32]) {
        let x = row.to_vec();
        pianola_cpu::rms_norm(&x, &self.weight, self.epsilon, row);
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
        // Without fusion the head reads rows that were selected before it: those with logits.
        if graph.tensor(base).rows != RowSet::All {
            return Ok(None);
        }
        let delta_norm = head.residual.and_then(|residual| residual.norm);
        Ok(Some(HeadInput {
            base,
            delta: head.residual.map(|residual| residual.delta),
            delta_norm: Norm::of(delta_norm, graph, source)?,
            norm: Norm::of(head.norm, graph, source)?,
            width: graph.tensor(base).width,
        }))
    }

    /// Pools the rows of every text that the last step embedded a part of.
    pub fn pool(
        &self,
        executor: &mut Executor,
        plan: &StepPlan,
        outcome: &mut StepOutcome,
    ) -> Result<(), DeviceError> {
        let rows = plan.embeddings.iter().map(|part| part.rows.end).max().unwrap_or(0);
        let mut base = executor.read_tensor(self.base, rows)?;
        let delta = self.delta.map(|delta| executor.read_tensor(delta, rows));
        let mut delta = delta.transpose()?;
        for EmbedRows { rows, pooling } in &plan.embeddings {
            let pooled = outcome.push_embedding(self.width);
            for row in rows.clone() {
                let range = row * self.width..(row + 1) * self.width;
                let values = &mut base[range.clone()];
                if let Some(delta) = &mut delta {
                    let delta = &mut delta[range];
                    self.delta_norm.iter().for_each(|norm| norm.apply(delta));
                    values.iter_mut().zip(delta).for_each(|(sum, delta)| *sum += *delta);
                }
                self.norm.iter().for_each(|norm| norm.apply(values));
                pooling.add(pooled, values);
            }
        }
        Ok(())
    }
}

impl Engine {
    /// The meaning of some tokens as a vector of length one: the last layer's rows, normed as the
    /// head would read them, pooled. Requests that run go on meanwhile.
    pub fn embed(&mut self, tokens: &[u32], pooling: Pooling) -> Result<Vec<f32>, EngineError> {
        let request = EmbedRequest { tokens: tokens.to_vec(), pooling, priority: 0, tenant: 0 };
        let id = self.scheduler.next_id();
        self.submit_embedding_as(id, request)?;
        self.run_to_end(id, &mut |_| ControlFlow::Continue(())).and_then(|end| match end {
            Event::Embedding(values) => Ok(values),
            Event::Failed(error) => Err(error),
            _ => Err(EngineError::Stopped),
        })
    }

    pub(crate) fn submit_embedding_as(
        &mut self,
        id: RequestId,
        request: EmbedRequest,
    ) -> Result<(), EngineError> {
        if self.head_input.is_none() {
            return Err(EngineError::NoEmbeddings(self.name.clone()));
        }
        self.scheduler.submit_embedding(id, request)
    }
}
