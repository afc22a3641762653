//! Which pages leave DRAM next, and what each is worth. Knows pages and blocks by number only.
//!
//! The index reports what happens; it owns the tree. `lru` ranks pages, `default` (`hazard`) ranks blocks.

mod classes;
mod hazard;
mod lives;
mod lru;
mod model;
mod shelves;

use hazard::Hazard;
use lru::Lru;

/// What the policy gives up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Victim {
    Page(u32),
    /// All of the block's pages that can go.
    Block(u32),
}

/// Where a page that came to DRAM, or leaves it, belongs.
#[derive(Clone, Copy)]
pub struct Seat {
    pub page: u32,
    /// Bytes of its slot.
    pub class: u32,
    pub node: u32,
    /// The parent's node, or none: see `tree::is_node`.
    pub above: u32,
}

/// One request, or one put, for the chain of a block.
pub struct Request<'a> {
    /// Blocks of the chain up to the last one asked for.
    pub asked: usize,
    /// Of these, the leading ones that are there.
    pub known: usize,
    /// Digests of the blocks that follow those, as far as is worth looking.
    pub missing: &'a [u64],
}

/// Of a request, so many missing blocks are looked at.
pub const MISSING_LOOKED_AT: usize = 4096;

/// The policy of one pool.
pub enum Policy {
    Lru(Lru),
    Hazard(Box<Hazard>),
}

impl Policy {
    /// The policy of this name.
    pub fn new(name: &str) -> Option<Self> {
        match name {
            "lru" => Some(Policy::Lru(Lru::new())),
            "default" => Some(Policy::Hazard(Box::new(Hazard::new()))),
            _ => None,
        }
    }

    /// The number names a new block, or one that has no pages any more.
    pub fn reset_block(&mut self, node: u32) {
        if let Policy::Hazard(hazard) = self {
            hazard.reset(node);
        }
    }

    /// The number names a new page, stored or last used at `now`, unix seconds.
    pub fn born(&mut self, page: u32, now: u32) {
        if let Policy::Lru(lru) = self {
            lru.born(page, now);
        }
    }

    /// A request begins: `touch` for its blocks, or `insert` for those it stores, follow.
    pub fn begin(&mut self, request: &Request) {
        if let Policy::Hazard(hazard) = self {
            hazard.begin(request);
        }
    }

    /// The running request hit this block, `position` blocks from the root.
    pub fn touch(&mut self, node: u32, digest: u64, position: usize) {
        if let Policy::Hazard(hazard) = self {
            hazard.touch(node, digest, position);
        }
    }

    /// The running request stores this block, unless it is known already.
    pub fn insert(&mut self, node: u32, digest: u64, position: usize) {
        if let Policy::Hazard(hazard) = self {
            hazard.insert(node, digest, position);
        }
    }

    /// Whether requests have to be told, block by block.
    pub fn wants_requests(&self) -> bool {
        matches!(self, Policy::Hazard(_))
    }

    /// Whether the block was of use so lately that a put below it tells nothing new.
    pub fn is_fresh(&self, node: u32) -> bool {
        match self {
            Policy::Lru(_) => false,
            Policy::Hazard(hazard) => hazard.is_fresh(node),
        }
    }

    /// The page is of use. Pages of a chain are named from the last to the first.
    pub fn used(&mut self, page: u32, class: u32, now: u32) {
        if let Policy::Lru(lru) = self {
            lru.used(page, class, now);
        }
    }

    /// The page is resident now; `parent`: the resident page of its class that it hangs on, or NONE.
    pub fn arrived(&mut self, seat: Seat, parent: u32) {
        match self {
            Policy::Lru(lru) => lru.arrived(seat.page, seat.class, parent),
            Policy::Hazard(hazard) => hazard.arrived(seat),
        }
    }

    /// The page is not resident any more, or not in the tree. Without effect if it had not arrived.
    pub fn left(&mut self, seat: Seat) {
        match self {
            Policy::Lru(lru) => lru.left(seat.page, seat.class),
            Policy::Hazard(hazard) => hazard.left(seat),
        }
    }

    /// The page is of less use than any that is used.
    pub fn demote(&mut self, page: u32, class: u32, node: u32) {
        match self {
            Policy::Lru(lru) => lru.demote(page, class),
            Policy::Hazard(hazard) => hazard.demote(page, node),
        }
    }

    /// What of this class is to leave DRAM next.
    ///
    /// `may_leave`: whether a page can, being resident and of the class; `any_may_leave`: whether one of a block's can.
    pub fn victim(
        &mut self,
        class: u32,
        may_leave: impl Fn(u32) -> bool,
        any_may_leave: impl Fn(u32) -> bool,
    ) -> Option<Victim> {
        match self {
            Policy::Lru(lru) => lru.victim(class, may_leave).map(Victim::Page),
            Policy::Hazard(hazard) => hazard.victim(class, &may_leave, &any_may_leave),
        }
    }

    /// Up to `limit` pages or blocks, those first that leave first.
    pub fn coldest(&self, class: u32, limit: usize) -> Vec<Victim> {
        match self {
            Policy::Lru(lru) => lru.coldest(class, limit).into_iter().map(Victim::Page).collect(),
            Policy::Hazard(hazard) => hazard.coldest(class, limit).into_iter().map(Victim::Block).collect(),
        }
    }

    /// What keeping the page is worth, comparable within the pool: larger is kept.
    pub fn worth(&self, page: u32, node: u32, now: u32) -> f64 {
        match self {
            Policy::Lru(lru) => lru.worth(page, now),
            Policy::Hazard(hazard) => hazard.worth(node),
        }
    }

    /// After recovery: the block was of use `rank` blocks after the first one of `total`.
    pub fn recovered(&mut self, node: u32, position: usize, is_last: bool, rank: usize, total: usize) {
        if let Policy::Hazard(hazard) = self {
            hazard.recovered(node, position, is_last, rank, total);
        }
    }

    pub fn heap_bytes(&self) -> usize {
        match self {
            Policy::Lru(lru) => lru.heap_bytes(),
            Policy::Hazard(hazard) => hazard.heap_bytes(),
        }
    }

    /// Panic unless what is listed is what `class_of` a page, or what is known of each block, says.
    pub fn check(
        &self,
        pages: u32,
        class_of: impl Fn(u32) -> Option<u32>,
        nodes: u32,
        state_of: impl Fn(u32) -> (usize, usize),
    ) {
        match self {
            Policy::Lru(lru) => lru.check(pages, class_of),
            Policy::Hazard(hazard) => hazard.check(nodes, state_of),
        }
    }
}
