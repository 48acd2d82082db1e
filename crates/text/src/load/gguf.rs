//! The vocabulary as GGUF's `tokenizer.ggml.*` keys hold it.

use pianola_formats::Gguf;

use super::{Listed, finders};
use crate::added::Added;
use crate::alphabet;
use crate::error::Error;
use crate::model::{BytePair, Merge, Model, SentencePiece};
use crate::normalise::{Form, Normaliser};
use crate::pattern::{self, Pattern};
use crate::split::{Behaviour, Splitter};
use crate::tokenizer::{Parts, Roles, Tokenizer, is_turn_marker};
use crate::vocabulary::{Entry, Kind, Vocabulary, fallback_byte};

/// The keys of a GGUF file that describe its tokeniser, without their prefix.
#[derive(Clone, Debug, Default)]
pub struct VocabularySource<'a> {
    /// `llama` (SentencePiece) or `gpt2` (byte-level).
    pub model: &'a str,
    /// The name of the pre-tokeniser.
    pub pre: Option<&'a str>,
    /// The tokens by id.
    pub tokens: &'a [String],
    /// Their scores, for SentencePiece.
    pub scores: Option<Vec<f32>>,
    /// Their kinds, 1 to 6; without them all are normal.
    pub token_types: Option<Vec<i64>>,
    /// The ranked merges, for byte-level models.
    pub merges: &'a [String],
    /// Ids of tokens with a part to play.
    pub bos: Option<u32>,
    /// The end of a sequence.
    pub eos: Option<u32>,
    /// The unknown token.
    pub unknown: Option<u32>,
    /// End of turn, end of message.
    pub stops: Vec<u32>,
    /// Whether sequences begin with `bos`.
    pub add_bos: Option<bool>,
    /// Whether a space is put before the text.
    pub add_space_prefix: Option<bool>,
}

impl Tokenizer {
    /// The tokeniser of a GGUF file.
    pub fn from_gguf(file: &Gguf) -> Result<Tokenizer, Error> {
        let id = |key: &str| {
            file.unsigned(&format!("tokenizer.ggml.{key}_token_id"))
                .and_then(|id| u32::try_from(id).ok())
                // Some converters write -1 for a token that the model does not have.
                .filter(|&id| id != u32::MAX)
        };
        let tokens = file.strings("tokenizer.ggml.tokens").unwrap_or_default();
        let model = match file.string("tokenizer.ggml.model") {
            Some(model) if model != "none" && !tokens.is_empty() => model,
            other => {
                return Err(Error::NoVocabulary { model: other.unwrap_or("absent").into() });
            }
        };
        Tokenizer::from_vocabulary(VocabularySource {
            model,
            pre: file.string("tokenizer.ggml.pre"),
            tokens,
            scores: file.floats("tokenizer.ggml.scores"),
            token_types: file.integers("tokenizer.ggml.token_type"),
            merges: file.strings("tokenizer.ggml.merges").unwrap_or_default(),
            bos: id("bos"),
            eos: id("eos"),
            unknown: id("unknown"),
            stops: id("eot").into_iter().chain(id("eom")).collect(),
            add_bos: file.boolean("tokenizer.ggml.add_bos_token"),
            add_space_prefix: file.boolean("tokenizer.ggml.add_space_prefix"),
        })
    }

    /// The tokeniser of a vocabulary as GGUF describes it, wherever it comes from.
    pub fn from_vocabulary(source: VocabularySource) -> Result<Tokenizer, Error> {
        check_roles(&source)?;
        match source.model {
            "llama" => sentence_piece(source),
            "gpt2" => byte_level(source),
            other => {
                Err(Error::Unsupported { component: "tokenizer.ggml.model", name: other.into() })
            }
        }
    }
}

/// The split that a pre-tokeniser's name means.
struct Rules {
    splitters: Vec<Splitter>,
    normalisers: Vec<Normaliser>,
    whole_pieces: bool,
    adds_bos: bool,
}

