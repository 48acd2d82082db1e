//! Answers of blocks as server-sent events: the loop that Anthropic's API and OpenAI's Responses share.

use crate::call::Call;
use crate::error::ApiError;
use crate::reply::{self, Reply};
use crate::running::{End, Running, UpdateEvent};
use std::sync::Arc;

/// How an API writes the events of an answer.
pub(crate) trait BlockEvents: Send + 'static {
    /// What comes before anything is known of the answer.
    fn start(&mut self) -> String;

    /// What keeps the connection open while there is nothing to tell.
    fn idle(&mut self) -> String;

    fn push(&mut self, update: UpdateEvent) -> String;

    /// The last events of a whole answer.
    fn end(&mut self, end: &End) -> impl Future<Output = String> + Send;

    /// The last events where something went wrong.
    fn fail(&mut self, error: &ApiError) -> String;
}

/// Streams an answer.
pub(crate) fn stream_blocks(
    call: Arc<Call>,
    mut running: Running,
    mut events: impl BlockEvents,
) -> Reply {
    reply::stream("text/event-stream", move |writer| async move {
        writer.send(events.start()).await?;
        while let Some(update) = running.next_or_send(&writer, || events.idle()).await? {
            match update.event {
                UpdateEvent::Failed(error) => {
                    call.set_error(&error);
                    return writer.send(events.fail(&error)).await;
                }
                UpdateEvent::End(end) => {
                    writer.send(events.end(&end).await).await?;
                    call.set_complete();
                    return Ok(());
                }
                event => writer.send(events.push(event)).await?,
            }
        }
        Ok(())
    })
}
