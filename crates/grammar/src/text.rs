//! Text inside of Lark grammars.

use crate::GrammarError;

/// Open brackets of a grammar at one place; its parser recurses over them.
const MAX_NESTING: usize = 200;

/// A text as Lark's literal, which is spelled as in JSON.
pub(crate) fn literal(text: &str) -> String {
    serde_json::Value::from(text).to_string().replace('\u{7f}', "\\u007f")
}

/// Checks how deeply brackets are nested, at most. Those in texts and comments count, too.
pub(crate) fn check_nesting(grammar: &str) -> Result<(), GrammarError> {
    let mut open = 0usize;
    for character in grammar.chars() {
        match character {
            '(' | '[' | '{' => open += 1,
            ')' | ']' | '}' => open = open.saturating_sub(1),
            _ => {}
        }
        if open > MAX_NESTING {
            let found = format!("more than {MAX_NESTING} open brackets");
            return Err(GrammarError::TooLarge { what: "grammar", found, limit: MAX_NESTING });
        }
    }
    Ok(())
}
