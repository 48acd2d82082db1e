//! A model's tokens, in the form that the compiler of grammars wants them.

use crate::GrammarError;
use llguidance::api::ParserLimits;
use llguidance::earley::SlicedBiasComputer;
use llguidance::toktrie::{ApproximateTokEnv, INVALID_TOKEN, InferenceCapabilities};
use llguidance::toktrie::{TokEnv, TokRxInfo, TokTrie};
use llguidance::{ParserFactory, panic_utils};
use pianola_text::Tokenizer;
use std::collections::HashSet;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

/// States of a grammar's lexer, of 1 to 2 kB each. They are made as an answer needs them, and a copy
/// of a constraint shares them.
const MAX_LEXER_STATES: usize = 50_000;

/// Items of a parser's row: some four for each optional property of an object.
const MAX_ITEMS_IN_ROW: usize = 10_000;

/// What a grammar may cost. The rest are llguidance's: 20 ms for the lexer when it is compiled, 14 ms
/// of it and 2.5 ms of the parser for a mask.
fn limits() -> ParserLimits {
    ParserLimits {
        max_items_in_row: MAX_ITEMS_IN_ROW,
        max_lexer_states: MAX_LEXER_STATES,
        verbose_errors: false,
        ..ParserLimits::default()
    }
}

/// The bytes of every token. Those of special tokens begin with a byte that no text has, so that a
/// grammar over text never allows them. Tokens that end an answer count as special, whatever the
/// vocabulary says: inside of a string they would cut it off. What has no bytes here is never
/// allowed: padding, bytes of 0xFF (the marker itself), and all but one of the tokens for one text.
fn token_bytes(tokenizer: &Tokenizer, vocabulary: usize) -> Vec<Vec<u8>> {
    const MARKER: u8 = TokTrie::SPECIAL_TOKEN_MARKER;
    let bytes_of = |id: u32| {
        let bytes = tokenizer.token_bytes(id).unwrap_or_default();
        let special = tokenizer.is_special(id) || tokenizer.stop_tokens().contains(&id);
        match (special, bytes.first()) {
            (true, Some(_)) => [&[MARKER], bytes].concat(),
            (false, Some(&MARKER)) | (_, None) => Vec::new(),
            (false, Some(_)) => bytes.to_vec(),
        }
    };
    let mut words: Vec<Vec<u8>> = (0..vocabulary as u32).map(bytes_of).collect();
    // Models write `\n` with the token of that text, not with the fallback token `<0x0A>`.
    let is_fallback = |id: u32| {
        let single = words[id as usize].len() == 1;
        single && tokenizer.token_text(id).is_some_and(|text| text.starts_with("<0x"))
    };
    let mut order: Vec<(bool, u32)> =
        (0..vocabulary as u32).map(|id| (is_fallback(id), id)).collect();
    order.sort_unstable();
    let mut seen = HashSet::with_capacity(vocabulary);
    let repeated: Vec<u32> = order
        .into_iter()
        .map(|(_, id)| id)
        .filter(|&id| !words[id as usize].is_empty() && !seen.insert(words[id as usize].as_slice()))
        .collect();
    repeated.into_iter().for_each(|id| words[id as usize].clear());
    words
}

/// The compiler of grammars over a model's tokens, and the tokens that end an answer.
pub(crate) fn factory(
    tokenizer: &Tokenizer,
    vocabulary: usize,
) -> Result<(ParserFactory, Vec<u32>), GrammarError> {
    if tokenizer.is_empty() || vocabulary == 0 || u32::try_from(vocabulary).is_err() {
        let reason = format!("{} tokens in {vocabulary} rows", tokenizer.len());
        return Err(GrammarError::Tokenizer { reason });
    }
    let words = token_bytes(tokenizer, vocabulary);
    let in_range = |id: &u32| (*id as usize) < vocabulary;
    let ends: Vec<u32> = tokenizer.stop_tokens().iter().copied().filter(in_range).collect();
    let build = || {
        let first_end = ends.first().copied().unwrap_or(INVALID_TOKEN);
        let mut trie = TokTrie::from(&TokRxInfo::new(vocabulary as u32, first_end), &words);
        if !ends.is_empty() {
            trie = trie.with_eos_tokens(&ends);
        }
        let environment: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
        let slices = SlicedBiasComputer::json_slices();
        ParserFactory::new(&environment, InferenceCapabilities::default(), &slices)
    };
    // A vocabulary is untrusted input, and the trie panics on one that it does not expect.
    let mut factory = panic_utils::catch_unwind(AssertUnwindSafe(build))
        .map_err(|error| GrammarError::Tokenizer { reason: first_line(&error.to_string()) })?;
    factory.quiet();
    *factory.limits_mut() = limits();
    Ok((factory, ends))
}

/// The first line of what llguidance says; a backtrace and a copy of the grammar may follow.
pub(crate) fn first_line(message: &str) -> String {
    message.lines().next().unwrap_or_default().trim().to_string()
}
