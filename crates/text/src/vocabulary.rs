//! The tokens themselves: how the file spells each, its bytes,
//! and which are special.

use crate::error::Error;
use crate::hash::hash_bytes;

/// No file has more tokens; a larger id is damage, not a reason to allocate.
const MOST_TOKENS: usize = 1 << 24;

/// Many byte strings in one allocation, numbered from 0.
#[derive(Default)]
struct Strings {
    bytes: Vec<u8>,
    ends: Vec<u32>,
}

impl Strings {
    fn with_capacity(strings: usize) -> Strings {
        const USUAL_LENGTH: usize = 8;
        let bytes = Vec::with_capacity(strings * USUAL_LENGTH);
        Strings { bytes, ends: Vec::with_capacity(strings) }
    }

    fn push(&mut self, string: &[u8]) {
        self.bytes.extend_from_slice(string);
        self.ends.push(self.bytes.len() as u32);
    }

    fn get(&self, index: usize) -> &[u8] {
        let start = if index == 0 { 0 } else { self.ends[index - 1] as usize };
        &self.bytes[start..self.ends[index] as usize]
    }
}

/// Which part a token plays. GGUF numbers them 1 to 6.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// No token has this id.
    Absent,
    Normal,
    Unknown,
    /// Never text: markers of turns, begin and end.
    Control,
    /// Text that is always one token.
    UserDefined,
    /// Likewise, but no part of the model's own vocabulary.
    Added,
    Unused,
    /// One byte of a character that has no token of its own.
    Byte,
}

impl Kind {
    /// Whether a ranked merge may form it. Gemma's tokenizer.json ranks merges
    /// for the runs of spaces that are also user-defined tokens.
    pub(crate) fn is_text(self) -> bool {
        matches!(self, Kind::Normal | Kind::UserDefined)
    }

    fn is_special(self) -> bool {
        matches!(self, Kind::Control | Kind::Unknown)
    }
}

/// One token on its way into a [`Vocabulary`].
pub(crate) struct Entry<'a> {
    pub(crate) spelling: &'a str,
    pub(crate) bytes: &'a [u8],
    pub(crate) kind: Kind,
}

/// A place in the hash table. Most lookups are of texts that are no token:
/// the tag tells so without a look at a spelling far off in memory.
#[derive(Clone, Copy, Default)]
struct Slot {
    tag: u32,
    /// The id plus 1; 0 is an empty slot.
    token: u32,
}

/// All tokens, found by id or by spelling.
pub(crate) struct Vocabulary {
    spellings: Strings,
    bytes: Strings,
    kinds: Vec<Kind>,
    /// Open addressing, at most three quarters full.
    slots: Vec<Slot>,
    longest: usize,
}

impl Vocabulary {
    pub(crate) fn with_capacity(tokens: usize) -> Result<Vocabulary, Error> {
        if tokens > MOST_TOKENS {
            return Err(Error::Invalid {
                field: "vocabulary",
                problem: format!("{tokens} tokens are more than any model has"),
            });
        }
        Ok(Vocabulary {
            spellings: Strings::with_capacity(tokens),
            bytes: Strings::with_capacity(tokens),
            kinds: Vec::with_capacity(tokens),
            slots: vec![Slot::default(); (tokens + tokens / 3 + 1).next_power_of_two()],
            longest: 0,
        })
    }

    /// Adds the token with the next id. Of two with one spelling the first is found by it.
    pub(crate) fn push(&mut self, entry: Entry) -> Result<(), Error> {
        if self.len() + 1 >= self.slots.len()
            || self.spellings.bytes.len() + entry.spelling.len() > u32::MAX as usize
            || self.bytes.bytes.len() + entry.bytes.len() > u32::MAX as usize
        {
            return Err(Error::Invalid {
                field: "vocabulary",
                problem: "larger than it says".into(),
            });
        }
        let id = self.len() as u32;
        self.spellings.push(entry.spelling.as_bytes());
        self.bytes.push(entry.bytes);
        self.kinds.push(entry.kind);
        self.longest = self.longest.max(entry.spelling.len());
        if entry.kind != Kind::Absent {
            let (slot, tag) = self.slot(entry.spelling.as_bytes());
            if self.slots[slot].token == 0 {
                self.slots[slot] = Slot { tag, token: id + 1 };
            }
        }
        Ok(())
    }

