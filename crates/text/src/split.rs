//! Pre-tokenisers: the cuts that no token may cross.

use std::borrow::Cow;
use std::ops::Range;

use crate::error::Error;
use crate::pattern::Pattern;

/// One step of cutting.
pub(crate) enum Splitter {
    Split {
        pattern: Pattern,
        behaviour: Behaviour,
        /// What does not match counts as the match.
        invert: bool,
    },
    /// A space before each piece that does not begin with one.
    PrefixSpace,
    /// SentencePiece's marking of spaces.
    Metaspace { mark: char, prefix: Prefix, split: bool },
}

/// What becomes of a match.
#[derive(Clone, Copy)]
pub(crate) enum Behaviour {
    /// It is a piece.
    Isolated,
    /// It disappears.
    Removed,
    /// It is a piece together with the matches next to it.
    Contiguous,
    /// It ends the piece before it.
    MergedWithPrevious,
    /// It begins the piece after it.
    MergedWithNext,
}

/// Which pieces get a space mark in front.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Prefix {
    Always,
    /// Only the one that begins the text.
    First,
    Never,
}

/// A stretch of text and whether it begins the whole.
#[derive(Clone, Copy)]
pub(crate) struct Piece<'a> {
    pub(crate) text: &'a str,
    pub(crate) first: bool,
}

/// Cuts a piece by all steps in order and hands on what is left.
pub(crate) fn split(
    steps: &[Splitter],
    piece: Piece,
    emit: &mut dyn FnMut(&str),
) -> Result<(), Error> {
    if piece.text.is_empty() {
        return Ok(());
    }
    let Some((step, rest)) = steps.split_first() else {
        emit(piece.text);
        return Ok(());
    };
    match step {
        Splitter::Split { pattern, behaviour, invert } => {
            for range in behaviour.cut(pattern, *invert, piece.text)? {
                let first = piece.first && range.start == 0;
                split(rest, Piece { text: &piece.text[range], first }, emit)?;
            }
        }
        Splitter::PrefixSpace if !piece.text.starts_with(' ') => {
            split(rest, Piece { text: &format!(" {}", piece.text), ..piece }, emit)?;
        }
        Splitter::PrefixSpace => split(rest, piece, emit)?,
        Splitter::Metaspace { mark, prefix, split: cut } => {
            let text = marked(*mark, *prefix, piece);
            let pattern = Pattern::Literal(String::from(*mark));
            let ranges = if *cut {
                Behaviour::MergedWithNext.cut(&pattern, false, &text)?
            } else {
                std::iter::once(0..text.len()).collect()
            };
            for range in ranges {
                let first = piece.first && range.start == 0;
                split(rest, Piece { text: &text[range], first }, emit)?;
            }
        }
    }
    Ok(())
}

fn marked<'a>(mark: char, prefix: Prefix, piece: Piece<'a>) -> Cow<'a, str> {
    let mut text = Cow::Borrowed(piece.text);
    if text.contains(' ') {
        text = Cow::Owned(text.replace(' ', mark.encode_utf8(&mut [0; 4])));
    }
    let wanted = prefix == Prefix::Always || prefix == Prefix::First && piece.first;
    if wanted && !text.starts_with(mark) {
        text.to_mut().insert(0, mark);
    }
    text
}

impl Behaviour {
    fn cut(self, pattern: &Pattern, invert: bool, text: &str) -> Result<Vec<Range<usize>>, Error> {
        let parts = pattern.split(text)?.into_iter().map(|(range, found)| (range, found != invert));
        let mut cuts: Vec<Range<usize>> = Vec::new();
        let mut before = false;
        match self {
            Behaviour::Isolated => cuts.extend(parts.map(|(range, _)| range)),
            Behaviour::Removed => {
                cuts.extend(parts.filter(|(_, found)| !found).map(|(range, _)| range));
            }
            Behaviour::Contiguous => {
                for (range, found) in parts {
                    match cuts.last_mut() {
                        Some(last) if found == before => last.end = range.end,
                        _ => cuts.push(range),
                    }
                    before = found;
                }
            }
            Behaviour::MergedWithPrevious => {
                for (range, found) in parts {
                    match cuts.last_mut() {
                        Some(last) if found && !before => last.end = range.end,
                        _ => cuts.push(range),
                    }
                    before = found;
                }
            }
            Behaviour::MergedWithNext => {
                for (range, found) in parts.rev() {
                    match cuts.last_mut() {
                        Some(last) if found && !before => last.start = range.start,
                        _ => cuts.push(range),
                    }
                    before = found;
                }
                cuts.reverse();
            }
        }
        Ok(cuts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cut(behaviour: Behaviour, text: &str) -> Vec<&str> {
        let pattern = Pattern::Literal("-".into());
        behaviour
            .cut(&pattern, false, text)
            .unwrap()
            .into_iter()
            .map(|range| &text[range])
            .collect()
    }

    #[test]
    fn behaviours_are_those_of_tokenizers() {
        // The example of the library's own documentation.
        let text = "the-final--countdown";
        assert_eq!(cut(Behaviour::Removed, text), ["the", "final", "countdown"]);
        assert_eq!(cut(Behaviour::Isolated, text), ["the", "-", "final", "-", "-", "countdown"]);
        assert_eq!(cut(Behaviour::Contiguous, text), ["the", "-", "final", "--", "countdown"]);
        assert_eq!(cut(Behaviour::MergedWithPrevious, text), ["the-", "final-", "-", "countdown"]);
        assert_eq!(cut(Behaviour::MergedWithNext, text), ["the", "-final", "-", "-countdown"]);
    }

    fn metaspace(prefix: Prefix, text: &str, first: bool) -> Vec<String> {
        let mut pieces = Vec::new();
        let steps = [Splitter::Metaspace { mark: '▁', prefix, split: true }];
        split(&steps, Piece { text, first }, &mut |piece| pieces.push(piece.into())).unwrap();
        pieces
    }

    #[test]
    fn metaspace_marks_and_cuts() {
        assert_eq!(metaspace(Prefix::Always, "a b", false), ["▁a", "▁b"]);
        assert_eq!(metaspace(Prefix::First, "a b", false), ["a", "▁b"]);
        assert_eq!(metaspace(Prefix::First, "a b", true), ["▁a", "▁b"]);
        assert_eq!(metaspace(Prefix::Never, " a", true), ["▁a"]);
        assert!(metaspace(Prefix::Always, "", true).is_empty());
    }
}
