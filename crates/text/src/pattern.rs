//! Literal or regular-expression patterns, and the named ones of GGUF files.

use std::ops::Range;

use fancy_regex::Regex;

use crate::error::Error;

/// GPT-2: contractions, words, numbers and signs, each with the space before it.
pub(crate) const GPT2: &str =
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";

/// Llama 3: as GPT-2, with contractions in either case, numbers by up to three
/// digits, newlines kept with the signs before them.
pub(crate) const LLAMA3: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}",
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
);

/// Qwen 2: as Llama 3, with every digit alone.
pub(crate) const QWEN2: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}",
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
);

/// Mistral's tekken: words break where the case changes, every digit is alone.
pub(crate) const TEKKEN: &str = concat!(
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+",
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*",
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
);

/// What a splitter or replacer looks for.
pub(crate) enum Pattern {
    Literal(String),
    Regex(Box<Regex>),
    Spaced(Box<Spaced>),
    Numeric,
}

impl Pattern {
    pub(crate) fn regex(pattern: &str) -> Result<Pattern, Error> {
        if let Some(head) = pattern.strip_suffix(SPACES) {
            return Ok(Pattern::Spaced(Box::new(Spaced {
                head: compile(&format!(r"\A(?:{head})"))?,
                whole: compile(&format!(r"{head}|\s+"))?,
            })));
        }
        Ok(Pattern::Regex(Box::new(compile(pattern)?)))
    }

    /// The text as stretches that match and stretches between them, none empty. A search that
    /// gives up is an error: what it would leave unsplit is tokenised in another way.
    pub(crate) fn split(&self, text: &str) -> Result<Vec<(Range<usize>, bool)>, Error> {
        let mut parts = Parts { text, parts: Vec::new(), end: 0 };
        match self {
            // An empty pattern would match everywhere and nothing.
            Pattern::Literal(literal) if literal.is_empty() => {}
            Pattern::Literal(literal) => {
                for (start, found) in text.match_indices(literal.as_str()) {
                    parts.matched(start..start + found.len());
                }
            }
            Pattern::Numeric => {
                for (start, digit) in text.char_indices().filter(|(_, c)| c.is_numeric()) {
                    parts.matched(start..start + digit.len_utf8());
                }
            }
            Pattern::Regex(regex) => {
                for found in regex.find_iter(text) {
                    parts.matched(found.map_err(|source| gave_up(regex, source))?.range());
                }
            }
            Pattern::Spaced(spaced) => spaced.split(&mut parts)?,
        }
        Ok(parts.finish())
    }
}

fn gave_up(regex: &Regex, source: fancy_regex::Error) -> Error {
    Error::PatternGaveUp { pattern: regex.as_str().into(), source: Box::new(source) }
}

fn compile(pattern: &str) -> Result<Regex, Error> {
    Regex::new(pattern)
        .map_err(|source| Error::Pattern { pattern: pattern.into(), source: Box::new(source) })
}

/// How every byte-level pattern ends: a run of spaces leaves its last to the
/// word that follows.
const SPACES: &str = r"|\s+(?!\S)|\s+";

/// A pattern that ended in [`SPACES`], which is done here instead. Lookahead
/// would keep a state for every space of a run and give up at a million, and
/// without it the automaton is several times as fast.
pub(crate) struct Spaced {
    /// The alternatives before, at the beginning of a text.
    head: Regex,
    /// The alternatives before, or else a whole run of spaces.
    whole: Regex,
}

impl Spaced {
    fn split(&self, parts: &mut Parts) -> Result<(), Error> {
        let text = parts.text;
        let mut at = 0;
        loop {
            let found = self.whole.find_from_pos(text, at);
            let found = found.map_err(|source| gave_up(&self.whole, source))?;
            let Some(mut range) = found.map(|found| found.range()) else { return Ok(()) };
            if range.is_empty() {
                // Matches nothing here: go on after the next character.
                let Some(next) = text[range.end..].chars().next() else { return Ok(()) };
                at = range.end + next.len_utf8();
                continue;
            }
            let run = &text[range.clone()];
            if range.end < text.len()
                && run.ends_with(char::is_whitespace)
                && run.chars().all(char::is_whitespace)
                && !self
                    .head
                    .is_match(&text[range.start..])
                    .map_err(|source| gave_up(&self.head, source))?
            {
                let last = run.chars().next_back().map_or(0, char::len_utf8);
                if last < run.len() {
                    range.end -= last;
                }
            }
            at = range.end;
            parts.matched(range);
        }
    }
}

struct Parts<'a> {
    text: &'a str,
    parts: Vec<(Range<usize>, bool)>,
    end: usize,
}

impl Parts<'_> {
    fn matched(&mut self, range: Range<usize>) {
        if self.end < range.start {
            self.parts.push((self.end..range.start, false));
        }
        self.end = range.end;
        if !range.is_empty() {
            self.parts.push((range, true));
        }
    }

    fn finish(mut self) -> Vec<(Range<usize>, bool)> {
        if self.end < self.text.len() {
            self.parts.push((self.end..self.text.len(), false));
        }
        self.parts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pieces<'a>(pattern: &str, text: &'a str) -> Vec<&'a str> {
        let parts = Pattern::regex(pattern).unwrap().split(text).unwrap();
        parts.into_iter().map(|(range, _)| &text[range]).collect()
    }

    #[test]
    fn splits_as_the_models_do() {
        let text = "I'll PAY'LL 12345  x\r\n\n  y!!";
        assert_eq!(
            pieces(GPT2, text),
            ["I", "'ll", " PAY", "'", "LL", " 12345", " ", " x", "\r\n\n ", " y", "!!"]
        );
        assert_eq!(
            pieces(LLAMA3, text),
            ["I", "'ll", " PAY", "'LL", " ", "123", "45", " ", " x", "\r\n\n", " ", " y", "!!"]
        );
        assert_eq!(pieces(QWEN2, "a 12"), ["a", " ", "1", "2"]);
        assert_eq!(pieces(TEKKEN, "helloWorld FOOBar"), ["hello", "World", " FOOBar"]);
    }

    #[test]
    fn a_run_of_a_million_spaces_is_two_pieces() {
        let text = format!("{}x", " ".repeat(1_000_000));
        assert_eq!(pieces(QWEN2, &text).len(), 2);
        assert_eq!(pieces(GPT2, &text).len(), 2);
    }

    #[test]
    fn a_pattern_that_gives_up_is_an_error() {
        // Every way to cut the run in two parts is tried before it is known that none is followed
        // by the sign. Lookahead keeps it from the automaton, which would not try.
        let hostile = r"(?:(?=a)a+)+b|\w";
        for pattern in [hostile.to_owned(), format!("{hostile}{SPACES}")] {
            let split = Pattern::regex(&pattern).unwrap();
            let text = format!("ab {}c", "a".repeat(40));
            assert!(split.split("aab").is_ok());
            let error = split.split(&text).unwrap_err();
            assert!(matches!(error, Error::PatternGaveUp { .. }), "{error}");
        }
    }
}
