//! Expressions, by the ranks of Jinja's operators from the weakest on.

use super::ast::{CallArguments, Comparison, Conditional, Expression, Operator, Suffix};
use super::fault::Fault;
use super::lex::Token;
use super::parse::Parser;

/// Of a call or a macro. Each is looked for among all the others.
pub(super) const MOST_ARGUMENTS: usize = 255;

pub(super) fn too_many_arguments() -> Fault {
    Fault::failed(format!("a call or a macro has more than {MOST_ARGUMENTS} arguments"))
}

impl Parser {
    /// An expression, or several separated by commas as a tuple.
    pub(super) fn tuple(&mut self) -> Result<Expression, Fault> {
        self.items(Parser::expression)
    }

    /// The same where a condition that follows is not part of it.
    pub(super) fn tuple_without_condition(&mut self) -> Result<Expression, Fault> {
        self.items(|parser| parser.deeper(Parser::or))
    }

    fn items(
        &mut self,
        item: fn(&mut Parser) -> Result<Expression, Fault>,
    ) -> Result<Expression, Fault> {
        let first = item(self)?;
        if !matches!(self.peek(), Token::Operator(",")) {
            return Ok(first);
        }
        let mut items = vec![first];
        while self.operator(",") {
            if matches!(self.peek(), Token::TagEnd | Token::PrintEnd | Token::Operator(")")) {
                break;
            }
            items.push(item(self)?);
        }
        Ok(Expression::Tuple(items))
    }

    pub(super) fn expression(&mut self) -> Result<Expression, Fault> {
        self.deeper(Parser::conditional)
    }

    fn conditional(&mut self) -> Result<Expression, Fault> {
        let then = self.or()?;
        if !self.word("if") {
            return Ok(then);
        }
        let condition = self.or()?;
        let otherwise = if self.word("else") { Some(self.expression()?) } else { None };
        Ok(Expression::If(Box::new(Conditional { condition, then, otherwise })))
    }

    fn or(&mut self) -> Result<Expression, Fault> {
        let mut parts = vec![self.and()?];
        while self.word("or") {
            parts.push(self.and()?);
        }
        Ok(one_or(parts, Expression::Or))
    }

    fn and(&mut self) -> Result<Expression, Fault> {
        let mut parts = vec![self.not()?];
        while self.word("and") {
            parts.push(self.not()?);
        }
        Ok(one_or(parts, Expression::And))
    }

    fn not(&mut self) -> Result<Expression, Fault> {
        match self.word("not") {
            true => Ok(Expression::Not(Box::new(self.deeper(Parser::not)?))),
            false => self.comparison(),
        }
    }

    fn comparison(&mut self) -> Result<Expression, Fault> {
        let first = self.sum()?;
        let mut others = Vec::new();
        while let Some(comparison) = self.comparison_operator()? {
            others.push((comparison, self.sum()?));
        }
        Ok(match others.is_empty() {
            true => first,
            false => Expression::Compare(Box::new(first), others),
        })
    }

    fn comparison_operator(&mut self) -> Result<Option<Comparison>, Fault> {
        const SIGNS: [(&str, Comparison); 6] = [
            ("==", Comparison::Equal),
            ("!=", Comparison::Unequal),
            ("<=", Comparison::LessOrEqual),
            (">=", Comparison::GreaterOrEqual),
            ("<", Comparison::Less),
            (">", Comparison::Greater),
        ];
        if let Some((_, comparison)) = SIGNS.iter().find(|(sign, _)| self.operator(sign)) {
            return Ok(Some(*comparison));
        }
        if self.word("in") {
            return Ok(Some(Comparison::In));
        }
        if self.word("not") {
            return match self.word("in") {
                true => Ok(Some(Comparison::NotIn)),
                false => Err(self.unexpected("'in'")),
            };
        }
        Ok(None)
    }

    fn sum(&mut self) -> Result<Expression, Fault> {
        let signs = [("+", Operator::Add), ("-", Operator::Subtract)];
        self.chain(&signs, Parser::concatenation)
    }

    fn concatenation(&mut self) -> Result<Expression, Fault> {
        let mut parts = vec![self.product()?];
        while self.operator("~") {
            parts.push(self.product()?);
        }
        Ok(one_or(parts, Expression::Concatenation))
    }

    fn product(&mut self) -> Result<Expression, Fault> {
        let signs = [
            ("*", Operator::Multiply),
            ("//", Operator::FloorDivide),
            ("/", Operator::Divide),
            ("%", Operator::Modulo),
        ];
        self.chain(&signs, Parser::power)
    }

    fn power(&mut self) -> Result<Expression, Fault> {
        self.chain(&[("**", Operator::Power)], |parser| parser.unary(true))
    }

    fn chain(
        &mut self,
        signs: &[(&str, Operator)],
        operand: fn(&mut Parser) -> Result<Expression, Fault>,
    ) -> Result<Expression, Fault> {
        let first = operand(self)?;
        let mut others = Vec::new();
        while let Some((_, operator)) = signs.iter().find(|(sign, _)| self.operator(sign)) {
            others.push((*operator, operand(self)?));
        }
        Ok(match others.is_empty() {
            true => first,
            false => Expression::Arithmetic(Box::new(first), others),
        })
    }

    fn unary(&mut self, with_filters: bool) -> Result<Expression, Fault> {
        let base = if self.operator("-") {
            Expression::Negative(Box::new(self.deeper(|parser| parser.unary(false))?))
        } else if self.operator("+") {
            Expression::Positive(Box::new(self.deeper(|parser| parser.unary(false))?))
        } else {
            self.primary()?
        };
        let mut suffixes = Vec::new();
        while let Some(suffix) = self.suffix(with_filters)? {
            suffixes.push(suffix);
        }
        Ok(match suffixes.is_empty() {
            true => base,
            false => Expression::Suffixed(Box::new(base), suffixes),
        })
    }

