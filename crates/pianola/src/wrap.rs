//! Breaks text for a terminal between words as it arrives. Code blocks keep their lines.

use unicode_width::UnicodeWidthChar;

/// What is shown of a text that comes in pieces.
#[derive(Default)]
pub struct Wrap {
    /// Where the next character goes.
    column: usize,
    /// Blanks before the word, which a line break replaces.
    blanks: String,
    /// The word that has begun, held back until it is known to fit.
    word: String,
    /// The line as it came, up to the length of a fence.
    line: String,
    /// Inside a fenced block of code.
    code: bool,
    /// Inside a word that is longer than a line, which the terminal breaks.
    long_word: bool,
}

/// Begins and ends a block of code.
const FENCE: &str = "```";

impl Wrap {
    /// What to print after this piece, on a terminal of so many columns.
    pub fn push(&mut self, piece: &str, columns: usize) -> String {
        let mut out = String::new();
        for character in piece.chars() {
            self.push_character(character, columns, &mut out);
        }
        if self.code {
            self.end_word(columns, &mut out);
        }
        out
    }

    /// What is left to print at the end.
    pub fn finish(&mut self, columns: usize) -> String {
        let mut out = String::new();
        self.end_word(columns, &mut out);
        out.push_str(&self.blanks);
        *self = Wrap::default();
        out
    }

    fn push_character(&mut self, character: char, columns: usize, out: &mut String) {
        if character == '\n' {
            self.end_word(columns, out);
            out.push_str(&self.blanks);
            out.push('\n');
            self.code ^= self.line == FENCE;
            self.column = 0;
            self.long_word = false;
            self.blanks.clear();
            self.line.clear();
            return;
        }
        if self.line.len() < FENCE.len() && !(self.line.is_empty() && character == ' ') {
            self.line.push(character);
        }
        if character.is_whitespace() {
            self.end_word(columns, out);
            self.long_word = false;
            self.blanks.push(character);
            return;
        }
        // Lines may break before and after each wide character.
        let wide = width_of(character) > 1;
        if wide {
            self.end_word(columns, out);
            self.long_word = false;
        }
        self.word.push(character);
        let too_long = width(&self.word) >= columns;
        if wide || too_long {
            self.end_word(columns, out);
            self.long_word |= too_long;
        }
    }

    /// Prints the word, on the next line if it does not fit on this one.
    fn end_word(&mut self, columns: usize, out: &mut String) {
        if self.word.is_empty() {
            return;
        }
        let (blanks, word) = (width(&self.blanks), width(&self.word));
        let fits = self.column + blanks + word <= columns;
        if self.long_word {
            self.column %= columns.max(1);
        } else if !self.code && self.column > 0 && !fits {
            out.push('\n');
            self.column = 0;
        } else {
            out.push_str(&self.blanks);
            self.column += blanks;
        }
        out.push_str(&self.word);
        self.column += word;
        self.blanks.clear();
        self.word.clear();
    }
}

fn width(text: &str) -> usize {
    text.chars().map(width_of).sum()
}

fn width_of(character: char) -> usize {
    const TAB: usize = 8;
    if character == '\t' { TAB } else { character.width().unwrap_or(0) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The text as it is shown, in pieces of some characters.
    fn shown(text: &str, columns: usize, piece: usize) -> String {
        let mut wrap = Wrap::default();
        let characters: Vec<char> = text.chars().collect();
        let pieces = characters.chunks(piece).map(|part| part.iter().collect::<String>());
        let mut out: String = pieces.map(|piece| wrap.push(&piece, columns)).collect();
        out.push_str(&wrap.finish(columns));
        out
    }

    #[test]
    fn lines_break_between_words_however_the_text_comes() {
        let text = "The quick brown fox jumps.\n\n  - over the dog  ";
        for piece in 1..text.len() {
            let found = shown(text, 10, piece);
            assert_eq!(found, "The quick\nbrown fox\njumps.\n\n  - over\nthe dog  ", "{piece}");
        }
    }

    #[test]
    fn what_fits_and_what_cannot_break_stays() {
        assert_eq!(shown("0123456789", 10, 3), "0123456789");
        assert_eq!(shown("a 0123456789abc d", 10, 1), "a\n0123456789abc d");
        let code = "```rust\nlet sum = first + second;\n```\none two three";
        assert_eq!(shown(code, 10, 4), "```rust\nlet sum = first + second;\n```\none two\nthree");
    }

    #[test]
    fn wide_characters_count_twice_and_need_no_blanks() {
        assert_eq!(shown("日本語日本語", 6, 1), "日本語\n日本語");
        assert_eq!(shown("ab 日本", 6, 2), "ab 日\n本");
    }

    #[test]
    fn a_word_appears_when_it_is_whole() {
        let mut wrap = Wrap::default();
        assert_eq!(wrap.push("Hel", 80), "");
        assert_eq!(wrap.push("lo wor", 80), "Hello");
        assert_eq!(wrap.finish(80), " wor");
    }
}
