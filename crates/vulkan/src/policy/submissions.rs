//! How long work is cut into submissions. Drivers reset a GPU whose submission takes longer than a
//! second or two, and a desktop on it freezes meanwhile.

use std::ops::Range;

/// Longest a submission should take, in seconds.
pub(crate) const LIMIT: f64 = 0.4;
/// Share of its arithmetic ceiling that a device reaches in long work, at worst.
pub(crate) const EFFICIENCY: f64 = 0.15;

/// One kernel's predicted time, and whether work may be cut before it.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Piece {
    pub seconds: f64,
    pub cut: bool,
}

/// Consecutive ranges of `pieces`, each as long as [`LIMIT`] allows but at least from one possible
/// cut to the next.
pub(crate) fn submissions(pieces: &[Piece]) -> Vec<Range<usize>> {
    let mut ranges = Vec::new();
    let (mut start, mut last_cut, mut seconds, mut since_cut) = (0, 0, 0.0, 0.0);
    for (index, piece) in pieces.iter().enumerate() {
        if piece.cut {
            last_cut = index;
            since_cut = 0.0;
        }
        seconds += piece.seconds;
        since_cut += piece.seconds;
        if seconds > LIMIT && last_cut > start {
            ranges.push(start..last_cut);
            start = last_cut;
            seconds = since_cut;
        }
    }
    ranges.push(start..pieces.len());
    ranges
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pieces(seconds: f64) -> Vec<Piece> {
        (0..50).map(|index| Piece { seconds, cut: index % 5 == 0 }).collect()
    }

    #[test]
    fn short_work_is_one_segment() {
        assert_eq!(submissions(&pieces(0.001)), std::slice::from_ref(&(0..50)));
        assert_eq!(submissions(&[]), std::slice::from_ref(&(0..0)));
    }

    #[test]
    fn long_work_is_cut_at_layers_and_stays_below_the_limit() {
        let list = pieces(0.03);
        let ranges = submissions(&list);
        assert!(ranges.len() > 3);
        assert_eq!(ranges[0].start, 0);
        assert_eq!(ranges.last().unwrap().end, 50);
        for pair in ranges.windows(2) {
            assert_eq!(pair[0].end, pair[1].start);
        }
        for range in ranges {
            assert!(list[range.start].cut);
            let seconds: f64 = list[range].iter().map(|piece| piece.seconds).sum();
            assert!(seconds <= LIMIT);
        }
        // What is too long between two cuts stays whole.
        assert_eq!(submissions(&pieces(0.2)).len(), 10);
    }
}
