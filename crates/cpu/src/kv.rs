//! KV pages in host memory, and the page tables that find them.

use crate::memory::Memory;
use half::f16;
use pianola_plan::{DeviceId, KvGroup, KvSlot, KvType, PAGE_TOKENS, Plan};

/// An entry that points nowhere.
const UNMAPPED: u32 = u32::MAX;

pub(crate) struct KvPages {
    /// The group, with the layers that are kept here.
    pub group: KvGroup,
    /// For each layer of the plan's group its place among these.
    places: Vec<Option<usize>>,
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
    /// Reserves what the plan's sequences may need of the layers that `device` attends to;
    /// untouched pages cost nothing. On failure, the number of bytes that could not be reserved.
    pub fn new(plan: &Plan, device: DeviceId) -> Result<KvMemory, u64> {
        let mine = |slot| plan.kv_device(slot) == device;
        KvMemory::reserve(plan, |group| plan.kv_pages[group], &mine, None)
    }

    /// A page of its own for every entry of the tables, all mapped. In f32, which holds what a
    /// device has stored in any type.
    pub fn whole(plan: &Plan) -> Result<KvMemory, u64> {
        let entries = plan.options.context.div_ceil(PAGE_TOKENS);
        let pages = |_| entries * plan.options.sequences;
        let mut memory = KvMemory::reserve(plan, pages, &|_| true, Some(KvType::F32))?;
        for group in &mut memory.groups {
            group.table = (0..group.table.len() as u32).collect();
        }
        Ok(memory)
    }

    /// `ty`, if given, replaces the plan's type.
    fn reserve(
        plan: &Plan,
        pages: impl Fn(usize) -> usize,
        mine: &dyn Fn(KvSlot) -> bool,
        ty: Option<KvType>,
    ) -> Result<KvMemory, u64> {
        let entries = plan.options.context.div_ceil(PAGE_TOKENS);
        let reserve = |(index, group): (usize, &KvGroup)| {
            let pages = pages(index);
            let mut layers = 0;
            let mut place = |layer: usize| {
                let kept = mine(KvSlot { group: index, layer });
                layers += usize::from(kept);
                kept.then(|| layers - 1)
            };
            let places: Vec<Option<usize>> = (0..group.layers).map(&mut place).collect();
            let group = KvGroup { ty: ty.unwrap_or(group.ty), layers, ..group.clone() };
            let bytes = pages as u64 * group.page_bytes();
            let memory = usize::try_from(bytes).ok().and_then(Memory::zeroed).ok_or(bytes)?;
            let table = vec![UNMAPPED; entries * plan.options.sequences];
            Ok(KvPages { group, places, memory, pages, table, entries })
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

    /// Points entry `index` of sequence `to` at the page that sequence `from` has there.
    pub fn share(&mut self, from: usize, to: usize, index: usize) {
        let page = self.table[from * self.entries + index];
        self.map(to, index, page);
    }

    /// Overwrites all pages with NaN: in every type, bytes of all ones are one, or have one for
    /// a scale.
    pub fn poison(&mut self) {
        self.memory.bytes_mut().fill(0xff);
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
        let layer = self.places[layer].expect("a layer that this device attends to");
        let start = page as usize * self.group.page_bytes() as usize;
        // SAFETY: `map` checked the page, so the head lies inside the memory.
        unsafe { self.memory.start().add(start + self.group.head_offset(layer, head)) }
    }

    /// One key or value as it is stored, rotated or not, for the reference: `value` picks which, `at` is
    /// its index in the head.
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
                KvType::Q8 => {
                    let scale = *start.cast::<f32>().add(self.scale_offset(position, value));
                    f32::from(*start.cast::<i8>().add(offset)) * scale
                }
            }
        }
    }

    /// Stores the key or value of a whole head, which is rotated already where its type wants it.
    pub fn set(
        &mut self,
        sequence: usize,
        position: usize,
        slot: KvSlot,
        head: usize,
        value: bool,
        values: &[f32],
    ) {
        let start = self.head(sequence, position / PAGE_TOKENS, slot.layer, head);
        let offset = |at: usize| self.offset(position, value, at);
        let largest = values.iter().fold(0.0f32, |largest, x| largest.max(x.abs()));
        let scale = if values.iter().all(|x| x.is_finite()) { largest / 127.0 } else { f32::NAN };
        for (at, &x) in values.iter().enumerate() {
            // SAFETY: inside the head's part of the page; `&mut self` excludes other readers.
            unsafe {
                match self.group.ty {
                    KvType::F32 => *start.cast::<f32>().add(offset(at)) = x,
                    KvType::F16 => {
                        let within = x.clamp(f16::MIN.to_f32(), f16::MAX.to_f32());
                        *start.cast::<f16>().add(offset(at)) = f16::from_f32(within);
                    }
                    KvType::Q8 => {
                        let code = if scale > 0.0 { (x / scale).round_ties_even() } else { 0.0 };
                        *start.cast::<i8>().add(offset(at)) = code as i8;
                        *start.cast::<f32>().add(self.scale_offset(position, value)) = scale;
                    }
                }
            }
        }
    }

    /// Index of a value in its head.
    fn offset(&self, position: usize, value: bool, at: usize) -> usize {
        let slot = position % PAGE_TOKENS;
        if value {
            self.group.head_dim * PAGE_TOKENS + slot * self.group.value_stride() + at
        } else {
            at * PAGE_TOKENS + slot
        }
    }

    /// Index of a scale in its head, in f32 from its start.
    fn scale_offset(&self, position: usize, value: bool) -> usize {
        let scales = (self.group.head_dim + self.group.value_stride()) * PAGE_TOKENS / 4;
        scales + usize::from(value) * PAGE_TOKENS + position % PAGE_TOKENS
    }
}
