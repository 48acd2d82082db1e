//! Makes text that a file, a model or a stranger wrote safe for a terminal.
//!
//! A terminal obeys what it is sent: an escape sequence can rename its window, overwrite lines, or
//! put text into its input. So nothing reaches one unless it went through [`visible`], or through
//! [`json`] where it is to be read by a machine.

use std::borrow::Cow;
use std::fmt::Write;

/// Whether a terminal would act on this character instead of showing it: controls of ASCII and of
/// its extension (C1, of which U+009B begins an escape sequence) besides newline and tab,
/// separators that some terminals take for newlines, and everything that reorders text.
fn acts(character: char) -> bool {
    match character {
        '\n' | '\t' => false,
        '\u{61c}' | '\u{200e}' | '\u{200f}' => true,
        '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => true,
        _ => character.is_control(),
    }
}

/// The text with such characters spelled out: `\u{1b}`.
pub fn visible(text: &str) -> Cow<'_, str> {
    replaced(text, |character, out| write!(out, "\\u{{{:x}}}", character as u32))
}

/// A value as JSON, indented if `indented`, with such characters as JSON escapes them: `\u001b`.
pub fn json(value: &serde_json::Value, indented: bool) -> String {
    let text = if indented { format!("{value:#}") } else { value.to_string() };
    // Outside strings JSON has none of them, and none is beyond four digits.
    replaced(&text, |character, out| write!(out, "\\u{:04x}", character as u32)).into_owned()
}

fn replaced(text: &str, spell: fn(char, &mut String) -> std::fmt::Result) -> Cow<'_, str> {
    if !text.contains(acts) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len() + 16);
    for character in text.chars() {
        if acts(character) {
            // Writing to a string does not fail.
            let _ = spell(character, &mut shown);
        } else {
            shown.push(character);
        }
    }
    Cow::Owned(shown)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Written out apart from [`acts`], as the bytes and code points of the standards.
    fn forbidden(character: char) -> bool {
        let code = character as u32;
        (code < 0x20 && code != 0x0a && code != 0x09)
            || (0x7f..=0x9f).contains(&code)
            || [0x61c, 0x200e, 0x200f, 0x2028, 0x2029].contains(&code)
            || (0x202a..=0x202e).contains(&code)
            || (0x2066..=0x2069).contains(&code)
    }

    fn any_text() -> impl Strategy<Value = String> {
        let hostile = prop_oneof![
            any::<char>(),
            proptest::char::range('\0', '\u{a0}'),
            proptest::char::range('\u{2000}', '\u{2070}'),
        ];
        proptest::collection::vec(hostile, 0..60).prop_map(|all| all.into_iter().collect())
    }

    #[test]
    fn every_forbidden_character_is_spelled_out() {
        for character in '\0'..=char::MAX {
            let text = character.to_string();
            assert_eq!(visible(&text) != text, forbidden(character), "{:x}", character as u32);
        }
        assert_eq!(visible("\u{1b}[31m\u{9b}2J\u{202e}x"), "\\u{1b}[31m\\u{9b}2J\\u{202e}x");
        assert_eq!(visible("a\tb\nçé🙂\u{200d}"), "a\tb\nçé🙂\u{200d}");
    }

    proptest! {
        #[test]
        fn no_text_gets_through(text in any_text()) {
            let shown = visible(&text);
            prop_assert!(!shown.contains(forbidden));
            // Shown piece by piece, as an answer comes, it is the same.
            let pieces: String = text.chars().map(|c| visible(&c.to_string()).into_owned()).collect();
            prop_assert_eq!(&*shown, pieces);
        }

        #[test]
        fn json_stays_json(text in any_text()) {
            let value = serde_json::json!({ "key": [text.clone()], text: 1 });
            for indented in [false, true] {
                let shown = json(&value, indented);
                prop_assert!(!shown.contains(forbidden));
                prop_assert_eq!(serde_json::from_str::<serde_json::Value>(&shown).unwrap(), value.clone());
            }
        }
    }
}
