//! Tokens that are found in the text before anything else is done to it:
//! markers such as `<|im_start|>`, and text that is always one token.

use std::ops::Range;
use std::sync::LazyLock;

use fancy_regex::Regex;

use crate::hash::{PairMap, pair};

/// A token to be found in the text, with the flags of tokenizer.json.
#[derive(Clone, Debug, Default)]
pub(crate) struct Added {
    pub(crate) id: u32,
    pub(crate) content: String,
    /// A marker rather than text: not found where markers are plain text.
    pub(crate) special: bool,
    /// Takes the white space to its left with it.
    pub(crate) strip_left: bool,
    /// Takes the white space to its right with it.
    pub(crate) strip_right: bool,
    /// Not found inside a word.
    pub(crate) single_word: bool,
}

/// Which special tokens are found.
#[derive(Clone, Copy)]
pub(crate) enum Specials<'a> {
    /// All.
    All,
    /// None.
    None,
    /// All but those that touch one of these stretches of the text, in order.
    Outside(&'a [Range<usize>]),
}

impl Specials<'_> {
    fn allow(self, range: &Range<usize>) -> bool {
        match self {
            Specials::All => true,
            Specials::None => false,
            Specials::Outside(plain) => {
                let next = plain.partition_point(|stretch| stretch.end <= range.start);
                plain.get(next).is_none_or(|stretch| range.end <= stretch.start)
            }
        }
    }
}

/// A stretch of the text: an added token or what lies between two.
#[derive(Debug, PartialEq)]
pub(crate) enum Stretch {
    Text(Range<usize>),
    Token(u32),
}

/// Finds the leftmost and there the longest of a set of tokens.
#[derive(Default)]
pub(crate) struct Finder {
    tokens: Vec<Added>,
    /// A trie: (node, byte) to node; the root is 0.
    edges: PairMap<u32>,
    /// By node: the token that ends there, plus 1.
    ends: Vec<u32>,
    /// Bytes that begin a token, so that most of a text is passed over quickly.
    begins: Vec<bool>,
}

impl Finder {
    pub(crate) fn new(tokens: Vec<Added>) -> Finder {
        let mut finder = Finder { ends: vec![0], begins: vec![false; 256], ..Finder::default() };
        for token in tokens {
            let Some(&first) = token.content.as_bytes().first() else { continue };
            finder.begins[usize::from(first)] = true;
            let mut node = 0;
            for &byte in token.content.as_bytes() {
                let fresh = finder.ends.len() as u32;
                node = *finder.edges.entry(pair(node, u32::from(byte))).or_insert(fresh);
                if node == fresh {
                    finder.ends.push(0);
                }
            }
            finder.tokens.push(token);
            finder.ends[node as usize] = finder.tokens.len() as u32;
        }
        finder
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    /// Whether the text begins with a special token, be it part of a longer token.
    pub(crate) fn special_begins(&self, text: &str) -> bool {
        self.ends_along(text.as_bytes()).any(|token| token.special)
    }

    /// The tokens that the bytes begin with, shortest first.
    fn ends_along<'a>(&'a self, bytes: &'a [u8]) -> impl Iterator<Item = &'a Added> {
        let mut node = 0;
        bytes
            .iter()
            .map_while(move |&byte| {
                node = *self.edges.get(&pair(node, u32::from(byte)))?;
                Some(self.ends[node as usize])
            })
            .filter_map(|end| self.tokens.get((end as usize).checked_sub(1)?))
    }

    /// Cuts the text into added tokens and what lies between them.
    pub(crate) fn split(&self, text: &str, specials: Specials) -> Vec<Stretch> {
        let bytes = text.as_bytes();
        let mut stretches = Vec::new();
        let mut done = 0;
        let mut at = 0;
        while at < bytes.len() {
            if !self.begins[usize::from(bytes[at])] {
                at += 1;
                continue;
            }
            let Some(token) = self.ends_along(&bytes[at..]).last() else {
                at += 1;
                continue;
            };
            // Passed over or not, what was found here hides what overlaps it:
            // so does the reference.
            let mut range = at..at + token.content.len();
            at = range.end;
            if range.start < done
                || token.special && !specials.allow(&range)
                || token.single_word && !stands_alone(text, &range)
            {
                continue;
            }
            if token.strip_left {
                range.start = text[..range.start].trim_end().len().max(done);
            }
            if token.strip_right {
                range.end = text.len() - text[range.end..].trim_start().len();
                at = range.end;
            }
            if done < range.start {
                stretches.push(Stretch::Text(done..range.start));
            }
            stretches.push(Stretch::Token(token.id));
            done = range.end;
        }
        if done < text.len() {
            stretches.push(Stretch::Text(done..text.len()));
        }
        stretches
    }
}

fn stands_alone(text: &str, range: &Range<usize>) -> bool {
    !text[..range.start].chars().next_back().is_some_and(is_of_word)
        && !text[range.end..].chars().next().is_some_and(is_of_word)
}

/// `\w` of Unicode, which std has no name for.
fn is_of_word(character: char) -> bool {
    static WORD: LazyLock<Option<Regex>> = LazyLock::new(|| Regex::new(r"\A\w\z").ok());
    let mut text = [0; 4];
    let text = character.encode_utf8(&mut text);
    WORD.as_ref().is_some_and(|word| word.is_match(text).unwrap_or(false))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(id: u32, content: &str) -> Added {
        Added { id, content: content.into(), ..Added::default() }
    }

    #[test]
    fn takes_the_leftmost_and_longest() {
        let finder = Finder::new(vec![token(1, "ab"), token(2, "abc"), token(3, "cd")]);
        assert_eq!(
            finder.split("xabcd ab", Specials::All),
            [Stretch::Text(0..1), Stretch::Token(2), Stretch::Text(4..6), Stretch::Token(1)]
        );
    }

    #[test]
    fn special_tokens_are_text_where_they_may_not_be_found() {
        let marker = Added { special: true, ..token(1, "<s>") };
        let finder = Finder::new(vec![marker, token(2, "\n")]);
        let text = "<s>\n<s>";
        let found = |specials| finder.split(text, specials);
        assert_eq!(
            found(Specials::None),
            [Stretch::Text(0..3), Stretch::Token(2), Stretch::Text(4..7)]
        );
        assert_eq!(
            found(Specials::Outside(std::slice::from_ref(&(3..6)))),
            [Stretch::Token(1), Stretch::Token(2), Stretch::Text(4..7)]
        );
    }

    #[test]
    fn strips_and_minds_words() {
        let strip = Added { strip_left: true, strip_right: true, ..token(1, "<m>") };
        let word = Added { single_word: true, ..token(2, "cat") };
        let finder = Finder::new(vec![strip, word]);
        assert_eq!(
            finder.split("a  <m> \n b cats cat.", Specials::All),
            [
                Stretch::Text(0..1),
                Stretch::Token(1),
                Stretch::Text(9..16),
                Stretch::Token(2),
                Stretch::Text(19..20)
            ]
        );
    }
}
