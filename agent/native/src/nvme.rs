//! What lies on nvme: reads into DRAM, writes from it, and the upkeep of segments.

use std::collections::{HashMap, HashSet};

use crate::column::NONE;
use crate::error::{Result, value};
use crate::index::Index;
use crate::keys::fingerprint;
use crate::pages::{ATTACHED, DELETED, FILLING, Page, WRITING};
use crate::policy::Victim;
use crate::tree::is_node;

const UNIT: u64 = 4096;
/// Of so many reads that are being put together, a page may still join each.
const OPEN_READS: usize = 8;
/// So many pages stand for all of a segment when it is valued.
const SAMPLE: usize = 64;

/// One request to a device: bytes of a segment and the pages within.
#[derive(Debug, PartialEq, Eq)]
pub struct Read {
    pub segment: u32,
    pub offset: u64,
    pub bytes: u64,
    pub pages: Vec<u32>,
    /// Of memory that it goes to, gaps between pages included.
    pieces: usize,
}

/// Limits of one read.
#[derive(Clone, Copy)]
pub struct ReadLimits {
    pub bytes: u64,
    pub pieces: usize,
    pub gap: u64,
}

impl Read {
    fn begin(segment: u32, it: &Page, page: u32) -> Self {
        Read {
            segment,
            offset: u64::from(it.offset) * UNIT,
            bytes: u64::from(it.slot_bytes()),
            pages: vec![page],
            pieces: 1,
        }
    }

    /// Whether the page lies behind what is read already, near enough to be read with it.
    fn join(&mut self, segment: u32, it: &Page, page: u32, limits: ReadLimits) -> bool {
        let (begin, end) = (u64::from(it.offset) * UNIT, it.nvme_end() * UNIT);
        let Some(gap) = begin.checked_sub(self.offset + self.bytes) else {
            return false;
        };
        let pieces = self.pieces + 1 + usize::from(gap > 0);
        let fits = segment == self.segment
            && gap <= limits.gap
            && end - self.offset <= limits.bytes
            && pieces <= limits.pieces;
        if fits {
            self.bytes = end - self.offset;
            self.pieces = pieces;
            self.pages.push(page);
        }
        fits
    }
}

impl Index {
    // Reading

    /// Take slots for those of `pages` that are only on nvme, and group them into reads; these are filling and pinned.
    ///
    /// Stops at the first page that gets no slot.
    pub fn read_plan(&mut self, pages: &[u32], limits: ReadLimits, now: f64) -> Result<Vec<Read>> {
        self.check_pages(pages)?;
        self.tick(now);
        let mut reads: Vec<Read> = Vec::new();
        for &page in pages {
            let it = &self.pages[page];
            if it.has_slot() || !it.is_on_nvme() {
                continue;
            }
            let class = it.slot_bytes();
            self.pin(page);
            if self.slots.free(class) == 0 && !self.evict_one(class) {
                self.unpin(page);
                break;
            }
            if !self.pages[page].is_on_nvme() {
                self.unpin(page); // It went with what was evicted, its block's last full page.
                continue;
            }
            let has_slot = self.take_slot(page, now);
            assert!(has_slot, "a free slot could not be taken");
            let it = &self.pages[page];
            let segment = self.segments.get(it.segment).number;
            let mut open = reads.iter_mut().rev().take(OPEN_READS);
            if !open.any(|read| read.join(segment, it, page, limits)) {
                reads.push(Read::begin(segment, it, page));
            }
        }
        Ok(reads)
    }

    /// Reads ended: pages that are good, whose payload did not match, and that were not read.
    pub fn finish_read(&mut self, good: &[u32], bad: &[u32], failed: &[u32]) -> Result<()> {
        let mut seen = HashSet::new();
        for &page in good.iter().chain(bad).chain(failed) {
            self.check_page(page)?;
            if !self.pages[page].is(FILLING) || self.pages[page].pins == 0 || !seen.insert(page) {
                return value(format!("page {page} is not being read, or is named twice"));
            }
        }
        for &page in good {
            if self.pages[page].is(DELETED) {
                self.filled_in_vain(page);
            } else {
                // A page that was cut meanwhile can still be read by those who hold it.
                self.becomes_resident(page);
                self.unpin(page);
            }
        }
        for &page in bad.iter().chain(failed) {
            self.stop_filling(page);
        }
        for &page in bad {
            if self.pages[page].is(ATTACHED) {
                self.cut(page);
            }
        }
        for &page in bad.iter().chain(failed) {
            self.unpin(page);
        }
        Ok(())
    }

    // Writing

