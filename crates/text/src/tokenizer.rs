//! The tokeniser: added tokens, normalisation, splitting and the model, in
//! that order, and the way back.

use crate::added::{Finder, Specials, Stretch};
use crate::decode::Decoder;
use crate::error::Error;
use crate::model::{Model, Scratch};
use crate::normalise::{Normaliser, normalise};
use crate::split::{Piece, Splitter, split};
use crate::vocabulary::Vocabulary;

/// Whether the text may contain markers such as `<|im_start|>`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpecialTokens {
    /// They are recognised and become the tokens they name.
    Parse,
    /// They are text like any other: what a stranger wrote can not end his turn.
    Plain,
}

/// Texts that end an answer where a vocabulary has them as special tokens.
const END_MARKERS: [&str; 14] = [
    "<end_of_turn>",
    "<turn|>",
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end_of_text|>",
    "<|endoftext|>",
    "<|end|>",
    "<|end_of_turn|>",
    "<|return|>",
    "<|call|>",
    "<｜end▁of▁sentence｜>",
    "</s>",
    "<eos>",
];

/// Whether a text is a marker of turns, whatever kind a careless file gives it.
pub(crate) fn is_turn_marker(text: &str) -> bool {
    const TURNS: [&str; 8] = [
        "<start_of_turn>",
        "<end_of_turn>",
        "<|im_start|>",
        "<|im_end|>",
        "<|eot_id|>",
        "<|start_header_id|>",
        "<|end_header_id|>",
        "<|endoftext|>",
    ];
    TURNS.contains(&text)
}

/// The special tokens a file names.
#[derive(Clone, Debug, Default)]
pub(crate) struct Roles {
    pub(crate) bos: Option<u32>,
    pub(crate) eos: Option<u32>,
    pub(crate) adds_bos: bool,
    /// Further tokens that end an answer.
    pub(crate) stops: Vec<u32>,
}

/// What the loaders hand over.
pub(crate) struct Parts {
    pub(crate) vocabulary: Vocabulary,
    pub(crate) model: Model,
    /// Found in the text as it comes.
    pub(crate) raw: Finder,
    /// Found in the text once it is normalised.
    pub(crate) normalised: Finder,
    /// All of both, where the special ones among them must be placed in the
    /// text as it comes; `None` if `raw` has every special token.
    pub(crate) marked: Option<Finder>,
    pub(crate) normalisers: Vec<Normaliser>,
    pub(crate) splitters: Vec<Splitter>,
    /// How many leading spaces of a decoded text were put there by encoding.
    pub(crate) strip: usize,
    pub(crate) roles: Roles,
}

/// A vocabulary with the rules of its model.
pub struct Tokenizer {
    parts: Parts,
    stops: Vec<u32>,
}

impl Tokenizer {
    pub(crate) fn new(mut parts: Parts) -> Tokenizer {
        let vocabulary = &parts.vocabulary;
        let known = |id: &u32| vocabulary.bytes(*id).is_some();
        parts.roles.bos = parts.roles.bos.filter(known);
        parts.roles.eos = parts.roles.eos.filter(known);
        // In Gemma's vocabulary "</s>" is a tag of HTML: only special tokens end an answer.
        let markers = END_MARKERS
            .iter()
            .filter_map(|marker| vocabulary.id(marker))
            .filter(|&id| vocabulary.is_special(id));
        let stops: Vec<u32> = parts.roles.eos.into_iter().chain(markers).collect();
        let declared: Vec<u32> = parts.roles.stops.iter().copied().filter(known).collect();
        let mut tokenizer = Tokenizer { parts, stops: Vec::new() };
        for id in stops.into_iter().chain(declared) {
            tokenizer.add_stop_token(id);
        }
        tokenizer
    }

    /// The tokens of a text, without a beginning-of-sequence token. An error if the file's rules
    /// cannot be applied to this text; never other tokens than those of the rules.
    pub fn encode(&self, text: &str, special: SpecialTokens) -> Result<Vec<u32>, Error> {
        self.encode_with(
            text,
            match special {
                SpecialTokens::Parse => Specials::All,
                SpecialTokens::Plain => Specials::None,
            },
        )
    }

    /// The tokens of a text that a model is to continue: begins with the
    /// beginning-of-sequence token where the model expects one, and never with two.
    pub fn encode_prompt(&self, text: &str, special: SpecialTokens) -> Result<Vec<u32>, Error> {
        Ok(self.with_bos(self.encode(text, special)?))
    }

    pub(crate) fn with_bos(&self, mut ids: Vec<u32>) -> Vec<u32> {
        if let (true, Some(bos)) = (self.adds_bos(), self.bos())
            && ids.first() != Some(&bos)
        {
            ids.insert(0, bos);
        }
        ids
    }

