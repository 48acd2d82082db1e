//! A device without arithmetic: its keys and values are hashes of the tenant and of the tokens up to a
//! position, and the next token is a hash of what its row can see. So every answer can be predicted
//! from tenant and tokens alone, and a page that is shared, dropped or mapped wrongly changes it; a
//! page of another tenant does, too.

use crate::cache::PageChange;
use crate::constraint::Constraint;
use crate::embed::{Pooled, Pooling};
use crate::request::Request;
use crate::scheduler::{EmbedRows, SampledBy, StepOutcome, StepPlan};
use pianola_plan::{KvGroup, KvType, PAGE_TOKENS, Row};
use std::time::Duration;

/// Few tokens, so that texts repeat themselves and guesses are often right.
pub const VOCABULARY: usize = 11;
const WINDOW: usize = 100;
const SEED: u64 = 0x243f_6a88_85a3_08d3;

/// A layer group that sees all tokens, and one that sees a window.
pub fn groups() -> Vec<KvGroup> {
    let group = |name: &str, window| KvGroup {
        name: name.to_string(),
        window,
        kv_heads: 1,
        head_dim: 16,
        layers: 1,
        ty: KvType::F16,
    };
    vec![group("global", None), group("window", Some(WINDOW))]
}

/// The hash before a tenant's first token.
fn seed(tenant: u64) -> u64 {
    mix(SEED, tenant)
}

