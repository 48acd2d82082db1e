//! Building a tokeniser from tokenizer.json and tokenizer_config.json.

use serde_json::Value;

use super::components::{PreTokeniser, Spelling, first_token, normalisers};
use super::gguf::split_merge;
use super::json::{AddedToken, File, Merge};
use super::{Listed, finders};
use crate::added::Added;
use crate::alphabet;
use crate::error::Error;
use crate::model::{BytePair, Model, Unknown};
use crate::tokenizer::{Parts, Roles, Tokenizer, is_turn_marker};
use crate::vocabulary::{Entry, Kind, Vocabulary, fallback_byte};

impl Tokenizer {
    /// The tokeniser of a tokenizer.json (a BPE model), with the special
    /// tokens that its tokenizer_config.json names.
    pub fn from_tokenizer_json(json: &[u8], config: Option<&[u8]>) -> Result<Tokenizer, Error> {
        // Checking it all at once is faster than string by string.
        let text = std::str::from_utf8(json).map_err(|error| Error::Invalid {
            field: "tokenizer.json",
            problem: error.to_string(),
        })?;
        let parse = |source| Error::Json { file: "tokenizer.json", source };
        let file: File = serde_json::from_str(text).map_err(parse)?;
        let config: Value = match config {
            Some(json) => serde_json::from_slice(json)
                .map_err(|source| Error::Json { file: "tokenizer_config.json", source })?,
            None => Value::Null,
        };
        check_model(&file)?;

        let mut steps = Vec::new();
        file.normalizer.iter().try_for_each(|value| normalisers(value, &mut steps))?;
        let mut pre = PreTokeniser::default();
        file.pre_tokenizer.iter().try_for_each(|value| pre.add(value))?;
        let mut spelling = Spelling::default();
        match &file.decoder {
            Some(decoder) => spelling.add(decoder)?,
            None => spelling.byte_level = pre.byte_level,
        }

        let (vocabulary, listed) = read_tokens(&file, &spelling)?;
        let merges = file
            .model
            .merges
            .iter()
            .enumerate()
            .map(|(rank, merge)| match merge {
                Merge::Pair(left, right) => Ok((&*left.0, &*right.0)),
                Merge::Joined(text) => split_merge(rank, &text.0),
            })
            .collect::<Result<Vec<_>, _>>()?;
        let whole_pieces = file.model.ignore_merges;
        let model = if pre.byte_level {
            BytePair::over_bytes(&vocabulary, &merges, whole_pieces)?
        } else {
            let token = file.model.unk_token.as_ref().and_then(|token| vocabulary.id(token));
            let (bytes, fuse) = (file.model.byte_fallback, file.model.fuse_unk);
            let unknown = Unknown { bytes, token, fuse };
            BytePair::over_characters(&vocabulary, &merges, whole_pieces, unknown)?
        };
        check_steps("normalizer", steps.len())?;
        check_steps("pre_tokenizer", pre.splitters.len())?;
        let roles = roles(&file, &config, &vocabulary)?;
        let (raw, normalised, marked) = finders(listed, &steps)?;
        Ok(Tokenizer::new(Parts {
            vocabulary,
            model: Model::BytePair(model),
            raw,
            normalised,
            marked,
            normalisers: steps,
            splitters: pre.splitters,
            strip: spelling.strip,
            roles,
        }))
    }
}

/// Real files have three or four; each is a level of recursion.
fn check_steps(field: &'static str, found: usize) -> Result<(), Error> {
    const MOST: usize = 64;
    match found {
        0..=MOST => Ok(()),
        _ => {
            Err(Error::Invalid { field, problem: format!("has {found} steps, {MOST} are allowed") })
        }
    }
}

fn check_model(file: &File) -> Result<(), Error> {
    let model = &file.model;
    let refuse = |component, name: &str| Err(Error::Unsupported { component, name: name.into() });
    match model.kind.as_deref() {
        Some("BPE") | None => {}
        Some(other) => return refuse("tokenizer.json model", other),
    }
    if model.vocab.0.is_empty() {
        return Err(Error::Missing("a vocabulary (model.vocab)".into()));
    }
    if let Some(prefix) = model.continuing_subword_prefix.as_deref().filter(|it| !it.is_empty()) {
        return refuse("continuing_subword_prefix", prefix);
    }
    if let Some(suffix) = model.end_of_word_suffix.as_deref().filter(|it| !it.is_empty()) {
        return refuse("end_of_word_suffix", suffix);
    }
    match model.dropout {
        Some(dropout) if dropout != 0.0 => refuse("BPE dropout", &dropout.to_string()),
        _ => Ok(()),
    }
}

