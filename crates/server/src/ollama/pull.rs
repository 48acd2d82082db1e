//! `/api/pull`: a model of the catalogue, fetched while the client reads how far it is.

use super::answer::line;
use crate::call::Call;
use crate::error::{ApiError, Dialect, ErrorKind};
use crate::fields::Fields;
use crate::reply::{self, ClientGone, Reply, Writer};
use crate::source::{LoadFailure, LoadFailureKind, ModelCard, PullProgress, PullStage};
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc::{Receiver, channel};

/// Fetches a model, unless it is served already. Where the client goes away, so does the download;
/// finished parts are kept.
pub(crate) async fn answer(call: &Arc<Call>, body: &Value) -> Result<Reply, ApiError> {
    let fields = Fields::of(body, "")?;
    let name = fields.model_or_name()?.to_string();
    let stream = fields.flag("stream")?.unwrap_or(true);
    let served = call.state.hub.find(Some(&name)).is_ok();
    let (call, success) = (call.clone(), json!({ "status": "success" }));
    match (stream, served) {
        (false, true) => Ok(reply::ok(&success)),
        (true, true) => Ok(reply::stream("application/x-ndjson", move |writer| async move {
            writer.send(line(&success)).await?;
            call.set_complete();
            Ok(())
        })),
        (false, false) => Pull::start(&call, name).finish().await.map(|()| reply::ok(&success)),
        (true, false) => Ok(reply::stream("application/x-ndjson", move |writer| async move {
            let pull = Pull::start(&call, name);
            pull.write_lines(&call, &writer).await
        })),
    }
}

/// A download under way. Dropping it ends the download.
struct Pull {
    /// Closed when the client is gone, which the download notices at its next report.
    progress: Receiver<PullProgress>,
    done: tokio::task::JoinHandle<Result<ModelCard, LoadFailure>>,
}

impl Pull {
    fn start(call: &Call, name: String) -> Pull {
        let source = call.state.hub.source().clone();
        let (reports, progress) = channel(1);
        let done = tokio::task::spawn_blocking(move || {
            let plain = name.strip_suffix(":latest").unwrap_or(&name);
            source.pull(plain, &mut |report| {
                // A client that reads slowly skips reports.
                let _ = reports.try_send(report);
                !reports.is_closed()
            })
        });
        Pull { progress, done }
    }

    async fn finish(mut self) -> Result<(), ApiError> {
        while self.progress.recv().await.is_some() {}
        match self.done.await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(failure)) if failure.kind == LoadFailureKind::UnknownName => {
                Err(ApiError::new(ErrorKind::ModelNotFound, failure.message))
            }
            Ok(Err(failure)) => {
                Err(ApiError::new(ErrorKind::Unavailable, failure.message).retry_after(10))
            }
            Err(_) => Err(ApiError::new(ErrorKind::Internal, "the download was given up")),
        }
    }

    async fn write_lines(mut self, call: &Call, writer: &Writer) -> Result<(), ClientGone> {
        writer.send(line(&json!({ "status": "pulling manifest" }))).await?;
        loop {
            let report = tokio::select! {
                () = writer.closed() => return Err(ClientGone),
                report = self.progress.recv() => report,
                () = call.state.until_cut_off() => {
                    let error = ApiError::shutting_down();
                    call.set_error(&error);
                    return writer.send(line(&error.body(Dialect::Ollama, &call.id))).await;
                }
            };
            let Some(report) = report else { break };
            writer.send(line(&describe(&report))).await?;
            // A bar needs no more than this.
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        if let Err(error) = self.finish().await {
            call.set_error(&error);
            return writer.send(line(&error.body(Dialect::Ollama, &call.id))).await;
        }
        writer.send(line(&json!({ "status": "success" }))).await?;
        call.set_complete();
        Ok(())
    }
}

fn describe(report: &PullProgress) -> Value {
    let PullProgress { stage, digest, done, total } = report;
    let short: String = digest.chars().take(12).collect();
    let status = match stage {
        PullStage::Fetching => format!("pulling {short}").trim_end().to_string(),
        PullStage::Checking => "verifying sha256 digest".to_string(),
    };
    let mut line = json!({ "status": status, "total": total, "completed": done });
    if !digest.is_empty() {
        line["digest"] = json!(format!("sha256:{digest}"));
    }
    line
}
