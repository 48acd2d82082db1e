//! Answers: whole ones, and streams whose client may stall or go away.

use crate::stall::MAX_STALL;
use hyper::body::{Body, Bytes, Frame, SizeHint};
use hyper::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderValue, REFERRER_POLICY,
};
use hyper::{Response, StatusCode};
use serde_json::Value;
use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::sync::mpsc::{Receiver, Sender, channel};

/// An answer.
pub(crate) type Reply = Response<ReplyBody>;

/// The body of an answer.
pub(crate) enum ReplyBody {
    /// All of it; empty once it was handed on.
    Whole(Bytes),
    /// What a task writes, part by part.
    Stream(Receiver<Bytes>),
}

impl ReplyBody {
    pub fn is_stream(&self) -> bool {
        matches!(self, ReplyBody::Stream(_))
    }
}

impl Body for ReplyBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let part = match &mut *self {
            ReplyBody::Whole(bytes) if bytes.is_empty() => Poll::Ready(None),
            ReplyBody::Whole(bytes) => Poll::Ready(Some(std::mem::take(bytes))),
            ReplyBody::Stream(parts) => parts.poll_recv(context),
        };
        part.map(|part| part.map(|bytes| Ok(Frame::data(bytes))))
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, ReplyBody::Whole(bytes) if bytes.is_empty())
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            ReplyBody::Whole(bytes) => SizeHint::with_exact(bytes.len() as u64),
            ReplyBody::Stream(_) => SizeHint::default(),
        }
    }
}

/// Frames of a stream that wait for the client, besides what the socket holds.
const FRAMES: usize = 64;

/// A whole answer.
pub(crate) fn whole(
    status: StatusCode,
    content_type: &'static str,
    body: impl Into<Bytes>,
) -> Reply {
    let mut reply = Response::new(ReplyBody::Whole(body.into()));
    *reply.status_mut() = status;
    reply.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    reply
}

/// A file that is embedded in the program, with what its page may load.
pub(crate) fn embedded(
    content_type: &'static str,
    policy: &'static str,
    text: &'static str,
) -> Reply {
    let mut reply = whole(StatusCode::OK, content_type, text);
    let headers = reply.headers_mut();
    headers.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static(policy));
    headers.insert(REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    // A newer program brings a newer page.
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    reply
}

/// A JSON document.
pub(crate) fn json(status: StatusCode, value: &Value) -> Reply {
    whole(status, "application/json", value.to_string())
}

/// A JSON document of something that went well.
pub(crate) fn ok(value: &Value) -> Reply {
    json(StatusCode::OK, value)
}

/// The client no longer reads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ClientGone;

/// Where the parts of a stream are written.
pub(crate) struct Writer {
    frames: Sender<Bytes>,
}

impl Writer {
    /// Writes a part, if there is anything in it; waits while the client is slow.
    pub async fn send(&self, part: impl Into<Bytes>) -> Result<(), ClientGone> {
        let part = part.into();
        if part.is_empty() {
            return Ok(());
        }
        self.frames.send_timeout(part, MAX_STALL).await.map_err(|_| ClientGone)
    }

    /// Resolves once the client is gone.
    pub async fn closed(&self) {
        self.frames.closed().await;
    }
}

/// An answer that is written part by part, by a task of its own.
pub(crate) fn stream<Work, Done>(content_type: &'static str, work: Work) -> Reply
where
    Work: FnOnce(Writer) -> Done,
    Done: Future<Output = Result<(), ClientGone>> + Send + 'static,
{
    let (frames, parts) = channel(FRAMES);
    tokio::spawn(work(Writer { frames }));
    let mut reply = Response::new(ReplyBody::Stream(parts));
    let headers = reply.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    // Proxies that buffer would hold tokens back.
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    reply
}

/// A server-sent event without a name.
pub(crate) fn event(data: &Value) -> String {
    format!("data: {data}\n\n")
}

/// A server-sent event with a name, which is also the `type` of its data.
pub(crate) fn named_event(name: &str, data: &Value) -> String {
    format!("event: {name}\ndata: {data}\n\n")
}

/// What keeps a connection open while a long prompt is processed.
pub(crate) const COMMENT: &str = ": processing\n\n";
/// How often that is sent.
pub(crate) const COMMENT_EVERY: Duration = Duration::from_secs(10);
