//! Log probabilities of tokens whose text may be part of a stop text.

use crate::running::TokenInfo;
use std::collections::VecDeque;

/// Holds back the log probabilities of tokens until the text where they begin is certain: those of a stop
/// text are not part of the answer.
#[derive(Default)]
pub(crate) struct HeldTokens {
    /// Bytes of all tokens so far.
    written: usize,
    /// Bytes of text that are certain.
    certain: usize,
    /// Tokens that begin where the text is not certain, and where that is.
    waiting: VecDeque<(usize, TokenInfo)>,
}

impl HeldTokens {
    /// Takes a token, its bytes and the text that became certain with it; returns the tokens that begin
    /// in certain text.
    pub fn push(&mut self, info: TokenInfo, bytes: &[u8], text: &str) -> Vec<TokenInfo> {
        self.waiting.push_back((self.written, info));
        // Some tokenisers leave out the space that a text begins with.
        let shortened = self.written == 0 && !text.is_empty() && bytes.ends_with(text.as_bytes());
        self.written += if shortened { text.len() } else { bytes.len() };
        self.certain += text.len();
        let ready = self.waiting.iter().take_while(|(begin, _)| *begin < self.certain).count();
        self.waiting.drain(..ready).map(|(_, info)| info).collect()
    }

    /// The tokens that are left where no stop text ended the answer.
    pub fn finish(&mut self) -> Vec<TokenInfo> {
        self.waiting.drain(..).map(|(_, info)| info).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn push(held: &mut HeldTokens, token: u32, bytes: &str, text: &str) -> Vec<u32> {
        let info = TokenInfo { token, logprob: 0.0, top: Vec::new() };
        held.push(info, bytes.as_bytes(), text).iter().map(|info| info.token).collect()
    }

    #[test]
    fn tokens_of_a_stop_text_are_left_out() {
        let mut held = HeldTokens::default();
        assert_eq!(push(&mut held, 1, "one", "one"), [1]);
        for (token, bytes) in [(2, "\n"), (3, "3"), (4, ".")] {
            assert!(push(&mut held, token, bytes, "").is_empty());
        }
        assert_eq!(held.finish().len(), 3);
    }

    #[test]
    fn tokens_that_begin_before_a_stop_text_are_kept() {
        let mut held = HeldTokens::default();
        assert_eq!(push(&mut held, 1, "one\n", "one"), [1]);
        assert!(push(&mut held, 2, "3", "").is_empty());
        // It was no stop text after all.
        assert_eq!(push(&mut held, 3, "!!", "\n3!!"), [2, 3]);
    }

    #[test]
    fn a_space_that_is_left_out_does_not_count() {
        let mut held = HeldTokens::default();
        assert_eq!(push(&mut held, 1, " one", "one"), [1]);
        assert_eq!(push(&mut held, 2, "s", "s"), [2]);
    }
}
