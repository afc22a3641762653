//! The blocks that may be given up, on one shelf per class and age bucket, each shelf oldest first.
//!
//! All blocks of a shelf have the same index, and a class remembers its cheapest shelf, so the cheapest block of all is
//! found by looking at one number per class.

use super::classes::{CLASSES, Class};
use super::lives::{BUCKETS, CELLS, bucket_bounds};
use super::model::Model;
use crate::column::{Column, NONE};

const WORDS: usize = CLASSES.div_ceil(64);
/// The block stands on no shelf.
pub const NO_SHELF: u16 = u16::MAX;
const _: () = assert!(CELLS < NO_SHELF as usize);
/// So many blocks of a shelf are passed over at most, when none of them can go.
const MAX_PASSED: usize = 4096;

/// So many blocks are moved on at once at most.
const MAX_MOVED: usize = 2048;

/// What the policy knows of a block.
#[derive(Clone, Copy)]
pub struct Entry {
    /// The tick at which its life began.
    pub born: u32,
    /// Its neighbours on the shelf.
    pub older: u32,
    pub younger: u32,
    /// Children of which something is resident.
    pub hot: u32,
    /// Of its life; NO_CLASS: the block is not known.
    pub class: Class,
    pub shelf: u16,
    /// Its resident pages.
    pub resident: u16,
    /// Which shelves are its own.
    pub home: u8,
}

pub type Entries = Column<Entry>;

pub struct Shelves {
    bounds: [u32; BUCKETS + 1],
    /// By shelf: its oldest and its youngest block.
    ends: Vec<(u32, u32)>,
    /// By bucket: the classes with blocks on their shelf there.
    filled: Vec<[u64; WORDS]>,
    /// By class: the smallest index of its filled shelves and which shelf has it.
    cheapest: Vec<(f32, u16)>,
    next_check: [u32; BUCKETS],
}

impl Shelves {
    pub fn new() -> Self {
        Self {
            bounds: bucket_bounds(),
            ends: vec![(NONE, NONE); CELLS],
            filled: vec![[0; WORDS]; BUCKETS],
            cheapest: vec![(f32::INFINITY, NO_SHELF); CLASSES],
            next_check: [0; BUCKETS],
        }
    }

    /// Put a block on its shelf.
    pub fn put(&mut self, block: u32, entries: &mut Entries, now: u32, model: &Model) {
        let Entry { born, class, .. } = entries[block];
        let bucket = model.bucket(now.saturating_sub(born));
        let shelf = usize::from(class) * BUCKETS + bucket;
        let (oldest, youngest) = self.ends[shelf];
        let (older, younger) = if oldest == NONE {
            self.ends[shelf] = (block, block);
            self.filled[bucket][usize::from(class) / 64] |= 1 << (class % 64);
            let index = model.index(class, bucket);
            if index < self.cheapest[usize::from(class)].0 {
                self.cheapest[usize::from(class)] = (index, shelf as u16);
            }
            (NONE, NONE)
        } else if born <= entries[oldest].born {
            entries[oldest].older = block;
            self.ends[shelf].0 = block;
            (NONE, oldest)
        } else {
            entries[youngest].younger = block;
            self.ends[shelf].1 = block;
            (youngest, NONE)
        };
        let entry = &mut entries[block];
        (entry.older, entry.younger, entry.shelf) = (older, younger, shelf as u16);
    }

    /// Take a block off its shelf, if it stands on one.
    pub fn take(&mut self, block: u32, entries: &mut Entries, model: &Model) {
        let Entry { older, younger, shelf, .. } = entries[block];
        if shelf == NO_SHELF {
            return;
        }
        entries[block].shelf = NO_SHELF;
        let place = usize::from(shelf);
        match older {
            NONE => self.ends[place].0 = younger,
            _ => entries[older].younger = younger,
        }
        match younger {
            NONE => self.ends[place].1 = older,
            _ => entries[younger].older = older,
        }
        if self.ends[place].0 == NONE {
            let (class, bucket) = (place / BUCKETS, place % BUCKETS);
            self.filled[bucket][class / 64] &= !(1 << (class % 64));
            if self.cheapest[class].1 == shelf {
                self.cheapest[class] = self.cheapest_of(class, model);
            }
        }
    }

