//! Answers that later requests may continue or fetch.

use pianola_text::Message;
use serde::Serialize;
use serde_json::Value;
use std::collections::{HashMap, VecDeque};
use std::io::{self, Write};
use std::sync::{Arc, Mutex, MutexGuard};

/// Most answers that are kept for a key.
const MAX_ANSWERS: usize = 1024;
/// Most bytes of JSON that are kept for a key.
const MAX_BYTES: usize = 64 << 20;

/// An answer that is kept.
pub(crate) struct KeptResponse {
    /// As it was sent.
    pub response: Value,
    /// The conversation with the answer, without instructions: those hold for one answer.
    pub history: Vec<Message>,
}

struct Entry {
    id: String,
    bytes: usize,
    kept: Arc<KeptResponse>,
}

/// The answers to one key's requests.
#[derive(Default)]
struct Shelf {
    /// The oldest first.
    list: VecDeque<Entry>,
    bytes: usize,
}

/// The answers that a server keeps in memory. Each key has room of its own, in which the oldest are
/// forgotten first: one cannot push out another's.
pub(crate) struct ResponseStore {
    shelves: Mutex<HashMap<u64, Shelf>>,
    max_answers: usize,
    max_bytes: usize,
}

impl Default for ResponseStore {
    fn default() -> Self {
        ResponseStore::bounded(MAX_ANSWERS, MAX_BYTES)
    }
}

/// Bytes of a value as JSON.
pub(super) fn json_bytes(value: &impl Serialize) -> usize {
    struct Counter(usize);
    impl Write for Counter {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0 += bytes.len();
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let mut counter = Counter(0);
    match serde_json::to_writer(&mut counter, value) {
        Ok(()) => counter.0,
        // What cannot be written as JSON has no place here.
        Err(_) => usize::MAX,
    }
}

impl ResponseStore {
    fn bounded(max_answers: usize, max_bytes: usize) -> ResponseStore {
        ResponseStore { shelves: Mutex::default(), max_answers, max_bytes }
    }

    fn shelves(&self) -> MutexGuard<'_, HashMap<u64, Shelf>> {
        self.shelves.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Keeps an answer; older ones make room. One that is larger than all the room is not kept.
    pub fn keep(&self, tenant: u64, id: &str, kept: KeptResponse) {
        let bytes = json_bytes(&kept.response).saturating_add(json_bytes(&kept.history));
        if bytes > self.max_bytes {
            return;
        }
        let entry = Entry { id: id.to_string(), bytes, kept: Arc::new(kept) };
        let mut shelves = self.shelves();
        let shelf = shelves.entry(tenant).or_default();
        shelf.bytes += bytes;
        shelf.list.push_back(entry);
        while shelf.list.len() > self.max_answers || shelf.bytes > self.max_bytes {
            let Some(oldest) = shelf.list.pop_front() else { break };
            shelf.bytes -= oldest.bytes;
        }
    }

    /// An answer that was given to this tenant.
    pub fn get(&self, tenant: u64, id: &str) -> Option<Arc<KeptResponse>> {
        let shelves = self.shelves();
        let found = shelves.get(&tenant)?.list.iter().find(|entry| entry.id == id)?;
        Some(found.kept.clone())
    }

    /// An item of an answer that was given to this tenant.
    pub fn item(&self, tenant: u64, id: &str) -> Option<Value> {
        let shelves = self.shelves();
        let newest = shelves.get(&tenant)?.list.iter().rev();
        let mut items =
            newest.filter_map(|entry| entry.kept.response["output"].as_array()).flatten();
        items.find(|item| item["id"] == id).cloned()
    }

    /// Forgets an answer; false if it was not kept.
    pub fn remove(&self, tenant: u64, id: &str) -> bool {
        let mut shelves = self.shelves();
        let Some(shelf) = shelves.get_mut(&tenant) else { return false };
        let at = shelf.list.iter().position(|entry| entry.id == id);
        let removed = at.and_then(|at| shelf.list.remove(at));
        shelf.bytes -= removed.as_ref().map_or(0, |entry| entry.bytes);
        removed.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn kept(text: &str) -> KeptResponse {
        let response = json!({ "output": [{ "id": format!("msg_{text}"), "text": text }] });
        KeptResponse { response, history: vec![Message::new("user", text)] }
    }

    #[test]
    fn tenants_do_not_see_each_other() {
        let store = ResponseStore::default();
        store.keep(1, "resp_a", kept("a"));
        assert!(store.get(1, "resp_a").is_some());
        assert!(store.get(2, "resp_a").is_none());
        assert!(store.item(1, "msg_a").is_some());
        assert!(store.item(2, "msg_a").is_none());
        assert!(!store.remove(2, "resp_a"));
        assert!(store.remove(1, "resp_a"));
        assert!(!store.remove(1, "resp_a"));
        assert_eq!(store.shelves()[&1].bytes, 0);
    }

    #[test]
    fn tenants_do_not_push_each_other_out() {
        let store = ResponseStore::bounded(2, 1000);
        store.keep(1, "own", kept("own"));
        ["a", "b", "c"].iter().for_each(|id| store.keep(2, id, kept(id)));
        store.keep(2, "long", kept(&"x".repeat(250)));
        assert!(store.get(1, "own").is_some());
        assert!(store.get(2, "a").is_none() && store.get(2, "long").is_some());
    }

    #[test]
    fn the_oldest_make_room() {
        let store = ResponseStore::bounded(2, 1000);
        ["a", "b", "c"].iter().for_each(|id| store.keep(0, id, kept(id)));
        assert!(store.get(0, "a").is_none());
        assert!(store.get(0, "b").is_some() && store.get(0, "c").is_some());
        store.keep(0, "long", kept(&"x".repeat(250)));
        assert!(store.get(0, "b").is_none());
        assert!(store.get(0, "c").is_some() && store.get(0, "long").is_some());
        // By bytes, too.
        store.keep(0, "longer", kept(&"x".repeat(300)));
        assert!(store.get(0, "long").is_none());
        store.keep(0, "too long", kept(&"x".repeat(1000)));
        assert!(store.get(0, "too long").is_none() && store.get(0, "longer").is_some());
    }
}
