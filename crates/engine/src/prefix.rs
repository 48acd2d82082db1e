//! What was computed before: a tree of pages, found again by the tokens they hold.
//!
//! ```text
//! root of tenant 0 ─ 64 tokens ─ 64 tokens ─┬─ 64 tokens ─ tail of 17
//!                                           └─ 64 tokens ─ 64 tokens ─ tail of 3
//! root of tenant 7 ─ 64 tokens ─ tail of 40
//! ```
//!
//! Each tenant has a root of its own, so that nobody finds what another tenant's request computed. A
//! root exists while a sequence or a page is below it; all roots share one arena and one order of
//! eviction.
//!
//! A node stands for a page's worth of tokens behind those of its parents, and has the page of each
//! KV group that holds their keys and values, as long as that was not needed elsewhere. Full pages
//! never change and are shared. A tail is the unfinished page that a sequence ended in; it goes to
//! the first sequence that continues exactly there.
//!
//! A layer that sees all tokens needs every page from the root on; one that sees a window needs only
//! the pages of the window. So a conversation can go on as long as the pages at its end are there,
//! and those in its middle are the first to be given away.

#[cfg(test)]
mod tests;

use pianola_plan::PAGE_TOKENS;
use std::cmp::Reverse;
use std::collections::HashMap;

/// A node's place in the tree.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub(crate) struct NodeId(usize);

/// A page of one group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Kept {
    page: u32,
    /// When it was last of use; the earliest go first.
    stamp: u64,
    /// A sequence ended or resumed here, so that it is likely to be wanted again.
    is_end: bool,
}

#[derive(Debug)]
struct Node {
    tenant: u64,
    /// None for a root, which holds no tokens: a tenant's sequences begin there.
    parent: Option<NodeId>,
    /// Pages before this one's.
    depth: usize,
    tokens: Box<[u32]>,
    /// By group.
    pages: Vec<Option<Kept>>,
    children: HashMap<Box<[u32]>, NodeId>,
    tails: Vec<NodeId>,
    /// Sequences that stand here.
    sequences: usize,
}

impl Node {
    fn new(tenant: u64, parent: Option<NodeId>, groups: usize, tokens: &[u32]) -> Node {
        Node {
            tenant,
            parent,
            depth: 0,
            tokens: tokens.into(),
            pages: vec![None; groups],
            children: HashMap::new(),
            tails: Vec::new(),
            sequences: 0,
        }
    }

    fn is_unused(&self) -> bool {
        self.pages.iter().all(Option::is_none)
            && self.children.is_empty()
            && self.tails.is_empty()
            && self.sequences == 0
    }
}

/// Where a sequence can go on; by default at its first token.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Resume {
    /// Tokens that need not be computed again.
    pub tokens: usize,
    /// Nodes of the full pages, from the first on.
    pub path: Vec<NodeId>,
    /// The tail behind them.
    pub tail: Option<NodeId>,
}

/// All that was kept.
#[derive(Debug)]
pub(crate) struct PrefixTree {
    groups: usize,
    nodes: Vec<Option<Node>>,
    /// By tenant.
    roots: HashMap<u64, NodeId>,
    unused: Vec<usize>,
    clock: u64,
}

impl PrefixTree {
    pub fn new(groups: usize) -> PrefixTree {
        let (nodes, roots, unused) = (Vec::new(), HashMap::new(), Vec::new());
        PrefixTree { groups, nodes, roots, unused, clock: 0 }
    }

    fn node(&self, id: NodeId) -> &Node {
        self.nodes[id.0].as_ref().expect("nodes are named while they live")
    }

    fn node_mut(&mut self, id: NodeId) -> &mut Node {
        self.nodes[id.0].as_mut().expect("nodes are named while they live")
    }

    /// The page that a node has of a group.
    pub fn page(&self, id: NodeId, group: usize) -> Option<u32> {
        self.node(id).pages[group].map(|kept| kept.page)
    }

    /// The tenant whose sequences may stand at a node.
    pub fn tenant(&self, id: NodeId) -> u64 {
        self.node(id).tenant
    }