    pub(crate) fn encode_with(&self, text: &str, specials: Specials) -> Result<Vec<u32>, Error> {
        let mut scratch = Scratch::default();
        let mut out = Vec::with_capacity(text.len() / 3);
        let raw = match (&self.parts.marked, specials) {
            (Some(marked), Specials::Outside(_)) => marked,
            _ => &self.parts.raw,
        };
        for stretch in raw.split(text, specials) {
            match stretch {
                Stretch::Token(id) => out.push(id),
                Stretch::Text(range) => {
                    let first = range.start == 0;
                    let piece = Piece { text: &text[range], first };
                    // Normalised text has other offsets; what may be special
                    // by its place was found above.
                    let specials = match specials {
                        Specials::All => Specials::All,
                        _ => Specials::None,
                    };
                    self.encode_stretch(piece, specials, &mut scratch, &mut out)?;
                }
            }
        }
        Ok(out)
    }

    fn encode_stretch(
        &self,
        piece: Piece,
        specials: Specials,
        scratch: &mut Scratch,
        out: &mut Vec<u32>,
    ) -> Result<(), Error> {
        let Parts { vocabulary, model, normalised, normalisers, splitters, .. } = &self.parts;
        let text = normalise(normalisers, piece.text)?;
        let stretches = if normalised.is_empty() {
            vec![Stretch::Text(0..text.len())]
        } else {
            normalised.split(&text, specials)
        };
        for stretch in stretches {
            match stretch {
                Stretch::Token(id) => out.push(id),
                Stretch::Text(range) => {
                    let first = piece.first && range.start == 0;
                    let piece = Piece { text: &text[range], first };
                    split(splitters, piece, &mut |word| {
                        model.encode(vocabulary, word, scratch, out);
                    })?;
                }
            }
        }
        Ok(())
    }

    /// Whether the text begins with a special token's.
    pub(crate) fn special_begins(&self, text: &str) -> bool {
        let Parts { raw, normalised, marked, .. } = &self.parts;
        let finders = [Some(raw), Some(normalised), marked.as_ref()];
        finders.into_iter().flatten().any(|finder| finder.special_begins(text))
    }

    /// The text of the tokens; bytes that are no UTF-8 and ids that are no
    /// token become U+FFFD. Without `show_special` special tokens are left out.
    pub fn decode(&self, ids: &[u32], show_special: bool) -> String {
        let mut text = String::new();
        let mut decoder = self.decoder(show_special);
        for &id in ids {
            decoder.push(self, id, &mut text);
        }
        decoder.finish(&mut text);
        text
    }

    /// A decoder for tokens that come one by one.
    pub fn decoder(&self, show_special: bool) -> Decoder {
        Decoder::new(show_special, self.parts.strip)
    }

    /// The bytes of a token; those of one token need not be whole characters.
    pub fn token_bytes(&self, id: u32) -> Option<&[u8]> {
        self.parts.vocabulary.bytes(id)
    }

    /// The token as the vocabulary spells it (`Ġthe`, `▁the`, `<0x0A>`), for inspection.
    pub fn token_text(&self, id: u32) -> Option<String> {
        self.parts.vocabulary.spelling(id)
    }

    /// Whether the token is a marker rather than text.
    pub fn is_special(&self, id: u32) -> bool {
        self.parts.vocabulary.is_special(id)
    }

    /// The token of this spelling.
    pub(crate) fn id_of(&self, token: &str) -> Option<u32> {
        self.parts.vocabulary.id(token)
    }

    /// One more than the largest id.
    pub fn len(&self) -> usize {
        self.parts.vocabulary.len()
    }

    /// Whether there are no tokens at all.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The token that begins a sequence.
    pub fn bos(&self) -> Option<u32> {
        self.parts.roles.bos
    }

    /// The token that ends a sequence.
    pub fn eos(&self) -> Option<u32> {
        self.parts.roles.eos
    }

    /// Whether the model expects every sequence to begin with [`bos`](Tokenizer::bos).
    pub fn adds_bos(&self) -> bool {
        self.parts.roles.adds_bos
    }

    /// The tokens that end an answer.
    pub fn stop_tokens(&self) -> &[u32] {
        &self.stops
    }

    /// Adds a token that ends an answer, as `generation_config.json` may.
    pub fn add_stop_token(&mut self, id: u32) {
        if !self.stops.contains(&id) {
            self.stops.push(id);
        }
    }
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, out: &mut std::fmt::Formatter) -> std::fmt::Result {
        out.debug_struct("Tokenizer")
            .field("tokens", &self.len())
            .field("roles", &self.parts.roles)
            .field("stops", &self.stops)
            .finish_non_exhaustive()
    }
}
