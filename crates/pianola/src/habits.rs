//! Arguments as users of llama.cpp write them, where the parser would take them for something else:
//! it reads `-ngl` as `-n gl`.

use std::ffi::OsString;

/// Options of several letters behind one dash, and what they are called here.
const WRITTEN: [(&str, &str); 6] = [
    ("-ngl", "--layers-on-gpu"),
    ("-sys", "--system"),
    ("-hf", "--model"),
    ("-no-cnv", "--raw"),
    ("-cnv", "--interactive"),
    ("-if", "--interactive"),
];

/// The arguments in our own words; what follows `--` is left alone.
pub fn translated(arguments: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let mut literal = false;
    arguments
        .map(|argument| {
            literal |= argument == "--";
            let written = WRITTEN.iter().find(|(theirs, _)| !literal && argument == *theirs);
            written.map_or(argument, |(_, ours)| ours.into())
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_words_before_the_dashes_are_translated() {
        let words = ["run", "-ngl", "99", "-n", "5", "-nglx", "--", "-ngl"];
        let found = translated(words.iter().map(OsString::from));
        let expected = ["run", "--layers-on-gpu", "99", "-n", "5", "-nglx", "--", "-ngl"];
        assert_eq!(found, expected.map(OsString::from));
    }
}
