//! Texts as vectors.

use crate::call::Call;
use crate::error::{ApiError, ErrorKind};
use crate::fields::TextOrTokens;
use crate::model::LoadedModel;
use pianola_engine::{EmbedRequest, EngineError, Event, EventSink, Pooling, RequestId};
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

/// Requests that are cancelled unless they have ended.
struct Submitted {
    model: Arc<LoadedModel>,
    ids: Vec<RequestId>,
}

impl Drop for Submitted {
    fn drop(&mut self) {
        // Those that are over already are not affected.
        self.ids.iter().for_each(|&id| self.model.service().cancel(id));
    }
}

type Vectors = UnboundedSender<(usize, Result<Vec<f32>, ApiError>)>;

/// Tells that there will be no vector, where a sink is dropped without one.
struct Unanswered {
    index: usize,
    sender: Vectors,
    over: bool,
}

impl Unanswered {
    fn answer(&mut self, result: Result<Vec<f32>, ApiError>) {
        self.over = true;
        // Nobody waits any more: the request was given up.
        let _ = self.sender.send((self.index, result));
    }
}

impl Drop for Unanswered {
    fn drop(&mut self) {
        if !self.over {
            self.answer(Err(EngineError::Stopped.into()));
        }
    }
}

/// Texts that are with the engine at once, so that one client does not fill its queue.
const AT_ONCE: usize = 64;

/// Embeds texts, many at once.
pub(crate) async fn embed(
    call: &Call,
    model: &Arc<LoadedModel>,
    inputs: Vec<TextOrTokens>,
) -> Result<Embedded, ApiError> {
    let shared = model.clone();
    let encoded = tokio::task::spawn_blocking(move || {
        let encode = |(index, input): (usize, TextOrTokens)| {
            let tokens = match input {
                TextOrTokens::Tokens(tokens) => tokens,
                TextOrTokens::Text(text) => {
                    shared.text()?.tokenizer.encode_prompt(&text, SpecialTokens::Plain)?
                }
            };
            match tokens.is_empty() {
                true => Err(ApiError::invalid("input", format!("input {index} has no tokens"))),
                false => Ok(tokens),
            }
        };
        inputs.into_iter().enumerate().map(encode).collect::<Result<Vec<_>, ApiError>>()
    });
    let failed = |_| ApiError::new(ErrorKind::Internal, "the texts could not be encoded");
    let encoded = encoded.await.map_err(failed)??;
    let tokens = encoded.iter().map(Vec::len).sum();
    let mut vectors = vec![Vec::new(); encoded.len()];
    let (sender, mut results) = unbounded_channel();
    let mut waiting = encoded.into_iter().enumerate();
    let mut submitted = Submitted { model: model.clone(), ids: Vec::new() };
    let mut submit = |index: usize, tokens: Vec<u32>| -> Result<(), ApiError> {
        let mut guard = Unanswered { index, sender: sender.clone(), over: false };
        let sink: EventSink = Box::new(move |event| {
            let result = match event {
                Event::Embedding(vector) => Ok(vector),
                Event::Failed(error) => Err(ApiError::from(error)),
                _ => return ControlFlow::Continue(()),
            };
            guard.answer(result);
            ControlFlow::Continue(())
        });
        let request =
            EmbedRequest { tokens, pooling: Pooling::Mean, priority: 0, tenant: call.tenant };
        submitted.ids.push(model.service().submit_embedding_to(request, sink)?);
        Ok(())
    };
    for (index, tokens) in waiting.by_ref().take(AT_ONCE) {
        submit(index, tokens)?;
    }
    for _ in 0..vectors.len() {
        let Some((index, result)) = results.recv().await else { break };
        vectors[index] = result?;
        if let Some((index, tokens)) = waiting.next() {
            submit(index, tokens)?;
        }
    }
    Ok(Embedded { vectors, tokens })
}
