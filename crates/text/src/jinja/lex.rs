//! From a template's source to tokens: which text is data, with the white space that its tags take
//! away, and what the tags contain.

use super::fault::Fault;

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Token {
    Data(String),
    /// `{{`, `}}`, `{%` and `%}`
    PrintBegin,
    PrintEnd,
    TagBegin,
    TagEnd,
    Name(String),
    Text(String),
    Int(i64),
    Float(f64),
    Operator(&'static str),
    End,
}

/// A token and the line it begins in.
pub(super) struct Located {
    pub(super) token: Token,
    pub(super) line: u32,
}

/// Looking up a name takes as long as it is.
const LONGEST_NAME: usize = 256;

/// Longer ones first.
const OPERATORS: [&str; 26] = [
    "//", "**", "==", "!=", ">=", "<=", "+", "-", "/", "*", "%", "~", "[", "]", "(", ")", "{", "}",
    ">", "<", "=", ".", ":", "|", ",", ";",
];

pub(super) fn lex(source: &str) -> Result<Vec<Located>, Fault> {
    let source = source.replace("\r\n", "\n").replace('\r', "\n");
    // As Python has it: the newline that ends a file is not part of the template.
    let source = source.strip_suffix('\n').unwrap_or(&source);
    let mut lexer = Lexer { source, at: 0, line: 1, tokens: Vec::new(), line_starts: true };
    lexer.run().map_err(|fault| fault.at(lexer.line))?;
    lexer.push(Token::End);
    Ok(lexer.tokens)
}

struct Lexer<'a> {
    source: &'a str,
    at: usize,
    line: u32,
    tokens: Vec<Located>,
    /// Whether what was read last ended with a newline.
    line_starts: bool,
}

impl<'a> Lexer<'a> {
    fn run(&mut self) -> Result<(), Fault> {
        loop {
            let rest = self.rest();
            let opener = rest.match_indices('{').find_map(|(start, _)| {
                let kind = rest[start + 1..].chars().next()?;
                matches!(kind, '{' | '%' | '#').then_some((start, kind))
            });
            let Some((start, kind)) = opener else {
                self.data(rest.len(), rest.len());
                return Ok(());
            };
            let data = &rest[..start];
            let kept = match rest[start + 2..].chars().next() {
                Some('-') => data.trim_end().len(),
                Some('+') => start,
                _ if kind == '{' => start,
                _ => self.without_indent(data),
            };
            self.data(kept, start);
            self.advance(2);
            if self.rest().starts_with(['-', '+']) {
                self.advance(1);
            }
            match kind {
                '#' => self.comment()?,
                '%' if self.raw()? => {}
                _ => self.tag(kind)?,
            }
        }
    }

