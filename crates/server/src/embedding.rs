//! Texts as vectors.

use crate::call::Call;
use crate::error::ApiError;
use crate::fields::{Fields, TextOrTokens};
use crate::model::LoadedModel;
use crate::parts::{AdmittedParts, RETRY};
use pianola_engine::{EmbedRequest, EngineError, Event, EventSink, Pooling};
use pianola_text::SpecialTokens;
use std::ops::ControlFlow;
use std::sync::Arc;
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};

/// Vectors of length one.
pub(crate) struct Embedded {
    pub vectors: Vec<Vec<f32>>,
    /// Tokens of all texts.
    pub tokens: usize,
}

/// The result for one text; none where a sink was dropped without a vector.
type EmbeddingResult = Option<Result<Vec<f32>, ApiError>>;

/// Where the vector of a text goes. Dropped without one, it says so.
struct VectorSender {
    index: usize,
    sender: UnboundedSender<(usize, EmbeddingResult)>,
    over: bool,
}

impl VectorSender {
    fn send(&mut self, result: EmbeddingResult) {
        self.over = true;
        // Nobody waits where the request was given up.
        let _ = self.sender.send((self.index, result));
    }
}

impl Drop for VectorSender {
    fn drop(&mut self) {
        if !self.over {
            self.send(None);
        }
    }
}

/// Embeds texts. Twice as many as the model has lanes are with the engine at once, so that a lane that
/// becomes free finds the next one in the queue.
pub(crate) async fn embed(
    call: &Call,
    model: &Arc<LoadedModel>,
    inputs: Vec<TextOrTokens>,
) -> Result<Embedded, ApiError> {
    let shared = model.clone();
    let encoded = call.state.prepare(move || encode(&shared, inputs)).await?;
    let tokens = encoded.iter().map(Vec::len).sum();
    let mut vectors = vec![Vec::new(); encoded.len()];
    let (sender, mut results) = unbounded_channel();
    let mut admitted = AdmittedParts::new(model.clone(), 2 * model.service().info().lanes);
    let (mut next, mut ended) = (0, 0);
    while ended < encoded.len() {
        while next < encoded.len() && admitted.has_room() {
            let sink = sink(VectorSender { index: next, sender: sender.clone(), over: false });
            let (tokens, tenant) = (encoded[next].clone(), call.tenant);
            let request = EmbedRequest { tokens, pooling: Pooling::Mean, priority: 0, tenant };
            if !admitted.admit(next, |service| service.submit_embedding_to(request, sink))? {
                break;
            }
            next += 1;
        }
        let queue_is_full = next < encoded.len() && admitted.has_room();
        let result = match queue_is_full {
            false => results.recv().await,
            true => match tokio::time::timeout(RETRY, results.recv()).await {
                Ok(result) => result,
                Err(_) => continue,
            },
        };
        let (index, result) = result.ok_or(EngineError::Stopped)?;
        match result {
            Some(vector) => vectors[index] = vector?,
            None if admitted.is_lost(index) => return Err(EngineError::Stopped.into()),
            None => continue,
        }
        admitted.end(index);
        ended += 1;
    }
    Ok(Embedded { vectors, tokens })
}

/// The tokens of each text.
fn encode(model: &LoadedModel, inputs: Vec<TextOrTokens>) -> Result<Vec<Vec<u32>>, ApiError> {
    let encode = |(index, input): (usize, TextOrTokens)| {
        let tokens = match input {
            TextOrTokens::Tokens(tokens) => tokens,
            TextOrTokens::Text(text) => {
                model.text()?.tokenizer.encode_prompt(&text, SpecialTokens::Plain)?
            }
        };
        match tokens.is_empty() {
            true => Err(ApiError::invalid("input", format!("input {index} has no tokens"))),
            false => Ok(tokens),
        }
    };
    inputs.into_iter().enumerate().map(encode).collect()
}

/// Refuses `dimensions` other than the model's: vectors are not cut.
pub(crate) fn check_dimensions(fields: &Fields<'_>, model: &LoadedModel) -> Result<(), ApiError> {
    let width = model.service().info().embedding_width;
    match fields.count("dimensions")?.filter(|&dimensions| dimensions != width) {
        None => Ok(()),
        Some(dimensions) => {
            let message = format!(
                "this model's embeddings have {width} dimensions, not {dimensions}, and are not cut"
            );
            Err(ApiError::invalid("dimensions", message))
        }
    }
}

/// Called on the engine's thread.
fn sink(mut sender: VectorSender) -> EventSink {
    Box::new(move |event| {
        let result = match event {
            Event::Embedding(vector) => Ok(vector),
            Event::Failed(error) => Err(ApiError::from(error)),
            _ => return ControlFlow::Continue(()),
        };
        sender.send(Some(result));
        ControlFlow::Continue(())
    })
}
