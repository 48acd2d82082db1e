//! Ends generation at a stop string, and never shows a part of one.

/// Watches streamed text for stop strings.
///
/// Text that may be the beginning of a stop string is held back until more text decides. Where
/// several stop strings match, the one completed first counts, and of those completed at the same
/// character the longest: how the text was cut into pushes makes no difference.
#[derive(Clone, Debug)]
pub(crate) struct StopMatcher {
    stops: Vec<String>,
    /// The longest end of the text so far that begins a stop string.
    held: String,
    /// Index of the stop string that ended the text.
    matched: Option<usize>,
}

impl StopMatcher {
    /// A matcher for any of these strings; empty ones are ignored.
    pub fn new(mut stops: Vec<String>) -> Self {
        stops.retain(|stop| !stop.is_empty());
        Self { stops, held: String::new(), matched: None }
    }

    /// Takes the next piece of text and appends to `out` what is certain to precede any stop
    /// string. True once a stop string was completed; it and everything after it are dropped.
    pub fn push(&mut self, text: &str, out: &mut String) -> bool {
        if self.matched.is_some() {
            return true;
        }
        self.held.push_str(text);
        // The first occurrence of a stop string is also the one it completes first.
        let found = self.stops.iter().enumerate().filter_map(|(index, stop)| {
            self.held.find(stop.as_str()).map(|start| (start + stop.len(), start, index))
        });
        if let Some((_, start, index)) = found.min() {
            out.push_str(&self.held[..start]);
            self.held.clear();
            self.matched = Some(index);
            return true;
        }
        let certain = self.held.len() - self.undecided();
        out.push_str(&self.held[..certain]);
        self.held.drain(..certain);
        false
    }

    /// Ends the text: what was held back is no stop string after all and goes to `out`.
    pub fn finish(&mut self, out: &mut String) {
        out.push_str(&self.held);
        self.held.clear();
    }

    /// The stop string that ended the text.
    pub fn matched(&self) -> Option<&str> {
        self.matched.map(|index| self.stops[index].as_str())
    }

    /// How many bytes at the end of `held` begin a stop string.
    fn undecided(&self) -> usize {
        let held = self.held.as_bytes();
        let begins = |stop: &String| {
            // Compared as bytes: `held` ends between characters, so a match does too.
            let stop = stop.as_bytes();
            let longest = (stop.len() - 1).min(held.len());
            (1..=longest).rev().find(|&length| held.ends_with(&stop[..length])).unwrap_or(0)
        };
        self.stops.iter().map(begins).max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn matcher(stops: &[&str]) -> StopMatcher {
        StopMatcher::new(stops.iter().map(|stop| stop.to_string()).collect())
    }

    /// Pushes the pieces and notes what came out after each.
    fn play(matcher: &mut StopMatcher, pieces: &[&str]) -> (Vec<String>, bool) {
        let mut shown = Vec::new();
        for piece in pieces {
            let mut out = String::new();
            let stopped = matcher.push(piece, &mut out);
            shown.push(out);
            if stopped {
                return (shown, true);
            }
        }
        (shown, false)
    }

    #[test]
    fn holds_back_what_may_become_a_stop_string() {
        let mut stops = matcher(&["END"]);
        assert_eq!(play(&mut stops, &["one E", "N", "D two"]).0, ["one ", "", ""]);
        assert_eq!(stops.matched(), Some("END"));
    }

    #[test]
    fn releases_what_turned_out_harmless() {
        let mut stops = matcher(&["END"]);
        let (shown, stopped) = play(&mut stops, &["E", "N", "E", "x", "EN"]);
        assert_eq!((shown.concat().as_str(), stopped), ("ENEx", false));
        assert_eq!(shown, ["", "", "EN", "Ex", ""]);
        let mut rest = String::new();
        stops.finish(&mut rest);
        assert_eq!(rest, "EN");
        assert_eq!(stops.matched(), None);
    }

    #[test]
    fn overlapping_beginnings_restart_at_the_right_place() {
        let mut stops = matcher(&["aab"]);
        let (shown, stopped) = play(&mut stops, &["a", "a", "a", "b"]);
        assert_eq!((shown.concat().as_str(), stopped), ("a", true));
    }

    #[test]
    fn the_first_completed_wins_then_the_longest() {
        assert_eq!(play(&mut matcher(&["abcd", "bc"]), &["xabcd"]).0, ["xa"]);
        assert_eq!(play(&mut matcher(&["c", "abc"]), &["xabc"]).0, ["x"]);
    }

    #[test]
    fn characters_of_several_bytes_stay_whole() {
        let mut stops = matcher(&["日本"]);
        assert_eq!(play(&mut stops, &["é日", "木日", "本語"]).0, ["é", "日木", ""]);
    }

    #[test]
    fn no_stop_strings_means_no_delay() {
        let mut stops = matcher(&[""]);
        assert_eq!(
            play(&mut stops, &["a", "", "b"]),
            (vec!["a".into(), "".into(), "b".into()], false)
        );
    }

    #[test]
    fn nothing_comes_after_the_stop() {
        let mut stops = matcher(&["."]);
        let mut out = String::new();
        assert!(stops.push("a.b", &mut out));
        assert!(stops.push("c", &mut out));
        stops.finish(&mut out);
        assert_eq!(out, "a");
    }

    /// What precedes the stop string in the whole text: the reference.
    fn search(text: &str, stops: &[String]) -> (String, bool) {
        for end in (0..=text.len()).filter(|&end| text.is_char_boundary(end)) {
            let ending = stops.iter().filter(|s| !s.is_empty() && text[..end].ends_with(*s));
            if let Some(longest) = ending.map(String::len).max() {
                return (text[..end - longest].to_string(), true);
            }
        }
        (text.to_string(), false)
    }

    proptest! {
        // A small alphabet, with characters of one to four bytes that share bytes, makes matches
        // and near misses frequent.
        #[test]
        fn agrees_with_a_search_of_the_whole_text(
            pieces in prop::collection::vec("[abéè日🎹]{0,4}", 0..12),
            stops in prop::collection::vec("[abéè日🎹]{0,4}", 0..4),
        ) {
            let mut matcher = StopMatcher::new(stops.clone());
            let (mut out, mut stopped) = (String::new(), false);
            for piece in &pieces {
                stopped = matcher.push(piece, &mut out);
                if stopped {
                    break;
                }
                prop_assert!(!stops.iter().any(|s| !s.is_empty() && out.contains(s.as_str())));
            }
            matcher.finish(&mut out);
            prop_assert_eq!((out, stopped), search(&pieces.concat(), &stops));
        }
    }
}
