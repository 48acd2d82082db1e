//! SentencePiece BPE as GGUF carries it: no merge list; two neighbours may
//! join if together they spell a token, the one of best score first.

use super::byte_pair::fallback_tokens;
use super::merge::{Joined, NO_TOKEN, Scratch};
use crate::vocabulary::Vocabulary;

/// The scores, as an order.
pub(crate) struct SentencePiece {
    /// By token; lower joins earlier.
    ranks: Vec<u32>,
    bytes: Box<[u32; 256]>,
    unknown: Option<u32>,
}

impl SentencePiece {
    pub(crate) fn new(vocabulary: &Vocabulary, scores: &[f32], unknown: Option<u32>) -> Self {
        let ranks = scores.iter().map(|&score| rank(score)).collect();
        SentencePiece { ranks, bytes: fallback_tokens(vocabulary), unknown }
    }

    pub(crate) fn encode(
        &self,
        vocabulary: &Vocabulary,
        piece: &str,
        scratch: &mut Scratch,
        out: &mut Vec<u32>,
    ) {
        scratch.clear();
        for (start, character) in piece.char_indices() {
            let text = &piece[start..start + character.len_utf8()];
            scratch.push(vocabulary.normal(text).unwrap_or(NO_TOKEN), text.len());
        }
        scratch.merge(|left, right| {
            let start = left.start as usize;
            let end = start + left.length as usize + right.length as usize;
            let id = vocabulary.normal(&piece[start..end])?;
            Some(Joined { rank: self.ranks[id as usize], id })
        });
        for symbol in scratch.symbols() {
            if symbol.id != NO_TOKEN {
                out.push(symbol.id);
                continue;
            }
            let start = symbol.start as usize;
            let text = &piece.as_bytes()[start..start + symbol.length as usize];
            if text.iter().all(|&byte| self.bytes[usize::from(byte)] != NO_TOKEN) {
                out.extend(text.iter().map(|&byte| self.bytes[usize::from(byte)]));
            } else {
                out.extend(self.unknown);
            }
        }
    }
}

/// Maps a score to an integer that falls as the score rises, exactly: the bits
/// of a float order like a signed integer once the negative half is flipped.
fn rank(score: f32) -> u32 {
    let bits = (score + 0.0).to_bits();
    let ascending = if bits >> 31 == 1 { !bits } else { bits | 1 << 31 };
    !ascending
}

#[cfg(test)]
mod tests {
    use super::rank;

    #[test]
    fn higher_scores_rank_first() {
        let scores = [f32::INFINITY, 3.5, 1e-30, 0.0, -1e-30, -1.0, -2.0, -1e9, f32::NEG_INFINITY];
        assert!(scores.windows(2).all(|two| rank(two[0]) < rank(two[1])));
        assert_eq!(rank(0.0), rank(-0.0));
    }
}
