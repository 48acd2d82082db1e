//! The text of an answer as an iterator.

use super::worker::Command;
use crate::error::EngineError;
use crate::request::{Answer, Event, EventSink, RequestId};
use std::ops::ControlFlow;
use std::sync::mpsc::{Receiver, Sender};

/// What a stream is told.
pub(super) enum Message {
    Text(String),
    Finished(Answer),
    Failed(EngineError),
}

/// A sink that sends the events of a request to its stream.
pub(super) fn sink(messages: Sender<Message>) -> EventSink {
    Box::new(move |event| {
        let message = match event {
            Event::Prompt | Event::Embedding(_) => return ControlFlow::Continue(()),
            Event::Token(token) if token.text.is_empty() => return ControlFlow::Continue(()),
            Event::Token(token) => Message::Text(token.text.to_string()),
            Event::Finished(answer) => Message::Finished(answer),
            Event::Failed(error) => Message::Failed(error),
        };
        match messages.send(message) {
            Ok(()) => ControlFlow::Continue(()),
            // The stream was dropped.
            Err(_) => ControlFlow::Break(()),
        }
    })
}

/// The text of an answer, piece by piece. Dropping it before the end cancels the request.
pub struct Stream {
    id: RequestId,
    messages: Receiver<Message>,
    commands: Sender<Command>,
    answer: Option<Answer>,
    over: bool,
}

impl Stream {
    pub(super) fn new(
        id: RequestId,
        messages: Receiver<Message>,
        commands: Sender<Command>,
    ) -> Stream {
        Stream { id, messages, commands, answer: None, over: false }
    }

    /// The request's id.
    pub fn id(&self) -> RequestId {
        self.id
    }

    /// The finished answer, once the last piece has come.
    pub fn answer(&self) -> Option<&Answer> {
        self.answer.as_ref()
    }

    /// Ends the request. What was certain until then still comes.
    pub fn cancel(&self) {
        // An engine that has stopped has no request to cancel.
        let _ = self.commands.send(Command::Cancel { id: self.id });
    }

    /// Waits for the end: the whole text that had not come yet, and the answer.
    pub fn finish(mut self) -> Result<(String, Answer), EngineError> {
        let text = self.by_ref().collect::<Result<String, EngineError>>()?;
        let answer = self.answer.take().ok_or(EngineError::Stopped)?;
        Ok((text, answer))
    }
}

impl Iterator for Stream {
    type Item = Result<String, EngineError>;

    fn next(&mut self) -> Option<Result<String, EngineError>> {
        if self.over {
            return None;
        }
        let message = self.messages.recv();
        self.over = !matches!(message, Ok(Message::Text(_)));
        match message {
            Ok(Message::Text(text)) => Some(Ok(text)),
            Ok(Message::Finished(answer)) => {
                self.answer = Some(answer);
                None
            }
            Ok(Message::Failed(error)) => Some(Err(error)),
            Err(_) => Some(Err(EngineError::Stopped)),
        }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if !self.over {
            self.cancel();
        }
    }
}
