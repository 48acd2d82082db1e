//! Jinja, as far as chat templates use it, within bounds.
//!
//! ```text
//! source ─lex─► tokens ─parse─► Program        once, at load
//! variables ──► Evaluator over the Program ──► text
//!                   └─ Budget: every value made and every byte read is paid for
//! ```
//!
//! A template comes with a model file, so it is a stranger's program. It can do nothing but make
//! text, and it is stopped with an error where it would take more than the [`Budget`] has: memory
//! is paid for when it is taken and never given back, work is counted by what is really done
//! (a comparison of long texts costs more than one of short ones), and nesting is counted in
//! values, in the program and in calls, so that no recursion here is deeper than these counts.
//!
//! It follows Python's Jinja with the settings of Hugging Face (`trim_blocks`, `lstrip_blocks`,
//! loop controls, an immutable sandbox), which templates are written for. There are no other
//! templates to include or extend, and no escaping.

mod ast;
mod budget;
mod call;
mod evaluate;
mod expression;
mod fault;
mod filters;
mod format;
mod lex;
mod lists;
mod methods;
mod operators;
mod parse;
mod parse_expression;
mod python;
mod tests;
mod value;

use std::time::SystemTime;

use serde_json::Map;

pub(crate) use fault::{Fault, FaultKind};

use budget::Budget;
use evaluate::Evaluator;

/// Far above the longest template in use, which has some tens of thousands of characters.
const LONGEST_SOURCE: usize = 1 << 20;

/// A parsed template.
#[derive(Debug)]
pub(crate) struct Program {
    body: ast::Block,
}

impl Program {
    /// Parses a template.
    pub(crate) fn parse(source: &str) -> Result<Program, Fault> {
        if source.len() > LONGEST_SOURCE {
            return Err(Fault::failed(format!(
                "it has {} bytes, and a template may have {LONGEST_SOURCE}",
                source.len()
            )));
        }
        Ok(Program { body: parse::parse(lex::lex(source)?)? })
    }

    /// The text that the template makes of the variables. `now` is what `strftime_now` formats.
    pub(crate) fn render(
        &self,
        variables: Map<String, serde_json::Value>,
        now: SystemTime,
    ) -> Result<String, Fault> {
        let budget = Budget::new();
        Evaluator::new(&budget, now, variables)?.run(&self.body)
    }
}
