use super::*;

/// Group 0 sees all, group 1 the last 100 tokens.
fn visible(group: usize, position: usize) -> usize {
    if group == 0 { 0 } else { (position + 1).saturating_sub(100) }
}

fn tokens(count: usize) -> Vec<u32> {
    (0..count as u32).collect()
}

/// A tree with the full pages of one sequence of tenant 0, and a tail of the tokens beyond. A
/// sequence stands at the root.
fn tree(length: usize) -> (PrefixTree, NodeId) {
    let mut tree = PrefixTree::new(2);
    let all = tokens(length);
    let mut at = tree.enter_root(0);
    let pages = all.chunks_exact(PAGE_TOKENS);
    let rest = pages.remainder();
    for (index, page) in pages.enumerate() {
        let index = index as u32;
        at = tree.note(at, page, &[Some(index), Some(100 + index)], &mut |_, _| ());
    }
    if !rest.is_empty() {
        assert!(tree.note_tail(at, rest, &[50, 150]));
    }
    (tree, at)
}

#[test]
fn a_sequence_goes_on_where_it_ended() {
    let (mut tree, _) = tree(200);
    let found = tree.find(0, &tokens(300), &visible);
    assert_eq!((found.tokens, found.path.len()), (200, 3));
    assert_eq!(tree.take_tail(found.tail.unwrap()), [50, 150]);
    assert_eq!(tree.find(0, &tokens(300), &visible).tokens, 192);
    // One token is always left to be computed.
    assert_eq!(tree.find(0, &tokens(192), &visible).tokens, 128);
    assert_eq!(tree.find(0, &tokens(193), &visible).tokens, 192);
    let mut other = tokens(300);
    other[70] = 9999;
    assert_eq!(tree.find(0, &other, &visible).tokens, 64);
}

#[test]
fn a_window_needs_its_own_pages_only() {
    let (mut tree, at) = tree(320);
    // The window at 320 tokens reaches back to 221, in the fourth page.
    let alone = |page: u32| (100..103).contains(&page);
    tree.evict(1, 3, &alone, &mut |_, _| ());
    assert_eq!(tree.find(0, &tokens(400), &visible).tokens, 320);
    tree.evict(1, 1, &|page| page == 103, &mut |_, _| ());
    assert_eq!(tree.find(0, &tokens(400), &visible).tokens, 0);
    assert_eq!(tree.count(0, &|_| true), 5);
    tree.evict(0, 9, &|_| true, &mut |_, _| ());
    tree.evict(1, 9, &|_| true, &mut |_, _| ());
    assert_eq!(tree.pages(0).count() + tree.pages(1).count(), 0);
    assert!(tree.nodes[at.0].is_none(), "an empty node stays");
}

#[test]
fn ends_outlive_middles_and_leaves_go_before_roots() {
    let (mut tree, at) = tree(320);
    tree.touch(at, 320, &visible);
    // What came later but passed.
    let mut other = tree.enter_root(0);
    for index in 0..3 {
        let page: Vec<u32> = vec![7000 + index; PAGE_TOKENS];
        let pages = [Some(60 + index), Some(160 + index)];
        other = tree.note(other, &page, &pages, &mut |_, _| ());
    }
    tree.pass(other, 1, 0);
    let mut freed = Vec::new();
    tree.evict(1, 4, &|_| true, &mut |_, page| freed.push(page));
    // The passed page, then those outside of the first one's window, oldest first.
    assert_eq!(freed, [160, 100, 101, 102]);
    let mut freed = Vec::new();
    tree.evict(0, 2, &|_| true, &mut |_, page| freed.push(page));
    assert_eq!(freed, [4, 3]);
}

#[test]
fn equal_pages_are_kept_once() {
    let (mut tree, _) = tree(130);
    let mut taken = Vec::new();
    let (root, first) = (tree.enter_root(0), tokens(64));
    let mut note = |tree: &mut PrefixTree, pages: [Option<u32>; 2]| {
        tree.note(root, &first, &pages, &mut |group, page| taken.push((group, page)))
    };
    note(&mut tree, [Some(70), Some(170)]);
    tree.evict(1, 1, &|page| page == 100, &mut |_, _| ());
    note(&mut tree, [Some(71), Some(171)]);
    assert_eq!(taken, [(1, 171)]);
    let at = tree.find(0, &tokens(200), &visible).path[1];
    assert!(!tree.note_tail(at, &[128, 129], &[80, 180]));
}

/// A conversation deeper than a thread's stack could recurse is removed without recursion.
#[test]
fn a_deep_conversation_is_removed() {
    const DEPTH: u32 = 300_000;
    let mut tree = PrefixTree::new(1);
    let root = tree.enter_root(0);
    let mut at = root;
    for page in 0..DEPTH {
        at = tree.note(at, &[page; PAGE_TOKENS], &[Some(page)], &mut |_, _| ());
    }
    tree.enter(at);
    tree.touch(at, DEPTH as usize * PAGE_TOKENS, &|_, _| 0);
    tree.pass(at, 0, 0);
    tree.evict(0, usize::MAX, &|_| true, &mut |_, _| ());
    assert_eq!(tree.nodes.iter().flatten().count(), 1 + DEPTH as usize);
    tree.leave(at);
    assert_eq!(tree.nodes.iter().flatten().count(), 1);

    // Whole, it is found and dropped likewise.
    let tokens: Vec<u32> = (0..DEPTH).flat_map(|page| [page; PAGE_TOKENS]).collect();
    for (page, tokens) in tokens.chunks(PAGE_TOKENS).enumerate() {
        at = tree.note(
            if page == 0 { root } else { at },
            tokens,
            &[Some(page as u32)],
            &mut |_, _| (),
        );
    }
    assert_eq!(tree.find(0, &tokens, &|_, _| 0).path.len(), DEPTH as usize - 1);
}

#[test]
fn tenants_find_their_own_pages_and_leave_nothing_behind() {
    let mut tree = PrefixTree::new(2);
    let all = tokens(2 * PAGE_TOKENS);
    let (first, second) = all.split_at(PAGE_TOKENS);
    for tenant in 0..3 {
        let root = tree.enter_root(tenant);
        let page = tenant as u32;
        let at = tree.note(root, first, &[Some(page), Some(100 + page)], &mut |_, _| ());
        assert!(tree.note_tail(at, &second[..10], &[10 + page, 110 + page]));
        assert_eq!((tree.tenant(root), tree.tenant(at)), (tenant, tenant));
        tree.leave(root);
    }
    let found = |tree: &PrefixTree, tenant| tree.find(tenant, &all, &visible);
    for tenant in 0..3 {
        let Resume { tokens, path, .. } = found(&tree, tenant);
        assert_eq!((tokens, tree.page(path[0], 0)), (PAGE_TOKENS + 10, Some(tenant as u32)));
    }
    assert_eq!(found(&tree, 3), Resume::default());
    // Whoever came first goes first: the oldest of all tenants.
    let mut freed = Vec::new();
    tree.evict(0, 3, &|_| true, &mut |group, page| freed.push((group, page)));
    assert_eq!(freed, [(0, 0), (0, 10), (1, 110), (0, 1)]);
    tree.evict(0, usize::MAX, &|_| true, &mut |_, _| ());
    tree.evict(1, usize::MAX, &|_| true, &mut |_, _| ());
    assert!(tree.roots.is_empty() && tree.nodes.iter().all(Option::is_none));
    // However many come, what is empty takes no memory.
    for tenant in 0..10_000 {
        let root = tree.enter_root(tenant);
        tree.leave(root);
    }
    assert!(tree.roots.is_empty() && tree.nodes.len() < 20);
}
