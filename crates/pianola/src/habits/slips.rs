//! Which of some words was probably meant.

/// At most so many are suggested.
const MOST: usize = 3;

/// The words that `given` is a slip for, the nearest first.
pub fn nearest(given: &str, words: &[String]) -> Vec<String> {
    let mut near: Vec<_> = words.iter().map(|word| (edits(given, word), word)).collect();
    near.retain(|(_, word)| is_slip(given, word));
    near.sort();
    near.into_iter().take(MOST).map(|(_, word)| word.clone()).collect()
}

/// Whether at most a third of the letters differ. Dashes in front are no letters.
pub fn is_slip(given: &str, word: &str) -> bool {
    let (given, word) = (given.trim_start_matches('-'), word.trim_start_matches('-'));
    let letters = given.chars().count();
    letters > 1 && edits(given, word) <= letters.div_ceil(3)
}

/// How many letters have to be put in, left out, changed or swapped with the next to turn one word into
/// the other, row by row of the usual table.
fn edits(from: &str, to: &str) -> usize {
    let (from, to): (Vec<char>, Vec<char>) = (from.chars().collect(), to.chars().collect());
    let mut rows = vec![vec![0; to.len() + 1]; from.len() + 1];
    for row in 0..=from.len() {
        for column in 0..=to.len() {
            rows[row][column] = if row == 0 || column == 0 {
                row + column
            } else {
                let changed = usize::from(from[row - 1] != to[column - 1]);
                let swapped = row > 1
                    && column > 1
                    && from[row - 1] == to[column - 2]
                    && from[row - 2] == to[column - 1];
                let swap = if swapped { rows[row - 2][column - 2] + 1 } else { usize::MAX };
                (rows[row - 1][column - 1] + changed)
                    .min(rows[row - 1][column] + 1)
                    .min(rows[row][column - 1] + 1)
                    .min(swap)
            };
        }
    }
    rows[from.len()][to.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn edits_are_counted() {
        assert_eq!(edits("", "abc"), 3);
        assert_eq!(edits("kitten", "sitting"), 3);
        assert_eq!(edits("rnu", "run"), 1);
        assert_eq!(edits("same", "same"), 0);
    }

    #[test]
    fn slips_are_near() {
        let words = ["run", "rm", "list", "ls"].map(String::from);
        assert_eq!(nearest("rnu", &words), ["run"]);
        assert_eq!(nearest("lst", &words), ["list", "ls"]);
        assert_eq!(nearest("x", &words), [""; 0]);
        assert!(is_slip("--tmep", "--temp") && !is_slip("--format", "--draft"));
    }
}