    /// Of `pages`, those that lie in DRAM only and are not being written: they are now, and pinned.
    pub fn dirty(&mut self, pages: &[u32]) -> Result<Vec<u32>> {
        self.check_pages(pages)?;
        let mut found = Vec::new();
        for &page in pages {
            if is_dirty(&self.pages[page]) {
                self.start_writing(page);
                found.push(page);
            }
        }
        Ok(found)
    }

    fn start_writing(&mut self, page: u32) {
        self.pages[page].set(WRITING);
        self.pin(page);
    }

    /// Pages of this class that the policy evicts next, of so many pages or blocks.
    fn coldest_pages(&self, class: u32, limit: usize) -> Vec<u32> {
        let mut pages = Vec::new();
        for victim in self.policy.coldest(class, limit) {
            match victim {
                Victim::Page(page) => pages.push(page),
                Victim::Block(node) => {
                    pages.extend(self.pages_of(node).filter(|&page| self.pages[page].slot_bytes() == class));
                }
            }
        }
        pages
    }

    /// What the policy evicts next of what lies in DRAM only, up to `limit` pages, ancestors before descendants.
    pub fn next_dirty(&mut self, class: u32, limit: usize) -> Vec<u32> {
        let mut found = Vec::new();
        for page in self.coldest_pages(class, limit.saturating_mul(4)) {
            let mut path = Vec::new();
            let mut above = page;
            while above != NONE && is_dirty(&self.pages[above]) && path.len() < limit - found.len() {
                path.push(above);
                above = self.pages[above].parent;
            }
            if above != NONE && is_dirty(&self.pages[above]) {
                // The chain is longer than what is left of the limit: its first pages go first.
                path.clear();
                while above != NONE && is_dirty(&self.pages[above]) {
                    path.push(above);
                    above = self.pages[above].parent;
                }
                let surplus = path.len().saturating_sub(limit - found.len());
                path.drain(..surplus);
            }
            for &page in path.iter().rev() {
                self.start_writing(page);
                found.push(page);
            }
            if found.len() >= limit {
                break;
            }
        }
        found
    }

    /// The pages from the root to this block.
    pub fn chain_of(&self, layout: &[u8], hash: &[u8], keys: &[(u32, u16)]) -> Result<Vec<u32>> {
        let Some(mut node) = self.find_block(layout, hash)? else {
            return Ok(Vec::new());
        };
        let places: HashMap<(u32, u16), usize> = keys.iter().copied().zip(0..).collect();
        let place_of = |page: u32| {
            let key = self.keys.get(self.pages[page].key);
            places.get(&(key.group, key.shard))
        };
        let mut found = Vec::new();
        while is_node(node) {
            let begin = found.len();
            let is_wanted = |page: &u32| self.pages[*page].is_present() && place_of(*page).is_some();
            found.extend(self.pages_of(node).filter(is_wanted));
            if found.len() - begin > 1 {
                found[begin..].sort_by_cached_key(|&page| std::cmp::Reverse(place_of(page)));
            }
            node = self.tree.nodes[node].parent;
        }
        found.reverse();
        Ok(found)
    }

    /// The block's node, whether or not it has pages.
    pub fn find_block(&self, layout: &[u8], hash: &[u8]) -> Result<Option<u32>> {
        let Some(layout) = self.tree.layouts.find(&fingerprint(layout)?) else {
            return Ok(None);
        };
        self.tree.layouts.get(layout).check_hash(hash, 0)?;
        Ok(self.tree.find(layout, hash))
    }

    /// Refuse pages that are not being written, and lists that name one twice.
    fn check_writing(&self, pages: &[u32]) -> Result<()> {
        let mut seen = HashSet::with_capacity(pages.len());
        for &page in pages {
            self.check_page(page)?;
            if !self.pages[page].is(WRITING) || !seen.insert(page) {
                return value(format!("page {page} is not being written, or is named twice"));
            }
        }
        Ok(())
    }

    /// Writing is done: these pages lie in `segment` at these offsets in bytes.
    pub fn written(&mut self, pages: &[u32], segment: u32, offsets: &[u64]) -> Result<()> {
        self.check_writing(pages)?;
        if offsets.len() != pages.len() {
            return value(format!("{} offsets for {} pages", offsets.len(), pages.len()));
        }
        let units = offsets.iter().map(|&offset| units(offset)).collect::<Result<Vec<u32>>>()?;
        for (&page, offset) in pages.iter().zip(units) {
            self.pages[page].clear(WRITING);
            if self.pages[page].is(ATTACHED) {
                self.enter_nvme(page, segment, offset);
            }
            self.unpin(page);
        }
        Ok(())
    }

