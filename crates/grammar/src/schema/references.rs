//! References of a schema to places in itself.

use serde_json::Value;
use std::collections::HashMap;

/// References that lead to nothing but a further one, in a row.
pub(super) const MAX_HOPS: usize = 32;

/// Why a reference leads to no schema.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Unresolved {
    /// A place that is not in this schema.
    NoTarget,
    /// References only, more than [`MAX_HOPS`] of them or in a circle.
    TooManyHops,
}

/// The places that a schema refers to, each of which becomes a definition with a number.
pub(super) struct References<'a> {
    root: &'a Value,
    /// Reference as it was first spelled, and definition, in the order they were met.
    met: Vec<(String, &'a Value)>,
    /// By the target's address: one place has many spellings (`#/a%62`, `#/ab`).
    numbers: HashMap<*const Value, usize>,
    taken: usize,
}

impl<'a> References<'a> {
    pub(super) fn new(root: &'a Value) -> References<'a> {
        References { root, met: Vec::new(), numbers: HashMap::new(), taken: 0 }
    }

    /// The name of the definition of a reference; none if it leads out of the schema or nowhere.
    pub(super) fn name(&mut self, reference: &str) -> Option<String> {
        let target = self.target(reference)?;
        let next = self.met.len();
        let number = *self.numbers.entry(std::ptr::from_ref(target)).or_insert(next);
        if number == next {
            self.met.push((reference.into(), target));
        }
        Some(name(number))
    }

    /// The place that a reference leads to: a JSON pointer (RFC 6901) in a URI's fragment.
    fn target(&self, reference: &str) -> Option<&'a Value> {
        self.root.pointer(&decode_percent(reference.strip_prefix('#')?)?)
    }

    /// The schema that a reference leads to in the end, over other references.
    pub(super) fn resolve(&self, reference: &str) -> Result<&'a Value, Unresolved> {
        let mut target = self.target(reference).ok_or(Unresolved::NoTarget)?;
        for _ in 0..MAX_HOPS {
            let Some(next) = target.get("$ref") else { return Ok(target) };
            let next = next.as_str().and_then(|next| self.target(next));
            target = next.ok_or(Unresolved::NoTarget)?;
        }
        match target.get("$ref") {
            None => Ok(target),
            Some(_) => Err(Unresolved::TooManyHops),
        }
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
                let mut digit = || (rest.next()? as char).to_digit(16);
                (digit()? * 16 + digit()?) as u8
            }
            byte => byte,
        });
    }
    String::from_utf8(bytes).ok()
}
