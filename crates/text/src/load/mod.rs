//! Reading a tokeniser from a GGUF file or a tokenizer.json.

mod components;
mod gguf;
mod json;
mod tokenizer_json;

pub use gguf::VocabularySource;

use crate::added::{Added, Finder};
use crate::error::Error;
use crate::normalise::{Normaliser, normalise};

/// An added token and where it is found.
struct Listed {
    added: Added,
    /// In normalised text rather than in the text as it comes.
    normalised: bool,
}

type Finders = (Finder, Finder, Option<Finder>);

/// The finders for raw text, normalised text, and both.
fn finders(tokens: Vec<Listed>, normalisers: &[Normaliser]) -> Result<Finders, Error> {
    let hidden = tokens.iter().any(|token| token.normalised && token.added.special);
    let marked =
        hidden.then(|| Finder::new(tokens.iter().map(|token| token.added.clone()).collect()));
    let (normalised, raw): (Vec<_>, Vec<_>) =
        tokens.into_iter().partition(|token| token.normalised);
    let normalised = normalised
        .into_iter()
        .map(|Listed { mut added, .. }| {
            added.content = normalise(normalisers, &added.content)?.into_owned();
            Ok(added)
        })
        .collect::<Result<_, Error>>()?;
    let raw = raw.into_iter().map(|token| token.added).collect();
    Ok((Finder::new(raw), Finder::new(normalised), marked))
}
