//! Answers that later requests may continue or fetch.

use super::object::item_position;
use pianola_text::Message;
use serde_json::{Map, Value};
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};

/// Most answers that are kept for a key.
const MAX_ANSWERS: usize = 1024;
/// Most bytes of memory that the answers of a key take.
const MAX_KEY_BYTES: usize = 64 << 20;
/// Most bytes of memory that the answers of all keys take.
const MAX_BYTES: usize = 512 << 20;

/// An answer that is kept.
pub(crate) struct KeptResponse {
    /// As it was sent.
    pub response: Value,
    /// The conversation with the answer, without instructions: those hold for one answer.
    pub history: Vec<Message>,
}

struct Entry {
    bytes: usize,
    kept: Arc<KeptResponse>,
}

/// The answers to one key's requests.
#[derive(Default)]
struct Shelf {
    /// By the id of the answer.
    entries: HashMap<String, Entry>,
    /// Their ids, the oldest first.
    order: VecDeque<String>,
    bytes: usize,
}

/// The answers that a server keeps in memory. Each key has room of its own, in which the oldest are
/// forgotten first: one cannot push out another's.
pub(crate) struct ResponseStore {
    shelves: Mutex<HashMap<u64, Shelf>>,
    max_answers: usize,
    /// Of each key.
    max_bytes: usize,
}

/// Bytes of memory that a value takes, nearly.
fn memory_of(value: &Value) -> usize {
    let inside = match value {
        Value::String(text) => text.len(),
        Value::Array(list) => list.iter().map(memory_of).sum(),
        Value::Object(fields) => memory_of_fields(fields),
        Value::Null | Value::Bool(_) | Value::Number(_) => 0,
    };
    size_of::<Value>() + inside
}

fn memory_of_fields(fields: &Map<String, Value>) -> usize {
    fields.iter().map(|(name, value)| size_of::<String>() + name.len() + memory_of(value)).sum()
}

fn memory_of_message(message: &Message) -> usize {
    let Message { role, content, tool_calls, tool_call_id, name, other } = message;
    let texts = [Some(role), tool_call_id.as_ref(), name.as_ref()];
    let texts: usize = texts.into_iter().flatten().map(String::len).sum();
    let values: usize = std::iter::once(content).chain(tool_calls).map(memory_of).sum();
    size_of::<Message>() + texts + values + memory_of_fields(other)
}

impl Shelf {
    fn remove(&mut self, id: &str) -> Option<Entry> {
        let entry = self.entries.remove(id)?;
        self.bytes -= entry.bytes;
        Some(entry)
    }

    /// Forgets the oldest answers until the others keep to the bounds; returns the forgotten.
    fn trim(&mut self, max_answers: usize, max_bytes: usize) -> Vec<Entry> {
        let mut forgotten = Vec::new();
        while self.order.len() > max_answers || self.bytes > max_bytes {
            let Some(oldest) = self.order.pop_front() else { break };
            forgotten.extend(self.remove(&oldest));
        }
        forgotten
    }
}

impl ResponseStore {
    /// A store for the requests of `keys` keys.
    pub fn new(keys: usize) -> ResponseStore {
        ResponseStore::bounded(MAX_ANSWERS, MAX_KEY_BYTES.min(MAX_BYTES / keys.max(1)))
    }

    fn bounded(max_answers: usize, max_bytes: usize) -> ResponseStore {
        ResponseStore { shelves: Mutex::default(), max_answers, max_bytes }
    }

    fn shelves(&self) -> MutexGuard<'_, HashMap<u64, Shelf>> {
        self.shelves.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Keeps an answer; older ones make room. One that is larger than all the room is not kept. Takes
    /// milliseconds where answers are large.
    pub fn keep(&self, tenant: u64, id: &str, kept: KeptResponse) {
        let history: usize = kept.history.iter().map(memory_of_message).sum();
        let bytes = memory_of(&kept.response) + history;
        if bytes > self.max_bytes {
            return;
        }
        let entry = Entry { bytes, kept: Arc::new(kept) };
        let forgotten = {
            let mut shelves = self.shelves();
            let shelf = shelves.entry(tenant).or_default();
            shelf.bytes += bytes;
            shelf.order.push_back(id.to_string());
            shelf.entries.insert(id.to_string(), entry);
            shelf.trim(self.max_answers, self.max_bytes)
        };
        // Freed without the lock, which the HTTP thread takes, too.
        drop(forgotten);
    }

