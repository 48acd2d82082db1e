//! Bodies of requests: bounded one by one, all together, and in time.

use crate::error::{ApiError, ErrorKind};
use crate::fields;
use crate::state::State;
use http_body_util::BodyExt;
use hyper::body::{Body, Incoming};
use serde_json::Value;
use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout_at};

/// Bodies of the largest size that are held at once. A parsed body may take sixteen times its bytes.
const LARGEST_AT_ONCE: usize = 4;

/// Bodies up to this many bytes are parsed at once; larger ones take longer than other connections
/// should wait.
const PARSED_INLINE: usize = 64 << 10;

/// The bytes that the bodies of all connections may hold together.
pub(crate) struct BodyBudget {
    free: Arc<Semaphore>,
}

impl BodyBudget {
    /// A budget for bodies of at most `body_bytes` each.
    pub fn new(body_bytes: usize) -> BodyBudget {
        let bytes = body_bytes.saturating_mul(LARGEST_AT_ONCE).min(Semaphore::MAX_PERMITS);
        BodyBudget { free: Arc::new(Semaphore::new(bytes)) }
    }
}

/// A parsed body, and its share of the budget.
pub(crate) struct JsonBody {
    pub value: Value,
    _share: Option<OwnedSemaphorePermit>,
}

impl JsonBody {
    /// That of a request without one.
    pub fn none() -> JsonBody {
        JsonBody { value: Value::Null, _share: None }
    }

    /// Receives and parses a body within the limits.
    pub async fn receive(state: &State, body: Incoming) -> Result<JsonBody, ApiError> {
        let most = state.options.limits.body_bytes;
        if body.size_hint().lower() > most as u64 {
            return Err(too_large(most));
        }
        let (bytes, share) = read(state, body).await?;
        let value = match bytes.len() > PARSED_INLINE {
            true => parse_apart(state, bytes).await?,
            false => fields::parse(&bytes)?,
        };
        Ok(JsonBody { value, _share: share })
    }
}

fn too_large(most: usize) -> ApiError {
    let message = format!(
        "the body has more than the {most} bytes that are allowed; send less, or start the server with a larger --max-body"
    );
    ApiError::new(ErrorKind::TooLarge, message)
}

/// The bytes of a body, and their share of the budget, which is taken as they arrive: a client that sends
/// nothing keeps nobody waiting.
async fn read(
    state: &State,
    mut body: Incoming,
) -> Result<(Vec<u8>, Option<OwnedSemaphorePermit>), ApiError> {
    let limits = state.options.limits;
    let deadline = Instant::now() + limits.idle;
    let mut bytes = Vec::new();
    let mut share: Option<OwnedSemaphorePermit> = None;
    loop {
        let frame = timeout_at(deadline, body.frame()).await.map_err(|_| {
            let message = format!("the body did not come within {} s", limits.idle.as_secs());
            ApiError::new(ErrorKind::Timeout, message)
        })?;
        let frame = match frame {
            None => return Ok((bytes, share)),
            Some(frame) => frame.map_err(|error| {
                let message = format!("the body could not be read: {error}");
                ApiError::new(ErrorKind::InvalidRequest, message)
            })?,
        };
        let Ok(data) = frame.into_data() else { continue };
        if bytes.len() + data.len() > limits.body_bytes {
            return Err(too_large(limits.body_bytes));
        }
        let count = u32::try_from(data.len()).map_err(|_| too_large(limits.body_bytes))?;
        let more = state.bodies.free.clone().acquire_many_owned(count);
        let more = timeout_at(deadline, more).await.map_err(|_| {
            let message = "too many large requests are being received; ask again soon";
            ApiError::new(ErrorKind::Unavailable, message).retry_after(5)
        })?;
        match (&mut share, more) {
            (Some(share), Ok(more)) => share.merge(more),
            (share, more) => *share = more.ok(),
        }
        bytes.extend_from_slice(&data);
    }
}

/// Parses on another thread.
async fn parse_apart(state: &State, bytes: Vec<u8>) -> Result<Value, ApiError> {
    let permit = state.preparing.clone().acquire_owned().await;
    let parsing = tokio::task::spawn_blocking(move || {
        let _permit = permit;
        fields::parse(&bytes)
    });
    let failed = |_| ApiError::new(ErrorKind::Internal, "the body could not be parsed");
    parsing.await.map_err(failed)?
}
