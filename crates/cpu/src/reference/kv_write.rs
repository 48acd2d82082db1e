use super::hadamard::rotated;
use crate::kv::KvPages;
use pianola_plan::{KvSlot, Row};

/// Stores the key and value heads of each row in its sequence's page, keys rotated as their type wants
/// it.
pub(crate) fn kv_write(
    keys: &[f32],
    values: &[f32],
    slot: KvSlot,
    pages: &mut KvPages,
    rows: &[Row],
) {
    let (heads, head_dim) = (pages.group.kv_heads, pages.group.head_dim);
    let keys = rotated(keys, pages.group.key_rotation());
    for (index, row) in rows.iter().enumerate() {
        let (sequence, position) = (row.sequence as usize, row.position as usize);
        for head in 0..heads {
            let from = (index * heads + head) * head_dim;
            let (key, value) = (&keys[from..from + head_dim], &values[from..from + head_dim]);
            pages.set(sequence, position, slot, head, false, key);
            pages.set(sequence, position, slot, head, true, value);
        }
    }
}