    /// Writing was given up.
    pub fn not_written(&mut self, pages: &[u32]) -> Result<()> {
        self.check_writing(pages)?;
        for &page in pages {
            self.pages[page].clear(WRITING);
            self.unpin(page);
        }
        Ok(())
    }

    // Places

    /// Segment, offset and size on nvme.
    pub fn place_of(&self, page: u32) -> Result<Option<(u32, u64, u32)>> {
        self.check_page(page)?;
        let it = &self.pages[page];
        Ok(it.is_on_nvme().then(|| (self.segments.get(it.segment).number, u64::from(it.offset) * UNIT, it.size)))
    }

    /// As `place_of`, of each.
    pub fn places_of(&self, pages: &[u32]) -> Result<Vec<Option<(u32, u64, u32)>>> {
        pages.iter().map(|&page| self.place_of(page)).collect()
    }

    /// Of `pages`, which may be gone by now, those that lie in this segment, in their order.
    pub fn in_segment(&self, number: u32, pages: &[u32]) -> Vec<u32> {
        let is_there = |page: &&u32| matches!(self.place_of(**page), Ok(Some((segment, _, _))) if segment == number);
        pages.iter().filter(is_there).copied().collect()
    }

    /// Of `pages`, those that lie on nvme and have no slot, in their order.
    pub fn without_slot(&self, pages: &[u32]) -> Result<Vec<u32>> {
        self.check_pages(pages)?;
        let waits = |page: &&u32| {
            let it = &self.pages[**page];
            !it.has_slot() && it.is_on_nvme()
        };
        Ok(pages.iter().filter(waits).copied().collect())
    }

    /// Of these, in their order: those that were deleted, or cut, and that nobody finds any more.
    pub fn detached(&self, pages: &[u32]) -> Result<Vec<u32>> {
        self.check_pages(pages)?;
        Ok(pages.iter().filter(|&&page| !self.pages[page].is(ATTACHED)).copied().collect())
    }

    /// The same key's page of the parent block.
    pub fn parent_page(&self, page: u32) -> Result<Option<u32>> {
        self.check_page(page)?;
        let it = &self.pages[page];
        if it.node == NONE {
            return Ok(None);
        }
        let above = self.tree.nodes[it.node].parent;
        Ok(if is_node(above) { self.page_of(above, it.key) } else { None })
    }

    /// The pages, cut wherever one neither belongs to the same block as the one before it, nor to a child block.
    pub fn stretches(&self, pages: &[u32]) -> Result<Vec<Vec<u32>>> {
        self.check_pages(pages)?;
        Ok(pages.chunk_by(|&page, &next| self.follows(page, next)).map(<[u32]>::to_vec).collect())
    }

    fn follows(&self, page: u32, other: u32) -> bool {
        let (node, after) = (self.pages[page].node, self.pages[other].node);
        if page == other || node == NONE || after == NONE {
            return false;
        }
        after == node || self.tree.nodes[after].parent == node
    }

    // Segments

    /// Live pages and bytes of a segment, and what they are worth together.
    pub fn segment_live(&mut self, number: u32) -> (u32, u64, f64) {
        let Some(place) = self.segments.find(number) else {
            return (0, 0, 0.0);
        };
        self.segments.tidy(&self.pages, place);
        let segment = self.segments.get(place);
        let sample = self.segments.sample(&self.pages, place, SAMPLE);
        let sum: f64 = sample.iter().map(|&page| self.worth_of(page)).sum();
        let mean = if sample.is_empty() { 0.0 } else { sum / sample.len() as f64 };
        (segment.live, segment.live_bytes, mean * f64::from(segment.live))
    }

    /// The segment's pages by offset.
    pub fn segment_pages(&self, number: u32) -> Vec<u32> {
        let place = self.segments.find(number);
        place.map_or_else(Vec::new, |place| self.segments.pages_of(&self.pages, place))
    }

    /// Take up to `limit` pages' nvme copies away, those below included that go with them. Returns how many are left.
    pub fn drop_segment(&mut self, number: u32, limit: usize) -> u32 {
        let mut budget = limit;
        while budget > 0 {
            let Some(place) = self.segments.find(number) else {
                return 0;
            };
            let Some(page) = self.segments.any_page(&self.pages, place) else {
                return 0;
            };
            if self.pages[page].is_resident() {
                self.leave_nvme(page);
                budget -= 1;
            } else {
                budget = budget.saturating_sub(self.cut_some(page, budget));
            }
        }
        let place = self.segments.find(number);
        place.map_or(0, |place| self.segments.get(place).live)
    }

