//! From tokens to a program: statements. Expressions are in `parse_expression.rs`.

use std::sync::Arc;

use super::ast::{Block, CallArguments, For, Line, Macro, Parameter, Statement, Suffix, Target};
use super::fault::{Fault, Limit};
use super::lex::{Located, Token};
use super::parse_expression::{MOST_ARGUMENTS, too_many_arguments};

/// Parentheses, brackets and blocks inside one another.
const DEEPEST: usize = 100;

pub(super) fn parse(tokens: Vec<Located>) -> Result<Block, Fault> {
    let mut parser = Parser { tokens, at: 0, depth: 0, loops: 0 };
    let parsed = parser.block(&[]);
    let line = parser.line();
    parsed.map(|(block, _)| block).map_err(|fault| fault.at(line))
}

pub(super) struct Parser {
    tokens: Vec<Located>,
    at: usize,
    depth: usize,
    /// Loops around, which `break` and `continue` need.
    loops: usize,
}

impl Parser {
    pub(super) fn peek(&self) -> &Token {
        &self.tokens[self.at].token
    }

    pub(super) fn line(&self) -> u32 {
        self.tokens[self.at].line
    }

    /// The next token; the last, which says so, stays.
    pub(super) fn next(&mut self) -> Token {
        if self.at + 1 == self.tokens.len() {
            return Token::End;
        }
        self.at += 1;
        std::mem::replace(&mut self.tokens[self.at - 1].token, Token::End)
    }

    /// Passes an operator, if it is next.
    pub(super) fn operator(&mut self, operator: &str) -> bool {
        let found = matches!(self.peek(), Token::Operator(next) if *next == operator);
        self.at += usize::from(found);
        found
    }

    /// Passes a word, if it is next.
    pub(super) fn word(&mut self, word: &str) -> bool {
        let found = self.is_word(word);
        self.at += usize::from(found);
        found
    }

    pub(super) fn is_word(&self, word: &str) -> bool {
        matches!(self.peek(), Token::Name(name) if name == word)
    }

    pub(super) fn expect(&mut self, operator: &str) -> Result<(), Fault> {
        if self.operator(operator) {
            Ok(())
        } else {
            Err(self.unexpected(&format!("'{operator}'")))
        }
    }

    pub(super) fn name(&mut self) -> Result<Arc<str>, Fault> {
        match self.peek() {
            Token::Name(_) => match self.next() {
                Token::Name(name) => Ok(name.into()),
                _ => Err(self.unexpected("a name")),
            },
            _ => Err(self.unexpected("a name")),
        }
    }

    pub(super) fn unexpected(&self, wanted: &str) -> Fault {
        let found = match self.peek() {
            Token::End => "the end of the template".to_owned(),
            Token::TagEnd => "'%}'".to_owned(),
            Token::PrintEnd => "'}}'".to_owned(),
            Token::Operator(operator) => format!("'{operator}'"),
            Token::Name(name) => format!("'{name:.40}'"),
            Token::Text(_) => "a string".to_owned(),
            Token::Int(_) | Token::Float(_) => "a number".to_owned(),
            Token::Data(_) | Token::PrintBegin | Token::TagBegin => "the end of a tag".to_owned(),
        };
        Fault::failed(format!("expected {wanted}, found {found}"))
    }

    /// Parses something one level deeper.
    pub(super) fn deeper<T>(
        &mut self,
        parse: impl FnOnce(&mut Parser) -> Result<T, Fault>,
    ) -> Result<T, Fault> {
        if self.depth == DEEPEST {
            return Err(Fault::limit(Limit::Depth));
        }
        self.depth += 1;
        let parsed = parse(self);
        self.depth -= 1;
        parsed
    }

