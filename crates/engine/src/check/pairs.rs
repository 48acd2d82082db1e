//! All pairs: few combinations of choices in which any two choices occur together.

use std::collections::BTreeSet;

/// A choice: the factor, and its value.
type Choice = (usize, usize);

/// Combinations of values, `counts[factor]` for each factor, such that for any two factors every
/// pair of values occurs in some combination. Greedy and deterministic: always the same list, near
/// the product of the two largest counts.
pub(super) fn all_pairs(counts: &[usize]) -> Vec<Vec<usize>> {
    let choices = |factor: usize| (0..counts[factor]).map(move |value| (factor, value));
    let mut open: BTreeSet<(Choice, Choice)> = BTreeSet::new();
    for first in 0..counts.len() {
        for second in first + 1..counts.len() {
            open.extend(choices(first).flat_map(|a| choices(second).map(move |b| (a, b))));
        }
    }
    let mut combinations = Vec::new();
    while let Some(&(a, b)) = open.first() {
        let mut chosen = vec![a, b];
        for factor in (0..counts.len()).filter(|&factor| factor != a.0 && factor != b.0) {
            let closes = |choice: Choice| {
                chosen.iter().filter(|&&other| open.contains(&ordered(choice, other))).count()
            };
            // Of equals the one whose turn it is, so that values are spread evenly.
            let turn = |value: usize| {
                (value + counts[factor] - combinations.len() % counts[factor]) % counts[factor]
            };
            let best = choices(factor)
                .max_by_key(|&choice| (closes(choice), std::cmp::Reverse(turn(choice.1))));
            chosen.extend(best);
        }
        chosen.sort_unstable();
        for (index, &a) in chosen.iter().enumerate() {
            chosen[index + 1..].iter().for_each(|&b| {
                open.remove(&(a, b));
            });
        }
        combinations.push(chosen.into_iter().map(|choice| choice.1).collect());
    }
    combinations
}

fn ordered(a: Choice, b: Choice) -> (Choice, Choice) {
    if a < b { (a, b) } else { (b, a) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_pair_occurs_in_few_combinations() {
        for counts in [&[13, 3, 2, 24][..], &[2, 2, 2, 2, 2], &[4, 1, 3], &[5, 7]] {
            let combinations = all_pairs(counts);
            for first in 0..counts.len() {
                for second in first + 1..counts.len() {
                    for (a, b) in
                        (0..counts[first]).flat_map(|a| (0..counts[second]).map(move |b| (a, b)))
                    {
                        let occurs = |combination: &Vec<usize>| {
                            (combination[first], combination[second]) == (a, b)
                        };
                        assert!(combinations.iter().any(occurs), "{counts:?}: {first} {second}");
                    }
                }
            }
            let mut sorted = counts.to_vec();
            sorted.sort_unstable_by(|a, b| b.cmp(a));
            let least = sorted[0] * sorted[1];
            assert!(combinations.len() <= least + least / 4 + 4, "{counts:?}: {combinations:?}");
            assert!(combinations.iter().all(|combination| combination.len() == counts.len()));
            assert_eq!(combinations, all_pairs(counts), "always the same");
        }
    }
}