/// What is known of an id before the vocabulary is built.
#[derive(Clone, Copy)]
struct Slot<'a> {
    spelling: &'a str,
    in_model: bool,
    added: Option<&'a AddedToken>,
}

fn read_tokens(file: &File, how: &Spelling) -> Result<(Vocabulary, Vec<Listed>), Error> {
    let tokens = &file.model.vocab.0;
    let ids = tokens.iter().map(|(_, id)| *id).chain(file.added_tokens.iter().map(|it| it.id));
    let count = ids.max().map_or(0, |last| last as usize + 1);
    let mut vocabulary = Vocabulary::with_capacity(count)?;
    let mut slots: Vec<Option<Slot>> = vec![None; count];
    for (spelling, id) in tokens {
        slots[*id as usize] = Some(Slot { spelling: &spelling.0, in_model: true, added: None });
    }
    for token in &file.added_tokens {
        let slot = &mut slots[token.id as usize];
        let in_model = slot.is_some_and(|slot| slot.spelling == token.content);
        *slot = Some(Slot { spelling: &token.content, in_model, added: Some(token) });
    }
    let mut bytes = Vec::new();
    for slot in &slots {
        bytes.clear();
        let Some(Slot { spelling, in_model, added }) = *slot else {
            vocabulary.push(Entry { spelling: "", bytes: &[], kind: Kind::Absent })?;
            continue;
        };
        let kind = match added {
            Some(token) if is_special(token) => Kind::Control,
            Some(_) if in_model => Kind::UserDefined,
            Some(_) => Kind::Added,
            None if file.model.byte_fallback && fallback_byte(spelling).is_some() => Kind::Byte,
            None => Kind::Normal,
        };
        decode(how, spelling, added.is_some(), &mut bytes);
        vocabulary.push(Entry { spelling, bytes: &bytes, kind })?;
    }
    let listed = file.added_tokens.iter().map(listed).collect();
    Ok((vocabulary, listed))
}

fn is_special(token: &AddedToken) -> bool {
    token.special || is_turn_marker(&token.content)
}

fn listed(token: &AddedToken) -> Listed {
    let added = Added {
        id: token.id,
        content: token.content.clone(),
        special: is_special(token),
        strip_left: token.lstrip,
        strip_right: token.rstrip,
        single_word: token.single_word,
    };
    Listed { added, normalised: token.normalized.unwrap_or(!token.special) }
}

/// Appends the bytes of a spelling.
fn decode(how: &Spelling, spelling: &str, added: bool, bytes: &mut Vec<u8>) {
    if how.byte_level && !added {
        return alphabet::decode(spelling, bytes);
    }
    if how.byte_fallback
        && let Some(byte) = fallback_byte(spelling)
    {
        return bytes.push(byte);
    }
    match &how.mark {
        Some(mark) if spelling.contains(mark.as_str()) => {
            bytes.extend_from_slice(spelling.replace(mark.as_str(), " ").as_bytes());
        }
        _ => bytes.extend_from_slice(spelling.as_bytes()),
    }
}

fn roles(file: &File, config: &Value, vocabulary: &Vocabulary) -> Result<Roles, Error> {
    // A token is named as a string, or described as an object with its content.
    let named = |field: &str| {
        let token = &config[field];
        token.as_str().or_else(|| token["content"].as_str()).and_then(|text| vocabulary.id(text))
    };
    let first = match &file.post_processor {
        Some(value) => first_token(value)?.and_then(|token| vocabulary.id(&token)),
        None => None,
    };
    Ok(Roles {
        bos: named("bos_token").or(first),
        eos: named("eos_token"),
        adds_bos: config["add_bos_token"].as_bool().unwrap_or(first.is_some()),
        stops: Vec::new(),
    })
}
