//! From a marker to the object of a call.

use super::markers::FENCE_WORDS;
use super::object::CallObject;

/// What a marker's opening is followed by.
#[derive(Debug)]
pub(super) enum Expected {
    FenceWord(String),
    Json,
    Name(String),
    /// A name and the beginning of a tag such as `[ARGS]`.
    Tag(String, String),
    /// A name, and the id of the call up to `[ARGS]`.
    CallId(String),
    Arguments(String),
}

/// What a character after a marker means.
pub(super) enum Next {
    Expect(Expected),
    /// A list of calls begins.
    List,
    /// The object of a call begins with this character.
    Call(CallObject),
    NoCall,
}

impl Expected {
    /// Takes the next character; `named` says whether a bare name may follow the marker.
    pub(super) fn next(self, character: char, named: bool) -> Next {
        let in_name = |it: char| it.is_alphanumeric() || "_-.:/".contains(it);
        let expected = match (self, character) {
            (Expected::FenceWord(word), '\n') => {
                FENCE_WORDS.contains(&word.trim_end()).then_some(Expected::Json)
            }
            (Expected::FenceWord(word), _) => {
                Some(Expected::FenceWord(word + character.encode_utf8(&mut [0; 4])))
                    .filter(|_| character.is_alphanumeric() || "_ \r".contains(character))
            }
            (Expected::Json, '{') => return Next::Call(CallObject::new()),
            (Expected::Json, '[') => return Next::List,
            (Expected::Json, _) if character.is_whitespace() => Some(Expected::Json),
            (Expected::Json, _) if named && in_name(character) => {
                Some(Expected::Name(character.into()))
            }
            (Expected::Name(name), '[') => Some(Expected::Tag(name, "[".into())),
            (Expected::Name(name), _) if in_name(character) => {
                Some(Expected::Name(name + character.encode_utf8(&mut [0; 4])))
            }
            (Expected::Tag(name, mut tag), _) => {
                tag.push(character);
                match tag.as_str() {
                    "[ARGS]" => Some(Expected::Arguments(name)),
                    "[CALL_ID]" => Some(Expected::CallId(name)),
                    _ if ["[ARGS]", "[CALL_ID]"].iter().any(|it| it.starts_with(&tag)) => {
                        Some(Expected::Tag(name, tag))
                    }
                    _ => None,
                }
            }
            (Expected::CallId(name), '[') => Some(Expected::Tag(name, "[".into())),
            (Expected::CallId(name), _) if in_name(character) => Some(Expected::CallId(name)),
            (Expected::Arguments(name), '{') => return Next::Call(CallObject::named(name)),
            (Expected::Arguments(name), _) if character.is_whitespace() => {
                Some(Expected::Arguments(name))
            }
            _ => None,
        };
        expected.map_or(Next::NoCall, Next::Expect)
    }
}
