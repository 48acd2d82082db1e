//! Answers that later requests may continue or fetch.

use pianola_text::Message;
use serde_json::Value;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};

/// Most answers that are kept.
const MOST_ANSWERS: usize = 1024;
/// Most bytes of JSON that are kept.
const MOST_BYTES: usize = 64 << 20;

/// An answer that is kept.
pub(crate) struct KeptResponse {
    /// As it was sent.
    pub response: Value,
    /// The conversation with the answer, without instructions: those hold for one answer.
    pub history: Vec<Message>,
}

struct Entry {
    tenant: u64,
    id: String,
    bytes: usize,
    kept: Arc<KeptResponse>,
}

#[derive(Default)]
struct Entries {
    /// The oldest first.
    list: VecDeque<Entry>,
    bytes: usize,
}

/// The answers that a server keeps in memory; the oldest are forgotten first.
pub(crate) struct ResponseStore {
    entries: Mutex<Entries>,
    most_answers: usize,
    most_bytes: usize,
}

impl Default for ResponseStore {
    fn default() -> Self {
        ResponseStore::bounded(MOST_ANSWERS, MOST_BYTES)
    }
}

impl ResponseStore {
    fn bounded(most_answers: usize, most_bytes: usize) -> ResponseStore {
        ResponseStore { entries: Mutex::default(), most_answers, most_bytes }
    }

    fn entries(&self) -> MutexGuard<'_, Entries> {
        self.entries.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Keeps an answer; older ones make room. One that is larger than all the room is not kept.
    pub fn keep(&self, tenant: u64, id: &str, kept: KeptResponse) {
        let messages =
            kept.history.iter().filter_map(|message| serde_json::to_string(message).ok());
        let bytes =
            kept.response.to_string().len() + messages.map(|text| text.len()).sum::<usize>();
        if bytes > self.most_bytes {
            return;
        }
        let entry = Entry { tenant, id: id.to_string(), bytes, kept: Arc::new(kept) };
        let mut entries = self.entries();
        entries.bytes += bytes;
        entries.list.push_back(entry);
        while entries.list.len() > self.most_answers || entries.bytes > self.most_bytes {
            let Some(oldest) = entries.list.pop_front() else { break };
            entries.bytes -= oldest.bytes;
        }
    }

    /// An answer that was given to this tenant.
    pub fn get(&self, tenant: u64, id: &str) -> Option<Arc<KeptResponse>> {
        let entries = self.entries();
        let mut found =
            entries.list.iter().filter(|entry| entry.tenant == tenant && entry.id == id);
        found.next().map(|entry| entry.kept.clone())
    }

    /// An item of an answer that was given to this tenant.
    pub fn item(&self, tenant: u64, id: &str) -> Option<Value> {
        let entries = self.entries();
        let own = entries.list.iter().rev().filter(|entry| entry.tenant == tenant);
        let mut items = own.filter_map(|entry| entry.kept.response["output"].as_array()).flatten();
        items.find(|item| item["id"] == id).cloned()
    }

    /// Forgets an answer; false if it was not kept.
    pub fn remove(&self, tenant: u64, id: &str) -> bool {
        let mut entries = self.entries();
        let at = entries.list.iter().position(|entry| entry.tenant == tenant && entry.id == id);
        let removed = at.and_then(|at| entries.list.remove(at));
        entries.bytes -= removed.as_ref().map_or(0, |entry| entry.bytes);
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
        assert_eq!(store.entries().bytes, 0);
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
