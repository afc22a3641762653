//! How likely a life ends at an age, and what a leaf is worth for it.
//!
//! Proportional hazards (D. R. Cox, 1972): the hazard of a class is a baseline by age times one multiplier per feature
//! level. Baseline and multipliers are fitted in turn to the returns counted and the time at risk, as a Poisson model
//! is; all are drawn to a prior as if so many more returns had been seen there.

use super::classes::{CLASSES, Class, LEVELS, levels_of};
use super::lives::{BUCKETS, CELLS, Lives, bucket_bounds};

/// The prior baseline is this over the age: recently used blocks first, as LRU has it.
const PRIOR_HAZARD: f64 = 0.1;
/// Returns that the prior weighs: for each bucket, each feature level, each class.
const BUCKET_WEIGHT: f64 = 20.0;
const LEVEL_WEIGHT: f64 = 30.0;
const CLASS_WEIGHT: f64 = 60.0;
/// The part that neighbours have in a bucket's estimate.
const SMOOTHING: f64 = 0.25;
/// Sweeps over baseline and multipliers in a fit, from where the last fit ended.
const SWEEPS: usize = 2;

pub struct Model {
    bounds: [u32; BUCKETS + 1],
    baseline: [f64; BUCKETS],
    multipliers: [[f64; 8]; 4],
    /// Classes that occurred: the others need no index.
    known: Vec<Class>,
    is_known: Vec<bool>,
    index: Vec<f32>,
}

/// The counts of one class at a fit.
struct Row {
    levels: [usize; 4],
    returns: [f64; BUCKETS],
    time: [f64; BUCKETS],
}

impl Row {
    fn total_returns(&self) -> f64 {
        self.returns.iter().sum()
    }

    /// The returns that the baseline alone would have given.
    fn expected(&self, baseline: &[f64; BUCKETS]) -> f64 {
        self.time.iter().zip(baseline).map(|(time, hazard)| time * hazard).sum()
    }
}

impl Model {
    pub fn new() -> Self {
        let bounds = bucket_bounds();
        let mut multipliers = [[1.0; 8]; 4];
        for (feature, levels) in multipliers.iter_mut().enumerate() {
            for (level, multiplier) in levels.iter_mut().enumerate() {
                *multiplier = prior_multiplier(feature, level);
            }
        }
        Self {
            bounds,
            baseline: std::array::from_fn(|bucket| prior_hazard(&bounds, bucket)),
            multipliers,
            known: Vec::new(),
            is_known: vec![false; CLASSES],
            index: vec![0.0; CELLS],
        }
    }

    /// Hits to be expected per tick from a leaf of this class and age bucket, at best.
    pub fn index(&self, class: Class, bucket: usize) -> f32 {
        self.index[class as usize * BUCKETS + bucket]
    }

    pub fn heap_bytes(&self) -> usize {
        CELLS * 4 + CLASSES * 3
    }

    /// The bucket of an age in ticks.
    pub fn bucket(&self, age: u32) -> usize {
        self.bounds.partition_point(|&bound| bound <= age) - 1
    }

    /// The class occurs from now on.
    pub fn know(&mut self, class: Class) {
        if !std::mem::replace(&mut self.is_known[class as usize], true) {
            self.known.push(class);
            self.index_class(class, self.multiplier(&levels_of(class)));
        }
    }

    pub fn fit(&mut self, lives: &mut Lives, now: u32) {
        lives.fade(&self.known);
        let rows: Vec<Row> = self.known.iter().map(|&class| row(lives, class, now)).collect();
        for _ in 0..SWEEPS {
            self.fit_baseline(&rows);
            let expected: Vec<f64> = rows.iter().map(|row| row.expected(&self.baseline)).collect();
            for feature in 0..LEVELS.len() {
                self.fit_multipliers(feature, &rows, &expected);
            }
        }
        for (row, class) in rows.iter().zip(self.known.clone()) {
            let multiplier = self.multiplier(&row.levels);
            let expected = row.expected(&self.baseline) * multiplier;
            self.index_class(class, multiplier * (CLASS_WEIGHT + row.total_returns()) / (CLASS_WEIGHT + expected));
        }
    }

    fn multiplier(&self, levels: &[usize; 4]) -> f64 {
        levels.iter().zip(&self.multipliers).map(|(&level, multipliers)| multipliers[level]).product()
    }

    fn fit_baseline(&mut self, rows: &[Row]) {
        // Against the prior's hazard in each bucket: returns that came, and returns that it would have given.
        let mut came = [0.0; BUCKETS];
        let mut due = [0.0; BUCKETS];
        for row in rows {
            let multiplier = self.multiplier(&row.levels);
            for bucket in 0..BUCKETS {
                came[bucket] += row.returns[bucket];
                due[bucket] += row.time[bucket] * multiplier * prior_hazard(&self.bounds, bucket);
            }
        }
        let level = (BUCKET_WEIGHT + came.iter().sum::<f64>()) / (BUCKET_WEIGHT + due.iter().sum::<f64>());
        for bucket in 0..BUCKETS {
            let near = [bucket.wrapping_sub(1), bucket + 1];
            let blur = |counts: &[f64; BUCKETS]| {
                let beside: f64 = near.iter().filter_map(|&other| counts.get(other)).sum();
                counts[bucket] + SMOOTHING * beside
            };
            let ratio = (BUCKET_WEIGHT * level + blur(&came)) / (BUCKET_WEIGHT + blur(&due));
            self.baseline[bucket] = prior_hazard(&self.bounds, bucket) * ratio;
        }
    }

