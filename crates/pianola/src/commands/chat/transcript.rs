//! What was said: the system message and the turns, in memory and in files.

use std::path::Path;

use pianola_text::Message;
use serde_json::{Value, json};

use crate::failure::Failure;
use crate::input;
use crate::output;

/// A conversation.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Transcript {
    pub system: Option<String>,
    /// Role and words, user and assistant in turn.
    turns: Vec<Turn>,
}

#[derive(Clone, Debug, PartialEq)]
struct Turn {
    role: Role,
    text: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    User,
    Assistant,
}

impl Role {
    fn name(self) -> &'static str {
        match self {
            Role::User => "user",
            Role::Assistant => "assistant",
        }
    }
}

impl Transcript {
    pub fn new(system: Option<String>) -> Transcript {
        Transcript { system, turns: Vec::new() }
    }

    /// What was said after the first `turns` questions and answers, as a template takes it; the last
    /// answer in other words where those are given.
    pub fn messages_after(&self, turns: usize, last_answer: Option<&str>) -> Vec<Message> {
        let system = self.system.iter().map(|text| Message::new("system", text));
        let last = self.turns.iter().rposition(|turn| turn.role == Role::Assistant);
        let turns = self.turns.iter().enumerate().skip(2 * turns).map(|(at, turn)| {
            let text = last_answer.filter(|_| Some(at) == last).unwrap_or(&turn.text);
            Message::new(turn.role.name(), text)
        });
        system.chain(turns).collect()
    }

    /// The last answer.
    pub fn last_answer(&self) -> Option<&str> {
        let mut answers = self.turns.iter().filter(|turn| turn.role == Role::Assistant);
        answers.next_back().map(|turn| turn.text.as_str())
    }

    /// Messages of the user that were answered.
    pub fn answered(&self) -> usize {
        self.turns.iter().filter(|turn| turn.role == Role::Assistant).count()
    }

    pub fn ask(&mut self, text: &str) {
        self.turns.push(Turn { role: Role::User, text: text.to_string() });
    }

    pub fn answer(&mut self, text: String) {
        self.turns.push(Turn { role: Role::Assistant, text });
    }

    /// Forgets all but the system message.
    pub fn clear(&mut self) {
        self.turns.clear();
    }

    /// Takes the last answer back; false where there is none.
    pub fn take_answer(&mut self) -> bool {
        let is_answer = self.turns.last().is_some_and(|turn| turn.role == Role::Assistant);
        is_answer && self.turns.pop().is_some()
    }

    /// Takes the last message of the user back, and its answer; false where there is none.
    pub fn undo(&mut self) -> bool {
        self.take_answer();
        self.turns.pop().is_some()
    }

    /// Writes the conversation; a file that is no conversation is not overwritten.
    pub fn save(&self, path: &Path, model: &str) -> Result<(), Failure> {
        if path.exists() && Transcript::load(path).is_err() {
            return Err(Failure::failed(format!(
                "{} is there and is no conversation; give another name",
                path.display()
            )));
        }
        let turn = |turn: &Turn| json!({ "role": turn.role.name(), "content": turn.text });
        let turns: Vec<Value> = self.turns.iter().map(turn).collect();
        let object = json!({ "model": model, "system": self.system, "messages": turns });
        output::write(path, &format!("{object:#}\n"))
            .map_err(|error| Failure::failed(format!("cannot write {}: {error}", path.display())))
    }

    /// Reads what [`Transcript::save`] wrote.
    pub fn load(path: &Path) -> Result<Transcript, Failure> {
        let text = input::text_file(path)?;
        Transcript::parse(&text).ok_or_else(|| {
            Failure::failed(format!("{} is no conversation that /save wrote", path.display()))
        })
    }

    fn parse(text: &str) -> Option<Transcript> {
        let object: Value = serde_json::from_str(text).ok()?;
        let system = match &object["system"] {
            Value::Null => None,
            system => Some(system.as_str()?.to_string()),
        };
        let turn = |message: &Value| {
            let role = match message["role"].as_str()? {
                "user" => Role::User,
                "assistant" => Role::Assistant,
                _ => return None,
            };
            Some(Turn { role, text: message["content"].as_str()?.to_string() })
        };
        let turns: Vec<Turn> =
            object["messages"].as_array()?.iter().map(turn).collect::<Option<_>>()?;
        let expected = [Role::User, Role::Assistant].into_iter().cycle();
        let in_turn = turns.iter().zip(expected).all(|(turn, role)| turn.role == role);
        (in_turn && turns.len().is_multiple_of(2)).then_some(Transcript { system, turns })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn conversation() -> Transcript {
        let mut transcript = Transcript { system: Some("Be brief.".into()), turns: Vec::new() };
        for (question, answer) in [("one\ntwo", "yes"), ("\"three\"", "no")] {
            transcript.ask(question);
            transcript.answer(answer.into());
        }
        transcript
    }

    #[test]
    fn what_is_saved_is_loaded() {
        let path = std::env::temp_dir().join(format!("pianola-chat-{}.json", std::process::id()));
        conversation().save(&path, "tiny").unwrap();
        assert_eq!(Transcript::load(&path).unwrap(), conversation());
        // Over itself, but over nothing else.
        conversation().save(&path, "tiny").unwrap();
        std::fs::write(&path, "dear diary").unwrap();
        assert!(conversation().save(&path, "tiny").is_err());
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "dear diary");
        std::fs::remove_file(&path).unwrap();
        for wrong in ["", "[]", "{\"messages\": [{\"role\": \"tool\", \"content\": \"\"}]}"] {
            assert_eq!(Transcript::parse(wrong), None, "{wrong}");
        }
        let out_of_turn = "{\"messages\": [{\"role\": \"assistant\", \"content\": \"\"}]}";
        assert_eq!(Transcript::parse(out_of_turn), None);
    }

    #[test]
    fn turns_are_taken_back() {
        let mut transcript = conversation();
        assert!(transcript.take_answer() && !transcript.take_answer());
        assert!(transcript.undo());
        assert_eq!((transcript.answered(), transcript.messages_after(0, None).len()), (1, 3));
        assert!(transcript.undo() && !transcript.undo());
    }
}
