//! Byte-pair encoding by a ranked list of merges, over bytes (GPT-2, Llama 3,
//! Qwen) or over characters (tokenizer.json of Gemma and Llama 2).

use super::merge::{Joined, NO_TOKEN, Scratch};
use crate::alphabet;
use crate::error::Error;
use crate::hash::{PairMap, pair};
use crate::vocabulary::{Kind, Vocabulary};

/// A merge as written in the file: the spellings of its halves.
pub(crate) type Merge<'a> = (&'a str, &'a str);

/// What becomes of a character without a token.
#[derive(Clone, Copy, Default)]
pub(crate) struct Unknown {
    /// Spell it in byte tokens.
    pub(crate) bytes: bool,
    /// Otherwise it becomes this token; without one it is dropped.
    pub(crate) token: Option<u32>,
    /// Neighbouring unknown characters share one token.
    pub(crate) fuse: bool,
}

/// A ranked merge list and what the first symbols are.
pub(crate) struct BytePair {
    merges: PairMap<Ranked>,
    alphabet: Alphabet,
    /// A piece that is itself a token is taken whole, whatever the merges say.
    whole_pieces: bool,
}

#[derive(Clone, Copy)]
struct Ranked {
    rank: u32,
    id: u32,
}

enum Alphabet {
    /// The token of each byte.
    Bytes(Box<[u32; 256]>),
    /// Characters, with the token of each byte for those that have none.
    Characters { bytes: Option<Box<[u32; 256]>>, unknown: Option<u32>, fuse: bool },
}

impl BytePair {
    /// Merges over bytes, spelled in the byte-level alphabet.
    pub(crate) fn over_bytes(
        vocabulary: &Vocabulary,
        merges: &[Merge],
        whole_pieces: bool,
    ) -> Result<BytePair, Error> {
        let mut spelling = [0; 4];
        let bytes = tokens_of_bytes(|byte| {
            vocabulary.text(alphabet::char_of(byte).encode_utf8(&mut spelling))
        });
        let alphabet = Alphabet::Bytes(bytes);
        Ok(BytePair { merges: resolve(vocabulary, merges)?, alphabet, whole_pieces })
    }

    /// Merges over characters.
    pub(crate) fn over_characters(
        vocabulary: &Vocabulary,
        merges: &[Merge],
        whole_pieces: bool,
        unknown: Unknown,
    ) -> Result<BytePair, Error> {
        let bytes = unknown.bytes.then(|| fallback_tokens(vocabulary));
        let alphabet = Alphabet::Characters { bytes, unknown: unknown.token, fuse: unknown.fuse };
        Ok(BytePair { merges: resolve(vocabulary, merges)?, alphabet, whole_pieces })
    }

    pub(crate) fn encode(
        &self,
        vocabulary: &Vocabulary,
        piece: &str,
        scratch: &mut Scratch,
        out: &mut Vec<u32>,
    ) {
        if self.whole_pieces
            && let Some(id) = self.whole(vocabulary, piece, scratch)
        {
            out.push(id);
            return;
        }
        scratch.clear();
        match &self.alphabet {
            Alphabet::Bytes(tokens) => {
                for byte in piece.bytes() {
                    let id = tokens[usize::from(byte)];
                    // A vocabulary that cannot spell this byte loses it.
                    if id != NO_TOKEN {
                        scratch.push(id, 1);
                    }
                }
            }
            Alphabet::Characters { bytes, unknown, fuse } => {
                let mut was_unknown = false;
                for (start, character) in piece.char_indices() {
                    let text = &piece[start..start + character.len_utf8()];
                    if let Some(id) = vocabulary.text(text) {
                        was_unknown = false;
                        scratch.push(id, text.len());
                    } else if let Some(tokens) = bytes
                        && text.bytes().all(|byte| tokens[usize::from(byte)] != NO_TOKEN)
                    {
                        was_unknown = false;
                        for byte in text.bytes() {
                            scratch.push(tokens[usize::from(byte)], 1);
                        }
                    } else if let Some(id) = unknown {
                        if !(*fuse && was_unknown) {
                            scratch.push(*id, text.len());
                        }
                        was_unknown = true;
                    }
                }
            }
        }
        scratch.merge(|left, right| {
            let Ranked { rank, id } = *self.merges.get(&pair(left.id, right.id))?;
            Some(Joined { rank, id })
        });
        out.extend(scratch.symbols().map(|symbol| symbol.id));
    }

