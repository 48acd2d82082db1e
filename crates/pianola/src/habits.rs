//! Arguments as users of other programs write them: those that the parser would take for something else
//! (it reads `-ngl` as `-n gl`), and those that do not exist here.

mod foreign;
mod slips;

use std::ffi::OsString;

use clap::CommandFactory;
use clap::error::{ContextKind, ContextValue, ErrorKind};

use crate::cli::Cli;

/// Options of several letters behind one dash, and their long names. Some of those exist in no command:
/// then [`foreign`] says what to use.
const WRITTEN: [(&str, &str); 36] = [
    ("-ngl", "--layers-on-gpu"),
    ("-sys", "--system"),
    ("-hf", "--model"),
    ("-no-cnv", "--raw"),
    ("-cnv", "--interactive"),
    ("-if", "--interactive"),
    ("-j", "--schema"),
    ("-jf", "--schema"),
    ("-dev", "--device"),
    ("-np", "--parallel"),
    ("-sysf", "--system-prompt-file"),
    ("-hfr", "--hf-repo"),
    ("-hff", "--hf-file"),
    ("-hft", "--hf-token"),
    ("-hfd", "--hf-repo-draft"),
    ("-md", "--model-draft"),
    ("-mu", "--model-url"),
    ("-mm", "--mmproj"),
    ("-fa", "--flash-attn"),
    ("-ctk", "--cache-type-k"),
    ("-ctv", "--cache-type-v"),
    ("-nkvo", "--no-kv-offload"),
    ("-kvu", "--kv-unified"),
    ("-ub", "--ubatch-size"),
    ("-tb", "--threads-batch"),
    ("-sm", "--split-mode"),
    ("-ts", "--tensor-split"),
    ("-mg", "--main-gpu"),
    ("-ot", "--override-tensor"),
    ("-cmoe", "--cpu-moe"),
    ("-ncmoe", "--n-cpu-moe"),
    ("-cb", "--cont-batching"),
    ("-bf", "--binary-file"),
    ("-mli", "--multiline-input"),
    ("-st", "--single-turn"),
    ("-co", "--color"),
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

/// The sentence about an option or a command of another program, if it is that what the parser refused.
pub fn answer(error: &clap::Error) -> Option<String> {
    let (kind, known): (_, fn(&str) -> Option<foreign::Answer>) = match error.kind() {
        ErrorKind::UnknownArgument => (ContextKind::InvalidArg, foreign::option),
        ErrorKind::InvalidSubcommand => (ContextKind::InvalidSubcommand, foreign::command),
        _ => return None,
    };
    let name = text(error, kind)?;
    known(name).map(|answer| answer.about(name))
}

fn text(error: &clap::Error, kind: ContextKind) -> Option<&str> {
    match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text),
        _ => None,
    }
}

/// The error with tips for what was probably mistyped only. The parser compares words by their common
/// letters: it takes `--format` for `--draft`, and nothing for `rnu`.
pub fn with_tips(mut error: clap::Error) -> clap::Error {
    match error.kind() {
        ErrorKind::InvalidSubcommand => {
            let given = text(&error, ContextKind::InvalidSubcommand).unwrap_or_default();
            let near = slips::nearest(given, &commands());
            error.remove(ContextKind::SuggestedSubcommand);
            if !near.is_empty() {
                error.insert(ContextKind::SuggestedSubcommand, ContextValue::Strings(near));
            }
        }
        ErrorKind::UnknownArgument => {
            let given = text(&error, ContextKind::InvalidArg).unwrap_or_default().to_string();
            let near = match text(&error, ContextKind::SuggestedArg) {
                Some(near) => slips::is_slip(&given, near),
                None => true,
            };
            if !near {
                // The usage speaks of it, too.
                error.remove(ContextKind::SuggestedArg);
                error.remove(ContextKind::Usage);
            }
            let letters = |c: char| c.is_ascii_lowercase() || c == '-';
            if given.starts_with("--") && given.chars().all(letters) {
                // Nobody means such a word as a prompt.
                error.remove(ContextKind::Suggested);
            }
        }
        _ => {}
    }
    error
}

/// The commands that are shown, by all their names.
fn commands() -> Vec<String> {
    let cli = Cli::command();
    let shown = cli.get_subcommands().filter(|command| !command.is_hide_set());
    let names = shown.flat_map(|command| {
        std::iter::once(command.get_name()).chain(command.get_visible_aliases()).map(String::from)
    });
    names.collect()
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[test]
    fn only_whole_words_before_the_dashes_are_translated() {
        let words = ["run", "-ngl", "99", "-n", "5", "-nglx", "--", "-ngl"];
        let found = translated(words.iter().map(OsString::from));
        let expected = ["run", "--layers-on-gpu", "99", "-n", "5", "-nglx", "--", "-ngl"];
        assert_eq!(found, expected.map(OsString::from));
    }

    #[test]
    fn words_that_are_translated_lead_somewhere() {
        let cli = Cli::command();
        for (theirs, ours) in WRITTEN {
            let long = ours.strip_prefix("--").unwrap();
            let has = |command: &clap::Command| {
                command.get_arguments().any(|argument| {
                    let aliases = argument.get_all_aliases().unwrap_or_default();
                    argument.get_long() == Some(long) || aliases.contains(&long)
                })
            };
            let known = cli.get_subcommands().any(has) || foreign::option(ours).is_some();
            assert!(known, "{theirs} becomes {ours}, which nothing knows");
        }
    }

    fn refused(words: &[&str]) -> clap::Error {
        Cli::try_parse_from(std::iter::once(&"pianola").chain(words)).unwrap_err()
    }

    #[test]
    fn tips_are_about_slips() {
        let tips = |words: &[&str]| with_tips(refused(words)).render().to_string();
        assert!(tips(&["rnu", "hi"]).contains("'run'"), "{}", tips(&["rnu", "hi"]));
        assert!(tips(&["srve"]).contains("'serve'"));
        assert!(tips(&["run", "--tmep", "0"]).contains("'--temp'"));
        for far in [&["frobnicate"][..], &["run", "--frobnicate"], &["run", "--vocal"]] {
            assert!(!tips(far).contains("tip:"), "{}", tips(far));
        }
        // A prompt that begins with a dash.
        assert!(tips(&["run", "-- sing"]).contains("use '--"), "{}", tips(&["run", "-- sing"]));
    }

    #[test]
    fn words_of_other_programs_are_answered() {
        let lora = answer(&refused(&["run", "--lora=x.gguf", "hi"])).unwrap();
        assert!(lora.starts_with("--lora is not offered: "), "{lora}");
        assert!(answer(&refused(&["cp", "a", "b"])).unwrap().starts_with("cp is not offered"));
        assert_eq!(answer(&refused(&["run", "--frobnicate"])), None);
        assert_eq!(answer(&refused(&["run", "--temp", "hot"])), None);
    }
}
