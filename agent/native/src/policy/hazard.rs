//! The policy `default`: give up the block with the least hits to be expected for the room it takes.
//!
//! A block lives from one request for it to the next. Each life has a class (what was known when it began) and an age.
//! From past lives, those of blocks that are gone too, the policy learns how likely a life of a class ends at an age, and
//! ranks blocks by the Gittins index of their class and age (J. C. Gittins, 1979): the most hits per unit of time that
//! keeping the block for some while can give. A chat that was just answered is so worth less than one whose user is
//! about to ask again, and a prompt that thousands share more than either.
//!
//! Only blocks whose children have nothing in DRAM stand for choice. Time is the blocks stored, in units of what the pool
//! holds, so nothing depends on clocks, load or block size. A call is O(1) on average; a fit, at most once in 128 lives
//! of blocks that are followed, takes half a millisecond.

use std::collections::VecDeque;

use super::classes::{self, Class, Context};
use super::lives::Lives;
use super::model::Model;
use super::shelves::{Entries, Entry, NO_SHELF, Shelves};
use super::{Request, Seat, Victim};
use crate::column::{Column, NONE};
use crate::tree::is_node;

/// Ticks in which as many blocks are stored as the pool holds. Ages below a tick are alike.
const TICKS_PER_TURNOVER: f64 = 1024.0;
/// A pool is taken to hold this many blocks at least.
const LEAST_BLOCKS: u64 = 256;
/// Lives (of followed blocks) between two fits of the model: a 16th of those seen, within these bounds.
const FIT_EVERY: (u64, u64) = (128, 1536);
/// Ticks within which a use of a block is taken for the same as one before.
const FRESH_TICKS: u32 = 2;
/// Size classes by powers of two have shelves of their own.
const HOMES: usize = 32;
/// Trailing pages that go first; more are left to their blocks.
const MAX_DEMOTED: usize = 65_536;
const NO_CLASS: Class = Class::MAX;

const UNKNOWN: Entry =
    Entry { born: 0, older: NONE, younger: NONE, hot: 0, class: NO_CLASS, shelf: NO_SHELF, resident: 0, home: 0 };

pub struct Hazard {
    /// Ticks that passed.
    clock: f64,
    /// The tick of the running request: its blocks begin their lives together.
    now: u32,
    next_fit: u64,
    /// Blocks that are known, in whatever tier.
    known: u64,
    context: Context,
    lives: Lives,
    model: Model,
    entries: Entries,
    /// By size class: see `home_of`.
    homes: [Option<Box<Shelves>>; HOMES],
    /// Trailing pages of little use, in the order they go: page, block, and the start of the life in which that was so.
    demoted: VecDeque<(u32, u32, u32)>,
}

/// The shelves of a size class: those of the power of two below.
fn home_of(class: u32) -> usize {
    class.checked_ilog2().unwrap_or(0) as usize
}

impl Hazard {
    pub fn new() -> Self {
        Self {
            clock: 0.0,
            now: 0,
            next_fit: 0,
            known: 0,
            context: Context::default(),
            lives: Lives::new(LEAST_BLOCKS as usize),
            model: Model::new(),
            entries: Column::new(),
            homes: std::array::from_fn(|_| None),
            demoted: VecDeque::new(),
        }
    }

    /// The number names a block of which nothing is known.
    pub fn reset(&mut self, block: u32) {
        while self.entries.len() <= block as usize {
            self.entries.push(UNKNOWN);
        }
        let hot = self.entries[block].hot;
        if self.entries[block].class != NO_CLASS {
            self.known -= 1;
        }
        debug_assert!(self.entries[block].resident == 0 && self.entries[block].shelf == NO_SHELF);
        self.entries[block] = Entry { hot, ..UNKNOWN };
    }

    pub fn begin(&mut self, request: &Request) {
        self.now = self.clock as u32;
        self.lives.resize(self.known.max(LEAST_BLOCKS) as usize);
        self.lives.advance(self.now);
        let begun = self.lives.begun();
        if begun >= self.next_fit {
            self.model.fit(&mut self.lives, self.now);
            self.homes.iter_mut().flatten().for_each(|shelves| shelves.reprice(&self.model));
            self.next_fit = begun + (begun / 16).clamp(FIT_EVERY.0, FIT_EVERY.1);
        }
        for shelves in self.homes.iter_mut().flatten() {
            shelves.advance(&mut self.entries, self.now, &self.model);
        }
        self.context = Context::remembering(request.asked, request.known, request.missing, &self.lives);
    }

    pub fn touch(&mut self, block: u32, digest: u64, position: usize) {
        let before = self.entries[block].class;
        let hits = if before == NO_CLASS { 0 } else { classes::hits_of(before) + 1 };
        self.lives.end(digest, self.now);
        self.begin_life(block, digest, self.context.class(position, hits));
    }

    pub fn insert(&mut self, block: u32, digest: u64, position: usize) {
        if self.entries[block].class != NO_CLASS {
            return;
        }
        self.known += 1;
        self.clock += TICKS_PER_TURNOVER / self.known.max(LEAST_BLOCKS) as f64;
        let hits = self.context.remembered_hits(position).map_or(0, |hits| hits + 1);
        self.lives.end(digest, self.now);
        self.begin_life(block, digest, self.context.class(position, hits));
    }

    fn begin_life(&mut self, block: u32, digest: u64, class: Class) {
        self.lives.begin(digest, class, self.now);
        self.set_life(block, class, self.now);
    }

    fn set_life(&mut self, block: u32, class: Class, born: u32) {
        self.model.know(class);
        let is_shelved = self.entries[block].shelf != NO_SHELF;
        self.unshelve(block);
        let entry = &mut self.entries[block];
        (entry.class, entry.born) = (class, born);
        if is_shelved {
            self.shelve(block);
        }
    }

