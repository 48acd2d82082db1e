//! The loop both models share: join the best pair of neighbours, leftmost
//! first among equals, until none may be joined. The symbols are a linked list
//! and the candidates a heap, so n characters cost n log n whatever they are.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// A symbol that is no token (yet): an unknown character.
pub(crate) const NO_TOKEN: u32 = u32::MAX;
const NOWHERE: u32 = u32::MAX;

/// A run of the piece that is one symbol so far.
#[derive(Clone, Copy)]
pub(crate) struct Symbol {
    pub(crate) id: u32,
    /// Offset and length in the piece; a symbol joined to its left has length 0.
    pub(crate) start: u32,
    pub(crate) length: u32,
    previous: u32,
    next: u32,
}

/// What two neighbours would become.
pub(crate) struct Joined {
    /// Lower joins earlier.
    pub(crate) rank: u32,
    pub(crate) id: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Candidate {
    rank: u32,
    left: u32,
    right: u32,
    /// Length of the two when this was found; another length now means it is stale.
    length: u32,
    id: u32,
}

/// Buffers kept between pieces: most pieces are a word, an allocation each would show.
#[derive(Default)]
pub(crate) struct Scratch {
    symbols: Vec<Symbol>,
    candidates: BinaryHeap<Reverse<Candidate>>,
    pub(crate) spelling: String,
}

impl Scratch {
    pub(crate) fn clear(&mut self) {
        self.symbols.clear();
    }

    /// Appends a symbol of `length` bytes of the piece.
    pub(crate) fn push(&mut self, id: u32, length: usize) {
        let index = self.symbols.len() as u32;
        let (start, previous) = match self.symbols.last_mut() {
            Some(last) => {
                last.next = index;
                (last.start + last.length, index - 1)
            }
            None => (0, NOWHERE),
        };
        let length = length as u32;
        self.symbols.push(Symbol { id, start, length, previous, next: NOWHERE });
    }

    /// Joins neighbours as `join` allows.
    pub(crate) fn merge(&mut self, join: impl Fn(&Symbol, &Symbol) -> Option<Joined>) {
        self.candidates.clear();
        for left in 1..self.symbols.len() {
            self.consider(left as u32 - 1, left as u32, &join);
        }
        while let Some(Reverse(found)) = self.candidates.pop() {
            let right = self.symbols[found.right as usize];
            let left = &mut self.symbols[found.left as usize];
            // A symbol grows only to its right, so two that still have their
            // lengths are still neighbours.
            if left.length == 0 || right.length == 0 || left.length + right.length != found.length {
                continue;
            }
            left.id = found.id;
            left.length = found.length;
            left.next = right.next;
            let previous = left.previous;
            self.symbols[found.right as usize].length = 0;
            if right.next != NOWHERE {
                self.symbols[right.next as usize].previous = found.left;
                self.consider(found.left, right.next, &join);
            }
            if previous != NOWHERE {
                self.consider(previous, found.left, &join);
            }
        }
    }

    fn consider(
        &mut self,
        left: u32,
        right: u32,
        join: &impl Fn(&Symbol, &Symbol) -> Option<Joined>,
    ) {
        let (first, second) = (&self.symbols[left as usize], &self.symbols[right as usize]);
        if let Some(Joined { rank, id }) = join(first, second) {
            let length = first.length + second.length;
            self.candidates.push(Reverse(Candidate { rank, left, right, length, id }));
        }
    }

    /// The symbols that are left, in order.
    pub(crate) fn symbols(&self) -> impl Iterator<Item = &Symbol> {
        self.symbols.iter().filter(|symbol| symbol.length > 0)
    }
}