    /// A later moment than all before.
    pub fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    /// The furthest that `tokens` of a tenant can go on from, leaving at least one of them to be
    /// computed. `first_visible` gives for a group and a position the first position that is seen
    /// from there.
    pub fn find(
        &self,
        tenant: u64,
        tokens: &[u32],
        first_visible: &dyn Fn(usize, usize) -> usize,
    ) -> Resume {
        let Some(&root) = self.roots.get(&tenant) else { return Resume::default() };
        let mut path = Vec::new();
        let most = tokens.len().saturating_sub(1);
        let mut at = root;
        for page in tokens[..most].chunks_exact(PAGE_TOKENS) {
            let Some(&child) = self.node(at).children.get(page) else { break };
            path.push(child);
            at = child;
        }
        let complete = |length: usize, path: &[NodeId]| {
            (0..self.groups).all(|group| {
                let first = first_visible(group, length) / PAGE_TOKENS;
                path.iter().skip(first).all(|&id| self.page(id, group).is_some())
            })
        };
        loop {
            let full = path.len() * PAGE_TOKENS;
            let continues = |tail: &&NodeId| {
                let kept = &self.node(**tail).tokens;
                let length = full + kept.len();
                length <= most && tokens[full..].starts_with(kept) && complete(length, &path)
            };
            let tails = &self.node(path.last().copied().unwrap_or(root)).tails;
            let longest = |tail: &&NodeId| self.node(**tail).tokens.len();
            if let Some(&tail) = tails.iter().filter(continues).max_by_key(longest) {
                let tokens = full + self.node(tail).tokens.len();
                return Resume { tokens, path, tail: Some(tail) };
            }
            if complete(full, &path) {
                return Resume { tokens: full, path, tail: None };
            }
            path.pop();
        }
    }

    /// A sequence of a tenant comes to stand at the tenant's root, which is made if there is none.
    pub fn enter_root(&mut self, tenant: u64) -> NodeId {
        let root = match self.roots.get(&tenant) {
            Some(&root) => root,
            None => {
                let root = self.place(Node::new(tenant, None, self.groups, &[]));
                self.roots.insert(tenant, root);
                root
            }
        };
        self.enter(root);
        root
    }

    /// A sequence comes to stand at a node.
    pub fn enter(&mut self, id: NodeId) {
        self.node_mut(id).sequences += 1;
    }

    /// A sequence leaves a node.
    pub fn leave(&mut self, id: NodeId) {
        self.node_mut(id).sequences -= 1;
        self.prune(id);
    }

    /// The child of `parent` with a full page of `tokens`, which a sequence just computed into
    /// `pages`; `taken` is called with each page that the tree now holds as well.
    pub fn note(
        &mut self,
        parent: NodeId,
        tokens: &[u32],
        pages: &[Option<u32>],
        taken: &mut dyn FnMut(usize, u32),
    ) -> NodeId {
        let stamp = self.tick();
        let child = match self.node(parent).children.get(tokens) {
            Some(&child) => child,
            None => {
                let child = self.add(parent, tokens);
                self.node_mut(parent).children.insert(tokens.into(), child);
                child
            }
        };
        for (group, &page) in pages.iter().enumerate() {
            let kept = &mut self.node_mut(child).pages[group];
            if let (None, Some(page)) = (&kept, page) {
                *kept = Some(Kept { page, stamp, is_end: false });
                taken(group, page);
            }
        }
        child
    }

    /// Keeps the unfinished page that a sequence ended in. False, and nothing is kept, where the
    /// same tokens are kept already.
    pub fn note_tail(&mut self, parent: NodeId, tokens: &[u32], pages: &[u32]) -> bool {
        let stamp = self.tick();
        let mut tails = self.node(parent).tails.iter();
        if tails.any(|&tail| *self.node(tail).tokens == *tokens) {
            return false;
        }
        let tail = self.add(parent, tokens);
        self.node_mut(parent).tails.push(tail);
        let kept = pages.iter().map(|&page| Some(Kept { page, stamp, is_end: true }));
        self.node_mut(tail).pages = kept.collect();
        true
    }

    /// Takes a tail and its pages, one a group, out of the tree.
    pub fn take_tail(&mut self, tail: NodeId) -> Vec<u32> {
        let node = self.remove(tail);
        node.pages.into_iter().map(|kept| kept.expect("a tail has all its pages").page).collect()
    }

    fn add(&mut self, parent: NodeId, tokens: &[u32]) -> NodeId {
        let above = self.node(parent);
        let mut node = Node::new(above.tenant, Some(parent), self.groups, tokens);
        node.depth = above.depth + usize::from(above.parent.is_some());
        self.place(node)
    }