    /// Whether the block's life began so lately that a put below it need not tell of its use.
    pub fn is_fresh(&self, block: u32) -> bool {
        let entry = &self.entries[block];
        entry.class != NO_CLASS && (self.clock as u32).saturating_sub(entry.born) <= FRESH_TICKS
    }

    pub fn recovered(&mut self, block: u32, position: usize, is_last: bool, rank: usize, total: usize) {
        let asked = position + 1 + usize::from(!is_last);
        let class = Context::remembering(asked, asked, &[], &self.lives).class(position, 0);
        if self.entries[block].class == NO_CLASS {
            self.known += 1;
        }
        let born = (TICKS_PER_TURNOVER * rank as f64 / total.max(1) as f64) as u32;
        self.set_life(block, class, born);
        self.clock = self.clock.max(TICKS_PER_TURNOVER);
        self.now = self.clock as u32;
    }

    fn shelve(&mut self, block: u32) {
        let home = usize::from(self.entries[block].home);
        let shelves = self.homes[home].get_or_insert_with(|| Box::new(Shelves::new()));
        shelves.put(block, &mut self.entries, self.now, &self.model);
    }

    fn unshelve(&mut self, block: u32) {
        let home = usize::from(self.entries[block].home);
        if let Some(shelves) = &mut self.homes[home] {
            shelves.take(block, &mut self.entries, &self.model);
        }
    }

    pub fn arrived(&mut self, seat: Seat) {
        let entry = &mut self.entries[seat.node];
        entry.resident += 1;
        if entry.resident > 1 {
            return;
        }
        entry.home = home_of(seat.class) as u8;
        let is_leaf = entry.hot == 0;
        if entry.class == NO_CLASS {
            self.known += 1;
            let class = Context::remembering(1, 1, &[], &self.lives).class(0, 0);
            self.set_life(seat.node, class, self.now);
        }
        if is_leaf {
            self.shelve(seat.node);
        }
        if is_node(seat.above) {
            self.entries[seat.above].hot += 1;
            self.unshelve(seat.above);
        }
    }

    pub fn left(&mut self, seat: Seat) {
        let entry = &mut self.entries[seat.node];
        if entry.resident == 0 {
            return;
        }
        entry.resident -= 1;
        if entry.resident > 0 {
            return;
        }
        self.unshelve(seat.node);
        if is_node(seat.above) {
            let above = &mut self.entries[seat.above];
            above.hot -= 1;
            if above.hot == 0 && above.resident > 0 {
                self.shelve(seat.above);
            }
        }
    }

    pub fn demote(&mut self, page: u32, block: u32) {
        self.demoted.push_back((page, block, self.entries[block].born));
        if self.demoted.len() > MAX_DEMOTED {
            self.demoted.pop_front();
        }
    }

    pub fn victim(
        &mut self,
        class: u32,
        may_leave: &dyn Fn(u32) -> bool,
        any_may_leave: &dyn Fn(u32) -> bool,
    ) -> Option<Victim> {
        while let Some(&(page, block, born)) = self.demoted.front() {
            if self.entries[block].born == born && may_leave(page) {
                return Some(Victim::Page(page));
            }
            self.demoted.pop_front();
        }
        let own = home_of(class);
        let others = (0..HOMES).filter(|&home| home != own);
        let shelves = std::iter::once(own).chain(others).filter_map(|home| self.homes[home].as_ref());
        let found = shelves.map(|shelves| shelves.find(&self.entries, &self.model, any_may_leave)).find_map(|it| it);
        found.map(Victim::Block)
    }

    pub fn coldest(&self, class: u32, limit: usize) -> Vec<u32> {
        let shelves = self.homes[home_of(class)].as_ref();
        shelves.map_or_else(Vec::new, |shelves| shelves.first(&self.entries, &self.model, limit))
    }

    pub fn worth(&self, block: u32) -> f64 {
        match self.entries[block] {
            Entry { class: NO_CLASS, .. } => 0.0,
            Entry { class, born, .. } => {
                let bucket = self.model.bucket((self.clock as u32).saturating_sub(born));
                f64::from(self.model.index(class, bucket))
            }
        }
    }

    pub fn heap_bytes(&self) -> usize {
        self.entries.heap_bytes()
            + self.lives.heap_bytes()
            + self.model.heap_bytes()
            + self.homes.iter().flatten().map(|shelves| shelves.heap_bytes()).sum::<usize>()
            + self.demoted.capacity() * 12
    }

    /// Panic unless every block has the counts that `state_of` says (its resident pages, its children that have any), and
    /// those of the resident ones that have no such children stand on a shelf.
    pub fn check(&self, blocks: u32, state_of: impl Fn(u32) -> (usize, usize)) {
        let mut listed = 0;
        for block in 0..blocks {
            let entry = &self.entries[block];
            let counts = (usize::from(entry.resident), entry.hot as usize);
            assert_eq!(counts, state_of(block), "what the policy counts of block {block}");
            let is_listed = entry.resident > 0 && entry.hot == 0;
            assert_eq!(entry.shelf != NO_SHELF, is_listed, "block {block} stands on a shelf, or should");
            listed += usize::from(is_listed);
        }
        let shelved: usize = self.homes.iter().flatten().map(|shelves| shelves.check(&self.entries)).sum();
        assert_eq!(shelved, listed);
        let known = (0..self.entries.len() as u32).filter(|&block| self.entries[block].class != NO_CLASS).count();
        assert_eq!(known as u64, self.known);
    }
}