fn mix(a: u64, b: u64) -> u64 {
    let mixed = (a ^ b.wrapping_mul(0x9e37_79b9_7f4a_7c15)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed ^ (mixed >> 29)
}

/// The token behind `position`, `seen` giving the hash at a position for a group.
fn next_token(position: usize, token: u32, seen: &dyn Fn(usize, usize) -> u64) -> u32 {
    let own = seen(0, position);
    let first = (position + 1).saturating_sub(WINDOW);
    let anywhere = (own >> 7) as usize % (position + 1);
    let in_window = first + (own >> 23) as usize % (position + 1 - first);
    let hash = mix(mix(own, seen(0, anywhere)), seen(1, in_window));
    match hash % 3 {
        0 => (hash >> 9) as u32 % VOCABULARY as u32,
        _ => (token + 1) % VOCABULARY as u32,
    }
}

/// The first token from `token` on that is allowed.
fn first_allowed(token: u32, allowed: &dyn Fn(u32) -> bool) -> u32 {
    let mut tokens = (token..).map(|token| token % VOCABULARY as u32);
    tokens.find(|&token| allowed(token)).unwrap()
}

/// Allows tokens that are even and odd in turn, beginning with an even one.
#[derive(Clone, Default)]
pub struct Alternating {
    tokens: usize,
}

impl Alternating {
    fn allows(&self, token: u32) -> bool {
        token as usize % 2 == self.tokens % 2
    }
}

impl Constraint for Alternating {
    fn fill_mask(&mut self, mask: &mut [u32]) {
        let allowed = (0..VOCABULARY as u32).filter(|&token| self.allows(token));
        allowed.for_each(|token| mask[token as usize / 32] |= 1 << (token % 32));
    }

    fn advance(&mut self, token: u32) -> bool {
        let allowed = self.allows(token);
        self.tokens += usize::from(allowed);
        allowed
    }

    fn rollback(&mut self, count: usize) {
        self.tokens -= count;
    }

    fn is_complete(&self) -> bool {
        false
    }

    fn clone_box(&self) -> Box<dyn Constraint> {
        Box::new(self.clone())
    }
}

/// What follows the prompt, `count` tokens of it: the answer of a request that runs alone.
pub fn alone(request: &Request, count: usize) -> Vec<u32> {
    let Request { prompt, tenant, constraint, .. } = request;
    let alternating = constraint.is_some();
    let mut tokens = prompt.clone();
    let mut hashes: Vec<u64> = Vec::with_capacity(prompt.len() + count);
    while tokens.len() < prompt.len() + count {
        for &token in &tokens[hashes.len()..] {
            hashes.push(mix(hashes.last().copied().unwrap_or(seed(*tenant)), u64::from(token)));
        }
        let last = tokens.len() - 1;
        let token = next_token(last, tokens[last], &|_, position| hashes[position]);
        let constraint = Alternating { tokens: tokens.len() - prompt.len() };
        tokens.push(first_allowed(token, &|token| !alternating || constraint.allows(token)));
    }
    tokens.split_off(prompt.len())
}

/// What the last layer makes of a token: small numbers, whose sums are exact.
fn hidden(hash: u64) -> [f32; 2] {
    [1.0 + (hash % 64) as f32, (hash / 64 % 64) as f32]
}

/// The embedding of a text that is computed alone.
pub fn embed_alone(request: &Request, pooling: Pooling) -> Vec<f32> {
    let (mut pooled, mut hash) = (Pooled::new(pooling), seed(request.tenant));
    for &token in &request.prompt {
        hash = mix(hash, u64::from(token));
        pooled.add(&hidden(hash));
    }
    pooled.finish().unwrap()
}

pub struct Device {
    groups: Vec<KvGroup>,
    /// By group and slot, then by index.
    tables: Vec<Vec<Vec<Option<u32>>>>,
    /// By group, page and token.
    pages: Vec<Vec<[u64; PAGE_TOKENS]>>,
    /// By slot, whose sequence it computes.
    tenants: Vec<u64>,
}

impl Device {
    pub fn new(pages: &[usize], slots: usize, context: usize) -> Device {
        let entries = context.div_ceil(PAGE_TOKENS);
        Device {
            groups: groups(),
            tables: vec![vec![vec![None; entries]; slots]; pages.len()],
            pages: pages.iter().map(|&count| vec![[0; PAGE_TOKENS]; count]).collect(),
            tenants: vec![0; slots],
        }
    }

    /// The sequence of a slot is a tenant's from now on.
    pub fn set_tenant(&mut self, slot: usize, tenant: u64) {
        self.tenants[slot] = tenant;
    }

    pub fn change_pages(&mut self, changes: &[PageChange]) {
        for &PageChange { group, slot, index, page } in changes {
            self.tables[group][slot][index] = page;
        }
    }

    fn entry(&self, group: usize, slot: u32, position: usize) -> (usize, usize) {
        let page = self.tables[group][slot as usize][position / PAGE_TOKENS];
        let page = page.unwrap_or_else(|| panic!("no page for {position} of slot {slot}"));
        (page as usize, position % PAGE_TOKENS)
    }

    fn read(&self, group: usize, slot: u32, position: usize) -> u64 {
        assert!(position < self.tables[group][slot as usize].len() * PAGE_TOKENS);
        let (page, at) = self.entry(group, slot, position);
        self.pages[group][page][at]
    }

    /// Computes a row and returns the token behind it.
    fn compute(&mut self, row: Row) -> u32 {
        let position = row.position as usize;
        let before = match position {
            0 => seed(self.tenants[row.sequence as usize]),
            _ => self.read(0, row.sequence, position - 1),
        };
        self.write(row, mix(before, u64::from(row.token)));
        next_token(position, row.token, &|group, position| self.read(group, row.sequence, position))
    }

    fn write(&mut self, row: Row, hash: u64) {
        for group in 0..self.groups.len() {
            let (page, at) = self.entry(group, row.sequence, row.position as usize);
            self.pages[group][page][at] = hash;
        }
    }

    /// What a step that fails leaves behind.
    pub fn spoil(&mut self, plan: &StepPlan) {
        plan.step.rows.iter().for_each(|&row| self.write(row, u64::MAX));
    }

    /// What a sequence whose numbers overflow at `row` leaves behind: rows before the guesses may
    /// be broken, too, while a broken guess says nothing of the tokens before it.
    fn spoil_from(&mut self, plan: &StepPlan, row: Row, is_guess: bool) {
        for &other in plan.step.rows.iter().filter(|other| other.sequence == row.sequence) {
            if !is_guess || other.position >= row.position {
                self.write(other, u64::MAX);
            }
        }
    }

    /// Plays a step. The logits of `broken`, an index into `step.logits`, are not numbers.
    pub fn play(&mut self, plan: &StepPlan, broken: Option<usize>, outcome: &mut StepOutcome) {
        outcome.clear();
        let mut logits = plan.step.logits.iter().copied().enumerate().peekable();
        let mut wrong = None;
        for (index, &row) in plan.step.rows.iter().enumerate() {
            let mut token = self.compute(row);
            let Some((sample, _)) = logits.next_if(|&(_, at)| at as usize == index) else {
                continue;
            };
            let planned = &plan.samples[sample];
            if broken == Some(sample) {
                outcome.push_not_a_number();
                self.spoil_from(plan, row, planned.guesses_before > 0);
                continue;
            }
            if planned.by == SampledBy::Host && wrong == Some(planned.lane) {
                outcome.push(&[]);
                continue;
            }
            if let Some(mask) = plan.mask(planned) {
                token = first_allowed(token, &|token| mask[0] >> token & 1 == 1);
            }
            if planned.guess != Some(token) {
                wrong = Some(planned.lane);
            }
            let mut tokens = vec![token];
            for play in 1..plan.plays {
                let position = row.position + play as u32;
                token = self.compute(Row { token, position, ..row });
                tokens.push(token);
            }
            outcome.push(&tokens);
        }
        for EmbedRows { rows, pooling } in &plan.embeddings {
            let mut pooled = [0.0; 2];
            for row in &plan.step.rows[rows.clone()] {
                let values = hidden(self.read(0, row.sequence, row.position as usize));
                match pooling {
                    Pooling::Mean => (0..2).for_each(|at| pooled[at] += values[at]),
                    Pooling::Last => pooled = values,
                }
            }
            outcome.push_embedding(2).copy_from_slice(&pooled);
        }
        // Guesses pay: a row costs little beside the step.
        let rows = plan.step.rows.len() * plan.plays;
        outcome.time = Duration::from_micros(10_000 + 50 * rows as u64);
    }
}
