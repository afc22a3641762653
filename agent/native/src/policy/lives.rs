//! The lives that the model learns from: a ring of the latest ones, of resident and of evicted blocks alike.
//!
//! For each class and age bucket it counts the lives that ended there (returns) and the time that lives spent there,
//! ended or not, which is all that is needed to estimate a hazard with censored lives (N. E. Breslow, 1974). One pointer
//! per bucket follows the ring, so each life is moved on once per bucket.

use super::classes::{CLASSES, Class};
use std::collections::HashMap;

/// Age buckets: below a tick, then by factors of the square root of two up to 90 turnovers and beyond.
pub const BUCKETS: usize = 34;
pub const CELLS: usize = CLASSES * BUCKETS;

/// Lives that are remembered. A larger pool is sampled by hash, to remember at least two turnovers.
const RING: usize = 65_536;
const TURNOVERS: usize = 2;
/// Lives after which what was counted weighs 1/e.
const MEMORY: f64 = 32_768.0;

/// The lower bounds of the age buckets in ticks, and the upper bound of the last.
pub fn bucket_bounds() -> [u32; BUCKETS + 1] {
    let mut bounds = [u32::MAX; BUCKETS + 1];
    bounds[0] = 0;
    let (mut filled, mut exact) = (1, 1.0f64);
    while filled < BUCKETS {
        if exact.round() as u32 > bounds[filled - 1] {
            bounds[filled] = exact.round() as u32;
            filled += 1;
        }
        exact *= std::f64::consts::SQRT_2;
    }
    bounds
}

/// One block of so many is sampled.
fn sample_of(capacity: usize) -> u64 {
    (TURNOVERS * capacity).div_ceil(RING).next_power_of_two() as u64
}

/// One life of a sampled block.
#[derive(Clone, Copy)]
pub struct Life {
    hash: u64,
    pub start: u32,
    pub class: Class,
    open: bool,
}

/// See the module's text. Cells are numbered `class * BUCKETS + bucket`.
pub struct Lives {
    bounds: [u32; BUCKETS + 1],
    sample: u64,
    ring: Vec<Life>,
    begun: u64,
    /// By bucket: the number of the first life that has not reached it.
    reached: [u64; BUCKETS],
    open: HashMap<u64, u64>,
    returns: Vec<f64>,
    time: Vec<f64>,
    /// Open lives in the cell, and the sum of their starts: their time in the bucket so far is what these give.
    inside: Vec<f64>,
    inside_starts: Vec<f64>,
    faded_at: u64,
}

impl Lives {
    pub fn new(capacity: usize) -> Self {
        Self {
            bounds: bucket_bounds(),
            sample: sample_of(capacity),
            ring: Vec::new(),
            begun: 0,
            reached: [0; BUCKETS],
            open: HashMap::new(),
            returns: vec![0.0; CELLS],
            time: vec![0.0; CELLS],
            inside: vec![0.0; CELLS],
            inside_starts: vec![0.0; CELLS],
            faded_at: 0,
        }
    }

    /// The pool holds so many blocks by now.
    pub fn set_capacity(&mut self, capacity: usize) {
        self.sample = sample_of(capacity);
    }

    /// The open life of a block, resident or not, if it is sampled and not too long ago.
    pub fn find(&self, hash: u64) -> Option<&Life> {
        if hash % self.sample != 0 {
            return None;
        }
        self.open.get(&hash).map(|&number| &self.ring[number as usize % RING])
    }

    /// A block was stored or hit: a life begins.
    pub fn begin(&mut self, hash: u64, class: Class, now: u32) {
        if hash % self.sample != 0 {
            return;
        }
        let life = Life { hash, start: now, class, open: true };
        let number = self.begun;
        self.begun += 1;
        if self.ring.len() < RING {
            self.ring.push(life);
        } else {
            let oldest = number - RING as u64;
            let old = std::mem::replace(&mut self.ring[number as usize % RING], life);
            if old.open {
                self.open.remove(&old.hash);
                let bucket = (1..BUCKETS).take_while(|&bucket| self.reached[bucket] > oldest).count();
                self.leave(old, bucket, now.saturating_sub(old.start));
            }
            for reached in &mut self.reached {
                *reached = (*reached).max(oldest + 1);
            }
        }
        self.open.insert(hash, number);
        self.enter(life, 0);
    }

    /// A block is asked for: its life ends, with a return. Call `advance` before, at the same time.
    pub fn end(&mut self, hash: u64, now: u32) {
        let Some(number) = self.open.remove(&hash) else { return };
        let place = number as usize % RING;
        self.ring[place].open = false;
        let life = self.ring[place];
        let bucket = (1..BUCKETS).take_while(|&bucket| self.reached[bucket] > number).count();
        self.leave(life, bucket, now - life.start);
        let cell = life.class as usize * BUCKETS + bucket;
        self.returns[cell] += 1.0;
        self.time[cell] += 0.5;
    }

    /// Moves lives on to the buckets that they have reached.
    pub fn advance(&mut self, now: u32) {
        for bucket in (1..BUCKETS).rev() {
            while self.reached[bucket] < self.begun {
                let life = self.ring[self.reached[bucket] as usize % RING];
                if now - life.start < self.bounds[bucket] {
                    break;
                }
                self.reached[bucket] += 1;
                if life.open {
                    self.leave(life, bucket - 1, self.bounds[bucket]);
                    self.enter(life, bucket);
                }
            }
        }
    }

    /// Lets old counts fade, then calls `each` for every cell of `class` with its returns and its time.
    pub fn fade(&mut self, classes: &[Class]) {
        let keep = (-((self.begun - self.faded_at) as f64) / MEMORY).exp();
        self.faded_at = self.begun;
        for &class in classes {
            for cell in class as usize * BUCKETS..(class as usize + 1) * BUCKETS {
                self.returns[cell] *= keep;
                self.time[cell] *= keep;
            }
        }
    }

    /// Returns and time at risk of `class` at ages of `bucket`, as of `now`.
    pub fn counts(&self, class: Class, bucket: usize, now: u32) -> (f64, f64) {
        let cell = class as usize * BUCKETS + bucket;
        let since = f64::from(now) - f64::from(self.bounds[bucket]);
        let running = (self.inside[cell] * since - self.inside_starts[cell]).max(0.0);
        (self.returns[cell], self.time[cell] + running)
    }

    pub fn heap_bytes(&self) -> usize {
        CELLS * 32 + self.ring.capacity() * size_of::<Life>() + self.open.capacity() * 17
    }

    fn enter(&mut self, life: Life, bucket: usize) {
        let cell = life.class as usize * BUCKETS + bucket;
        self.inside[cell] += 1.0;
        self.inside_starts[cell] += f64::from(life.start);
    }

    /// The life leaves the bucket at `age`.
    fn leave(&mut self, life: Life, bucket: usize, age: u32) {
        let cell = life.class as usize * BUCKETS + bucket;
        self.inside[cell] -= 1.0;
        self.inside_starts[cell] -= f64::from(life.start);
        self.time[cell] += f64::from(age.saturating_sub(self.bounds[bucket]));
    }
}