    /// Where the spelling is, or the empty slot where it would go, and its tag.
    fn slot(&self, spelling: &[u8]) -> (usize, u32) {
        let mask = self.slots.len() - 1;
        let hash = hash_bytes(spelling);
        let tag = (hash >> 32) as u32;
        let mut slot = hash as usize & mask;
        loop {
            let found = self.slots[slot];
            if found.token == 0
                || found.tag == tag && self.spellings.get(found.token as usize - 1) == spelling
            {
                return (slot, tag);
            }
            slot = (slot + 1) & mask;
        }
    }

    pub(crate) fn id(&self, spelling: &str) -> Option<u32> {
        if spelling.len() > self.longest {
            return None;
        }
        let (slot, _) = self.slot(spelling.as_bytes());
        self.slots[slot].token.checked_sub(1)
    }

    /// The token of this spelling, if it is text.
    pub(crate) fn text(&self, spelling: &str) -> Option<u32> {
        self.id(spelling).filter(|&id| self.kind(id).is_text())
    }

    /// The token of this spelling, if it is a normal one.
    pub(crate) fn normal(&self, spelling: &str) -> Option<u32> {
        self.id(spelling).filter(|&id| self.kind(id) == Kind::Normal)
    }

    pub(crate) fn len(&self) -> usize {
        self.kinds.len()
    }

    pub(crate) fn kind(&self, id: u32) -> Kind {
        self.kinds.get(id as usize).copied().unwrap_or(Kind::Absent)
    }

    pub(crate) fn is_special(&self, id: u32) -> bool {
        self.kind(id).is_special()
    }

    pub(crate) fn bytes(&self, id: u32) -> Option<&[u8]> {
        (self.kind(id) != Kind::Absent).then(|| self.bytes.get(id as usize))
    }

    pub(crate) fn is_spelled(&self, id: u32, spelling: &str) -> bool {
        self.kind(id) != Kind::Absent && self.spellings.get(id as usize) == spelling.as_bytes()
    }

    pub(crate) fn spelling(&self, id: u32) -> Option<String> {
        (self.kind(id) != Kind::Absent)
            .then(|| String::from_utf8_lossy(self.spellings.get(id as usize)).into_owned())
    }
}

/// The byte of a byte-fallback spelling, `<0x00>` to `<0xFF>`.
pub(crate) fn fallback_byte(spelling: &str) -> Option<u8> {
    let digits = spelling.strip_prefix("<0x")?.strip_suffix('>')?;
    if digits.len() != 2 || !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return None;
    }
    u8::from_str_radix(digits, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_tokens_by_spelling_and_refuses_too_many() {
        let mut vocabulary = Vocabulary::with_capacity(3).unwrap();
        for spelling in ["a", "b", "a"] {
            let kind = Kind::Normal;
            vocabulary.push(Entry { spelling, bytes: spelling.as_bytes(), kind }).unwrap();
        }
        assert_eq!(vocabulary.id("a"), Some(0));
        assert_eq!(vocabulary.id("b"), Some(1));
        assert_eq!(vocabulary.id("c"), None);
        assert_eq!(vocabulary.bytes(3), None);
        assert_eq!(vocabulary.spelling(2).as_deref(), Some("a"));
        assert!(Vocabulary::with_capacity(usize::MAX).is_err());
    }

    #[test]
    fn reads_fallback_bytes() {
        assert_eq!(fallback_byte("<0x0A>"), Some(10));
        assert_eq!(fallback_byte("<0xff>"), Some(255));
        assert_eq!(fallback_byte("<0x+1>"), None);
        assert_eq!(fallback_byte("<0x100>"), None);
    }
}