    /// Statements up to a tag with one of these words, which is passed and returned; up to the end
    /// if there are none.
    fn block(&mut self, ends: &[&'static str]) -> Result<(Block, &'static str), Fault> {
        self.deeper(|parser| parser.statements(ends))
    }

    fn statements(&mut self, ends: &[&'static str]) -> Result<(Block, &'static str), Fault> {
        let mut block = Vec::new();
        loop {
            let line = self.line();
            let statement = match self.next() {
                Token::Data(text) => Statement::Text(text.into()),
                Token::PrintBegin => {
                    let value = self.tuple()?;
                    self.end(&Token::PrintEnd, "'}}'")?;
                    Statement::Print(value)
                }
                Token::TagBegin => {
                    if let Some(end) = ends.iter().find(|end| self.is_word(end)) {
                        self.at += 1;
                        return Ok((block, end));
                    }
                    self.statement()?
                }
                Token::End if ends.is_empty() => return Ok((block, "")),
                _ => {
                    let ends = ends.join("' or '");
                    return Err(Fault::failed(format!("a block is not closed by '{ends}'")));
                }
            };
            block.push(Line { line, statement });
        }
    }

    fn end(&mut self, end: &Token, words: &str) -> Result<(), Fault> {
        if self.peek() != end {
            return Err(self.unexpected(words));
        }
        self.at += 1;
        Ok(())
    }

    fn tag_end(&mut self) -> Result<(), Fault> {
        self.end(&Token::TagEnd, "'%}'")
    }

    /// A body up to `{% word %}`.
    fn body(&mut self, word: &'static str) -> Result<Block, Fault> {
        self.tag_end()?;
        let (body, _) = self.block(&[word])?;
        // Some repeat their name.
        if matches!(word, "endmacro" | "endblock") && matches!(self.peek(), Token::Name(_)) {
            self.at += 1;
        }
        self.tag_end()?;
        Ok(body)
    }

    /// A tag behind its `{%`.
    fn statement(&mut self) -> Result<Statement, Fault> {
        let word = self.name()?;
        match &*word {
            "for" => self.for_loop(),
            "if" => self.condition(),
            "set" => self.set(),
            "macro" => {
                let name = self.name()?;
                let parameters = self.parameters()?;
                let definition = self.outside_loops(|parser| parser.body("endmacro"))?;
                Ok(Statement::Macro(Arc::new(Macro { name, parameters, body: definition })))
            }
            "call" => {
                let with = matches!(self.peek(), Token::Operator("("));
                let parameters = if with { self.parameters()? } else { Vec::new() };
                let callee = self.expression()?;
                let body = self.outside_loops(|parser| parser.body("endcall"))?;
                let caller = Arc::new(Macro { name: "caller".into(), parameters, body });
                Ok(Statement::Call { callee, caller })
            }
            "filter" => {
                let mut filters = vec![self.filter()?];
                while self.operator("|") {
                    filters.push(self.filter()?);
                }
                Ok(Statement::Filter { filters, body: self.body("endfilter")? })
            }
            "with" => {
                let mut assignments = Vec::new();
                while *self.peek() != Token::TagEnd {
                    if !assignments.is_empty() {
                        self.expect(",")?;
                    }
                    let target = self.target()?;
                    self.expect("=")?;
                    assignments.push((target, self.expression()?));
                }
                Ok(Statement::With { assignments, body: self.body("endwith")? })
            }
            // Tells a trainer which text is the assistant's; here it is text like the rest.
            "generation" => {
                let body = self.body("endgeneration")?;
                Ok(Statement::With { assignments: Vec::new(), body })
            }
            "break" | "continue" if self.loops > 0 => {
                self.tag_end()?;
                Ok(if &*word == "break" { Statement::Break } else { Statement::Continue })
            }
            "break" | "continue" => Err(Fault::failed(format!("'{word}' outside of a loop"))),
            // A block that no other template can replace.
            "block" => {
                self.name()?;
                let body = self.body("endblock")?;
                Ok(Statement::With { assignments: Vec::new(), body })
            }
            _ => Err(Fault::failed(format!("the tag '{word:.40}' is unknown, or ends no block"))),
        }
    }

    /// Loops do not reach into macros.
    fn outside_loops<T>(
        &mut self,
        parse: impl FnOnce(&mut Parser) -> Result<T, Fault>,
    ) -> Result<T, Fault> {
        let loops = std::mem::take(&mut self.loops);
        let parsed = parse(self);
        self.loops = loops;
        parsed
    }

    fn for_loop(&mut self) -> Result<Statement, Fault> {
        let target = self.target()?;
        if !self.word("in") {
            return Err(self.unexpected("'in'"));
        }
        let items = self.tuple_without_condition()?;
        let condition = if self.word("if") { Some(self.expression()?) } else { None };
        let recursive = self.word("recursive");
        self.tag_end()?;
        self.loops += 1;
        let (body, end) = self.block(&["endfor", "else"])?;
        self.loops -= 1;
        let otherwise = match end {
            "else" => self.body("endfor")?,
            _ => {
                self.tag_end()?;
                Vec::new()
            }
        };
        let definition = For { target, items, condition, recursive, body, otherwise };
        Ok(Statement::For(Arc::new(definition)))
    }

    fn condition(&mut self) -> Result<Statement, Fault> {
        let mut arms = Vec::new();
        loop {
            let condition = self.tuple()?;
            self.tag_end()?;
            let (body, end) = self.block(&["elif", "else", "endif"])?;
            arms.push((condition, body));
            match end {
                "elif" => {}
                "else" => {
                    let otherwise = self.body("endif")?;
                    return Ok(Statement::If { arms, otherwise });
                }
                _ => {
                    self.tag_end()?;
                    return Ok(Statement::If { arms, otherwise: Vec::new() });
                }
            }
        }
    }

    fn set(&mut self) -> Result<Statement, Fault> {
        let target = self.target()?;
        if self.operator("=") {
            let value = self.tuple()?;
            self.tag_end()?;
            return Ok(Statement::Set { target, value });
        }
        let mut filters = Vec::new();
        while self.operator("|") {
            filters.push(self.filter()?);
        }
        Ok(Statement::SetBlock { target, filters, body: self.body("endset")? })
    }

    pub(super) fn filter(&mut self) -> Result<Suffix, Fault> {
        let name = self.name()?;
        let called = matches!(self.peek(), Token::Operator("("));
        let arguments = if called { self.arguments()? } else { CallArguments::default() };
        Ok(Suffix::Filter(name, arguments))
    }

    /// One name, or several separated by commas, with or without parentheses.
    fn target(&mut self) -> Result<Target, Fault> {
        let mut targets = Vec::new();
        loop {
            targets.push(match self.operator("(") {
                true => {
                    let inner = self.deeper(Parser::target)?;
                    self.expect(")")?;
                    inner
                }
                false => {
                    let name = self.name()?;
                    match self.operator(".") {
                        true => Target::Attribute(name, self.name()?),
                        false => Target::Name(name),
                    }
                }
            });
            if !self.operator(",") {
                break;
            }
        }
        match targets.len() {
            1 => targets.pop().ok_or_else(|| self.unexpected("a name")),
            _ => Ok(Target::Tuple(targets)),
        }
    }

    fn parameters(&mut self) -> Result<Vec<Parameter>, Fault> {
        self.expect("(")?;
        let mut parameters = Vec::new();
        while !self.operator(")") {
            if parameters.len() == MOST_ARGUMENTS {
                return Err(too_many_arguments());
            }
            if !parameters.is_empty() {
                self.expect(",")?;
                if self.operator(")") {
                    break;
                }
            }
            let name = self.name()?;
            let default = if self.operator("=") { Some(self.expression()?) } else { None };
            parameters.push((name, default));
        }
        Ok(parameters)
    }
}
