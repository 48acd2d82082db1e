//! From a piece of text to tokens: what may join, and in which order.

mod byte_pair;
mod merge;
mod sentence_piece;

pub(crate) use byte_pair::{BytePair, Merge, Unknown};
pub(crate) use merge::Scratch;
pub(crate) use sentence_piece::SentencePiece;

use crate::vocabulary::Vocabulary;

/// The model of a vocabulary.
pub(crate) enum Model {
    /// Merges are ranked by a list.
    BytePair(BytePair),
    /// Merges are ranked by the score of what they form.
    SentencePiece(SentencePiece),
}

impl Model {
    /// Appends the tokens of one piece.
    pub(crate) fn encode(
        &self,
        vocabulary: &Vocabulary,
        piece: &str,
        scratch: &mut Scratch,
        out: &mut Vec<u32>,
    ) {
        match self {
            Model::BytePair(model) => model.encode(vocabulary, piece, scratch, out),
            Model::SentencePiece(model) => model.encode(vocabulary, piece, scratch, out),
        }
    }
}
