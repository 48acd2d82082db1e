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

/// Bodies up to this many bytes take nothing from the budget, so that large uploads never delay them, and
/// are parsed on the HTTP thread; larger ones take longer than other connections should wait.
const SMALL_BODY: usize = 64 << 10;

/// Bytes that one permit of the budget stands for.
const UNIT: usize = 1024;

/// The memory that the large bodies of all connections may take together.
pub(crate) struct BodyBudget {
    free: Arc<Semaphore>,
}

impl BodyBudget {
    /// A budget for bodies of at most `body_bytes` each.
    pub fn new(body_bytes: usize) -> BodyBudget {
        let units = body_bytes.div_ceil(UNIT).saturating_mul(LARGEST_AT_ONCE);
        BodyBudget { free: Arc::new(Semaphore::new(units.min(Semaphore::MAX_PERMITS))) }
    }

    /// Waits for the share of a body of `bytes`. It is taken in one piece: bodies that held a part each while
    /// they wait for more could block one another.
    async fn reserve(&self, bytes: usize) -> Option<OwnedSemaphorePermit> {
        let units = u32::try_from(bytes.div_ceil(UNIT)).unwrap_or(u32::MAX);
        self.free.clone().acquire_many_owned(units).await.ok()
    }
}

/// A parsed body, and its share of the budget.
pub(crate) struct JsonBody {
    /// Shared, so that a large one can be read on another thread.
    pub value: Arc<Value>,
    _share: Option<OwnedSemaphorePermit>,
}

impl JsonBody {
    /// That of a request without one.
    pub fn none() -> JsonBody {
        JsonBody { value: Arc::new(Value::Null), _share: None }
    }

    /// Receives and parses a body within the limits.
    pub async fn receive(state: &State, body: Incoming) -> Result<JsonBody, ApiError> {
        let most = state.options.limits.body_bytes;
        if body.size_hint().lower() > most as u64 {
            return Err(too_large(most));
        }
        let (bytes, share) = read(state, body).await?;
        let value = match bytes.len() > SMALL_BODY {
            true => state.prepare(move || fields::parse(&bytes)).await?,
            false => fields::parse(&bytes)?,
        };
        Ok(JsonBody { value: Arc::new(value), _share: share })
    }
}

fn too_large(most: usize) -> ApiError {
    let message = format!(
        "the body has more than the {most} bytes that are allowed; send less, or start the server with a larger --max-body"
    );
    ApiError::new(ErrorKind::TooLarge, message)
}

/// The bytes of a body, and its share of the budget. A large body waits for its share once more than
/// [`SMALL_BODY`] has arrived: a client that only announces one delays nobody.
async fn read(
    state: &State,
    mut body: Incoming,
) -> Result<(Vec<u8>, Option<OwnedSemaphorePermit>), ApiError> {
    let limits = state.options.limits;
    let deadline = Instant::now() + limits.idle;
    // Without a Content-Length it may become as large as is allowed.
    let announced = body.size_hint().exact().and_then(|bytes| usize::try_from(bytes).ok());
    let mut bytes = Vec::new();
    let mut share: Option<OwnedSemaphorePermit> = None;
    loop {
        let frame = timeout_at(deadline, body.frame()).await.map_err(|_| {
            let message = format!("the body did not come within {} s", limits.idle.as_secs());
            ApiError::new(ErrorKind::Timeout, message)
        })?;
        let frame = match frame {
            None => break,
            Some(frame) => frame.map_err(|error| {
                let message = format!("the body could not be read: {error}");
                ApiError::new(ErrorKind::InvalidRequest, message)
            })?,
        };
        let Ok(data) = frame.into_data() else { continue };
        if bytes.len() + data.len() > limits.body_bytes {
            return Err(too_large(limits.body_bytes));
        }
        if share.is_none() && bytes.len() + data.len() > SMALL_BODY {
            let whole = announced.unwrap_or(limits.body_bytes);
            let reserved = timeout_at(deadline, state.bodies.reserve(whole)).await;
            share = Some(reserved.ok().flatten().ok_or_else(too_many)?);
        }
        bytes.extend_from_slice(&data);
    }
    if let Some(share) = &mut share {
        let excess = share.num_permits().saturating_sub(bytes.len().div_ceil(UNIT));
        drop(share.split(excess));
    }
    Ok((bytes, share))
}

fn too_many() -> ApiError {
    let message = "too many large requests are being received; retry later";
    ApiError::new(ErrorKind::Unavailable, message).retry_after(5)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_budget_holds_four_of_the_largest() {
        let budget = BodyBudget::new(100_000);
        let mut held = Vec::new();
        for _ in 0..LARGEST_AT_ONCE {
            held.push(budget.reserve(100_000).await.unwrap());
        }
        assert_eq!(budget.free.available_permits(), 0);
        held.pop();
        assert!(budget.reserve(100_000).await.is_some());
    }
}
