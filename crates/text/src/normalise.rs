//! Changes to the text before it is split: Unicode forms, spaces to `▁`.

use std::borrow::Cow;

use unicode_normalization::{
    IsNormalized, UnicodeNormalization, is_nfc_quick, is_nfd_quick, is_nfkc_quick, is_nfkd_quick,
};

use crate::error::Error;
use crate::pattern::Pattern;

/// One change.
pub(crate) enum Normaliser {
    Form(Form),
    /// Put before the text, unless there is none.
    Prepend(String),
    Replace {
        pattern: Pattern,
        with: String,
    },
}

/// A Unicode normalisation form.
#[derive(Clone, Copy)]
pub(crate) enum Form {
    Composed,
    Decomposed,
    CompatibilityComposed,
    CompatibilityDecomposed,
}

/// Applies all in order. What comes of a text is at most some times as long: replacements of a
/// hostile file could double it at every step.
pub(crate) fn normalise<'a>(steps: &[Normaliser], text: &'a str) -> Result<Cow<'a, str>, Error> {
    const FACTOR: usize = 16;
    const ALWAYS: usize = 1 << 16;
    let length = text.len();
    let limit = length.saturating_mul(FACTOR).max(ALWAYS);
    let mut text = Cow::Borrowed(text);
    for step in steps {
        if step.length_of(&text)? > limit {
            return Err(Error::Overgrown { length, limit });
        }
        if let Some(changed) = step.apply(&text)? {
            text = Cow::Owned(changed);
        }
    }
    Ok(text)
}

impl Normaliser {
    /// How long the changed text will be; of a Unicode form, which is bounded, how long it is.
    fn length_of(&self, text: &str) -> Result<usize, Error> {
        Ok(match self {
            Normaliser::Form(_) => text.len(),
            Normaliser::Prepend(prefix) => prefix.len() + text.len(),
            Normaliser::Replace { pattern, with } => {
                let count = match pattern {
                    Pattern::Literal(from) => text.matches(from.as_str()).count(),
                    _ => pattern.split(text)?.into_iter().filter(|(_, matched)| *matched).count(),
                };
                text.len().saturating_add(count.saturating_mul(with.len()))
            }
        })
    }

    /// The changed text, or `None` if it stays as it is.
    fn apply(&self, text: &str) -> Result<Option<String>, Error> {
        Ok(match self {
            Normaliser::Form(form) => form.apply(text),
            Normaliser::Prepend(prefix) => (!text.is_empty()).then(|| format!("{prefix}{text}")),
            Normaliser::Replace { pattern: Pattern::Literal(from), with } => {
                text.contains(from.as_str()).then(|| text.replace(from.as_str(), with))
            }
            Normaliser::Replace { pattern, with } => {
                let mut changed = String::with_capacity(text.len());
                for (range, matched) in pattern.split(text)? {
                    changed.push_str(if matched { with } else { &text[range] });
                }
                Some(changed)
            }
        })
    }
}

impl Form {
    fn apply(self, text: &str) -> Option<String> {
        if text.is_ascii() {
            return None;
        }
        let characters = text.chars();
        let normalised = match self {
            Form::Composed => is_nfc_quick(characters),
            Form::Decomposed => is_nfd_quick(characters),
            Form::CompatibilityComposed => is_nfkc_quick(characters),
            Form::CompatibilityDecomposed => is_nfkd_quick(characters),
        };
        if normalised == IsNormalized::Yes {
            return None;
        }
        Some(match self {
            Form::Composed => text.nfc().collect(),
            Form::Decomposed => text.nfd().collect(),
            Form::CompatibilityComposed => text.nfkc().collect(),
            Form::CompatibilityDecomposed => text.nfkd().collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn composes_and_replaces() {
        let steps = [
            Normaliser::Form(Form::Composed),
            Normaliser::Prepend("▁".into()),
            Normaliser::Replace { pattern: Pattern::Literal(" ".into()), with: "▁".into() },
            Normaliser::Replace { pattern: Pattern::regex("x+").unwrap(), with: "y".into() },
        ];
        assert_eq!(normalise(&steps, "e\u{301} xx z").unwrap(), "▁é▁y▁z");
        assert_eq!(normalise(&steps, "").unwrap(), "");
        assert!(matches!(normalise(&steps[..1], "plain"), Ok(Cow::Borrowed("plain"))));
    }

    #[test]
    fn a_text_does_not_grow_without_bound() {
        let double = |pattern| Normaliser::Replace { pattern, with: "xx".into() };
        for pattern in [|| Pattern::Literal("x".into()), || Pattern::regex("x").unwrap()] {
            let steps: Vec<Normaliser> = (0..40).map(|_| double(pattern())).collect();
            let grown = normalise(&steps, "x");
            assert!(matches!(grown, Err(Error::Overgrown { length: 1, .. })), "{grown:?}");
        }
        let with = "x".repeat(1 << 20);
        let steps = [Normaliser::Replace { pattern: Pattern::Literal(" ".into()), with }];
        assert!(normalise(&steps, &" ".repeat(1 << 20)).is_err());
    }
}