    fn rest(&self) -> &'a str {
        &self.source[self.at..]
    }

    fn push(&mut self, token: Token) {
        self.tokens.push(Located { token, line: self.line });
    }

    fn advance(&mut self, bytes: usize) {
        let passed = &self.rest()[..bytes];
        self.line += passed.matches('\n').count() as u32;
        self.at += bytes;
    }

    /// Data of which the first `kept` bytes stay.
    fn data(&mut self, kept: usize, bytes: usize) {
        if kept > 0 {
            self.push(Token::Data(self.rest()[..kept].to_owned()));
        }
        self.advance(bytes);
    }

    /// The length of data before a tag without the blanks that begin the tag's line.
    fn without_indent(&self, data: &str) -> usize {
        let start = data.rfind('\n').map_or(0, |newline| newline + 1);
        let alone = start > 0 || self.line_starts;
        if alone && data[start..].chars().all(char::is_whitespace) { start } else { data.len() }
    }

    /// Reads the end of a tag, `bytes` long, and the white space that it takes with it.
    fn close(&mut self, sign: Option<char>, bytes: usize, newline: bool) {
        let after = &self.rest()[bytes..];
        let taken = match sign {
            Some('-') => after.len() - after.trim_start().len(),
            Some(_) => 0,
            None => usize::from(newline && after.starts_with('\n')),
        };
        self.line_starts = after[..taken].ends_with('\n');
        self.advance(bytes + taken);
    }

    fn comment(&mut self) -> Result<(), Fault> {
        let rest = self.rest();
        let end = rest.find("#}").ok_or_else(|| Fault::failed("a comment does not end"))?;
        let sign = rest[..end].chars().next_back().filter(|sign| matches!(sign, '-' | '+'));
        self.advance(end);
        self.close(sign, 2, true);
        Ok(())
    }

    /// A whole `{% raw %}` block, if this tag begins one.
    fn raw(&mut self) -> Result<bool, Fault> {
        let Some((sign, length)) = named_tag(self.rest(), "raw") else { return Ok(false) };
        self.close(sign, length, true);
        let rest = self.rest();
        let end = rest.match_indices("{%").find_map(|(start, _)| {
            let tag = &rest[start + 2..];
            let open = tag.chars().next().filter(|sign| matches!(sign, '-' | '+'));
            let inside = &tag[usize::from(open.is_some())..];
            let (close, length) = named_tag(inside, "endraw")?;
            Some((start, open, close, 2 + usize::from(open.is_some()), length))
        });
        let Some((start, open, close, begin, length)) = end else {
            return Err(Fault::failed("a raw block does not end"));
        };
        let data = &rest[..start];
        let kept = match open {
            Some('-') => data.trim_end().len(),
            Some(_) => start,
            None => self.without_indent(data),
        };
        self.data(kept, start);
        self.advance(begin);
        self.close(close, length, true);
        Ok(true)
    }

    fn tag(&mut self, kind: char) -> Result<(), Fault> {
        let (begin, end, closing) = match kind {
            '{' => (Token::PrintBegin, Token::PrintEnd, "}}"),
            _ => (Token::TagBegin, Token::TagEnd, "%}"),
        };
        self.push(begin);
        let mut open: Vec<&str> = Vec::new();
        loop {
            let blanks = self.rest().len() - self.rest().trim_start().len();
            self.advance(blanks);
            let rest = self.rest();
            if open.is_empty() {
                let sign = rest.chars().next().filter(|sign| matches!(sign, '-' | '+'));
                let skip = usize::from(sign.is_some());
                if rest[skip..].starts_with(closing) {
                    self.push(end);
                    self.close(sign, skip + 2, kind == '%');
                    return Ok(());
                }
            }
            let token = self.token()?;
            if let Token::Operator(operator) = token {
                match operator {
                    "(" | "[" | "{" => open.push(operator),
                    ")" | "]" | "}" => {
                        let pairs = [("(", ")"), ("[", "]"), ("{", "}")];
                        if !open.pop().is_some_and(|open| pairs.contains(&(open, operator))) {
                            return Err(Fault::failed(format!("unexpected '{operator}'")));
                        }
                    }
                    _ => {}
                }
            }
            self.push(token);
        }
    }

    fn token(&mut self) -> Result<Token, Fault> {
        let rest = self.rest();
        let first = rest.chars().next().ok_or_else(|| Fault::failed("a tag does not end"))?;
        let word = |more: fn(char) -> bool| rest.find(|c| !more(c)).unwrap_or(rest.len());
        if first.is_alphabetic() || first == '_' {
            let length = word(|c| c.is_alphanumeric() || c == '_');
            if length > LONGEST_NAME {
                return Err(Fault::failed(format!("a name of {length} bytes")));
            }
            self.advance(length);
            return Ok(Token::Name(rest[..length].to_owned()));
        }
        if first.is_ascii_digit() {
            return self.number();
        }
        if first == '"' || first == '\'' {
            return self.string(first);
        }
        match OPERATORS.iter().find(|operator| rest.starts_with(**operator)) {
            Some(operator) => {
                self.advance(operator.len());
                Ok(Token::Operator(operator))
            }
            None => Err(Fault::failed(format!("unexpected character {first:?}"))),
        }
    }

    fn number(&mut self) -> Result<Token, Fault> {
        let rest = self.rest();
        let digits =
            |text: &str| text.find(|c: char| !c.is_ascii_digit() && c != '_').unwrap_or(text.len());
        let mut length = digits(rest);
        let mut float = false;
        // In `a.0.1` these are two items.
        let item = matches!(self.tokens.last(), Some(last) if last.token == Token::Operator("."));
        let after = |at: usize| rest[at..].starts_with(|c: char| c.is_ascii_digit());
        if !item && rest[length..].starts_with('.') && after(length + 1) {
            length += 1 + digits(&rest[length + 1..]);
            float = true;
        }
        if !item && rest[length..].starts_with(['e', 'E']) {
            let sign = usize::from(rest[length + 1..].starts_with(['+', '-']));
            if after(length + 1 + sign) {
                length += 1 + sign + digits(&rest[length + 1 + sign..]);
                float = true;
            }
        }
        let text = rest[..length].replace('_', "");
        self.advance(length);
        let parsed = match float {
            true => text.parse().ok().map(Token::Float),
            false => text.parse().ok().map(Token::Int),
        };
        parsed.ok_or_else(|| Fault::failed(format!("the number {text:.40} is too large")))
    }

    fn string(&mut self, quote: char) -> Result<Token, Fault> {
        let rest = self.rest();
        let mut text = String::new();
        let mut characters = rest.char_indices().skip(1);
        while let Some((at, character)) = characters.next() {
            if character == quote {
                self.advance(at + 1);
                return Ok(Token::Text(text));
            }
            if character != '\\' {
                text.push(character);
                continue;
            }
            let Some((_, escaped)) = characters.next() else { break };
            let simple = "n\nt\tr\r\\\\''\"\"0\0a\u{7}b\u{8}f\u{c}v\u{b}";
            let known = simple.chars().step_by(2).zip(simple.chars().skip(1).step_by(2));
            let width = match escaped {
                'x' => 2,
                'u' => 4,
                'U' => 8,
                _ => 0,
            };
            if width > 0 {
                let digits: String = characters.by_ref().take(width).map(|(_, c)| c).collect();
                let code = u32::from_str_radix(&digits, 16).ok().and_then(char::from_u32);
                let code = code.filter(|_| digits.len() == width);
                text.push(code.ok_or_else(|| Fault::failed("a string has a bad escape"))?);
            } else if let Some((_, meant)) = { known }.find(|(letter, _)| *letter == escaped) {
                text.push(meant);
            } else if escaped != '\n' {
                text.extend(['\\', escaped]);
            }
        }
        Err(Fault::failed("a string does not end"))
    }
}

/// The sign and length of a tag's rest, if its only word is this one: ` raw -%}`.
fn named_tag(text: &str, word: &str) -> Option<(Option<char>, usize)> {
    let after = text.trim_start().strip_prefix(word)?.trim_start();
    let sign = after.chars().next().filter(|sign| matches!(sign, '-' | '+'));
    let rest = after[usize::from(sign.is_some())..].strip_prefix("%}")?;
    Some((sign, text.len() - rest.len()))
}