    fn suffix(&mut self, with_filters: bool) -> Result<Option<Suffix>, Fault> {
        if self.operator(".") {
            return Ok(Some(match self.peek() {
                Token::Int(index) => {
                    let index = Expression::Int(*index);
                    self.next();
                    Suffix::Item(index)
                }
                _ => Suffix::Attribute(self.name()?),
            }));
        }
        if self.operator("[") {
            return self.deeper(Parser::subscript).map(Some);
        }
        if matches!(self.peek(), Token::Operator("(")) {
            return Ok(Some(Suffix::Call(self.arguments()?)));
        }
        if with_filters && self.operator("|") {
            return self.filter().map(Some);
        }
        if with_filters && self.word("is") {
            return self.test().map(Some);
        }
        Ok(None)
    }

    fn subscript(&mut self) -> Result<Suffix, Fault> {
        let mut parts = [None, None, None];
        let mut part = 0;
        while !self.operator("]") {
            if part < 2 && self.operator(":") {
                part += 1;
            } else if parts[part].is_none() {
                parts[part] = Some(self.expression()?);
            } else {
                return Err(self.unexpected("']'"));
            }
        }
        match (part, parts) {
            (0, [Some(item), ..]) => Ok(Suffix::Item(item)),
            (0, _) => Err(Fault::failed("an index is missing")),
            (_, parts) => Ok(Suffix::Slice(Box::new(parts))),
        }
    }

    fn test(&mut self) -> Result<Suffix, Fault> {
        let negated = self.word("not");
        let name = match self.peek() {
            Token::Operator(sign @ ("==" | "!=" | "<" | "<=" | ">" | ">=")) => {
                let sign = (*sign).into();
                self.next();
                sign
            }
            _ => self.name()?,
        };
        let mut arguments = CallArguments::default();
        match self.peek() {
            Token::Operator("(") => arguments = self.arguments()?,
            Token::Name(word)
                if matches!(
                    &**word,
                    "else" | "or" | "and" | "is" | "if" | "not" | "in" | "recursive"
                ) => {}
            Token::Name(_) | Token::Text(_) | Token::Int(_) | Token::Float(_) => {
                arguments.positional.push(self.unary(false)?);
            }
            Token::Operator("[" | "{") => arguments.positional.push(self.unary(false)?),
            _ => {}
        }
        Ok(Suffix::Test { name, negated, arguments })
    }

    pub(super) fn arguments(&mut self) -> Result<CallArguments, Fault> {
        self.expect("(")?;
        let mut arguments = CallArguments::default();
        let mut first = true;
        while !self.operator(")") {
            if arguments.positional.len() + arguments.named.len() == MOST_ARGUMENTS {
                return Err(too_many_arguments());
            }
            if !first {
                self.expect(",")?;
                if self.operator(")") {
                    break;
                }
            }
            first = false;
            let value = self.expression()?;
            match value {
                Expression::Name(name) if self.operator("=") => {
                    if arguments.named.iter().any(|(other, _)| *other == name) {
                        return Err(Fault::failed(format!(
                            "the argument '{name:.40}' is given twice"
                        )));
                    }
                    arguments.named.push((name, self.expression()?));
                }
                value => arguments.positional.push(value),
            }
        }
        Ok(arguments)
    }

    fn primary(&mut self) -> Result<Expression, Fault> {
        match self.peek() {
            Token::Name(word) if matches!(&**word, "in" | "is" | "if" | "else" | "and" | "or") => {
                return Err(self.unexpected("a value"));
            }
            Token::Name(_) | Token::Text(_) | Token::Int(_) | Token::Float(_) => {}
            Token::Operator("(" | "[" | "{") => {}
            _ => return Err(self.unexpected("a value")),
        }
        Ok(match self.next() {
            Token::Name(name) => match name.as_str() {
                "true" | "True" => Expression::Bool(true),
                "false" | "False" => Expression::Bool(false),
                "none" | "None" => Expression::None,
                _ => Expression::Name(name.into()),
            },
            Token::Text(mut text) => {
                while let Token::Text(more) = self.peek() {
                    text.push_str(more);
                    self.next();
                }
                Expression::Text(text.into())
            }
            Token::Int(value) => Expression::Int(value),
            Token::Float(value) => Expression::Float(value),
            Token::Operator("(") => {
                if self.operator(")") {
                    return Ok(Expression::Tuple(Vec::new()));
                }
                let inner = self.tuple()?;
                self.expect(")")?;
                inner
            }
            Token::Operator("[") => self.list()?,
            _ => self.map()?,
        })
    }

    fn list(&mut self) -> Result<Expression, Fault> {
        let mut items = Vec::new();
        while !self.operator("]") {
            if !items.is_empty() {
                self.expect(",")?;
                if self.operator("]") {
                    break;
                }
            }
            items.push(self.expression()?);
        }
        Ok(Expression::List(items))
    }

    fn map(&mut self) -> Result<Expression, Fault> {
        let mut entries = Vec::new();
        while !self.operator("}") {
            if !entries.is_empty() {
                self.expect(",")?;
                if self.operator("}") {
                    break;
                }
            }
            let key = self.expression()?;
            self.expect(":")?;
            entries.push((key, self.expression()?));
        }
        Ok(Expression::Map(entries))
    }
}

/// The only part itself, or all of them together.
fn one_or(mut parts: Vec<Expression>, all: fn(Vec<Expression>) -> Expression) -> Expression {
    match (parts.len(), parts.pop()) {
        (1, Some(only)) => only,
        (_, last) => {
            parts.extend(last);
            all(parts)
        }
    }
}
