//! KV pages: which are free, which a sequence holds, and which are kept for later.
//!
//! A sequence lives in a *slot* of the device's page tables. Its pages are its own while they fill;
//! once full they never change, and the [`PrefixTree`] holds them, too, for later sequences of the same
//! tenant. A page without a holder is free; one that only the tree holds is given away when free ones
//! run out.

use crate::prefix::{NodeId, PrefixTree, Resume};
use pianola_plan::{KvGroup, PAGE_TOKENS};

/// Pages of one group.
struct Pool {
    group: KvGroup,
    free: Vec<u32>,
    /// For each page the slots that hold it, and one more if the tree does.
    holders: Vec<u32>,
}

impl Pool {
    fn release(&mut self, page: u32) {
        let holders = &mut self.holders[page as usize];
        *holders -= 1;
        if *holders == 0 {
            self.free.push(page);
        }
    }

    /// Checks that the pages without a holder are free, each once, and no others.
    fn check_free(&self) {
        let mut free = vec![false; self.holders.len()];
        for &page in &self.free {
            assert!(!std::mem::replace(&mut free[page as usize], true), "{page} free twice");
        }
        for (page, &count) in self.holders.iter().enumerate() {
            assert_eq!(free[page], count == 0, "page {page} of {} leaked", self.group.name);
        }
    }
}

/// For a group and a position, the first position that is seen from there.
fn first_visible(pools: &[Pool]) -> impl Fn(usize, usize) -> usize + '_ {
    |group, position| pools[group].group.first_visible(position)
}

/// One sequence.
struct Slot {
    /// Tokens whose keys and values are in the pages.
    tokens: Vec<u32>,
    /// For each group the pages from the first token on; dropped ones are none.
    held: Vec<Vec<Option<u32>>>,
    /// Where the sequence stands in the tree: the node of its last full page. None for a slot that
    /// is empty, and for a sequence that shares nothing.
    node: Option<NodeId>,
    /// Full pages that the tree knows.
    registered: usize,
}

/// A change to the page tables that a device has to be told of before the next step is played.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct PageChange {
    pub group: usize,
    pub slot: usize,
    /// Entry of the slot's table.
    pub index: usize,
    /// The page that the entry points at from now on; none: no row may read the entry any more.
    pub page: Option<u32>,
}

/// The KV pages of a plan.
#[derive(Clone, Debug)]
pub(crate) struct CacheLayout {
    pub groups: Vec<KvGroup>,
    /// Pages of each group.
    pub pages: Vec<usize>,
    /// Tokens of the longest sequence.
    pub context: usize,
    /// Sequences at once.
    pub slots: usize,
}

/// There are not enough pages; other sequences hold them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Full;

/// How the pages are used.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CacheUse {
    /// Bytes of all pages.
    pub bytes: u64,
    /// Bytes of pages that running sequences hold.
    pub held_bytes: u64,
    /// Bytes of pages that are kept in case they are wanted again.
    pub kept_bytes: u64,
    /// Pages given away although they were kept.
    pub evictions: u64,
}

impl CacheUse {
    /// Bytes of pages that hold nothing.
    pub fn free_bytes(&self) -> u64 {
        self.bytes - self.held_bytes - self.kept_bytes
    }
}

/// All KV pages. What changes in the page tables is collected until [`Cache::drain_changes`].
pub(crate) struct Cache {
    pools: Vec<Pool>,
    slots: Vec<Slot>,
    tree: PrefixTree,
    changes: Vec<PageChange>,
    evictions: u64,
}

