//! Grammars that a user wrote, in Lark's notation: what is checked before they are compiled, and what their
//! errors say.

use crate::GrammarError;

/// What errors call such a grammar.
pub(crate) const RULES: &str = "rules";
/// Bytes of a grammar. The compiler goes into terminals that consist of others, a few bytes each.
const MAX_BYTES: usize = 64 << 10;
/// Nesting of parentheses, brackets and braces: the compiler recurses over them.
const MAX_DEPTH: usize = 128;

/// Checks the size of a grammar and its notation.
pub(crate) fn check(grammar: &str) -> Result<(), GrammarError> {
    let refused = |reason: String| Err(GrammarError::Refused { what: RULES, reason });
    if grammar.len() > MAX_BYTES {
        let bytes = grammar.len();
        return refused(format!("{bytes} bytes are more than the {MAX_BYTES} that are accepted"));
    }
    if depth(grammar) > MAX_DEPTH {
        return refused(format!("parentheses are nested more than {MAX_DEPTH} deep"));
    }
    if let Some(line) = grammar.lines().position(is_gbnf) {
        return refused(format!(
            "line {} is in GBNF, llama.cpp's notation; here a rule is `name: …`, the first is `start`, and \
             characters stand as /[a-z]+/",
            line + 1
        ));
    }
    Ok(())
}

/// Whether a line begins a rule as GBNF has it.
fn is_gbnf(line: &str) -> bool {
    let word = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
    let rest = line.trim_start().trim_start_matches(word);
    rest.len() < line.trim_start().len() && rest.trim_start().starts_with("::=")
}

/// The deepest nesting. What stands in texts counts too: few grammars have texts of brackets.
fn depth(grammar: &str) -> usize {
    let mut deepest = 0;
    grammar.bytes().fold(0usize, |depth, byte| {
        let depth = match byte {
            b'(' | b'[' | b'{' => depth + 1,
            b')' | b']' | b'}' => depth.saturating_sub(1),
            _ => depth,
        };
        deepest = deepest.max(depth);
        depth
    });
    deepest
}

/// The error with its place in words: the compiler writes `at 3(7): …` or `3(7): …`.
pub(crate) fn located(error: GrammarError) -> GrammarError {
    let GrammarError::Refused { what, reason } = error else { return error };
    let reason = placed(&reason).unwrap_or(reason);
    GrammarError::Refused { what, reason }
}

fn placed(reason: &str) -> Option<String> {
    let rest = reason.strip_prefix("at ").unwrap_or(reason);
    let (place, message) = rest.split_once("): ")?;
    let (line, column) = place.split_once('(')?;
    let (line, column): (usize, usize) = (line.parse().ok()?, column.parse().ok()?);
    Some(format!("line {line}, column {column}: {message}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(grammar: &str) -> String {
        check(grammar).unwrap_err().to_string()
    }

    #[test]
    fn gbnf_is_told_from_lark() {
        for lark in ["start: \"a\"", "start: X\nX: /a ::= b/", "// root ::= x\nstart: \"::=\""] {
            assert_eq!(check(lark), Ok(()), "{lark}");
        }
        let gbnf = refusal("# a list\nroot ::= item+\n");
        assert!(gbnf.contains("line 2 is in GBNF"), "{gbnf}");
        assert!(refusal("  ws-1::= [ ]*").contains("line 1"));
    }

    #[test]
    fn sizes_are_bounded() {
        assert!(refusal(&" ".repeat(MAX_BYTES + 1)).contains("65537 bytes"));
        assert!(refusal(&"(".repeat(MAX_DEPTH + 1)).contains("nested"));
        assert_eq!(check(&"()".repeat(MAX_DEPTH + 1)), Ok(()));
    }

    #[test]
    fn places_are_put_into_words() {
        let of =
            |reason: &str| located(GrammarError::Refused { what: RULES, reason: reason.into() });
        assert!(
            of("at 3(7): expected ':'").to_string().ends_with("line 3, column 7: expected ':'")
        );
        assert!(of("2(6): no").to_string().ends_with("line 2, column 6: no"));
        assert!(of("at last (x): no").to_string().ends_with("at last (x): no"));
    }
}
