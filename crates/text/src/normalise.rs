//! Changes to the text before it is split: Unicode forms, spaces to `▁`.

use std::borrow::Cow;

use unicode_normalization::{
    IsNormalized, UnicodeNormalization, is_nfc_quick, is_nfd_quick, is_nfkc_quick, is_nfkd_quick,
};

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

/// Applies all in order.
pub(crate) fn normalise<'a>(steps: &[Normaliser], text: &'a str) -> Cow<'a, str> {
    let mut text = Cow::Borrowed(text);
    for step in steps {
        if let Some(changed) = step.apply(&text) {
            text = Cow::Owned(changed);
        }
    }
    text
}

impl Normaliser {
    /// The changed text, or `None` if it stays as it is.
    fn apply(&self, text: &str) -> Option<String> {
        match self {
            Normaliser::Form(form) => form.apply(text),
            Normaliser::Prepend(prefix) => (!text.is_empty()).then(|| format!("{prefix}{text}")),
            Normaliser::Replace { pattern: Pattern::Literal(from), with } => {
                text.contains(from.as_str()).then(|| text.replace(from.as_str(), with))
            }
            Normaliser::Replace { pattern, with } => {
                let mut changed = String::with_capacity(text.len());
                for (range, matched) in pattern.split(text) {
                    changed.push_str(if matched { with } else { &text[range] });
                }
                Some(changed)
            }
        }
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
        assert_eq!(normalise(&steps, "e\u{301} xx z"), "▁é▁y▁z");
        assert_eq!(normalise(&steps, ""), "");
        assert!(matches!(normalise(&steps[..1], "plain"), Cow::Borrowed("plain")));
    }
}
