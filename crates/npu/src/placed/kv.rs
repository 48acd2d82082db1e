//! KV pages in host memory, and the page tables that find them.

use half::f16;
use pianola_plan::{DeviceError, KvGroup, KvSlot, KvType, PAGE_TOKENS, Plan, Row};

/// An entry that points nowhere.
const UNMAPPED: u32 = u32::MAX;

/// Page tables of every group: which page has which tokens.
#[derive(Clone)]
pub(super) struct PageTables {
    entries: usize,
    /// `[groups][sequences][entries]`
    tables: Vec<Vec<u32>>,
}

impl PageTables {
    pub fn new(plan: &Plan) -> PageTables {
        let entries = plan.options.context.div_ceil(PAGE_TOKENS);
        let table = vec![UNMAPPED; entries * plan.options.sequences];
        PageTables { entries, tables: vec![table; plan.graph.kv_groups.len()] }
    }

    /// Points an entry at a page, or nowhere.
    pub fn set(&mut self, group: usize, sequence: usize, index: usize, page: Option<u32>) {
        assert!(index < self.entries, "entry {index} of {}", self.entries);
        self.tables[group][sequence * self.entries + index] = page.unwrap_or(UNMAPPED);
    }

    pub fn is_mapped(&self, group: usize, sequence: usize, index: usize) -> bool {
        index < self.entries && self.tables[group][sequence * self.entries + index] != UNMAPPED
    }

    /// The page of a position.
    ///
    /// # Panics
    /// If there is none, which a step's check rules out.
    fn page(&self, group: usize, sequence: usize, position: usize) -> usize {
        let page = self.tables[group][sequence * self.entries + position / PAGE_TOKENS];
        assert_ne!(page, UNMAPPED, "sequence {sequence} has no page for position {position}");
        page as usize
    }
}

/// Keys or values of a group.
enum Stored {
    F32(Vec<f32>),
    /// Bits of f16.
    F16(Vec<u16>),
}

impl Stored {
    fn new(ty: KvType, count: usize) -> Option<Stored> {
        match ty {
            KvType::F32 => Some(Stored::F32(vec![0.0; count])),
            KvType::F16 => Some(Stored::F16(vec![0; count])),
            KvType::Q8 => None,
        }
    }

    fn set(&mut self, start: usize, values: &[f32]) {
        match self {
            Stored::F32(all) => all[start..start + values.len()].copy_from_slice(values),
            Stored::F16(all) => {
                for (to, value) in all[start..].iter_mut().zip(values) {
                    // As every device does: the largest half instead of an infinity.
                    let within = value.clamp(f16::MIN.to_f32(), f16::MAX.to_f32());
                    *to = f16::from_f32(within).to_bits();
                }
            }
        }
    }

    fn get(&self, start: usize, out: &mut [f32]) {
        match self {
            Stored::F32(all) => out.copy_from_slice(&all[start..start + out.len()]),
            Stored::F16(all) => {
                for (out, &bits) in out.iter_mut().zip(&all[start..]) {
                    *out = f16::from_bits(bits).to_f32();
                }
            }
        }
    }

    fn poison(&mut self) {
        match self {
            Stored::F32(all) => all.fill(f32::NAN),
            Stored::F16(all) => all.fill(f16::NAN.to_bits()),
        }
    }
}

/// Which of a token's two vectors.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Part {
    Key,
    Value,
}

/// Pages of a group's layers that are attended to here, `[pages][layers][heads][tokens][head]`.
struct Pages {
    heads: usize,
    head_dim: usize,
    /// For each layer of the plan's group its place among these.
    places: Vec<Option<usize>>,
    layers: usize,
    keys: Stored,
    values: Stored,
}

/// Pages of all groups.
pub(super) struct KvMemory {
    pub tables: PageTables,
    groups: Vec<Pages>,
}

