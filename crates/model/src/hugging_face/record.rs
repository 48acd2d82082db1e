//! Which keys of a `config.json` were read, and what becomes of the others.

use super::keys::{HARMLESS, KNOWN, VISION};
use crate::error::ModelError;
use crate::family::Family;
use crate::unread::{Refusals, UnreadKey};
use serde_json::Value;
use std::cell::RefCell;
use std::collections::HashSet;

/// Names of keys that were looked at, in full.
#[derive(Default)]
pub(super) struct Record {
    read: RefCell<HashSet<String>>,
    /// Those whose value is an object with keys to be read one by one.
    opened: RefCell<HashSet<String>>,
}

impl Record {
    pub fn read(&self, full: String) {
        self.read.borrow_mut().insert(full);
    }

    pub fn open(&self, full: String) {
        self.opened.borrow_mut().insert(full);
    }

    /// Refuses a key that nothing read and that may change a result.
    pub fn check(&self, root: &Value, family: &'static Family) -> Result<(), ModelError> {
        // Only a configuration of several models has keys of pictures beside the text model's.
        let multimodal = self.opened.borrow().contains("text_config");
        let mut walk = Walk { record: self, family, multimodal, refusals: Refusals::default() };
        walk.object(root, "");
        walk.refusals.finish()
    }
}

struct Walk<'a> {
    record: &'a Record,
    family: &'static Family,
    multimodal: bool,
    refusals: Refusals,
}

impl Walk<'_> {
    fn object(&mut self, object: &Value, path: &str) {
        let present =
            object.as_object().into_iter().flatten().filter(|(_, value)| !value.is_null());
        for (name, value) in present {
            let full = format!("{path}{name}");
            if self.record.opened.borrow().contains(&full) {
                self.object(value, &format!("{full}."));
            } else if !self.record.read.borrow().contains(&full) && !self.is_harmless(name, path) {
                self.refusals.add(UnreadKey { name, full: &full, value }, KNOWN, self.family);
            }
        }
    }

    fn is_harmless(&self, name: &str, path: &str) -> bool {
        let vision = self.multimodal && path.is_empty() && VISION.contains(&name);
        vision || HARMLESS.contains(&name)
    }
}