    /// The cleaner laid a copy of the page elsewhere. Whether it still lies where that was read.
    pub fn moved(&mut self, page: u32, from: (u32, u64), to: (u32, u64)) -> Result<bool> {
        let offset = units(to.1)?;
        if page >= self.pages.end()
            || !self.pages[page].is(ATTACHED)
            || self.place_of(page)?.map(|it| (it.0, it.1)) != Some(from)
        {
            return Ok(false);
        }
        self.enter_nvme(page, to.0, offset);
        Ok(true)
    }

    /// What each page is worth; infinite while a pod pins it.
    pub fn worth(&self, pages: &[u32]) -> Result<Vec<f64>> {
        self.check_pages(pages)?;
        Ok(pages.iter().map(|&page| self.worth_of(page)).collect())
    }

    fn worth_of(&self, page: u32) -> f64 {
        if self.is_kept(page) {
            return f64::INFINITY;
        }
        let node = self.pages[page].node;
        if node == NONE { 0.0 } else { self.policy.worth(page, node, self.now_s()) }
    }

    /// Contiguous runs on nvme of the chain that ends here, and its bytes there.
    pub fn runs(&self, layout: &[u8], hash: &[u8], max_gap: u64) -> Result<(usize, u64)> {
        let Some(mut node) = self.find_block(layout, hash)? else {
            return Ok((0, 0));
        };
        let mut places = Vec::new();
        let mut bytes = 0;
        while is_node(node) {
            for page in self.pages_of(node) {
                let it = &self.pages[page];
                if it.is_on_nvme() {
                    places.push((it.segment, u64::from(it.offset) * UNIT, it.nvme_end() * UNIT));
                    bytes += u64::from(it.slot_bytes());
                }
            }
            node = self.tree.nodes[node].parent;
        }
        places.sort_unstable();
        let is_break =
            |pair: &&[(u32, u64, u64)]| pair[0].0 != pair[1].0 || pair[1].1.saturating_sub(pair[0].2) > max_gap;
        let breaks = places.windows(2).filter(is_break).count();
        Ok((breaks + usize::from(!places.is_empty()), bytes))
    }
}

/// Whether the page lies in DRAM only, and is not on its way elsewhere.
fn is_dirty(it: &Page) -> bool {
    it.is(ATTACHED) && it.is_resident() && !it.is_on_nvme() && !it.is(WRITING)
}

/// Bytes as units of 4,096.
fn units(offset: u64) -> Result<u32> {
    match u32::try_from(offset / UNIT) {
        Ok(units) if offset % UNIT == 0 => Ok(units),
        _ => value(format!("{offset} is no offset in a segment: multiples of 4,096 below 16 TiB are")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{find, index, store};

    const NO_LIMITS: ReadLimits = ReadLimits { bytes: u64::MAX, pieces: 99, gap: 4096 };

    fn below(index: &mut Index, blocks: &[u32], offsets: &[u64]) -> Vec<u32> {
        let pages = store(index, None, blocks);
        assert_eq!(index.dirty(&pages), Ok(pages.clone()));
        index.written(&pages, 5, offsets).unwrap();
        pages.iter().for_each(|&page| index.leave_dram(page));
        pages
    }

    #[test]
    fn pages_with_small_gaps_are_one_read() {
        let mut index = index(8);
        let pages = below(&mut index, &[1, 2, 3], &[0, 8192, 40960]);
        let reads = index.read_plan(&pages, NO_LIMITS, 1.0).unwrap();
        let places: Vec<(u64, u64, usize)> = reads.iter().map(|it| (it.offset, it.bytes, it.pieces)).collect();
        assert_eq!(places, [(0, 12288, 3), (40960, 4096, 1)]);
        index.finish_read(&pages[..2], &pages[2..], &[]).unwrap();
        index.check();
        assert_eq!(find(&index, &[1, 2, 3]), (2, 2));
    }

    #[test]
    fn dropping_a_segment_counts_all_that_goes_with_it() {
        let mut index = index(8);
        below(&mut index, &[1, 2, 3, 4], &[0, 4096, 8192, 12288]);
        assert_eq!(index.drop_segment(5, 3), 1);
        index.check();
        assert_eq!((find(&index, &[1, 2]), index.drop_segment(5, 1)), ((1, 0), 0));
        index.check();
    }

    #[test]
    fn offsets_are_whole_units() {
        assert_eq!(units(8192), Ok(2));
        assert!(units(8193).is_err() && units(1 << 44).is_err());
    }
}