fn rules(pre: &str) -> Result<Rules, Error> {
    let by = |pattern| -> Result<Rules, Error> {
        let pattern = Pattern::regex(pattern)?;
        let behaviour = Behaviour::Isolated;
        let splitters = vec![Splitter::Split { pattern, behaviour, invert: false }];
        Ok(Rules { splitters, normalisers: Vec::new(), whole_pieces: false, adds_bos: false })
    };
    Ok(match pre {
        "default" | "gpt-2" | "gpt2" | "phi-2" | "roberta-bpe" | "jina-es" | "jina-de" => {
            by(pattern::GPT2)?
        }
        "smollm" | "starcoder" | "refact" | "command-r" | "codeshell" => {
            let mut rules = by(pattern::GPT2)?;
            let (pattern, behaviour) = (Pattern::Numeric, Behaviour::Isolated);
            rules.splitters.insert(0, Splitter::Split { pattern, behaviour, invert: false });
            rules
        }
        "llama-bpe" | "llama3" | "llama-v3" | "falcon3" | "pixtral" => {
            Rules { whole_pieces: true, adds_bos: true, ..by(pattern::LLAMA3)? }
        }
        "qwen2" => {
            Rules { normalisers: vec![Normaliser::Form(Form::Composed)], ..by(pattern::QWEN2)? }
        }
        "deepseek-r1-qwen" => by(pattern::QWEN2)?,
        "tekken" => Rules { whole_pieces: true, adds_bos: true, ..by(pattern::TEKKEN)? },
        other => {
            return Err(Error::Unsupported { component: "tokenizer.ggml.pre", name: other.into() });
        }
    })
}

fn byte_level(source: VocabularySource) -> Result<Tokenizer, Error> {
    let rules = rules(source.pre.unwrap_or("default"))?;
    let (vocabulary, listed) = read_tokens(&source, alphabet::decode)?;
    let merges = source
        .merges
        .iter()
        .enumerate()
        .map(|(rank, merge)| split_merge(rank, merge))
        .collect::<Result<Vec<_>, _>>()?;
    let model = BytePair::over_bytes(&vocabulary, &merges, rules.whole_pieces)?;
    let (raw, normalised, marked) = finders(listed, &rules.normalisers)?;
    Ok(Tokenizer::new(Parts {
        vocabulary,
        model: Model::BytePair(model),
        raw,
        normalised,
        marked,
        normalisers: rules.normalisers,
        splitters: rules.splitters,
        strip: 0,
        roles: roles(&source, rules.adds_bos),
    }))
}

/// The halves of a merge written with a space between them.
pub(super) fn split_merge(rank: usize, merge: &str) -> Result<Merge<'_>, Error> {
    match merge.split_once(' ') {
        Some((left, right)) if !left.is_empty() && !right.is_empty() && !right.contains(' ') => {
            Ok((left, right))
        }
        _ => Err(Error::Invalid {
            field: "merges",
            problem: format!("merge {rank} is {merge:?}, not two tokens with a space between"),
        }),
    }
}

fn sentence_piece(source: VocabularySource) -> Result<Tokenizer, Error> {
    let scores = source.scores.as_deref();
    let scores = scores.ok_or_else(|| Error::Missing("tokenizer.ggml.scores".into()))?;
    check_length("tokenizer.ggml.scores", scores.len(), source.tokens.len())?;
    let (vocabulary, listed) =
        read_tokens(&source, |spelling, bytes| match fallback_byte(spelling) {
            Some(byte) => bytes.push(byte),
            None if spelling.contains('▁') => {
                bytes.extend_from_slice(spelling.replace('▁', " ").as_bytes());
            }
            None => bytes.extend_from_slice(spelling.as_bytes()),
        })?;
    let prefix = source.add_space_prefix.unwrap_or(true);
    let mut normalisers = Vec::new();
    if prefix {
        normalisers.push(Normaliser::Prepend("▁".into()));
    }
    normalisers
        .push(Normaliser::Replace { pattern: Pattern::Literal(" ".into()), with: "▁".into() });
    let model = SentencePiece::new(&vocabulary, scores, source.unknown);
    // The prefix goes before the text, not before every token looked for in it.
    let (raw, normalised, marked) = finders(listed, &normalisers[usize::from(prefix)..])?;
    Ok(Tokenizer::new(Parts {
        vocabulary,
        model: Model::SentencePiece(model),
        raw,
        normalised,
        marked,
        normalisers,
        splitters: Vec::new(),
        strip: usize::from(prefix),
        roles: roles(&source, true),
    }))
}

