//! What a template may take, and the only way to make values that grow.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

use super::fault::{Fault, Limit};
use super::value::{Form, List, Map, Value};

/// Bytes in all, whether or not they are still in use. A long conversation takes a few times its
/// own length.
pub(super) const MEMORY: u64 = 256 << 20;

/// Steps: nodes of the program evaluated, items of lists visited, and bytes read or written by the
/// [`COPIED_PER_STEP`]. A conversation of a thousand messages takes a hundredth.
pub(super) const WORK: u64 = 5_000_000;

/// Expressions, blocks and calls inside one another while the program runs. The stack holds many
/// times as many.
pub(super) const DEEPEST: usize = 256;

/// Lists, maps and macros' scopes inside one another; definitions of tools have ten or so.
pub(super) const DEEPEST_VALUE: usize = 100;

/// Bytes of the whole text, several times the longest context.
pub(super) const LONGEST_OUTPUT: usize = 8 << 20;

/// Bytes that are copied or compared in the time of a step.
const COPIED_PER_STEP: usize = 64;

/// Bytes that are looked at one by one in the time of a step.
const SCANNED_PER_STEP: usize = 8;

/// What is left of memory and work.
pub(super) struct Budget {
    memory: Cell<u64>,
    work: Cell<u64>,
}

impl Budget {
    pub(super) fn new() -> Budget {
        Budget { memory: Cell::new(MEMORY), work: Cell::new(WORK) }
    }

    /// Pays for some steps.
    pub(super) fn work(&self, steps: usize) -> Result<(), Fault> {
        take(&self.work, steps).ok_or(Fault::limit(Limit::Work))
    }

    /// Pays for looking at every character of a text.
    pub(super) fn scan(&self, text: &str) -> Result<(), Fault> {
        self.work(1 + text.len() / SCANNED_PER_STEP)
    }

    /// Pays for reading some bytes.
    pub(super) fn read(&self, bytes: usize) -> Result<(), Fault> {
        self.work(1 + bytes / COPIED_PER_STEP)
    }

    /// Pays for some bytes of memory, before they are taken.
    pub(super) fn memory(&self, bytes: usize) -> Result<(), Fault> {
        take(&self.memory, bytes).ok_or(Fault::limit(Limit::Memory))?;
        self.read(bytes)
    }

    /// A text of its own.
    pub(super) fn text(&self, text: &str) -> Result<Value, Fault> {
        // Two counts stand before the bytes.
        self.memory(text.len() + 16)?;
        Ok(Value::Text(Arc::from(text)))
    }

    /// Pays for a list of some items that is about to be made.
    pub(super) fn items(&self, count: usize) -> Result<(), Fault> {
        self.memory(count.saturating_mul(size_of::<Value>()))
    }

    /// A list of items that were paid for.
    pub(super) fn list(&self, items: Vec<Value>) -> Result<Value, Fault> {
        self.sequence(Form::List, items).map(Value::List)
    }

    /// A tuple of items that were paid for.
    pub(super) fn tuple(&self, items: Vec<Value>) -> Result<Value, Fault> {
        self.sequence(Form::Tuple, items).map(Value::List)
    }

    /// The same in either form, not yet as a value.
    pub(super) fn sequence(&self, form: Form, items: Vec<Value>) -> Result<Rc<List>, Fault> {
        self.memory(size_of::<List>())?;
        self.work(items.len())?;
        let (depth, plain) = nesting(items.iter())?;
        Ok(Rc::new(List { form, items, depth, plain }))
    }

    /// A map of entries whose keys differ.
    pub(super) fn map(&self, entries: Vec<(Value, Value)>) -> Result<Value, Fault> {
        self.memory(size_of::<Map>())?;
        self.items(2 * entries.len())?;
        let (depth, plain) = nesting(entries.iter().flat_map(|(key, value)| [key, value]))?;
        Ok(Value::Map(Rc::new(Map { entries, depth, plain })))
    }
}

fn take(left: &Cell<u64>, amount: usize) -> Option<()> {
    match left.get().checked_sub(amount as u64) {
        Some(rest) => {
            left.set(rest);
            Some(())
        }
        None => {
            left.set(0);
            None
        }
    }
}

/// How deep a container of these is, and whether it holds nothing but data.
pub(super) fn nesting<'a>(values: impl Iterator<Item = &'a Value>) -> Result<(usize, bool), Fault> {
    let (mut depth, mut plain) = (0, true);
    for value in values {
        depth = depth.max(value.depth());
        plain &= value.is_plain();
    }
    if depth >= DEEPEST_VALUE {
        return Err(Fault::limit(Limit::Depth));
    }
    Ok((depth + 1, plain))
}

/// Text that is paid for as it grows.
pub(super) struct Writer<'b> {
    budget: &'b Budget,
    text: String,
}

impl<'b> Writer<'b> {
    pub(super) fn new(budget: &'b Budget) -> Writer<'b> {
        Writer { budget, text: String::new() }
    }

    pub(super) fn push(&mut self, text: &str) -> Result<(), Fault> {
        take(&self.budget.memory, text.len()).ok_or(Fault::limit(Limit::Memory))?;
        // Whole steps only, or text that comes by the character would cost a step for each.
        let before = self.text.len() / COPIED_PER_STEP;
        self.budget.work((self.text.len() + text.len()) / COPIED_PER_STEP - before)?;
        self.text.push_str(text);
        Ok(())
    }

    pub(super) fn push_char(&mut self, character: char) -> Result<(), Fault> {
        self.push(character.encode_utf8(&mut [0; 4]))
    }

    pub(super) fn len(&self) -> usize {
        self.text.len()
    }

    pub(super) fn budget(&self) -> &'b Budget {
        self.budget
    }

    pub(super) fn into_string(self) -> String {
        self.text
    }

    /// The text as a value. It was paid for; its other copy goes at once.
    pub(super) fn into_value(self) -> Result<Value, Fault> {
        self.budget.memory(16)?;
        Ok(Value::Text(Arc::from(self.text)))
    }
}
