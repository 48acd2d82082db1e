//! Codes of one row in a block of a tile; the layout is drawn in [`super`].

/// Four codes at a time as one word.
fn groups(codes: &[u8; 32]) -> [u32; 8] {
    std::array::from_fn(|group| {
        u32::from_le_bytes([
            codes[4 * group],
            codes[4 * group + 1],
            codes[4 * group + 2],
            codes[4 * group + 3],
        ])
    })
}

/// Lower halves of the bytes of a word.
const NIBBLES: u32 = 0x0f0f_0f0f;

/// Puts the 32 codes of a row into a zeroed block.
#[inline(always)]
pub(super) fn put_codes(bits: usize, block: &mut [u8], lane: usize, codes: &[u8; 32]) {
    let groups = groups(codes);
    let mut put = |at: usize, word: u32| {
        let bytes = &mut block[at..at + 4];
        let old = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        bytes.copy_from_slice(&(old | word).to_le_bytes());
    };
    if bits == 8 {
        for (group, word) in groups.into_iter().enumerate() {
            put(64 * group + 4 * lane, word);
        }
        return;
    }
    for group in 0..4 {
        let word = (groups[group] & NIBBLES) | ((groups[group + 4] & NIBBLES) << 4);
        put(64 * group + 4 * lane, word);
    }
    if bits == 5 {
        for (group, word) in groups.into_iter().enumerate() {
            let bits = (0..4).fold(0, |bits, k| bits | ((word >> (8 * k + 4)) & 1) << k) as u8;
            block[256 + 8 * group + lane / 2] |= bits << (4 * (lane % 2));
        }
    } else if bits == 6 {
        for (group, word) in groups.into_iter().enumerate() {
            let pair = (word >> 4) & 0x0303_0303;
            put(256 + 64 * (group / 4) + 4 * lane, pair << (2 * (group % 4)));
        }
    }
}

/// The inverse of [`put_codes`].
#[inline(always)]
pub(super) fn take_codes(bits: usize, block: &[u8], lane: usize) -> [u8; 32] {
    let take =
        |at: usize| u32::from_le_bytes([block[at], block[at + 1], block[at + 2], block[at + 3]]);
    let mut words = [0; 8];
    if bits == 8 {
        for (group, word) in words.iter_mut().enumerate() {
            *word = take(64 * group + 4 * lane);
        }
    } else {
        for group in 0..4 {
            let both = take(64 * group + 4 * lane);
            (words[group], words[group + 4]) = (both & NIBBLES, (both >> 4) & NIBBLES);
        }
    }
    for (group, word) in words.iter_mut().enumerate() {
        if bits == 5 {
            let bits = u32::from(block[256 + 8 * group + lane / 2] >> (4 * (lane % 2)));
            *word |= (0..4).fold(0, |word, k| word | ((bits >> k) & 1) << (8 * k + 4));
        } else if bits == 6 {
            let pairs = take(256 + 64 * (group / 4) + 4 * lane) >> (2 * (group % 4));
            *word |= (pairs & 0x0303_0303) << 4;
        }
    }
    let mut codes = [0; 32];
    for (codes, word) in codes.chunks_exact_mut(4).zip(words) {
        codes.copy_from_slice(&word.to_le_bytes());
    }
    codes
}
