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
pub fn hits_of(class: Class) -> usize {
    levels_of(class)[0]
}

/// What the running request tells about the lives that it begins.
#[derive(Default)]
pub struct Context {
    asked: usize,
    new_level: usize,
    resident: usize,
    /// Hits of the blocks after the resident ones that were here once, as far as is remembered.
    remembered: Vec<usize>,
}

impl Context {
    /// A request for `asked` blocks, the first `resident` of which are here; `missing` are the next ones' digests.
    pub fn of(asked: usize, resident: usize, missing: &[u64], lives: &Lives) -> Self {
        let mut remembered = Vec::new();
        // From the end: a block that was forgotten or not sampled was hit at least as often as those after it.
        let mut hits = None;
        for &hash in missing.iter().rev() {
            if let Some(life) = lives.find(hash) {
                hits = Some(hits_of(life.class));
            }
            remembered.extend(hits);
        }
        remembered.reverse();
        let new = asked.saturating_sub(resident + remembered.len());
        Self { asked, new_level: level(&NEW_BLOCKS, new), resident, remembered }
    }

    /// How often the block at `position`, not resident, was hit when it was here; None if it is not known.
    pub fn remembered_hits(&self, position: usize) -> Option<usize> {
        self.remembered.get(position.checked_sub(self.resident)?).copied()
    }

    /// The class of the life that begins for the block at `position`, hit so many times by now.
    pub fn class(&self, position: usize, hits: usize) -> Class {
        let last = usize::from(position + 1 == self.asked);
        let levels = [hits.min(LEVELS[0] - 1), self.new_level, level(&POSITIONS, position), last];
        levels.iter().zip(LEVELS).fold(0, |class, (level, count)| class * count + level) as Class
    }
}

/// How many of the ascending `bounds` the value has reached.
fn level(bounds: &[usize], value: usize) -> usize {
    bounds.iter().take_while(|&&bound| bound <= value).count()
}