    /// Move blocks on to the shelves of the ages that they have reached, to within an eighth of a bucket.
    ///
    /// What is more than MAX_MOVED at once waits for the next call.
    pub fn advance(&mut self, entries: &mut Entries, now: u32, model: &Model) {
        let mut moved = 0;
        for bucket in (0..BUCKETS - 1).rev() {
            if now < self.next_check[bucket] {
                continue;
            }
            let end = self.bounds[bucket + 1];
            self.next_check[bucket] = now + ((end - self.bounds[bucket]) / 8).max(1);
            for word in 0..WORDS {
                let mut classes = self.filled[bucket][word];
                while classes != 0 {
                    let class = word * 64 + classes.trailing_zeros() as usize;
                    classes &= classes - 1;
                    loop {
                        let oldest = self.ends[class * BUCKETS + bucket].0;
                        if oldest == NONE || now.saturating_sub(entries[oldest].born) < end {
                            break;
                        }
                        if moved == MAX_MOVED {
                            self.next_check[bucket] = now;
                            return;
                        }
                        moved += 1;
                        self.take(oldest, entries, model);
                        self.put(oldest, entries, now, model);
                    }
                }
            }
        }
    }

    /// Take over the indices of a new fit.
    pub fn reprice(&mut self, model: &Model) {
        for class in 0..CLASSES {
            self.cheapest[class] = self.cheapest_of(class, model);
        }
    }

    /// The oldest block that can go of the cheapest shelf that has one.
    pub fn find(&self, entries: &Entries, model: &Model, can_go: &dyn Fn(u32) -> bool) -> Option<u32> {
        let best = self.cheapest.iter().min_by(|one, other| one.0.total_cmp(&other.0))?;
        let first = self.on_shelf(entries, best.1).take(MAX_PASSED).find(|&block| can_go(block));
        first.or_else(|| {
            let shelves = self.by_price(model);
            shelves
                .into_iter()
                .flat_map(|shelf| self.on_shelf(entries, shelf).take(MAX_PASSED))
                .find(|&block| can_go(block))
        })
    }

    /// Up to `limit` blocks, the cheapest first.
    pub fn first(&self, entries: &Entries, model: &Model, limit: usize) -> Vec<u32> {
        let shelves = self.by_price(model).into_iter();
        shelves.flat_map(|shelf| self.on_shelf(entries, shelf)).take(limit).collect()
    }

    /// The shelves that are not empty, cheapest first.
    fn by_price(&self, model: &Model) -> Vec<u16> {
        let mut priced = Vec::new();
        for (bucket, words) in self.filled.iter().enumerate() {
            for (word, &filled) in words.iter().enumerate() {
                let mut classes = filled;
                while classes != 0 {
                    let class = word * 64 + classes.trailing_zeros() as usize;
                    classes &= classes - 1;
                    priced.push((model.index(class as Class, bucket), (class * BUCKETS + bucket) as u16));
                }
            }
        }
        priced.sort_unstable_by(|one, other| one.0.total_cmp(&other.0));
        priced.into_iter().map(|(_, shelf)| shelf).collect()
    }

    fn on_shelf<'a>(&self, entries: &'a Entries, shelf: u16) -> impl Iterator<Item = u32> + 'a {
        let some = |block: u32| (block != NONE).then_some(block);
        let first = self.ends.get(usize::from(shelf)).and_then(|ends| some(ends.0));
        std::iter::successors(first, move |&block| some(entries[block].younger))
    }

    fn cheapest_of(&self, class: usize, model: &Model) -> (f32, u16) {
        let shelves = class * BUCKETS..(class + 1) * BUCKETS;
        shelves
            .filter(|&shelf| self.ends[shelf].0 != NONE)
            .map(|shelf| (model.index(class as Class, shelf % BUCKETS), shelf as u16))
            .min_by(|one, other| one.0.total_cmp(&other.0))
            .unwrap_or((f32::INFINITY, NO_SHELF))
    }

    pub fn heap_bytes(&self) -> usize {
        CELLS * 8 + BUCKETS * WORDS * 8 + CLASSES * 8
    }

    /// Panic unless the shelves are linked rightly. Returns how many blocks stand on them.
    pub fn check(&self, entries: &Entries) -> usize {
        let mut count = 0;
        for shelf in 0..CELLS {
            let mut older = NONE;
            for block in self.on_shelf(entries, shelf as u16) {
                assert_eq!((entries[block].older, usize::from(entries[block].shelf)), (older, shelf));
                assert_eq!(usize::from(entries[block].class), shelf / BUCKETS);
                older = block;
                count += 1;
            }
            assert_eq!(self.ends[shelf].1, older);
            let is_filled = self.filled[shelf % BUCKETS][shelf / BUCKETS / 64] >> (shelf / BUCKETS % 64) & 1 == 1;
            assert_eq!(is_filled, older != NONE);
        }
        count
    }
}