    fn whole(&self, vocabulary: &Vocabulary, piece: &str, scratch: &mut Scratch) -> Option<u32> {
        if matches!(self.alphabet, Alphabet::Characters { .. }) {
            return vocabulary.text(piece);
        }
        scratch.spelling.clear();
        scratch.spelling.extend(piece.bytes().map(alphabet::char_of));
        vocabulary.text(&scratch.spelling)
    }
}

fn tokens_of_bytes(mut token: impl FnMut(u8) -> Option<u32>) -> Box<[u32; 256]> {
    let mut tokens = Box::new([NO_TOKEN; 256]);
    for byte in 0..=255 {
        tokens[usize::from(byte)] = token(byte).unwrap_or(NO_TOKEN);
    }
    tokens
}

/// The tokens `<0x00>` to `<0xFF>`.
pub(super) fn fallback_tokens(vocabulary: &Vocabulary) -> Box<[u32; 256]> {
    tokens_of_bytes(|byte| {
        vocabulary.id(&format!("<0x{byte:02X}>")).filter(|&id| vocabulary.kind(id) == Kind::Byte)
    })
}

/// Looks up the halves and the whole of every merge. Half a million merges are
/// a million and a half lookups, each a cache miss or two: shared among threads.
fn resolve(vocabulary: &Vocabulary, merges: &[Merge]) -> Result<PairMap<Ranked>, Error> {
    const LEAST_WORK: usize = 32_768;
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(4);
    let share = merges.len().div_ceil(threads).max(LEAST_WORK);
    let found: Vec<(u64, u32)> = if merges.len() <= share {
        resolve_share(vocabulary, merges, 0)?
    } else {
        std::thread::scope(|scope| {
            let workers: Vec<_> = merges
                .chunks(share)
                .enumerate()
                .map(|(worker, merges)| {
                    scope.spawn(move || resolve_share(vocabulary, merges, worker * share))
                })
                .collect();
            let mut all = Vec::with_capacity(merges.len());
            for worker in workers {
                match worker.join() {
                    Ok(found) => all.extend(found?),
                    Err(panic) => std::panic::resume_unwind(panic),
                }
            }
            Ok::<_, Error>(all)
        })?
    };
    let mut map = PairMap::with_capacity_and_hasher(found.len(), Default::default());
    for (rank, (halves, id)) in found.into_iter().enumerate() {
        // Control tokens are markers, never text, even if a merge spells one.
        if vocabulary.kind(id).is_text() {
            map.insert(halves, Ranked { rank: rank as u32, id });
        }
    }
    Ok(map)
}

fn resolve_share(
    vocabulary: &Vocabulary,
    merges: &[Merge],
    first_rank: usize,
) -> Result<Vec<(u64, u32)>, Error> {
    let mut whole = String::new();
    let mut found = Vec::with_capacity(merges.len());
    let mut last = 0;
    for (rank, (left, right)) in merges.iter().enumerate() {
        whole.clear();
        whole.push_str(left);
        whole.push_str(right);
        // Tokens are numbered in the order of the merges that form them, so
        // the next is near the last, and most often not to be searched for.
        let near = [last, last + 1].into_iter().find(|&id| vocabulary.is_spelled(id, &whole));
        let formed = near.or_else(|| vocabulary.id(&whole));
        match (vocabulary.id(left), vocabulary.id(right), formed) {
            (Some(left), Some(right), Some(id)) => {
                found.push((pair(left, right), id));
                last = id;
            }
            _ => {
                let merge = format!("{left} {right}");
                return Err(Error::UnknownMerge { rank: first_rank + rank, merge });
            }
        }
    }
    Ok(found)
}
