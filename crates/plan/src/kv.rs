//! Keys and values: groups of layers, pages, and where a value lies in a page.

/// Tokens in a page. Four vectors of 16 keys: short enough that a short conversation wastes
/// little, long enough that a page's conversion to f32 is shared by many queries.
pub const PAGE_TOKENS: usize = 64;

/// Type keys and values are stored in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum KvType {
    /// Exact mode.
    F32,
    /// Fast mode.
    F16,
}

impl KvType {
    /// Bytes of one value.
    pub fn bytes(self) -> usize {
        match self {
            KvType::F32 => 4,
            KvType::F16 => 2,
        }
    }
}

/// Layers that share a page table: all see the same positions.
#[derive(Clone, PartialEq, Debug)]
pub struct KvGroup {
    /// `global` or `window`.
    pub name: String,
    /// Pages wholly behind the window may be dropped.
    pub window: Option<usize>,
    /// Heads of keys and of values.
    pub kv_heads: usize,
    /// Values in a head.
    pub head_dim: usize,
    /// Layers in the group.
    pub layers: usize,
    /// Stored type; chosen by the plan.
    pub ty: KvType,
}

impl KvGroup {
    /// Distance between the values of two tokens: a head, rounded up to whole vectors.
    pub fn value_stride(&self) -> usize {
        self.head_dim.next_multiple_of(16)
    }

    /// Values of one head in one page: keys `[head_dim][PAGE_TOKENS]`, then values
    /// `[PAGE_TOKENS][value_stride]`. Keys are transposed so that scores of 16 tokens form in one
    /// vector without a horizontal sum.
    pub fn head_values(&self) -> usize {
        (self.head_dim + self.value_stride()) * PAGE_TOKENS
    }

    /// Values of one page: `[layers][kv_heads][head_values]`.
    pub fn page_values(&self) -> usize {
        self.layers * self.kv_heads * self.head_values()
    }

    /// Bytes of one page.
    pub fn page_bytes(&self) -> u64 {
        (self.page_values() * self.ty.bytes()) as u64
    }

    /// Offset in values, from the start of a page, of a layer's head.
    pub fn head_offset(&self, layer: usize, head: usize) -> usize {
        (layer * self.kv_heads + head) * self.head_values()
    }

    /// Pages that one sequence of `tokens` may need at once, `chunk` rows being added at a time.
    pub fn pages_for(&self, tokens: usize, chunk: usize) -> usize {
        let live = self.window.map_or(tokens, |window| tokens.min(window.saturating_add(chunk)));
        // A window rarely starts and ends on a page border: it may reach into one page more.
        live.div_ceil(PAGE_TOKENS) + usize::from(self.window.is_some())
    }

    /// First position that a row at `position` sees.
    pub fn first_visible(&self, position: usize) -> usize {
        self.window.map_or(0, |window| (position + 1).saturating_sub(window))
    }
}

/// Sequences that KV pages are wanted for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KvDemand {
    /// Sequences at once.
    pub sequences: usize,
    /// Tokens that each may grow to.
    pub context: usize,
    /// Rows that are added to a sequence at a time.
    pub chunk: usize,
}

impl KvDemand {
    /// Fewest pages of a group: with them one sequence reaches its full length.
    fn least(&self, group: &KvGroup) -> usize {
        group.pages_for(self.context, self.chunk)
    }

    /// Most pages of a group that are of use: every sequence at full length, and once more its
    /// window, for a conversation that pauses and will go on.
    fn most(&self, group: &KvGroup) -> usize {
        let windows = if group.window.is_some() && self.sequences > 1 { 2 } else { 1 };
        self.least(group) * self.sequences * windows
    }

    /// Pages of each group: all that are of use, or as large a share of what lies between the
    /// fewest and the most as `bytes` hold. None if they do not hold the fewest.
    pub fn pages(&self, groups: &[KvGroup], bytes: Option<u64>) -> Option<Vec<usize>> {
        const SHARES: usize = 4096;
        let pages = |share: usize| -> Vec<usize> {
            let between = |group: &KvGroup| {
                let (least, most) = (self.least(group), self.most(group));
                least + (most - least) * share / SHARES
            };
            groups.iter().map(between).collect()
        };
        let fits = |share: usize| match bytes {
            None => true,
            Some(bytes) => kv_bytes(groups, &pages(share)) <= u128::from(bytes),
        };
        if !fits(0) {
            return None;
        }
        let (mut low, mut high) = (0, SHARES);
        while low < high {
            let middle = (low + high).div_ceil(2);
            if fits(middle) { low = middle } else { high = middle - 1 }
        }
        Some(pages(low))
    }
}

/// Bytes of so many pages of each group.
pub fn kv_bytes(groups: &[KvGroup], pages: &[usize]) -> u128 {
    let bytes =
        |(group, &pages): (&KvGroup, &usize)| u128::from(group.page_bytes()) * pages as u128;
    groups.iter().zip(pages).map(bytes).sum()
}

/// A layer's place in its group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KvSlot {
    /// Index in [`crate::Graph::kv_groups`].
    pub group: usize,
    /// Layer within the group.
    pub layer: usize,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(window: Option<usize>, layers: usize) -> KvGroup {
        let name = "some".to_string();
        KvGroup { name, window, kv_heads: 1, head_dim: 16, layers, ty: KvType::F16 }
    }

    #[test]
    fn pages_grow_with_the_bytes_and_never_beyond_them() {
        let groups = [group(None, 1), group(Some(512), 5)];
        let demand = KvDemand { sequences: 8, context: 8192, chunk: 512 };
        assert_eq!(demand.pages(&groups, None), Some(vec![8 * 128, 16 * 17]));
        let least = kv_bytes(&groups, &[128, 17]) as u64;
        assert_eq!(demand.pages(&groups, Some(least)), Some(vec![128, 17]));
        assert_eq!(demand.pages(&groups, Some(least - 1)), None);
        let mut before = vec![128, 17];
        for bytes in (least..6 * least).step_by(100_000) {
            let pages = demand.pages(&groups, Some(bytes)).unwrap();
            assert!(kv_bytes(&groups, &pages) <= u128::from(bytes));
            assert!(pages.iter().zip(&before).all(|(now, before)| now >= before));
            before = pages;
        }
        assert!(before[0] > 300 && before[1] > 40, "{before:?}");
    }

    #[test]
    fn one_sequence_needs_no_more_than_itself() {
        let demand = KvDemand { sequences: 1, context: 8192, chunk: 512 };
        assert_eq!(demand.pages(&[group(None, 1), group(Some(512), 5)], None), Some(vec![128, 17]));
    }
}
