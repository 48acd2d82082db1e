//! What a check has found.

/// How a thing stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// As it should be, or a plain fact.
    Fine,
    /// It runs, but slower or without something.
    Warning,
    /// It prevents running.
    Broken,
}

impl Verdict {
    /// For machines, and for text where it is good.
    pub fn name(self) -> &'static str {
        match self {
            Verdict::Fine => "ok",
            Verdict::Warning => "warn",
            Verdict::Broken => "fail",
        }
    }
}

/// One finding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    pub verdict: Verdict,
    pub name: String,
    pub text: String,
    /// The command that mends or changes it, and what to do after it.
    pub fix: Option<String>,
}

impl Row {
    fn new(verdict: Verdict, name: impl Into<String>, text: impl Into<String>) -> Row {
        Row { verdict, name: name.into(), text: text.into(), fix: None }
    }

    pub fn fine(name: impl Into<String>, text: impl Into<String>) -> Row {
        Row::new(Verdict::Fine, name, text)
    }

    pub fn warning(name: impl Into<String>, text: impl Into<String>) -> Row {
        Row::new(Verdict::Warning, name, text)
    }

    pub fn broken(name: impl Into<String>, text: impl Into<String>) -> Row {
        Row::new(Verdict::Broken, name, text)
    }

    /// The same with a command.
    pub fn fix(self, command: impl Into<String>) -> Row {
        Row { fix: Some(command.into()), ..self }
    }
}

/// The findings about one part of the machine.
#[derive(Clone, Debug)]
pub struct Group {
    pub name: &'static str,
    pub rows: Vec<Row>,
}

/// Bytes as people read them, decimal as everywhere here.
pub fn size(bytes: u64) -> String {
    match bytes {
        0..100_000 => format!("{:.1} kB", bytes as f64 / 1e3),
        100_000..1_000_000_000 => format!("{:.1} MB", bytes as f64 / 1e6),
        _ => format!("{:.1} GB", bytes as f64 / 1e9),
    }
}
