//! Regular expressions of schemas.

use llguidance::derivre::RegexBuilder;
use llguidance::regex_to_lark;

/// Bytes of a pattern.
const MAX_PATTERN: usize = 8 << 10;

/// What to do about a pattern that does not compile.
pub(super) const FIX: &str = "its expression is wrong, very long, or uses look-around or references to groups; write it without";

/// Whether the compiler knows the syntax of a pattern.
pub(super) fn compiles(pattern: &str) -> bool {
    pattern.len() <= MAX_PATTERN
        && RegexBuilder::new().mk_regex_for_serach(&regex_to_lark(pattern, "dw")).is_ok()
}
