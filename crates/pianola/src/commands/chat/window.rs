//! Which part of a conversation the model is given: all of it while its context holds that, then the last
//! turns, as many as leave room for an answer. What is left out stays in the transcript, and is told.
//!
//! ```text
//! turns    1    2    3    4    5 (the last, with its answer)    new message
//!          └ left out ┘└──────────── given to the model ─────────────────┘
//!                            └ of a last turn that is too long: the end of its answer
//! ```

use pianola_text::Message;

use super::transcript::Transcript;
use crate::console::count;
use crate::failure::Failure;

/// How much of a conversation is left out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Window {
    /// Turns from the first on.
    turns: usize,
    /// Whether the beginning of the last answer is, too.
    shortened: bool,
}

/// What a model's context holds.
#[derive(Clone, Copy, Debug)]
pub struct Room {
    /// Tokens in all.
    pub context: usize,
    /// Most tokens of an answer, if it has a bound.
    pub answer: Option<usize>,
}

impl Room {
    /// Tokens to keep for an answer: a part of the context, unless the bound is less.
    fn part(self, share: usize) -> usize {
        let part = self.context / share;
        self.answer.map_or(part, |most| most.min(part)).max(1)
    }

    /// Below this a turn is left out.
    fn least(self) -> usize {
        self.part(16)
    }

    /// So much is made once a turn has to be left out, or every message would leave out another.
    fn ample(self) -> usize {
        self.part(4)
    }
}

/// How messages become tokens.
pub trait Render {
    /// The tokens of a conversation.
    fn render(&self, messages: Vec<Message>) -> Result<Vec<u32>, Failure>;

    /// How many tokens a text has.
    fn count(&self, text: &str) -> Result<usize, Failure>;

    /// The last tokens of a text, as text.
    fn end(&self, text: &str, tokens: usize) -> Result<String, Failure>;
}

impl Window {
    /// The tokens of a conversation whose last message is the user's, and what is left out of it. None if
    /// neither fits: then nothing is left out.
    pub fn fit(
        self,
        transcript: &Transcript,
        room: Room,
        words: &impl Render,
    ) -> Result<Option<(Vec<u32>, Window)>, Failure> {
        let turns = transcript.answered();
        let mut window = Window { turns: self.turns, shortened: false };
        let mut free = room.least();
        loop {
            let tokens = words.render(transcript.messages_after(window.turns, None))?;
            let excess = (tokens.len() + free).saturating_sub(room.context);
            if excess == 0 {
                return Ok(Some((tokens, window)));
            }
            free = room.ample();
            if window.turns + 1 >= turns {
                let excess = (tokens.len() + free).saturating_sub(room.context);
                return window.shorten(transcript, room, words, excess);
            }
            window.turns += 1;
        }
    }

    /// Leaves out the beginning of the last answer, `excess` tokens at least.
    fn shorten(
        self,
        transcript: &Transcript,
        room: Room,
        words: &impl Render,
        mut excess: usize,
    ) -> Result<Option<(Vec<u32>, Window)>, Failure> {
        let Some(answer) = transcript.last_answer() else { return Ok(None) };
        let mut kept = words.count(answer)?;
        // An end of fewer tokens says nothing about the whole.
        while kept > excess + room.least() {
            kept -= excess;
            let end = format!("…{}", words.end(answer, kept)?);
            let tokens = words.render(transcript.messages_after(self.turns, Some(&end)))?;
            excess = (tokens.len() + room.ample()).saturating_sub(room.context);
            if excess == 0 {
                return Ok(Some((tokens, Window { shortened: true, ..self })));
            }
        }
        Ok(None)
    }

    /// What is left out, in words, if it is more than before.
    pub fn news(self, before: Window) -> Option<String> {
        let answer = self.shortened.then(|| "the beginning of the last answer".to_string());
        let turns = (self.turns > before.turns).then(|| match self.turns {
            1 => "the first turn".to_string(),
            turns => format!("the first {}", count(turns, "turn")),
        });
        let parts: Vec<String> = turns.into_iter().chain(answer).collect();
        (!parts.is_empty()).then(|| {
            let parts = parts.join(" and ");
            format!("the context is full: from here on the model does not see {parts}")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A character is a token, and a message has two more.
    struct Characters;

    impl Render for Characters {
        fn render(&self, messages: Vec<Message>) -> Result<Vec<u32>, Failure> {
            let content =
                |message: &Message| message.content.as_str().unwrap_or_default().to_string();
            let texts = messages.iter().map(|message| format!("<{}>", content(message)));
            Ok(texts.collect::<String>().chars().map(u32::from).collect())
        }

        fn count(&self, text: &str) -> Result<usize, Failure> {
            Ok(text.chars().count())
        }

        fn end(&self, text: &str, tokens: usize) -> Result<String, Failure> {
            Ok(text.chars().skip(text.chars().count() - tokens).collect())
        }
    }

    fn conversation(turns: &[(&str, &str)], question: &str) -> Transcript {
        let mut transcript = Transcript::new(Some("sys".into()));
        for (question, answer) in turns {
            transcript.ask(question);
            transcript.answer(answer.to_string());
        }
        transcript.ask(question);
        transcript
    }

    fn fit(window: Window, transcript: &Transcript, context: usize) -> Option<(String, Window)> {
        let room = Room { context, answer: None };
        let (tokens, window) = window.fit(transcript, room, &Characters).unwrap()?;
        assert!(tokens.len() < context, "no room for an answer");
        Some((tokens.iter().filter_map(|&token| char::from_u32(token)).collect(), window))
    }

    #[test]
    fn all_is_given_while_it_fits() {
        let said = conversation(&[("one", "eins"), ("two", "zwei")], "three");
        let (text, window) = fit(Window::default(), &said, 100).unwrap();
        assert_eq!(text, "<sys><one><eins><two><zwei><three>");
        assert_eq!((window, window.news(Window::default())), (Window::default(), None));
    }

    #[test]
    fn the_oldest_turns_are_left_out_and_it_is_told_once() {
        let said = conversation(&[("one", "eins"), ("two", "zwei"), ("six", "sechs")], "go on");
        let (text, window) = fit(Window::default(), &said, 44).unwrap();
        assert_eq!(text, "<sys><six><sechs><go on>");
        let news = window.news(Window::default()).unwrap();
        assert!(news.ends_with("does not see the first 2 turns"), "{news}");
        assert_eq!(window.news(window), None);
        // The next message begins where this one did, although all would fit a little later.
        let (text, next) = fit(window, &said, 44).unwrap();
        assert_eq!((text.as_str(), next), ("<sys><six><sechs><go on>", window));
    }

    #[test]
    fn of_a_long_answer_the_end_is_given() {
        let story: String = ('a'..='z').cycle().take(90).collect();
        let said = conversation(&[("one", "eins"), ("tell", &story)], "go on");
        let (text, window) = fit(Window::default(), &said, 100).unwrap();
        assert!(text.starts_with("<sys><tell><…") && text.ends_with("jkl><go on>"), "{text}");
        assert!(text.len() > 60, "{text}");
        let news = window.news(Window::default()).unwrap();
        assert!(news.contains("the first turn and the beginning of the last answer"), "{news}");
    }

    #[test]
    fn what_cannot_fit_is_not_forced() {
        let long = "x".repeat(90);
        assert!(fit(Window::default(), &conversation(&[], &long), 90).is_none());
        assert!(fit(Window::default(), &conversation(&[("one", "eins")], &long), 90).is_none());
        assert!(fit(Window::default(), &conversation(&[(&long, "eins")], "go on"), 90).is_none());
    }
}
