//! What requests ask for, turned into constraints.

use crate::calls::Specials;
use crate::compiler::Compiler;
use crate::constraint::{GrammarConstraint, failure};
use crate::schema::{SchemaStrictness, normalise};
use crate::text::{check_nesting, literal};
use crate::vocabulary::factory;
use crate::{GrammarError, ToolSchema, calls};
use llguidance::Matcher;
use llguidance::api::{GrammarWithLexer, TopLevelGrammar};
use pianola_engine::Constraint;
use pianola_text::CallSyntax;
use pianola_text::Tokenizer;
use serde_json::{Value, json};
use std::sync::Arc;

/// Bytes of a regular expression, of a grammar, or of all choices together.
const MAX_TEXT: usize = 64 << 10;

/// Grammars over one model's vocabulary. Cheap to clone.
///
/// A constraint is compiled for each call, in about a millisecond for a schema of usual size. Of one
/// that several requests share, [`Constraint::clone_box`] makes a copy, which also shares what its
/// lexer has learnt.
#[derive(Clone)]
pub struct Grammars {
    compiler: Compiler,
    specials: Arc<Specials>,
    ends: Arc<[u32]>,
}

impl Grammars {
    /// Grammars over a tokeniser's tokens. `vocabulary` is the number of the model's logits; rows
    /// behind the tokeniser's are padding, and never allowed. Takes a second for 262,000 tokens.
    pub fn new(tokenizer: &Tokenizer, vocabulary: usize) -> Result<Grammars, GrammarError> {
        let (factory, ends) = factory(tokenizer, vocabulary)?;
        Ok(Grammars {
            compiler: Compiler::new(factory),
            specials: Arc::new(Specials::new(tokenizer)),
            ends: ends.into(),
        })
    }

    /// Any JSON object.
    pub fn json_object(&self) -> Result<Box<dyn Constraint>, GrammarError> {
        self.json_schema(&json!({ "type": "object" }))
    }

    /// JSON that is valid by the schema. What cannot be enforced is an error.
    pub fn json_schema(&self, schema: &Value) -> Result<Box<dyn Constraint>, GrammarError> {
        self.json_schema_with(schema, SchemaStrictness::Strict)
    }

    /// JSON by a schema, with a choice of what happens to keywords that cannot be enforced.
    pub fn json_schema_with(
        &self,
        schema: &Value,
        strictness: SchemaStrictness,
    ) -> Result<Box<dyn Constraint>, GrammarError> {
        let compile = |strictness| {
            let schema = normalise(schema, strictness)?;
            let name = schema.names;
            let grammar = TopLevelGrammar::from_json_schema(schema.value);
            self.compile("JSON schema", grammar).map_err(|error| name.restore(error))
        };
        or_structure(compile(strictness), strictness, compile)
    }

    /// At least one call of the tools, and with `parallel` any number, as the model's family writes
    /// them. Of parameters, keywords that cannot be enforced are relaxed.
    pub fn tool_calls(
        &self,
        syntax: &CallSyntax,
        tools: &[ToolSchema<'_>],
        parallel: bool,
    ) -> Result<Box<dyn Constraint>, GrammarError> {
        if tools.is_empty() {
            return Err(GrammarError::Empty { what: "list of tools" });
        }
        let frame = calls::frame(&self.specials, syntax, tools, parallel)?;
        let compile = |strictness| {
            let mut grammars = vec![GrammarWithLexer::from_lark(frame.clone())];
            for (index, tool) in tools.iter().enumerate() {
                let schema = normalise(tool.parameters, strictness)
                    .map_err(|error| calls::of_tool(error, tool.name))?;
                let mut grammar = GrammarWithLexer::from_json_schema(schema.value);
                grammar.name = Some(calls::parameters_name(index));
                grammars.push(grammar);
            }
            self.compile("tool definitions", TopLevelGrammar { grammars, max_tokens: None })
        };
        or_structure(compile(SchemaStrictness::Relaxed), SchemaStrictness::Relaxed, compile)
    }

    /// Text that matches the regular expression from its first character to its last. The syntax is
    /// that of Rust's `regex` crate, without assertions.
    pub fn regex(&self, pattern: &str) -> Result<Box<dyn Constraint>, GrammarError> {
        check_size("regular expression", pattern.len())?;
        self.compile("regular expression", TopLevelGrammar::from_regex(pattern))
    }

    /// One of the texts.
    pub fn choice(&self, choices: &[String]) -> Result<Box<dyn Constraint>, GrammarError> {
        const WHAT: &str = "list of choices";
        if choices.iter().all(String::is_empty) {
            return Err(GrammarError::Empty { what: WHAT });
        }
        check_size(WHAT, choices.iter().map(String::len).sum())?;
        let choices: Vec<String> = choices.iter().map(|choice| literal(choice)).collect();
        let grammar = format!("start: CHOICE\nCHOICE: {}\n", choices.join(" | "));
        self.compile(WHAT, TopLevelGrammar::from_lark(grammar))
    }

    /// Text of a context-free grammar, in llguidance's variant of Lark's syntax.
    pub fn lark(&self, grammar: &str) -> Result<Box<dyn Constraint>, GrammarError> {
        check_size("grammar", grammar.len())?;
        check_nesting(grammar)?;
        self.compile("grammar", TopLevelGrammar::from_lark(grammar.to_string()))
    }

    fn compile(
        &self,
        what: &'static str,
        grammar: TopLevelGrammar,
    ) -> Result<Box<dyn Constraint>, GrammarError> {
        let parser = self.compiler.compile(what, grammar)?;
        let mut parser = Matcher::new(Ok(parser));
        // A grammar that allows nothing at all would fail with the first token.
        if parser.compute_mask().is_err() {
            return Err(GrammarError::Refused { what, reason: failure(&parser) });
        }
        Ok(Box::new(GrammarConstraint::new(parser, Arc::clone(&self.ends))))
    }
}

/// Where a relaxed schema is refused all the same, its structure alone.
fn or_structure<T>(
    result: Result<T, GrammarError>,
    strictness: SchemaStrictness,
    compile: impl FnOnce(SchemaStrictness) -> Result<T, GrammarError>,
) -> Result<T, GrammarError> {
    match (result, strictness) {
        (Err(GrammarError::Refused { .. }), SchemaStrictness::Relaxed) => {
            compile(SchemaStrictness::Structure)
        }
        (result, _) => result,
    }
}

fn check_size(what: &'static str, bytes: usize) -> Result<(), GrammarError> {
    if bytes > MAX_TEXT {
        let found = format!("{bytes} bytes");
        return Err(GrammarError::TooLarge { what, found, limit: MAX_TEXT });
    }
    Ok(())
}
