//! References of a schema to places in itself.

use serde_json::Value;
use std::collections::HashMap;

/// The places that a schema refers to, each of which becomes a definition with a number.
pub(super) struct References<'a> {
    root: &'a Value,
    /// Reference and definition, in the order they were met.
    met: Vec<(String, &'a Value)>,
    numbers: HashMap<String, usize>,
    taken: usize,
}

impl<'a> References<'a> {
    pub(super) fn new(root: &'a Value) -> References<'a> {
        References { root, met: Vec::new(), numbers: HashMap::new(), taken: 0 }
    }

    /// The name of the definition of a reference; none if it leads out of the schema or nowhere.
    pub(super) fn name(&mut self, reference: &str) -> Option<String> {
        if let Some(&number) = self.numbers.get(reference) {
            return Some(name(number));
        }
        let target = self.target(reference)?;
        let number = self.met.len();
        self.numbers.insert(reference.into(), number);
        self.met.push((reference.into(), target));
        Some(name(number))
    }

    /// The place that a reference leads to.
    pub(super) fn target(&self, reference: &str) -> Option<&'a Value> {
        self.root.pointer(&decode_percent(reference.strip_prefix('#')?)?)
    }

    /// The next definition that is still to be made, by name, schema and place.
    pub(super) fn next(&mut self) -> Option<(String, &'a Value, String)> {
        let (place, target) = self.met.get(self.taken)?;
        self.taken += 1;
        Some((name(self.taken - 1), target, place.clone()))
    }

    /// Each definition's path in the compiler's terms, and the author's reference.
    pub(super) fn into_names(self) -> Vec<(String, String)> {
        let path = |number| format!("#/$defs/{}", name(number));
        let met = self.met.into_iter().enumerate();
        met.map(|(number, (reference, _))| (path(number), reference)).collect()
    }
}

fn name(number: usize) -> String {
    format!("d{number}")
}

/// Replaces `%7E` and the like.
fn decode_percent(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'%' => {
                let digits = [rest.next()?, rest.next()?];
                u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?
            }
            byte => byte,
        });
    }
    String::from_utf8(bytes).ok()
}
