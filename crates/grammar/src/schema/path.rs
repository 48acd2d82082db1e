//! Places in a schema, for errors.

use std::fmt::{self, Display, Formatter};

/// Where in a schema the normaliser is. Written as text only where an error names it.
pub(super) struct Path<'a> {
    /// The reference to the definition that is being made; `#` is the whole schema.
    base: String,
    steps: Vec<Step<'a>>,
}

/// One step into a schema.
pub(super) enum Step<'a> {
    Key(&'a str),
    Index(usize),
}

impl<'a> Path<'a> {
    pub(super) fn new(base: String) -> Path<'a> {
        Path { base, steps: Vec::new() }
    }

    pub(super) fn is_root(&self) -> bool {
        self.base == "#" && self.steps.is_empty()
    }

    pub(super) fn enter(&mut self, step: Step<'a>) {
        self.steps.push(step);
    }

    pub(super) fn leave(&mut self) {
        self.steps.pop();
    }
}

impl Display for Path<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(&self.base)?;
        self.steps.iter().try_for_each(|step| match step {
            Step::Key(key) => write!(f, "/{key}"),
            Step::Index(index) => write!(f, "/{index}"),
        })
    }
}
