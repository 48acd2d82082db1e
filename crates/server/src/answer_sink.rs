//! What the engine says of an answer, on its way to the task that writes it.

use crate::error::ApiError;
use crate::running::TokenInfo;
use pianola_engine::{Answer, Event, EventSink, TokenLogProbs};
use std::ops::ControlFlow;
use tokio::sync::mpsc::UnboundedSender;

/// Something that the engine says of an answer.
pub(crate) enum Message {
    Token {
        id: u32,
        text: String,
        info: Option<TokenInfo>,
    },
    Finished(Answer),
    Failed(ApiError),
    /// The sink was dropped without an end.
    Dropped,
}

/// Where the events of an answer go. Dropped without an end, it says so.
pub(crate) struct AnswerSender {
    answer: usize,
    messages: UnboundedSender<(usize, Message)>,
    over: bool,
}

impl AnswerSender {
    /// Of the answer of this number.
    pub fn new(answer: usize, messages: UnboundedSender<(usize, Message)>) -> AnswerSender {
        AnswerSender { answer, messages, over: false }
    }

    fn send(&mut self, message: Message) -> ControlFlow<()> {
        self.over |= matches!(message, Message::Finished(_) | Message::Failed(_));
        match self.messages.send((self.answer, message)) {
            Ok(()) => ControlFlow::Continue(()),
            Err(_) => ControlFlow::Break(()),
        }
    }
}

impl Drop for AnswerSender {
    fn drop(&mut self) {
        if !self.over {
            // Nobody waits where the request was given up.
            let _ = self.send(Message::Dropped);
        }
    }
}

/// Called on the engine's thread; what it sends is taken by `Running::next`.
pub(crate) fn sink(mut sender: AnswerSender) -> EventSink {
    Box::new(move |event| {
        let message = match event {
            Event::Prompt if sender.messages.is_closed() => return ControlFlow::Break(()),
            Event::Prompt => return ControlFlow::Continue(()),
            Event::Token(token) => Message::Token {
                id: token.id,
                text: token.text.to_string(),
                info: token.logprobs.map(|found| info(token.id, found)),
            },
            Event::Finished(answer) => Message::Finished(answer),
            Event::Failed(error) => Message::Failed(error.into()),
            Event::Embedding(_) => return ControlFlow::Continue(()),
        };
        sender.send(message)
    })
}

fn info(token: u32, found: TokenLogProbs<'_>) -> TokenInfo {
    TokenInfo { token, logprob: found.sampled, top: found.top.to_vec() }
}
