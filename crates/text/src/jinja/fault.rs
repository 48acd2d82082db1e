//! Why a template was not parsed or not rendered.

use std::fmt;

/// What went wrong, and in which line.
#[derive(Clone, Debug)]
pub(crate) struct Fault {
    pub(crate) line: Option<u32>,
    pub(crate) kind: FaultKind,
}

#[derive(Clone, Debug)]
pub(crate) enum FaultKind {
    /// A mistake of the template, or a conversation that it cannot handle.
    Failed(String),
    /// The template was stopped, since it would have gone beyond this bound.
    Limit(Limit),
    /// The template called `raise_exception`.
    Refused(String),
}

/// The bounds of a template.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Limit {
    Memory,
    Work,
    Depth,
    Output,
}

impl fmt::Display for Limit {
    fn fmt(&self, out: &mut fmt::Formatter) -> fmt::Result {
        use super::budget::{LONGEST_OUTPUT, MEMORY, WORK};
        match self {
            Limit::Memory => write!(out, "it takes more than {} MiB of memory", MEMORY >> 20),
            Limit::Work => write!(out, "it takes more than {} million steps", WORK / 1_000_000),
            Limit::Depth => write!(out, "its blocks, calls or lists nest too deeply"),
            Limit::Output => write!(out, "it writes more than {} MiB", LONGEST_OUTPUT >> 20),
        }
    }
}

impl Fault {
    pub(crate) fn failed(message: impl Into<String>) -> Fault {
        Fault { line: None, kind: FaultKind::Failed(message.into()) }
    }

    pub(super) fn limit(limit: Limit) -> Fault {
        Fault { line: None, kind: FaultKind::Limit(limit) }
    }

    /// A refusal in the template's own words, as many of them as an error may have.
    pub(super) fn refused(message: &str) -> Fault {
        const LONGEST: usize = 1000;
        let message = match message.char_indices().nth(LONGEST) {
            Some((end, _)) => format!("{}…", &message[..end]),
            None => message.to_owned(),
        };
        Fault { line: None, kind: FaultKind::Refused(message) }
    }

    /// The same, in this line unless it has one.
    pub(super) fn at(mut self, line: u32) -> Fault {
        self.line.get_or_insert(line);
        self
    }
}
