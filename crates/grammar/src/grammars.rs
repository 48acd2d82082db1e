//! What requests ask for, turned into constraints.

use crate::calls::Specials;
use crate::compiler::{Compiler, Deadline};
use crate::constraint::{GrammarConstraint, failure};
use crate::schema::{Normalised, SchemaStrictness, Sizes, normalise};
use crate::vocabulary::factory;
use crate::{GrammarError, ToolSchema, calls, lark};
use llguidance::Matcher;
use llguidance::api::{GrammarWithLexer, TopLevelGrammar};
use pianola_engine::Constraint;
use pianola_text::CallSyntax;
use pianola_text::Tokenizer;
use serde_json::Value;
use std::sync::Arc;

/// The schema of an answer that is no call.
#[derive(Clone, Copy, Debug)]
pub struct JsonAnswer<'a> {
    /// A JSON schema.
    pub schema: &'a Value,
    /// What happens to keywords that cannot be enforced.
    pub strictness: SchemaStrictness,
}

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
        self.compile_json(JsonAnswer { schema, strictness }, Deadline::of_new_request())
    }

    /// A text of a grammar in Lark's notation, as llguidance reads it: its first rule is `start`.
    pub fn lark(&self, grammar: &str) -> Result<Box<dyn Constraint>, GrammarError> {
        lark::check(grammar)?;
        let top = TopLevelGrammar::from_lark(grammar.to_string());
        self.compile(lark::RULES, top, Deadline::of_new_request()).map_err(lark::located)
    }

    /// At least one call of the tools, and with `parallel` any number, as the model's family writes
    /// them. The strictness of each tool says what happens to keywords that cannot be enforced.
    pub fn tool_calls(
        &self,
        syntax: &CallSyntax,
        tools: &[ToolSchema<'_>],
        parallel: bool,
    ) -> Result<Box<dyn Constraint>, GrammarError> {
        let frame = calls::frame(&self.specials, syntax, tools, parallel)?;
        self.compile_calls(&format!("start: calls\n{frame}"), tools, None)
    }

    /// Either calls as [`tool_calls`](Grammars::tool_calls) has them, or JSON by a schema. The syntax
    /// must begin with a marker that no JSON begins with.
    pub fn tool_calls_or_json(
        &self,
        syntax: &CallSyntax,
        tools: &[ToolSchema<'_>],
        parallel: bool,
        answer: JsonAnswer<'_>,
    ) -> Result<Box<dyn Constraint>, GrammarError> {
        let frame = calls::frame(&self.specials, syntax, tools, parallel)?;
        let start = format!("start: calls | @{}\n{frame}", calls::ANSWER);
        self.compile_calls(&start, tools, Some(answer))
    }

    /// Whether the schemas of strict tools can be enforced in full. Others are not looked at.
    pub fn check_strict(&self, tools: &[ToolSchema<'_>]) -> Result<(), GrammarError> {
        self.compile_strict(tools, Deadline::of_new_request())
    }

    /// Compiles the schema of each strict tool alone.
    fn compile_strict(
        &self,
        tools: &[ToolSchema<'_>],
        deadline: Deadline,
    ) -> Result<(), GrammarError> {
        let mut sizes = Sizes::default();
        let mut schemas = Vec::new();
        for tool in tools.iter().filter(|tool| tool.strictness == SchemaStrictness::Strict) {
            let schema = normalise(tool.parameters, tool.strictness, &mut sizes)
                .map_err(|error| error.of_tool(tool.name))?;
            schemas.push((tool.name, schema));
        }
        for (name, schema) in schemas {
            self.compile_schema(schema, deadline).map_err(|error| error.of_tool(name))?;
        }
        Ok(())
    }

    fn compile_json(
        &self,
        answer: JsonAnswer<'_>,
        deadline: Deadline,
    ) -> Result<Box<dyn Constraint>, GrammarError> {
        with_fallback([answer.strictness], |fallback| {
            let strictness = answer.strictness.with(fallback);
            let schema = normalise(answer.schema, strictness, &mut Sizes::default())?;
            self.compile_schema(schema, deadline)
        })
    }

    fn compile_schema(
        &self,
        schema: Normalised,
        deadline: Deadline,
    ) -> Result<Box<dyn Constraint>, GrammarError> {
        let names = schema.names;
        let grammar = TopLevelGrammar::from_json_schema(schema.value);
        self.compile("JSON schema", grammar, deadline).map_err(|error| names.restore(error))
    }

    fn compile_calls(
        &self,
        lark: &str,
        tools: &[ToolSchema<'_>],
        answer: Option<JsonAnswer<'_>>,
    ) -> Result<Box<dyn Constraint>, GrammarError> {
        if tools.is_empty() {
            return Err(GrammarError::NoTools);
        }
        let deadline = Deadline::of_new_request();
        let named = |schema: Normalised, name: String| {
            let mut grammar = GrammarWithLexer::from_json_schema(schema.value);
            grammar.name = Some(name);
            grammar
        };
        let strictness = tools.iter().map(|tool| tool.strictness);
        let all = strictness.chain(answer.iter().map(|answer| answer.strictness));
        let compiled = with_fallback(all, |fallback| {
            let mut sizes = Sizes::default();
            let mut grammars = vec![GrammarWithLexer::from_lark(lark.to_string())];
            for (index, tool) in tools.iter().enumerate() {
                let strictness = tool.strictness.with(fallback);
                let schema = normalise(tool.parameters, strictness, &mut sizes)
                    .map_err(|error| error.of_tool(tool.name))?;
                grammars.push(named(schema, calls::parameters_name(index)));
            }
            if let Some(answer) = answer {
                let strictness = answer.strictness.with(fallback);
                let schema = normalise(answer.schema, strictness, &mut sizes)
                    .map_err(GrammarError::of_answer)?;
                grammars.push(named(schema, calls::ANSWER.to_string()));
            }
            let all = TopLevelGrammar { grammars, max_tokens: None };
            self.compile("tool definitions", all, deadline)
        });
        compiled.map_err(|error| match error {
            GrammarError::Refused { .. } => self.blame(tools, answer, deadline).unwrap_or(error),
            error => error,
        })
    }

    /// The error of the schema at fault where all together were refused: alone, it is refused in its
    /// own terms. None if each alone compiles, or if the time is up.
    fn blame(
        &self,
        tools: &[ToolSchema<'_>],
        answer: Option<JsonAnswer<'_>>,
        deadline: Deadline,
    ) -> Option<GrammarError> {
        let alone = self.compile_strict(tools, deadline).and_then(|()| match answer {
            Some(answer) => match self.compile_json(answer, deadline) {
                Ok(_) => Ok(()),
                Err(error) => Err(error.of_answer()),
            },
            None => Ok(()),
        });
        let is_blamed = |error: &GrammarError| {
            matches!(error, GrammarError::Tool { .. } | GrammarError::Answer { .. })
        };
        alone.err().filter(is_blamed)
    }

    fn compile(
        &self,
        what: &'static str,
        grammar: TopLevelGrammar,
        deadline: Deadline,
    ) -> Result<Box<dyn Constraint>, GrammarError> {
        let parser = self.compiler.compile(what, grammar, deadline)?;
        let mut parser = Matcher::new(Ok(parser));
        // A grammar that allows nothing at all would fail with the first token.
        if parser.compute_mask().is_err() {
            return Err(GrammarError::Refused { what, reason: failure(&parser) });
        }
        Ok(Box::new(GrammarConstraint::new(parser, Arc::clone(&self.ends))))
    }
}

/// Compiles, and once more with the structure of the relaxed schemas alone where the first attempt is
/// refused. The argument of `compile` says whether it is the second attempt.
fn with_fallback<T>(
    strictness: impl IntoIterator<Item = SchemaStrictness>,
    compile: impl Fn(bool) -> Result<T, GrammarError>,
) -> Result<T, GrammarError> {
    let relaxed = strictness.into_iter().any(|one| one == SchemaStrictness::Relaxed);
    match compile(false) {
        Err(GrammarError::Refused { .. }) if relaxed => compile(true),
        result => result,
    }
}