impl Cache {
    pub fn new(layout: &CacheLayout) -> Cache {
        let groups = &layout.groups;
        let pool = |(group, &pages): (&KvGroup, &usize)| Pool {
            group: group.clone(),
            // The lowest pages first, so that short conversations touch little memory.
            free: (0..pages as u32).rev().collect(),
            holders: vec![0; pages],
        };
        let entries = layout.context.div_ceil(PAGE_TOKENS);
        let slot = |_| Slot {
            tokens: Vec::with_capacity(layout.context),
            held: groups.iter().map(|_| Vec::with_capacity(entries)).collect(),
            node: None,
            registered: 0,
        };
        Cache {
            pools: groups.iter().zip(&layout.pages).map(pool).collect(),
            slots: (0..layout.slots).map(slot).collect(),
            tree: PrefixTree::new(groups.len()),
            changes: Vec::with_capacity(groups.len() * layout.slots),
            evictions: 0,
        }
    }

    /// Changes of the page tables since the last call, in the order in which they are to be made.
    pub fn drain_changes(&mut self) -> impl Iterator<Item = PageChange> + '_ {
        self.changes.drain(..)
    }

    /// Tokens of a slot's sequence that are in its pages.
    pub fn len(&self, slot: usize) -> usize {
        self.slots[slot].tokens.len()
    }

    /// Begins a tenant's sequence that will be `tokens` in an empty slot: takes what the tenant
    /// computed before, and says how many tokens of it there were. A sequence that grows without
    /// this shares nothing, neither then nor later.
    pub fn attach(&mut self, slot: usize, tenant: u64, tokens: &[u32]) -> usize {
        debug_assert!(self.slots[slot].tokens.is_empty() && self.slots[slot].node.is_none());
        let root = self.tree.enter_root(tenant);
        let found = self.tree.find(tenant, tokens, &first_visible(&self.pools));
        let node = found.path.last().copied().unwrap_or(root);
        self.tree.enter(node);
        self.tree.leave(root);
        self.tree.touch(node, found.tokens, &first_visible(&self.pools));
        let tail = found.tail.map(|tail| self.tree.take_tail(tail));
        let slot_state = &mut self.slots[slot];
        slot_state.tokens.extend_from_slice(&tokens[..found.tokens]);
        slot_state.node = Some(node);
        slot_state.registered = found.path.len();
        for (group, pool) in self.pools.iter_mut().enumerate() {
            let first = pool.group.first_visible(found.tokens) / PAGE_TOKENS;
            let held = &mut slot_state.held[group];
            held.resize(first.min(found.path.len()), None);
            for (index, &node) in found.path.iter().enumerate().skip(first) {
                let page = self.tree.page(node, group).expect("the tree looked for it");
                pool.holders[page as usize] += 1;
                held.push(Some(page));
                self.changes.push(PageChange { group, slot, index, page: Some(page) });
            }
            // A tail's page passes from the tree to the slot.
            if let Some(pages) = &tail {
                held.push(Some(pages[group]));
                let (index, page) = (found.path.len(), Some(pages[group]));
                self.changes.push(PageChange { group, slot, index, page });
            }
        }
        found.tokens
    }

    /// Makes the positions from the end of a slot's sequence to `end` writable, and drops pages
    /// that no row from there on can see.
    pub fn reserve(&mut self, slot: usize, end: usize) -> Result<(), Full> {
        let length = self.slots[slot].tokens.len();
        let last = end.div_ceil(PAGE_TOKENS);
        for group in 0..self.pools.len() {
            self.drop_unseen(slot, group, length);
        }
        // All or nothing, so that two sequences never wait for one another's half.
        for group in 0..self.pools.len() {
            let wanted = last.saturating_sub(self.first_missing(slot, group, length));
            self.make_free(group, wanted)?;
        }
        for group in 0..self.pools.len() {
            let first = self.first_missing(slot, group, length);
            let (pool, held) = (&mut self.pools[group], &mut self.slots[slot].held[group]);
            for index in first..last {
                let page = pool.free.pop().expect("counted before");
                pool.holders[page as usize] = 1;
                held.resize(index, None);
                held.push(Some(page));
                self.changes.push(PageChange { group, slot, index, page: Some(page) });
            }
        }
        Ok(())
    }

    /// First entry of a slot's table that has to be filled for rows from `length` on.
    fn first_missing(&self, slot: usize, group: usize, length: usize) -> usize {
        let first = self.pools[group].group.first_visible(length) / PAGE_TOKENS;
        self.slots[slot].held[group].len().max(first)
    }

    fn drop_unseen(&mut self, slot: usize, group: usize, length: usize) {
        let pool = &mut self.pools[group];
        let first = pool.group.first_visible(length) / PAGE_TOKENS;
        let Slot { held, node, .. } = &mut self.slots[slot];
        // Dropped ones stand together at the front.
        let unseen =
            held[group].iter().take(first).rposition(Option::is_none).map_or(0, |at| at + 1);
        for (index, entry) in held[group].iter_mut().enumerate().take(first).skip(unseen) {
            if let Some(page) = entry.take() {
                pool.release(page);
                self.changes.push(PageChange { group, slot, index, page: None });
                node.iter().for_each(|&node| self.tree.pass(node, group, index));
            }
        }
    }

    /// Sees to it that `wanted` pages of a group are free.
    fn make_free(&mut self, group: usize, wanted: usize) -> Result<(), Full> {
        let short = wanted.saturating_sub(self.pools[group].free.len());
        if short == 0 {
            return Ok(());
        }
        if self.kept(group) < short {
            return Err(Full);
        }
        // Some more at once, because looking for the oldest takes a while.
        let batch = short.max(self.pools[group].holders.len() / 64);
        self.evictions += self.give_away(group, batch);
        Ok(())
    }

    /// Pages of a group that only the tree holds.
    fn kept(&self, group: usize) -> usize {
        let pool = &self.pools[group];
        self.tree.count(group, &|page| pool.holders[page as usize] == 1)
    }

    /// Gives away up to `count` of these, and of tails also their other pages. Returns how many.
    fn give_away(&mut self, group: usize, count: usize) -> u64 {
        let pools = &mut self.pools;
        let holders = pools[group].holders.clone();
        let alone = |page: u32| holders[page as usize] == 1;
        let mut given = 0;
        self.tree.evict(group, count, &alone, &mut |group, page| {
            pools[group].release(page);
            given += 1;
        });
        given
    }

    /// Whether `tokens` could become a sequence now and grow by a token, `chunk` rows being added at
    /// a time, with `left` pages of each group to spare. It continues what `tenant` computed before;
    /// none: it shares nothing.
    pub fn has_room(&self, tenant: Option<u64>, tokens: &[u32], chunk: usize, left: usize) -> bool {
        let found = match tenant {
            Some(tenant) => self.tree.find(tenant, tokens, &first_visible(&self.pools)),
            None => Resume::default(),
        };
        self.pools.iter().enumerate().all(|(group, pool)| {
            let alone = |page: u32| pool.holders[page as usize] == 1;
            let first = pool.group.first_visible(found.tokens) / PAGE_TOKENS;
            let nodes = found.path.iter().skip(first).chain(&found.tail);
            let pages: Vec<u32> = nodes.filter_map(|&node| self.tree.page(node, group)).collect();
            let new = pool.group.pages_for(tokens.len() + 1, chunk).saturating_sub(pages.len());
            // What the sequence takes from the tree cannot be given away any more.
            let taken = pages.iter().filter(|&&page| alone(page)).count();
            new + taken + left <= pool.free.len() + self.kept(group)
        })
    }

    /// The rows behind a slot's sequence were computed, and `tokens` of them stay.
    pub fn append(&mut self, slot: usize, tokens: &[u32]) {
        let Slot { tokens: all, held, node, registered } = &mut self.slots[slot];
        all.extend_from_slice(tokens);
        let Some(node) = node else { return };
        while (*registered + 1) * PAGE_TOKENS <= all.len() {
            let page = &all[*registered * PAGE_TOKENS..(*registered + 1) * PAGE_TOKENS];
            let pages: Vec<Option<u32>> =
                held.iter().map(|held| held.get(*registered).copied().flatten()).collect();
            let pools = &mut self.pools;
            let child = self.tree.note(*node, page, &pages, &mut |group, page| {
                pools[group].holders[page as usize] += 1;
            });
            self.tree.enter(child);
            self.tree.leave(*node);
            *node = child;
            *registered += 1;
        }
    }

    /// Ends a slot's sequence; what was computed is kept as long as there is room.
    pub fn release(&mut self, slot: usize) {
        let Slot { tokens, held, node, registered } = &mut self.slots[slot];
        let Some(node) = *node else { return self.forget(slot) };
        self.tree.touch(node, tokens.len(), &first_visible(&self.pools));
        let rest = &tokens[*registered * PAGE_TOKENS..];
        let pages: Option<Vec<u32>> =
            held.iter().map(|held| held.get(*registered).copied().flatten()).collect();
        if let Some(pages) = pages.filter(|pages| !rest.is_empty() && !pages.is_empty())
            && self.tree.note_tail(node, rest, &pages)
        {
            for (pool, &page) in self.pools.iter_mut().zip(&pages) {
                pool.holders[page as usize] += 1;
            }
        }
        self.forget(slot);
    }

    /// Ends a slot's sequence; its unfinished page is given back.
    pub fn forget(&mut self, slot: usize) {
        let Slot { tokens, held, node, registered } = &mut self.slots[slot];
        for (group, held) in held.iter_mut().enumerate() {
            for (index, page) in held.drain(..).enumerate() {
                if let Some(page) = page {
                    self.pools[group].release(page);
                    self.changes.push(PageChange { group, slot, index, page: None });
                }
            }
        }
        tokens.clear();
        *registered = 0;
        node.take().into_iter().for_each(|node| self.tree.leave(node));
    }

    /// Forgets everything that is kept and that no sequence holds.
    pub fn clear(&mut self) {
        for group in 0..self.pools.len() {
            self.give_away(group, usize::MAX);
        }
    }

    /// How the pages are used.
    pub fn usage(&self) -> CacheUse {
        let mut usage = CacheUse { evictions: self.evictions, ..CacheUse::default() };
        for (group, pool) in self.pools.iter().enumerate() {
            let kept = self.kept(group);
            let held = pool.holders.len() - pool.free.len() - kept;
            let bytes = |pages: usize| pool.group.page_bytes() * pages as u64;
            usage.bytes += bytes(pool.holders.len());
            usage.held_bytes += bytes(held);
            usage.kept_bytes += bytes(kept);
        }
        usage
    }

    /// Checks that every page is accounted for, none is written by two sequences, and none has
    /// holders of two tenants.
    ///
    /// # Panics
    /// If not: pages leaked, or are shared wrongly.
    pub fn check(&self) {
        for (group, pool) in self.pools.iter().enumerate() {
            let mut holders = vec![0; pool.holders.len()];
            let mut tenants: Vec<Option<u64>> = vec![None; holders.len()];
            for (page, tenant) in self.tree.pages(group) {
                holders[page as usize] += 1;
                tenants[page as usize] = Some(tenant);
            }
            assert!(holders.iter().all(|&count| count <= 1), "a page in two nodes");
            for slot in &self.slots {
                let tenant = slot.node.map(|node| self.tree.tenant(node));
                for (index, &page) in slot.held[group].iter().enumerate() {
                    let Some(page) = page else { continue };
                    let first = holders[page as usize] == 0;
                    holders[page as usize] += 1;
                    let full = (index + 1) * PAGE_TOKENS <= slot.tokens.len();
                    let shared = pool.holders[page as usize] > 1;
                    assert!(full || !shared, "page {page} of {group} is shared and not full");
                    let known = std::mem::replace(&mut tenants[page as usize], tenant);
                    assert!(first || (known.is_some() && known == tenant), "{page} of two tenants");
                }
            }
            assert_eq!(holders, pool.holders, "holders of group {group}");
            pool.check_free();
        }
    }
}
