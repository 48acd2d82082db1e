//! Which result answers which call.

use std::collections::{HashMap, VecDeque};

use serde_json::Value;

use crate::template::Message;

/// Gives calls ids and results the id and name of the call they answer, where they are missing.
pub(super) fn link(messages: &mut [Message], any_ids: bool) {
    let mut waiting = Waiting::default();
    let mut made = 0;
    let fit = |id: &str| if any_ids { id.to_owned() } else { short_id(id) };
    let mut make = || {
        made += 1;
        format!("call{made:05}")
    };
    for message in messages {
        for call in message.tool_calls.iter_mut().filter_map(Value::as_array_mut).flatten() {
            let id = call["id"].as_str().filter(|id| !id.is_empty()).map_or_else(&mut make, fit);
            waiting.add(&id, call["function"]["name"].as_str());
            if let Value::Object(call) = call {
                call.insert("id".into(), id.into());
            }
        }
        if message.role != "tool" {
            continue;
        }
        let id = message.tool_call_id.as_deref().filter(|id| !id.is_empty()).map(fit);
        let (call_id, name) = waiting.take(id.as_deref(), message.name.as_deref()).unzip();
        if message.name.is_none() {
            message.name = name.flatten();
        }
        message.tool_call_id = id.or(call_id).or_else(|| Some(make()));
    }
}

/// Calls without a result yet. To take one does not search the others.
#[derive(Default)]
struct Waiting {
    /// Id and name of each call, none once it has its result.
    calls: Vec<Option<(String, Option<String>)>>,
    in_order: VecDeque<usize>,
    by_id: HashMap<String, VecDeque<usize>>,
    by_name: HashMap<String, VecDeque<usize>>,
}

impl Waiting {
    fn add(&mut self, id: &str, name: Option<&str>) {
        let at = self.calls.len();
        self.calls.push(Some((id.to_owned(), name.map(str::to_owned))));
        self.in_order.push_back(at);
        self.by_id.entry(id.to_owned()).or_default().push_back(at);
        if let Some(name) = name {
            self.by_name.entry(name.to_owned()).or_default().push_back(at);
        }
    }

    /// The first call with this id, else with this name, else of all.
    fn take(&mut self, id: Option<&str>, name: Option<&str>) -> Option<(String, Option<String>)> {
        let queue = match (id, name) {
            (Some(id), _) => self.by_id.get_mut(id)?,
            (None, Some(name)) => self.by_name.get_mut(name)?,
            (None, None) => &mut self.in_order,
        };
        // A call that was taken by another key is still in this queue.
        std::iter::from_fn(|| queue.pop_front()).find_map(|at| self.calls[at].take())
    }
}

/// Nine letters and digits, the same for the same id.
fn short_id(id: &str) -> String {
    if id.len() == 9 && id.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
        return id.to_owned();
    }
    // FNV-1a, 64 bits.
    let mut hash = id.bytes().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    let mut digit = || {
        let digit = (hash % 36) as u32;
        hash /= 36;
        char::from_digit(digit, 36).unwrap_or('0')
    };
    (0..9).map(|_| digit()).collect()
}
