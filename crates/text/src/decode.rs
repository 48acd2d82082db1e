//! From tokens back to text, a token at a time.

use crate::tokenizer::Tokenizer;

/// Turns a stream of tokens into text. A character may take several tokens:
/// its bytes are kept back until it is whole, or cannot become so.
#[derive(Clone, Debug)]
pub struct Decoder {
    show_special: bool,
    /// The beginning of a character, at most three bytes.
    pending: Vec<u8>,
    /// How many spaces may still be dropped from the beginning of the text.
    strip: usize,
}

impl Decoder {
    pub(crate) fn new(show_special: bool, strip: usize) -> Decoder {
        Decoder { show_special, pending: Vec::new(), strip }
    }

    /// Appends what the token completes; an id outside the vocabulary is U+FFFD. `tokenizer` is the
    /// one that made this decoder.
    pub fn push(&mut self, tokenizer: &Tokenizer, id: u32, out: &mut String) {
        if !self.show_special && tokenizer.is_special(id) {
            return;
        }
        let mut bytes = tokenizer.token_bytes(id).unwrap_or("\u{fffd}".as_bytes());
        while self.strip > 0 && !bytes.is_empty() {
            match bytes.strip_prefix(b" ") {
                Some(rest) => {
                    bytes = rest;
                    self.strip -= 1;
                }
                None => self.strip = 0,
            }
        }
        if self.pending.is_empty() {
            let kept = append(bytes, out);
            self.pending.extend_from_slice(&bytes[bytes.len() - kept..]);
        } else {
            self.pending.extend_from_slice(bytes);
            let kept = append(&self.pending, out);
            self.pending.drain(..self.pending.len() - kept);
        }
    }

    /// Appends U+FFFD for a character that was begun and never completed.
    pub fn finish(&mut self, out: &mut String) {
        if !self.pending.is_empty() {
            self.pending.clear();
            out.push(char::REPLACEMENT_CHARACTER);
        }
    }
}

/// Appends the text of the bytes and returns how many at the end begin a
/// character that more bytes could complete.
fn append(mut bytes: &[u8], out: &mut String) -> usize {
    loop {
        match std::str::from_utf8(bytes) {
            Ok(text) => {
                out.push_str(text);
                return 0;
            }
            Err(error) => {
                let (valid, rest) = bytes.split_at(error.valid_up_to());
                out.push_str(std::str::from_utf8(valid).unwrap_or_default());
                let Some(invalid) = error.error_len() else { return rest.len() };
                out.push(char::REPLACEMENT_CHARACTER);
                bytes = &rest[invalid..];
            }
        }
    }
}
