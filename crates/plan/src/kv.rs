//! Keys and values: groups of layers, pages, and where a value lies in a page.

/// Tokens in a page. Four vectors of 16 keys: short enough that a short conversation wastes
/// little, long enough that a page's conversion to f32 is shared by many queries.
pub const PAGE_TOKENS: usize = 64;

/// Type keys and values are stored in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum KvType {
    /// What exact mode chooses.
    F32,
    /// What fast mode chooses.
    F16,
    /// Signed bytes, with an f32 scale for each head of a token. Keys are rotated before they are
    /// rounded, see [`KvGroup::key_rotation`].
    Q8,
}

impl KvType {
    /// All types.
    pub const ALL: [KvType; 3] = [KvType::F32, KvType::F16, KvType::Q8];

    /// Bytes of one value.
    pub fn bytes(self) -> usize {
        match self {
            KvType::F32 => 4,
            KvType::F16 => 2,
            KvType::Q8 => 1,
        }
    }

    /// Bytes of the scale that the values of a head share.
    pub(crate) fn scale_bytes(self) -> usize {
        match self {
            KvType::F32 | KvType::F16 => 0,
            KvType::Q8 => 4,
        }
    }
}

impl std::fmt::Display for KvType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            KvType::F32 => "f32",
            KvType::F16 => "f16",
            KvType::Q8 => "q8_0",
        })
    }
}

/// A name that is none of a [`KvType`].
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
#[error("keys and values can be stored as f32, f16 or q8_0, not as '{0}'")]
pub struct KvTypeError(String);

impl std::str::FromStr for KvType {
    type Err = KvTypeError;
    fn from_str(name: &str) -> Result<KvType, KvTypeError> {
        let known = KvType::ALL.into_iter().find(|ty| ty.to_string() == name);
        known.ok_or_else(|| KvTypeError(name.to_string()))
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

    /// Values of a head that are rotated together, before keys are stored and before queries meet
    /// them: blocks of this many, times the orthonormal Hadamard matrix of that size. The largest power
    /// of two that divides the head; 1, which changes nothing, where keys are no bytes.
    ///
    /// All values of a head share the step of the largest, and a head has a few that are far larger
    /// than the others. The rotation spreads them over their block; no product of a query and a key
    /// changes, because both are rotated.
    pub fn key_rotation(&self) -> usize {
        match self.ty {
            KvType::F32 | KvType::F16 => 1,
            KvType::Q8 => 1 << self.head_dim.trailing_zeros(),
        }
    }

    /// Bytes of one head in one page: keys `[head_dim][PAGE_TOKENS]`, values
    /// `[PAGE_TOKENS][value_stride]`, then scales `[2][PAGE_TOKENS]` of keys and of values where
    /// the type has them. Keys are transposed so that scores of 16 tokens form in one vector
    /// without a horizontal sum. Always a whole number of cache lines.
    pub fn head_bytes(&self) -> usize {
        let values = (self.head_dim + self.value_stride()) * self.ty.bytes();
        (values + 2 * self.ty.scale_bytes()) * PAGE_TOKENS
    }

    /// Bytes of one page: `[layers][kv_heads][head_bytes]`.
    pub fn page_bytes(&self) -> u64 {
        (self.layers * self.kv_heads * self.head_bytes()) as u64
    }

    /// Offset in bytes, from the start of a page, of a layer's head.
    pub fn head_offset(&self, layer: usize, head: usize) -> usize {
        (layer * self.kv_heads + head) * self.head_bytes()
    }

    /// Bytes that a token's key and value take in one layer, without padding.
    pub fn token_bytes(&self) -> usize {
        2 * self.kv_heads * (self.head_dim * self.ty.bytes() + self.ty.scale_bytes())
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

    /// Most pages that a group can use: every sequence at full length, and once more its
    /// window, for a conversation that pauses and will go on.
    fn most(&self, group: &KvGroup) -> usize {
        let windows = if group.window.is_some() && self.sequences > 1 { 2 } else { 1 };
        self.least(group) * self.sequences * windows
    }

    /// Pages of each group: all that it can use, or as large a share of what lies between the
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

/// Bytes of `pages[group]` pages of each group.
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

    #[test]
    fn types_are_known_by_their_names() {
        for ty in KvType::ALL {
            assert_eq!(ty.to_string().parse(), Ok(ty));
        }
        let unknown = "q4_0".parse::<KvType>().unwrap_err().to_string();
        assert!(unknown.contains("q4_0") && unknown.contains("f32, f16 or q8_0"), "{unknown}");
    }

    #[test]
    fn heads_hold_their_scales_in_whole_cache_lines() {
        let group = |ty, head_dim| KvGroup {
            name: "global".to_string(),
            window: None,
            kv_heads: 3,
            head_dim,
            layers: 2,
            ty,
        };
        assert_eq!(group(KvType::F16, 64).head_bytes(), 2 * 64 * 64 * 2);
        assert_eq!(group(KvType::Q8, 64).head_bytes(), 2 * 64 * (64 + 4));
        assert_eq!(group(KvType::Q8, 64).token_bytes(), 3 * 2 * (64 + 4));
        // Values of a token are padded to whole vectors, keys are not.
        assert_eq!(group(KvType::Q8, 24).head_bytes(), (24 + 32 + 8) * 64);
        for (ty, head_dim) in KvType::ALL.into_iter().flat_map(|ty| [(ty, 6), (ty, 80)]) {
            let group = group(ty, head_dim);
            assert_eq!(group.head_bytes() % 64, 0);
            assert_eq!(group.head_offset(1, 2), 5 * group.head_bytes());
            assert_eq!(group.page_bytes(), 6 * group.head_bytes() as u64);
        }
        let rotation = |ty| [6, 64, 80, 96, 256].map(|head_dim| group(ty, head_dim).key_rotation());
        assert_eq!(rotation(KvType::Q8), [2, 64, 16, 32, 256]);
        assert_eq!(rotation(KvType::F16), [1; 5]);
    }
}