    fn place(&mut self, node: Node) -> NodeId {
        match self.unused.pop() {
            Some(place) => {
                self.nodes[place] = Some(node);
                NodeId(place)
            }
            None => {
                self.nodes.push(Some(node));
                NodeId(self.nodes.len() - 1)
            }
        }
    }

    fn remove(&mut self, id: NodeId) -> Node {
        let node = self.detach(id);
        node.parent.into_iter().for_each(|parent| self.prune(parent));
        node
    }

    /// Takes a node out of its parent, which stays even if nothing else is in it.
    fn detach(&mut self, id: NodeId) -> Node {
        let node = self.nodes[id.0].take().expect("nodes are named while they live");
        self.unused.push(id.0);
        let Some(parent) = node.parent else {
            self.roots.remove(&node.tenant);
            return node;
        };
        let parent = self.node_mut(parent);
        parent.tails.retain(|&tail| tail != id);
        if parent.children.get(&node.tokens) == Some(&id) {
            parent.children.remove(&node.tokens);
        }
        node
    }

    /// Removes a node that holds nothing and that no sequence needs, then its parents likewise. A
    /// loop, because a conversation may be thousands of pages deep.
    fn prune(&mut self, id: NodeId) {
        let mut next = Some(id).filter(|&id| self.node(id).is_unused());
        while let Some(id) = next {
            next = self.detach(id).parent.filter(|&parent| self.node(parent).is_unused());
        }
    }

    /// Marks what a sequence of `length` tokens that stands at `id` needs to go on as used now, and
    /// as likely to be wanted again.
    pub fn touch(
        &mut self,
        id: NodeId,
        length: usize,
        first_visible: &dyn Fn(usize, usize) -> usize,
    ) {
        let stamp = self.tick();
        let mut next = Some(id);
        while let Some(at) = next {
            let node = self.nodes[at.0].as_mut().expect("a parent lives as long as its children");
            for (group, kept) in node.pages.iter_mut().enumerate() {
                if (node.depth + 1) * PAGE_TOKENS > first_visible(group, length)
                    && let Some(kept) = kept
                {
                    kept.stamp = stamp;
                    kept.is_end = true;
                }
            }
            next = node.parent;
        }
    }

    /// The window of a sequence that stands at `id` has passed page `index` of `group`: unless
    /// another ended there, it is the first to be given away.
    pub fn pass(&mut self, id: NodeId, group: usize, index: usize) {
        let mut at = id;
        while self.node(at).depth > index
            && let Some(parent) = self.node(at).parent
        {
            at = parent;
        }
        if self.node(at).depth == index
            && let Some(kept) = &mut self.node_mut(at).pages[group]
            && !kept.is_end
        {
            kept.stamp = 0;
        }
    }

    /// Pages of a group that the tree has, and nobody besides, as `alone` knows.
    pub fn count(&self, group: usize, alone: &dyn Fn(u32) -> bool) -> usize {
        let pages = self.nodes.iter().flatten().filter_map(|node| node.pages[group]);
        pages.filter(|kept| alone(kept.page)).count()
    }

    /// Gives away at least `count` pages of `group` that nobody else has, the longest unused first
    /// and of those the furthest from the root; fewer if there are no more. `freed` is called with the
    /// group and the page of each: of a tail all go together.
    pub fn evict(
        &mut self,
        group: usize,
        count: usize,
        alone: &dyn Fn(u32) -> bool,
        freed: &mut dyn FnMut(usize, u32),
    ) {
        let candidate = |(place, node): (usize, &Option<Node>)| {
            let node = node.as_ref()?;
            let kept = node.pages[group].filter(|kept| alone(kept.page))?;
            Some((kept.stamp, Reverse(node.depth), place))
        };
        let mut found: Vec<_> = self.nodes.iter().enumerate().filter_map(candidate).collect();
        found.sort_unstable();
        for (_, _, place) in found.into_iter().take(count) {
            let id = NodeId(place);
            let is_tail = self.node(id).tokens.len() < PAGE_TOKENS;
            for other in 0..self.groups {
                if (other == group || is_tail)
                    && let Some(kept) = self.node_mut(id).pages[other].take()
                {
                    freed(other, kept.page);
                }
            }
            self.prune(id);
        }
    }

    /// Every page of a group that the tree holds, as (page, tenant).
    pub fn pages(&self, group: usize) -> impl Iterator<Item = (u32, u64)> + '_ {
        let page = move |node: &Node| node.pages[group].map(|kept| (kept.page, node.tenant));
        self.nodes.iter().flatten().filter_map(page)
    }
}
