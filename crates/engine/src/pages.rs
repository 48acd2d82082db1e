//! Pages of a KV group: which are free, which a sequence holds.

use pianola_plan::{KvGroup, PAGE_TOKENS, Plan, Recording};

/// Free pages of one group, and those of the one sequence.
struct GroupPages {
    group: KvGroup,
    free: Vec<u32>,
    /// Page of tokens `index * PAGE_TOKENS ..`, from the first on; dropped ones are none.
    held: Vec<Option<u32>>,
}

/// Hands out pages so that a sequence's rows always find theirs.
pub(crate) struct Pages {
    groups: Vec<GroupPages>,
}

impl Pages {
    pub fn new(plan: &Plan) -> Pages {
        let group = |(index, group): (usize, &KvGroup)| GroupPages {
            group: group.clone(),
            // The lowest pages first, so that a short conversation touches little memory.
            free: (0..plan.kv_pages(index) as u32).rev().collect(),
            held: Vec::with_capacity(plan.options.context.div_ceil(PAGE_TOKENS)),
        };
        Pages { groups: plan.graph.kv_groups.iter().enumerate().map(group).collect() }
    }

    /// Makes positions `start..end` of sequence 0 writable, and drops pages that no row from
    /// `start` on can see.
    ///
    /// # Panics
    /// If pages run out: the plan reserves what one sequence of its context needs.
    pub fn extend(&mut self, start: usize, end: usize, recording: &mut dyn Recording) {
        for (index, pages) in self.groups.iter_mut().enumerate() {
            let first = pages.group.first_visible(start) / PAGE_TOKENS;
            for (entry, held) in pages.held.iter_mut().enumerate().take(first) {
                if let Some(page) = held.take() {
                    pages.free.push(page);
                    recording.unmap_page(index, 0, entry);
                }
            }
            let last = end.div_ceil(PAGE_TOKENS);
            for entry in pages.held.len().max(first)..last {
                let page = pages.free.pop().expect("pages for the whole context are reserved");
                pages.held.resize(entry, None);
                pages.held.push(Some(page));
                recording.map_page(index, 0, entry, page);
            }
        }
    }

    /// Gives back what lies wholly behind `length` tokens. Returns whether every page that a row
    /// at `length` sees is still there; if not, the sequence has to start over.
    pub fn truncate(&mut self, length: usize, recording: &mut dyn Recording) -> bool {
        let mut whole = true;
        for (index, pages) in self.groups.iter_mut().enumerate() {
            let keep = length.div_ceil(PAGE_TOKENS);
            let dropped = keep.min(pages.held.len());
            for (entry, page) in pages.held.drain(dropped..).enumerate() {
                if let Some(page) = page {
                    pages.free.push(page);
                    recording.unmap_page(index, 0, dropped + entry);
                }
            }
            let first = pages.group.first_visible(length) / PAGE_TOKENS;
            whole &=
                pages.held.iter().skip(first).take(keep.saturating_sub(first)).all(Option::is_some);
        }
        whole
    }

    /// Gives everything back.
    pub fn clear(&mut self, recording: &mut dyn Recording) {
        self.truncate(0, recording);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pianola_plan::{DeviceError, KvType, PlayStatistics, Step};

    /// Remembers the page tables.
    #[derive(Default)]
    struct Tables(std::collections::HashMap<(usize, usize), u32>);

    impl Recording for Tables {
        fn plan(&self) -> &Plan {
            unreachable!("pages are given out without looking at the plan")
        }
        fn play(&mut self, _: &Step) -> Result<(), DeviceError> {
            Ok(())
        }
        fn logits(&mut self, _: usize) -> &mut [f32] {
            &mut []
        }
        fn map_page(&mut self, group: usize, _: usize, index: usize, page: u32) {
            self.0.insert((group, index), page);
        }
        fn unmap_page(&mut self, group: usize, _: usize, index: usize) {
            assert!(self.0.remove(&(group, index)).is_some(), "page {index} was not mapped");
        }
        fn statistics(&self) -> PlayStatistics {
            PlayStatistics::default()
        }
    }

    fn pages(window: Option<usize>, count: u32) -> Pages {
        let name = "window".to_string();
        let group = KvGroup { name, window, kv_heads: 1, head_dim: 16, layers: 1, ty: KvType::F32 };
        Pages { groups: vec![GroupPages { group, free: (0..count).rev().collect(), held: vec![] }] }
    }

    #[test]
    fn a_window_lives_in_a_bounded_number_of_pages() {
        let (window, chunk) = (100, 64);
        let group = pages(Some(window), 0).groups.remove(0).group;
        let mut pages = pages(Some(window), group.pages_for(100_000, chunk) as u32);
        let mut tables = Tables::default();
        let mut position = 0;
        while position < 5000 {
            let end = position + 1 + (position * 7) % chunk;
            pages.extend(position, end, &mut tables);
            for row in position..end {
                let visible = group.first_visible(row) / PAGE_TOKENS..=row / PAGE_TOKENS;
                let seen: Vec<u32> = visible.clone().map(|index| tables.0[&(0, index)]).collect();
                let mut unique = seen.clone();
                unique.sort_unstable();
                unique.dedup();
                assert_eq!(unique.len(), seen.len(), "one page for two parts of row {row}'s view");
                for index in visible {
                    assert!(pages.groups[0].held[index].is_some(), "row {row} lost page {index}");
                }
            }
            position = end;
        }
    }

    #[test]
    fn truncation_tells_whether_the_window_survived() {
        let mut pages = pages(Some(64), 10);
        let mut tables = Tables::default();
        pages.extend(0, 64, &mut tables);
        pages.extend(64, 128, &mut tables);
        assert!(pages.truncate(100, &mut tables));
        pages.extend(100, 400, &mut tables);
        pages.extend(400, 401, &mut tables);
        assert!(!pages.truncate(100, &mut tables));
        pages.clear(&mut tables);
        assert!(tables.0.is_empty());
        assert_eq!(pages.groups[0].free.len(), 10);
    }
}
