//! A hash for short strings and token pairs. Loading a vocabulary of 262,144
//! tokens looks up more than a million strings; std's SipHash would be the
//! greater part of that time. An attacker who can choose the vocabulary can at
//! worst make his own file slow to load.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// A map from packed token pairs.
pub(crate) type PairMap<V> = HashMap<u64, V, BuildHasherDefault<PairHasher>>;

const ODD: u64 = 0x9e37_79b9_7f4a_7c15;

fn mix(left: u64, right: u64) -> u64 {
    let product = u128::from(left) * u128::from(right);
    (product as u64) ^ ((product >> 64) as u64)
}

/// Hashes a string's bytes, eight at a time.
pub(crate) fn hash_bytes(bytes: &[u8]) -> u64 {
    let mut state = ODD ^ bytes.len() as u64;
    let mut words = bytes.chunks_exact(8);
    for word in &mut words {
        let mut eight = [0; 8];
        eight.copy_from_slice(word);
        state = mix(state ^ u64::from_le_bytes(eight), ODD);
    }
    let mut tail = [0; 8];
    let rest = words.remainder();
    tail[..rest.len()].copy_from_slice(rest);
    mix(state ^ u64::from_le_bytes(tail), ODD | 1 << 63)
}

/// Hashes one `u64` key; other keys are not hashed with it.
#[derive(Default)]
pub(crate) struct PairHasher(u64);

impl Hasher for PairHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        self.0 = mix(self.0 ^ hash_bytes(bytes), ODD);
    }

    fn write_u64(&mut self, key: u64) {
        self.0 = mix(key ^ ODD, ODD | 1 << 63);
    }
}

/// The key of a pair of token ids.
pub(crate) fn pair(left: u32, right: u32) -> u64 {
    u64::from(left) << 32 | u64::from(right)
}