    /// An answer that was given to this tenant.
    pub fn get(&self, tenant: u64, id: &str) -> Option<Arc<KeptResponse>> {
        Some(self.shelves().get(&tenant)?.entries.get(id)?.kept.clone())
    }

    /// An item of an answer that was given to this tenant.
    pub fn item(&self, tenant: u64, id: &str) -> Option<Value> {
        let (response, index) = item_position(id)?;
        let kept = self.get(tenant, &response)?;
        let item = kept.response["output"].get(index)?;
        (item["id"] == id).then(|| item.clone())
    }

    /// Forgets an answer; false if it was not kept.
    pub fn remove(&self, tenant: u64, id: &str) -> bool {
        let removed = {
            let mut shelves = self.shelves();
            let Some(shelf) = shelves.get_mut(&tenant) else { return false };
            shelf.order.retain(|other| other != id);
            shelf.remove(id)
        };
        removed.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// Bytes of an answer without its texts.
    fn empty_bytes() -> usize {
        let store = ResponseStore::new(1);
        store.keep(0, "resp_", kept(""));
        store.shelves()[&0].bytes
    }

    fn kept(text: &str) -> KeptResponse {
        let response = json!({ "output": [{ "id": format!("msg_{text}_0"), "text": text }] });
        KeptResponse { response, history: vec![Message::new("user", text)] }
    }

    fn has(store: &ResponseStore, tenant: u64, id: &str) -> bool {
        store.get(tenant, id).is_some()
    }

    #[test]
    fn tenants_do_not_see_each_other() {
        let store = ResponseStore::new(2);
        store.keep(1, "resp_a", kept("a"));
        assert!(has(&store, 1, "resp_a") && !has(&store, 2, "resp_a"));
        assert_eq!(store.item(1, "msg_a_0").unwrap()["text"], "a");
        assert!(store.item(2, "msg_a_0").is_none());
        assert!(!store.remove(2, "resp_a"));
        assert!(store.remove(1, "resp_a"));
        assert!(!store.remove(1, "resp_a"));
        assert_eq!(store.shelves()[&1].bytes, 0);
    }

    #[test]
    fn items_are_found_by_their_whole_id() {
        let store = ResponseStore::new(1);
        store.keep(0, "resp_a", kept("a"));
        assert!(store.item(0, "msg_a_0").is_some());
        for other in ["msg_a_1", "msg_b_0", "fc_a_0", "msg_a_00", "msg_a", "a_0", "", "__"] {
            assert!(store.item(0, other).is_none(), "{other}");
        }
    }

    #[test]
    fn tenants_do_not_push_each_other_out() {
        let store = ResponseStore::bounded(2, 2 * empty_bytes() + 1000);
        store.keep(1, "own", kept("own"));
        ["a", "b", "c"].iter().for_each(|id| store.keep(2, id, kept(id)));
        store.keep(2, "long", kept(&"x".repeat(250)));
        assert!(has(&store, 1, "own"));
        assert!(!has(&store, 2, "a") && has(&store, 2, "long"));
    }

    #[test]
    fn the_oldest_make_room() {
        let store = ResponseStore::bounded(2, 2 * empty_bytes() + 1000);
        ["a", "b", "c"].iter().for_each(|id| store.keep(0, id, kept(id)));
        assert!(!has(&store, 0, "a") && has(&store, 0, "b") && has(&store, 0, "c"));
        store.keep(0, "long", kept(&"x".repeat(200)));
        assert!(!has(&store, 0, "b") && has(&store, 0, "c") && has(&store, 0, "long"));
        // Each text is kept three times: in the output, in its item's id and in the history.
        store.keep(0, "longer", kept(&"x".repeat(300)));
        assert!(!has(&store, 0, "long") && has(&store, 0, "longer"));
        store.keep(0, "too long", kept(&"x".repeat(10_000)));
        assert!(!has(&store, 0, "too long") && has(&store, 0, "longer"));
    }

    /// Many keys share what one would not fill, and short JSON of many values counts as what it takes.
    #[test]
    fn the_bounds_are_of_memory() {
        assert_eq!(ResponseStore::new(1).max_bytes, MAX_KEY_BYTES);
        assert!(ResponseStore::new(1000).max_bytes * 1000 <= MAX_BYTES);
        let many = Value::Array(vec![Value::Null; 1000]);
        assert!(memory_of(&many) >= 1000 * size_of::<Value>());
    }
}
