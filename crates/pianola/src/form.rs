//! The form of answers: a JSON schema or a grammar, from a file of the user.

use std::path::{Path, PathBuf};

use clap::Args;
use pianola_engine::{Constraint, EngineError, Text};
use pianola_grammar::{GrammarError, Grammars};
use pianola_model::ModelFile;
use serde_json::Value;

use crate::failure::Failure;
use crate::input;
use crate::model::Located;

/// What answers have to be.
#[derive(Args, Clone, Debug, Default)]
pub struct FormOptions {
    /// Make the answer JSON that is valid by the JSON schema in this file
    ///
    /// Instead of a file the schema itself may be given, as in '{"type": "object"}'. A schema with a
    /// keyword that cannot be enforced is an error. The model does not see the schema: say in the
    /// prompt what the answer is to hold.
    #[arg(long, aliases = ["json-schema", "json-schema-file"], value_name = "FILE")]
    schema: Option<String>,
    /// Make the answer a text of the grammar in this file
    ///
    /// The grammar is in Lark's notation, as llguidance reads it. Its first rule is `start`.
    #[arg(long, alias = "grammar-file", value_name = "FILE", conflicts_with = "schema")]
    #[arg(hide_short_help = true)]
    grammar: Option<PathBuf>,
}

/// A form that was read, and is not compiled yet.
#[derive(Debug)]
pub struct Form {
    /// What errors begin with: the file, or the option.
    origin: String,
    rules: Rules,
}

#[derive(Debug)]
enum Rules {
    Schema(Value),
    Lark(String),
}

impl FormOptions {
    /// Reads the form, if one was given.
    pub fn read(&self) -> Result<Option<Form>, Failure> {
        match (&self.schema, &self.grammar) {
            (Some(schema), _) => read_schema(schema).map(Some),
            (None, Some(path)) => read_grammar(path).map(Some),
            (None, None) => Ok(None),
        }
    }
}

fn read_schema(given: &str) -> Result<Form, Failure> {
    let (origin, text) = match given.trim_start().starts_with('{') {
        true => ("--schema".to_string(), given.to_string()),
        false => (given.to_string(), input::text_file(Path::new(given))?),
    };
    let schema = serde_json::from_str(&text).map_err(|error| {
        Failure::usage(format!("{origin}: no JSON, so no JSON schema: {error}"))
    })?;
    Ok(Form { origin, rules: Rules::Schema(schema) })
}

fn read_grammar(path: &Path) -> Result<Form, Failure> {
    let origin = path.display().to_string();
    Ok(Form { rules: Rules::Lark(input::text_file(path)?), origin })
}

impl Form {
    /// The form over the tokens of a model, whose weights are not needed.
    pub fn compile(&self, model: &Located) -> Result<Box<dyn Constraint>, Failure> {
        let about = |error: Failure| error.about(&model.path);
        let file = ModelFile::open(&model.path).map_err(|error| about(error.into()))?;
        let vocabulary = file.config().map_err(|error| about(error.into()))?.vocabulary;
        let text = Text::of(&file).map_err(|error| about(error.into()))?;
        let text =
            text.ok_or_else(|| Failure::from(EngineError::NoTokenizer(model.label.clone())))?;
        let wrong = |error: GrammarError| Failure::usage(format!("{}: {error}", self.origin));
        let grammars = Grammars::new(&text.tokenizer, vocabulary).map_err(wrong)?;
        match &self.rules {
            Rules::Schema(schema) => grammars.json_schema(schema),
            Rules::Lark(lark) => grammars.lark(lark),
        }
        .map_err(wrong)
    }
}
