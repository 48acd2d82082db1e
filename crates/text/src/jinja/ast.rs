//! The program of a template. Operators and suffixes that follow one another stand in lists, so
//! that a tree is only as deep as its parentheses and blocks.

use std::sync::Arc;

pub(super) type Block = Vec<Line>;

/// A statement and where it stands.
#[derive(Debug)]
pub(super) struct Line {
    pub(super) line: u32,
    pub(super) statement: Statement,
}

#[derive(Debug)]
pub(super) enum Statement {
    Text(Arc<str>),
    Print(Expression),
    For(Arc<For>),
    If {
        arms: Vec<(Expression, Block)>,
        otherwise: Block,
    },
    Set {
        target: Target,
        value: Expression,
    },
    SetBlock {
        target: Target,
        filters: Vec<Suffix>,
        body: Block,
    },
    Macro(Arc<Macro>),
    /// `{% call(…) f(…) %}`: calls `f` with the body as the macro `caller`.
    Call {
        callee: Expression,
        caller: Arc<Macro>,
    },
    Filter {
        filters: Vec<Suffix>,
        body: Block,
    },
    With {
        assignments: Vec<(Target, Expression)>,
        body: Block,
    },
    Break,
    Continue,
}

#[derive(Debug)]
pub(super) struct For {
    pub(super) target: Target,
    pub(super) items: Expression,
    pub(super) condition: Option<Expression>,
    pub(super) recursive: bool,
    pub(super) body: Block,
    pub(super) otherwise: Block,
}

#[derive(Debug)]
pub(super) struct Macro {
    pub(super) name: Arc<str>,
    pub(super) parameters: Vec<Parameter>,
    pub(super) body: Block,
}

/// The name of a parameter, and its default.
pub(super) type Parameter = (Arc<str>, Option<Expression>);

/// What is assigned to.
#[derive(Debug)]
pub(super) enum Target {
    Name(Arc<str>),
    /// `namespace.name`
    Attribute(Arc<str>, Arc<str>),
    Tuple(Vec<Target>),
}

#[derive(Debug)]
pub(super) enum Expression {
    None,
    Bool(bool),
    Int(i64),
    Float(f64),
    Text(Arc<str>),
    Name(Arc<str>),
    List(Vec<Expression>),
    Tuple(Vec<Expression>),
    Map(Vec<(Expression, Expression)>),
    Not(Box<Expression>),
    Negative(Box<Expression>),
    Positive(Box<Expression>),
    And(Vec<Expression>),
    Or(Vec<Expression>),
    /// `a < b < c`: all of them hold.
    Compare(Box<Expression>, Vec<(Comparison, Expression)>),
    /// Operators of one rank, from left to right.
    Arithmetic(Box<Expression>, Vec<(Operator, Expression)>),
    /// `a ~ b ~ c`
    Concatenation(Vec<Expression>),
    If(Box<Conditional>),
    Suffixed(Box<Expression>, Vec<Suffix>),
}

#[derive(Debug)]
pub(super) struct Conditional {
    pub(super) condition: Expression,
    pub(super) then: Expression,
    pub(super) otherwise: Option<Expression>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Comparison {
    Equal,
    Unequal,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
    In,
    NotIn,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operator {
    Add,
    Subtract,
    Multiply,
    Divide,
    FloorDivide,
    Modulo,
    Power,
}

#[derive(Debug)]
pub(super) enum Suffix {
    Attribute(Arc<str>),
    Item(Expression),
    /// `[start:stop:step]`
    Slice(Box<[Option<Expression>; 3]>),
    Call(CallArguments),
    Filter(Arc<str>, CallArguments),
    Test {
        name: Arc<str>,
        negated: bool,
        arguments: CallArguments,
    },
}

#[derive(Debug, Default)]
pub(super) struct CallArguments {
    pub(super) positional: Vec<Expression>,
    pub(super) named: Vec<(Arc<str>, Expression)>,
}