    fn fit_multipliers(&mut self, feature: usize, rows: &[Row], expected: &[f64]) {
        let mut came = [0.0; 8];
        let mut due = [0.0; 8];
        for (row, expected) in rows.iter().zip(expected) {
            let level = row.levels[feature];
            came[level] += row.total_returns();
            due[level] += expected * self.multiplier(&row.levels) / self.multipliers[feature][level];
        }
        for level in 0..LEVELS[feature] {
            let prior = prior_multiplier(feature, level);
            self.multipliers[feature][level] = (LEVEL_WEIGHT * prior + came[level]) / (LEVEL_WEIGHT + due[level]);
        }
    }

    /// The Gittins index of each bucket: with returns and time of a life summed up to each age, the steepest line from
    /// the bucket's start to a later point, found for all buckets in one pass over the upper hull from the right.
    fn index_class(&mut self, class: Class, multiplier: f64) {
        let mut returns = [0.0; BUCKETS + 1];
        let mut time = [0.0; BUCKETS + 1];
        let mut surviving = 1.0;
        for bucket in 0..BUCKETS {
            let hazard = (self.baseline[bucket] * multiplier).max(1e-12);
            let ending = surviving * -(-hazard * width(&self.bounds, bucket)).exp_m1();
            returns[bucket + 1] = returns[bucket] + ending;
            time[bucket + 1] = time[bucket] + ending / hazard;
            surviving -= ending;
        }
        let slope = |from: usize, to: usize| {
            let span = time[to] - time[from];
            if span > 0.0 { (returns[to] - returns[from]) / span } else { 0.0 }
        };
        let mut hull = vec![BUCKETS];
        for from in (0..BUCKETS).rev() {
            while hull.len() > 1 && slope(from, hull[hull.len() - 1]) <= slope(from, hull[hull.len() - 2]) {
                hull.pop();
            }
            self.index[class as usize * BUCKETS + from] = slope(from, hull[hull.len() - 1]) as f32;
            hull.push(from);
        }
    }
}

fn row(lives: &Lives, class: Class, now: u32) -> Row {
    let counts: [(f64, f64); BUCKETS] = std::array::from_fn(|bucket| lives.counts(class, bucket, now));
    Row { levels: levels_of(class), returns: counts.map(|count| count.0), time: counts.map(|count| count.1) }
}

fn prior_hazard(bounds: &[u32; BUCKETS + 1], bucket: usize) -> f64 {
    PRIOR_HAZARD / f64::from(bounds[bucket].max(1))
}

/// What was hit before is hit again: by the square root of the number of requests. Nothing else is known beforehand.
fn prior_multiplier(feature: usize, level: usize) -> f64 {
    if feature == 0 { (level as f64 + 1.0).sqrt() } else { 1.0 }
}

/// Ticks in a bucket; the last is open and taken to double the age.
fn width(bounds: &[u32; BUCKETS + 1], bucket: usize) -> f64 {
    let last = bucket + 1 == BUCKETS;
    f64::from(if last { bounds[bucket] } else { bounds[bucket + 1] - bounds[bucket] })
}

#[cfg(test)]
mod tests {
    use super::{BUCKETS, Lives, Model, width};

    /// The Gittins index of a bucket by its definition: the best ratio over all times to stop.
    fn index_by_definition(model: &Model, multiplier: f64, from: usize) -> f64 {
        let (mut returns, mut time, mut surviving, mut best) = (0.0, 0.0, 1.0, 0.0f64);
        for bucket in from..BUCKETS {
            let hazard = model.baseline[bucket] * multiplier;
            let ending = surviving * (1.0 - (-hazard * width(&model.bounds, bucket)).exp());
            returns += ending;
            time += ending / hazard;
            surviving -= ending;
            best = best.max(returns / time);
        }
        best
    }

    #[test]
    fn index_of_a_hazard_that_rises_and_falls_is_as_defined() {
        let mut model = Model::new();
        for bucket in 0..BUCKETS {
            let from_peak = bucket as f64 - 18.0;
            model.baseline[bucket] = 1e-4 + 2e-3 * (-from_peak * from_peak / 8.0).exp();
        }
        model.index_class(0, 1.5);
        for bucket in 0..BUCKETS {
            let expected = index_by_definition(&model, 1.5, bucket);
            assert!((f64::from(model.index(0, bucket)) / expected - 1.0).abs() < 1e-4, "bucket {bucket}");
        }
    }

    #[test]
    fn unfitted_model_ranks_by_age_and_by_hits() {
        let mut model = Model::new();
        let (new, hit) = (0, 128);
        model.know(new);
        model.know(hit);
        assert!((1..BUCKETS).all(|bucket| model.index(new, bucket) <= model.index(new, bucket - 1)));
        assert!((0..BUCKETS).all(|bucket| model.index(hit, bucket) > model.index(new, bucket)));
    }

    #[test]
    fn class_that_returns_more_often_gets_a_larger_index() {
        let (mut model, mut lives) = (Model::new(), Lives::new(100));
        let (idle, busy) = (0, 1);
        model.know(idle);
        model.know(busy);
        for round in 0..400u32 {
            let (hash, now) = (u64::from(round) * 2, round * 10);
            lives.advance(now);
            if round >= 2 {
                lives.end(hash - 3, now);
            }
            lives.begin(hash, idle, now);
            lives.begin(hash + 1, busy, now);
        }
        lives.advance(4000);
        model.fit(&mut lives, 4000);
        let bucket = model.bucket(15);
        assert!(model.index(busy, bucket) > 10.0 * model.index(idle, bucket));
    }
}
