//! What is known of a life when it begins, cut into a few levels each: a class is one level of each.

use super::lives::Lives;

/// One combination of levels, below [`CLASSES`].
pub type Class = u16;

/// Levels of: hits of the block so far; new blocks of the request; place in the chain; being the request's last.
pub const LEVELS: [usize; 4] = [6, 8, 8, 2];
pub const CLASSES: usize = LEVELS[0] * LEVELS[1] * LEVELS[2] * LEVELS[3];

/// Lower bounds of the levels of "new blocks of the request" after the first.
const NEW_BLOCKS: [usize; 7] = [2, 3, 5, 10, 25, 50, 100];
/// Lower bounds of the levels of "place in the chain" after the first.
const POSITIONS: [usize; 7] = [1, 2, 4, 8, 16, 32, 64];

/// The level of each feature of a class.
pub fn levels_of(class: Class) -> [usize; 4] {
    let mut rest = class as usize;
    let mut levels = [0; 4];
    for (level, count) in levels.iter_mut().zip(LEVELS).rev() {
        *level = rest % count;
        rest /= count;
    }
    levels
}

/// How often the block was hit, as far as the class tells (5 stands for more, too).
pub fn hits_of(class: Class) -> u8 {
    levels_of(class)[0] as u8
}

/// What is known of one request while its blocks are touched and stored.
#[derive(Default)]
pub struct Context {
    /// Blocks of the chain as far as the request goes.
    asked: usize,
    /// Leading blocks that were here.
    resident: usize,
    /// Hits, when they were here, of the blocks after the resident ones that are remembered; the rest is new.
    remembered: Vec<u8>,
}

impl Context {
    /// A request of which the lives so far may remember more than is resident.
    pub fn remembering(asked: usize, resident: usize, missing: &[u64], lives: &Lives) -> Self {
        // From the end: a block that is not sampled was hit at least as often as those after it.
        let mut hits = None;
        let mut remembered = Vec::new();
        for &hash in missing.iter().rev() {
            hits = lives.find(hash).map(|life| hits_of(life.class)).or(hits);
            remembered.extend(hits);
        }
        remembered.reverse();
        Self { asked, resident, remembered }
    }

    /// How often the block at `position`, not resident, was hit when it was here; None if it is new.
    pub fn remembered_hits(&self, position: usize) -> Option<u8> {
        self.remembered.get(position.checked_sub(self.resident)?).copied()
    }

    /// The class of the life that begins for the block at `position`, hit so many times by now.
    pub fn class(&self, position: usize, hits: u8) -> Class {
        let new = self.asked.saturating_sub(self.resident + self.remembered.len());
        let last = usize::from(position + 1 == self.asked);
        let hits = usize::from(hits).min(LEVELS[0] - 1);
        let levels = [hits, level(&NEW_BLOCKS, new), level(&POSITIONS, position), last];
        levels.iter().zip(LEVELS).fold(0, |class, (level, count)| class * count + level) as Class
    }
}

/// How many of the ascending `bounds` the value has reached.
fn level(bounds: &[usize], value: usize) -> usize {
    bounds.iter().take_while(|&&bound| bound <= value).count()
}

#[cfg(test)]
mod tests {
    use super::{CLASSES, Class, Context, levels_of};

    #[test]
    fn class_of_a_request_has_the_levels_of_its_features() {
        let request = Context { asked: 12, resident: 3, remembered: vec![2, 1] };
        assert_eq!(levels_of(request.class(11, 0)), [0, 3, 4, 1]);
        assert_eq!(levels_of(request.class(0, 9)), [5, 3, 0, 0]);
        assert_eq!([2, 3, 4, 5].map(|position| request.remembered_hits(position)), [None, Some(2), Some(1), None]);
    }

    #[test]
    fn every_class_has_levels_of_its_own() {
        let all: std::collections::HashSet<_> = (0..CLASSES as Class).map(levels_of).collect();
        assert_eq!(all.len(), CLASSES);
    }
}
