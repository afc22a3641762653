//! Chunks as a whole: emptying one, and slots whose contents are damaged.

use crate::column::NONE;
use crate::error::{Result, value};
use crate::index::Index;
use crate::pages::ATTACHED;

impl Index {
    pub fn find_chunk(&self, number: u64) -> Result<u16> {
        match self.slots.find(number) {
            Some(place) => Ok(place),
            None => value(format!("there is no chunk {number}")),
        }
    }

    /// Evict up to `limit` pages of a chunk, those below included that go with them. Returns how many are left; the chunk is
    /// forgotten when none is.
    ///
    /// It takes no new pages from now on. Pinned pages, and those being filled, stay for a later call.
    pub fn clear_chunk(&mut self, number: u64, limit: usize) -> Result<u32> {
        let place = self.find_chunk(number)?;
        self.slots.retire(place);
        let mut budget = limit;
        for slot in 0..self.slots.chunk(place).len() {
            loop {
                let page = self.slots.chunk(place).page(slot);
                if budget == 0 || page == NONE || self.pages[page].pins > 0 {
                    break;
                }
                let before = self.dram_pages;
                if self.pages[page].is_on_nvme() {
                    self.leave_dram(page);
                    budget -= 1;
                } else {
                    budget = budget.saturating_sub(self.cut_some(page, budget));
                }
                self.evicted_pages += before - self.dram_pages;
            }
        }
        let left = self.slots.chunk(place).used;
        if left == 0 {
            self.slots.remove(place);
        }
        Ok(left)
    }

    /// New pages may go into the chunk again.
    pub fn reopen_chunk(&mut self, number: u64) -> Result<()> {
        let place = self.find_chunk(number)?;
        self.slots.reopen(place);
        Ok(())
    }

    /// What stands in these slots is damaged: their pages leave DRAM, and the index where they lie nowhere else, or are
    /// held. Returns how many.
    pub fn drop_slots(&mut self, number: u64, slots: &[u32]) -> Result<usize> {
        let place = self.find_chunk(number)?;
        let mut dropped = 0;
        for &slot in slots {
            let page = self.slots.chunk(place).page(slot);
            if page == NONE || !self.pages[page].is(ATTACHED) || !self.pages[page].is_resident() {
                continue;
            }
            dropped += 1;
            if self.pages[page].pins > 0 {
                // The slot cannot be used again before its readers are done, so the page cannot stay either.
                self.cut(page);
            } else {
                self.leave_dram(page);
            }
        }
        Ok(dropped)
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::{find, index, store};

    #[test]
    fn chunk_is_cleared_in_steps_and_then_forgotten() {
        let mut index = index(8);
        let pages = store(&mut index, None, &[1, 2, 3]);
        assert_eq!(index.clear_chunk(1, 2), Ok(1));
        index.check();
        assert_eq!(find(&index, &[1, 2]), (1, 1));
        index.pin(pages[0]);
        assert_eq!(index.clear_chunk(1, 2), Ok(1));
        index.unpin(pages[0]);
        assert_eq!(index.clear_chunk(1, 2), Ok(0));
        assert!(index.clear_chunk(1, 2).is_err());
        index.check();
    }
}
