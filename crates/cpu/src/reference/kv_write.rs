use crate::kv::KvPages;
use pianola_plan::{KvSlot, Row};

/// Stores the key and value heads of each row in its sequence's page.
pub(crate) fn kv_write(keys: &[f32], values: &[f32], slot: KvSlot, pages: &KvPages, rows: &[Row]) {
    let width = pages.group.kv_heads * pages.group.head_dim;
    for (index, row) in rows.iter().enumerate() {
        for head in 0..pages.group.kv_heads {
            for at in 0..pages.group.head_dim {
                let from = index * width + head * pages.group.head_dim + at;
                let (sequence, position) = (row.sequence as usize, row.position as usize);
                pages.set(sequence, position, slot, head, false, at, keys[from]);
                pages.set(sequence, position, slot, head, true, at, values[from]);
            }
        }
    }
}