fn roles(source: &VocabularySource, adds_bos: bool) -> Roles {
    Roles {
        bos: source.bos,
        eos: source.eos,
        adds_bos: source.add_bos.unwrap_or(adds_bos),
        stops: source.stops.clone(),
    }
}

/// A token with a part to play has to be there: a model cannot be given one that it does not have.
fn check_roles(source: &VocabularySource) -> Result<(), Error> {
    let stops = source.stops.iter().map(|&id| ("eot_token_id or eom_token_id", Some(id)));
    let ids = [
        ("bos_token_id", source.bos),
        ("eos_token_id", source.eos),
        ("unknown_token_id", source.unknown),
    ];
    let count = source.tokens.len();
    for (field, id) in ids.into_iter().chain(stops) {
        if let Some(id) = id.filter(|&id| id as usize >= count) {
            let problem = format!("token {id} is not among the {count} tokens");
            return Err(Error::Invalid { field, problem });
        }
    }
    Ok(())
}

fn check_length(field: &'static str, found: usize, expected: usize) -> Result<(), Error> {
    if found == expected { Ok(()) } else { Err(Error::Length { field, found, expected }) }
}

/// Reads the tokens; `decode` appends the bytes of a normal or byte token's spelling.
fn read_tokens(
    source: &VocabularySource,
    decode: impl Fn(&str, &mut Vec<u8>),
) -> Result<(Vocabulary, Vec<Listed>), Error> {
    if let Some(types) = &source.token_types {
        check_length("tokenizer.ggml.token_type", types.len(), source.tokens.len())?;
    }
    let mut vocabulary = Vocabulary::with_capacity(source.tokens.len())?;
    let mut listed = Vec::new();
    let mut bytes = Vec::new();
    for (id, spelling) in source.tokens.iter().enumerate() {
        let kind = kind(source.token_types.as_ref().map_or(1, |types| types[id]), spelling);
        bytes.clear();
        match kind {
            Kind::Normal | Kind::Byte => decode(spelling, &mut bytes),
            Kind::UserDefined if source.model == "llama" => decode(spelling, &mut bytes),
            _ => bytes.extend_from_slice(spelling.as_bytes()),
        }
        vocabulary.push(Entry { spelling, bytes: &bytes, kind })?;
        if matches!(kind, Kind::Control | Kind::Unknown | Kind::UserDefined) {
            let special = kind != Kind::UserDefined;
            list(&mut listed, id as u32, spelling, special, source.model == "llama");
        }
    }
    Ok((vocabulary, listed))
}

fn kind(number: i64, spelling: &str) -> Kind {
    match number {
        2 => Kind::Unknown,
        3 => Kind::Control,
        // Some converters call turn markers text.
        1 | 4 if is_turn_marker(spelling) => Kind::Control,
        4 => Kind::UserDefined,
        5 => Kind::Unused,
        6 => Kind::Byte,
        _ => Kind::Normal,
    }
}

fn list(listed: &mut Vec<Listed>, id: u32, spelling: &str, special: bool, sentence_piece: bool) {
    let content = spelling.to_owned();
    let added = Added { id, content, special, ..Added::default() };
    // Gemma's runs of spaces: converters write them with spaces, the model's
    // own file with marks. Runs are found once spaces have become marks; marks
    // that the text itself contains are found before, as the reference does.
    let normalised = sentence_piece && spelling.contains([' ', '▁']);
    if normalised {
        let content = spelling.replace(' ', "▁");
        let added = Added { content, ..added.clone() };
        listed.push(Listed { added, normalised: false });
    }
    listed.push(Listed { added, normalised });
}
