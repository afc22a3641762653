//! The lives that the model learns from: a ring of the latest ones, of resident and of evicted blocks alike.
//!
//! For each class and age bucket it counts the lives that ended there (returns) and the time that lives spent there,
//! ended or not, which is all that is needed to estimate a hazard with censored lives (N. E. Breslow, 1974). One pointer
//! per bucket follows the ring, so each life is moved on once per bucket.

use super::classes::{CLASSES, Class};
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

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

/// One in how many blocks is followed in a pool of `capacity`.
fn sample_of(capacity: usize) -> u64 {
    (TURNOVERS * capacity).div_ceil(RING).next_power_of_two() as u64
}

/// Block hashes need no more than a multiplication (D. E. Knuth, 1973): sampling leaves their lowest bits alike.
#[derive(Default)]
struct Multiplied(u64);

impl Hasher for Multiplied {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(self.0 ^ u64::from(byte));
        }
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(32);
    }
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
    open: HashMap<u64, u64, BuildHasherDefault<Multiplied>>,
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
            open: HashMap::default(),
            returns: vec![0.0; CELLS],
            time: vec![0.0; CELLS],
            inside: vec![0.0; CELLS],
            inside_starts: vec![0.0; CELLS],
            faded_at: 0,
        }
    }

    /// The pool has another capacity. Lives that are no longer sampled end unseen.
    pub fn resize(&mut self, capacity: usize) {
        self.sample = sample_of(capacity);
    }

    /// Lives followed so far.
    pub fn begun(&self) -> u64 {
        self.begun
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

    /// Lets the counts of `classes` fade by the lives begun since the last call.
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

#[cfg(test)]
mod tests {
    use super::{BUCKETS, Lives, RING};

    /// Sums of a class over all buckets: returns, time at risk.
    fn totals(lives: &Lives, class: u16, now: u32) -> (f64, f64) {
        (0..BUCKETS)
            .map(|bucket| lives.counts(class, bucket, now))
            .fold((0.0, 0.0), |sum, each| (sum.0 + each.0, sum.1 + each.1))
    }

    #[test]
    fn open_life_is_at_risk_for_its_whole_age() {
        let mut lives = Lives::new(100);
        lives.begin(7, 3, 10);
        for now in [11, 50, 1000] {
            lives.advance(now);
            assert_eq!(totals(&lives, 3, now), (0.0, f64::from(now - 10)));
        }
    }

    #[test]
    fn life_that_ends_leaves_one_return_in_the_bucket_of_its_age() {
        let mut lives = Lives::new(100);
        lives.begin(7, 3, 10);
        lives.advance(75);
        lives.end(7, 75);
        let bucket = lives.bounds.partition_point(|&bound| bound <= 65) - 1;
        assert_eq!(lives.counts(3, bucket, 500).0, 1.0);
        assert_eq!(totals(&lives, 3, 500), (1.0, 65.5));
        assert!(lives.find(7).is_none());
    }

    #[test]
    fn full_ring_drops_the_oldest_life_with_its_time() {
        let mut lives = Lives::new(100);
        for number in 0..RING as u64 + 1 {
            let now = number as u32 / 64;
            lives.advance(now);
            lives.begin(number, 5, now);
        }
        assert!(lives.find(0).is_none());
        assert_eq!(lives.ring.len(), RING);
        let now = RING as u32 / 64;
        let at_risk: f64 = (0..RING as u32 + 1).map(|number| f64::from(now - number / 64)).sum();
        assert_eq!(totals(&lives, 5, now), (0.0, at_risk));
    }

    #[test]
    fn large_pool_follows_a_sample_within_the_same_memory() {
        let mut lives = Lives::new(5_000_000);
        for number in 0..10_000 {
            lives.begin(number, 0, 0);
        }
        assert_eq!(lives.ring.len(), 10_000usize.div_ceil(lives.sample as usize));
        assert_eq!(lives.sample, 256);
    }

    #[test]
    fn fading_halves_what_was_counted_when_enough_lives_have_begun() {
        let mut lives = Lives::new(100);
        lives.begin(1, 2, 0);
        lives.end(1, 0);
        lives.fade(&[2]);
        let before = totals(&lives, 2, 0).0;
        for number in 0..22_713 {
            lives.begin(number + 10, 9, 0);
        }
        lives.fade(&[2]);
        assert!((totals(&lives, 2, 0).0 / before - 0.5).abs() < 1e-3);
    }
}
