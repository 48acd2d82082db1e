//! KV pages in host memory, and the page tables that find them.

use crate::memory::Memory;
use half::f16;
use pianola_plan::{KvGroup, KvSlot, KvType, PAGE_TOKENS, Plan};

/// An entry that points nowhere.
const UNMAPPED: u32 = u32::MAX;

pub(crate) struct KvPages {
    pub group: KvGroup,
    memory: Memory,
    pages: usize,
    /// `[sequences][entries]`
    table: Vec<u32>,
    entries: usize,
}

/// Pages of every group of a plan.
pub(crate) struct KvMemory {
    pub groups: Vec<KvPages>,
}

impl KvMemory {
    /// Reserves what the plan's sequences may need; untouched pages cost nothing. On failure,
    /// the number of bytes that were not to be had.
    pub fn new(plan: &Plan) -> Result<KvMemory, u64> {
        KvMemory::reserve(plan, |group| plan.kv_pages[group])
    }

    /// A page of its own for every entry of the tables, all mapped.
    pub fn whole(plan: &Plan) -> Result<KvMemory, u64> {
        let entries = plan.options.context.div_ceil(PAGE_TOKENS);
        let mut memory = KvMemory::reserve(plan, |_| entries * plan.options.sequences)?;
        for group in &mut memory.groups {
            group.table = (0..group.table.len() as u32).collect();
        }
        Ok(memory)
    }

    fn reserve(plan: &Plan, pages: impl Fn(usize) -> usize) -> Result<KvMemory, u64> {
        let entries = plan.options.context.div_ceil(PAGE_TOKENS);
        let reserve = |(index, group): (usize, &KvGroup)| {
            let pages = pages(index);
            let bytes = pages as u64 * group.page_bytes();
            let memory = usize::try_from(bytes).ok().and_then(Memory::zeroed).ok_or(bytes)?;
            let table = vec![UNMAPPED; entries * plan.options.sequences];
            Ok(KvPages { group: group.clone(), memory, pages, table, entries })
        };
        let groups =
            plan.graph.kv_groups.iter().enumerate().map(reserve).collect::<Result<_, u64>>()?;
        Ok(KvMemory { groups })
    }
}

impl KvPages {
    pub fn map(&mut self, sequence: usize, index: usize, page: u32) {
        assert!((page as usize) < self.pages, "page {page} of {}", self.pages);
        assert!(index < self.entries, "entry {index} of {}", self.entries);
        self.table[sequence * self.entries + index] = page;
    }

    pub fn unmap(&mut self, sequence: usize, index: usize) {
        assert!(index < self.entries, "entry {index} of {}", self.entries);
        self.table[sequence * self.entries + index] = UNMAPPED;
    }

    pub fn is_mapped(&self, sequence: usize, index: usize) -> bool {
        index < self.entries && self.table[sequence * self.entries + index] != UNMAPPED
    }

    /// A head's part of the page with tokens `index * PAGE_TOKENS ..` of a sequence.
    ///
    /// # Panics
    /// If the table has no such page, which `play` rules out beforehand.
    pub fn head(&self, sequence: usize, index: usize, layer: usize, head: usize) -> *mut u8 {
        let page = self.table[sequence * self.entries + index];
        assert_ne!(page, UNMAPPED, "sequence {sequence} has no page {index}");
        let values = page as usize * self.group.page_values() + self.group.head_offset(layer, head);
        // SAFETY: `map` checked the page, so the head lies inside the memory.
        unsafe { self.memory.start().add(values * self.group.ty.bytes()) }
    }

    /// One stored key or value, for the reference: `value` picks which, `at` is its index in the
    /// head.
    pub fn get(
        &self,
        sequence: usize,
        position: usize,
        slot: KvSlot,
        head: usize,
        value: bool,
        at: usize,
    ) -> f32 {
        let start = self.head(sequence, position / PAGE_TOKENS, slot.layer, head);
        let offset = self.offset(position, value, at);
        // SAFETY: inside the head's part of the page.
        unsafe {
            match self.group.ty {
                KvType::F32 => *start.cast::<f32>().add(offset),
                KvType::F16 => f16::from_bits(*start.cast::<u16>().add(offset)).to_f32(),
            }
        }
    }

    /// The inverse of [`KvPages::get`].
    #[allow(clippy::too_many_arguments)]
    pub fn set(
        &self,
        sequence: usize,
        position: usize,
        slot: KvSlot,
        head: usize,
        value: bool,
        at: usize,
        x: f32,
    ) {
        let start = self.head(sequence, position / PAGE_TOKENS, slot.layer, head);
        let offset = self.offset(position, value, at);
        // SAFETY: inside the head's part of the page; the reference runs on one thread.
        unsafe {
            match self.group.ty {
                KvType::F32 => *start.cast::<f32>().add(offset) = x,
                KvType::F16 => *start.cast::<u16>().add(offset) = f16::from_f32(x).to_bits(),
            }
        }
    }

    fn offset(&self, position: usize, value: bool, at: usize) -> usize {
        let slot = position % PAGE_TOKENS;
        if value {
            self.group.head_dim * PAGE_TOKENS + slot * self.group.value_stride() + at
        } else {
            at * PAGE_TOKENS + slot
        }
    }
}