impl KvMemory {
    /// Room for the layers in `slots`. Memory that is never written costs nothing.
    pub fn new(plan: &Plan, slots: &[KvSlot]) -> Result<KvMemory, DeviceError> {
        let mut groups = Vec::new();
        for (index, group) in plan.graph.kv_groups.iter().enumerate() {
            let mut layers = 0;
            let mut place = |layer: usize| {
                let kept = slots.contains(&KvSlot { group: index, layer });
                layers += usize::from(kept);
                kept.then(|| layers - 1)
            };
            let places: Vec<Option<usize>> = (0..group.layers).map(&mut place).collect();
            let count = plan.kv_pages[index] * layers * layer_values(group);
            let ty = if layers == 0 { KvType::F32 } else { group.ty };
            let stored = || Stored::new(ty, count).ok_or_else(|| unsupported(ty));
            let (keys, values) = (stored()?, stored()?);
            let (heads, head_dim) = (group.kv_heads, group.head_dim);
            groups.push(Pages { heads, head_dim, places, layers, keys, values });
        }
        Ok(KvMemory { tables: PageTables::new(plan), groups })
    }

    /// Bytes of a layer's keys and values in a plan's pages of its group.
    pub fn layer_bytes(plan: &Plan, group: usize) -> u64 {
        let spec = &plan.graph.kv_groups[group];
        (2 * plan.kv_pages[group] * layer_values(spec) * spec.ty.bytes()) as u64
    }

    fn start(&self, slot: KvSlot, sequence: usize, position: usize, head: usize) -> usize {
        let group = &self.groups[slot.group];
        let page = self.tables.page(slot.group, sequence, position);
        let layer = group.places[slot.layer].expect("a layer that is attended to here");
        let head = (page * group.layers + layer) * group.heads + head;
        (head * PAGE_TOKENS + position % PAGE_TOKENS) * group.head_dim
    }

    /// Stores a row's key and value, all heads of each.
    pub fn store(&mut self, slot: KvSlot, row: &Row, key: &[f32], value: &[f32]) {
        let head_dim = self.groups[slot.group].head_dim;
        let heads = key.chunks_exact(head_dim).zip(value.chunks_exact(head_dim));
        for (head, (key, value)) in heads.enumerate() {
            let start = self.start(slot, row.sequence as usize, row.position as usize, head);
            let group = &mut self.groups[slot.group];
            group.keys.set(start, key);
            group.values.set(start, value);
        }
    }

    /// A head of a stored key or value.
    pub fn load(
        &self,
        slot: KvSlot,
        part: Part,
        token: (usize, usize),
        head: usize,
        out: &mut [f32],
    ) {
        let (sequence, position) = token;
        let start = self.start(slot, sequence, position, head);
        let group = &self.groups[slot.group];
        match part {
            Part::Key => group.keys.get(start, out),
            Part::Value => group.values.get(start, out),
        }
    }

    /// Whether a layer's keys and values are here.
    pub fn has(&self, slot: KvSlot) -> bool {
        let group = self.groups.get(slot.group);
        group.and_then(|group| group.places.get(slot.layer)).is_some_and(Option::is_some)
    }

    /// Values in all heads of a key.
    pub fn width(&self, slot: KvSlot) -> (usize, usize) {
        let group = &self.groups[slot.group];
        (group.heads, group.head_dim)
    }

    /// Overwrites everything with NaN.
    pub fn poison(&mut self) {
        for group in &mut self.groups {
            group.keys.poison();
            group.values.poison();
        }
    }
}

/// Keys of one layer in one page.
fn layer_values(group: &KvGroup) -> usize {
    group.kv_heads * PAGE_TOKENS * group.head_dim
}

fn unsupported(ty: KvType) -> DeviceError {
    DeviceError::Unsupported(format!(
        "the NPU's attention keeps keys and values in f32 or f16, not in {ty}: choose one of these \
         (--kv-type f16), or let another device attend"
    ))
}
