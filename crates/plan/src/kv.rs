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

/// A layer's place in its group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KvSlot {
    /// Index in [`crate::Graph::kv_groups`].
    pub group: usize,
    /// Layer within the group.
    pub layer: usize,
}
