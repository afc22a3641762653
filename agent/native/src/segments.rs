//! Segments on nvme: which pages lie in each.

use std::collections::HashMap;

use crate::column::NONE;
use crate::pages::{ALIVE, Pages};

#[derive(Default)]
pub struct Segment {
    pub number: u32,
    /// Every page that lies in it, and some that did: names are taken out now and then.
    pages: Vec<u32>,
    pub live: u32,
    pub live_bytes: u64,
}

#[derive(Default)]
pub struct Segments {
    entries: Vec<Segment>,
    numbers: HashMap<u32, u32>,
    free: Vec<u32>,
    pub pages: u64,
    pub bytes: u64,
}

impl Segments {
    pub fn find(&self, number: u32) -> Option<u32> {
        self.numbers.get(&number).copied()
    }

    pub fn get(&self, place: u32) -> &Segment {
        &self.entries[place as usize]
    }

    fn ensure(&mut self, number: u32) -> u32 {
        if let Some(place) = self.find(number) {
            return place;
        }
        let segment = Segment { number, ..Segment::default() };
        let place = match self.free.pop() {
            Some(place) => {
                self.entries[place as usize] = segment;
                place
            }
            None => {
                self.entries.push(segment);
                (self.entries.len() - 1) as u32
            }
        };
        self.numbers.insert(number, place);
        place
    }

    /// The page, which lies in no segment, lies in this one, `offset` units of 4,096 bytes in.
    pub fn enter(&mut self, pages: &mut Pages, page: u32, number: u32, offset: u32) {
        let place = self.ensure(number);
        let it = &mut pages[page];
        (it.segment, it.offset) = (place, offset);
        let bytes = u64::from(it.slot_bytes());
        self.tidy(pages, place);
        let segment = &mut self.entries[place as usize];
        if !segment.pages.ends_with(&[page]) {
            segment.pages.push(page);
        }
        segment.live += 1;
        segment.live_bytes += bytes;
        self.pages += 1;
        self.bytes += bytes;
    }

    /// Take names out of a list most of which lie elsewhere by now.
    pub fn tidy(&mut self, pages: &Pages, place: u32) {
        let segment = &mut self.entries[place as usize];
        if segment.pages.len() < 64 + 2 * segment.live as usize {
            return;
        }
        segment.pages.retain(|&other| lies_in(pages, other, place));
        segment.pages.sort_unstable();
        segment.pages.dedup();
    }

    /// The page leaves its segment, if it lies in one.
    pub fn leave(&mut self, pages: &mut Pages, page: u32) {
        let it = &mut pages[page];
        if it.segment == NONE {
            return;
        }
        let place = it.segment;
        let bytes = u64::from(it.slot_bytes());
        it.segment = NONE;
        let segment = &mut self.entries[place as usize];
        segment.live -= 1;
        segment.live_bytes -= bytes;
        self.pages -= 1;
        self.bytes -= bytes;
        if segment.live == 0 {
            let number = segment.number;
            *segment = Segment::default();
            self.numbers.remove(&number);
            self.free.push(place);
        }
    }

    /// The pages that lie in the segment, by offset.
    pub fn pages_of(&self, pages: &Pages, place: u32) -> Vec<u32> {
        let listed = &self.get(place).pages;
        let mut found: Vec<u32> = listed.iter().copied().filter(|&page| lies_in(pages, page, place)).collect();
        found.sort_unstable_by_key(|&page| (pages[page].offset, page));
        found.dedup();
        found
    }

    /// Up to `count` of the segment's pages, evenly from all of it.
    pub fn sample(&self, pages: &Pages, place: u32, count: usize) -> Vec<u32> {
        let listed = &self.get(place).pages;
        let step = (listed.len() / count).max(1);
        let some = listed.iter().copied().step_by(step);
        some.filter(|&page| lies_in(pages, page, place)).collect()
    }

    /// One page that lies in the segment; names that do not are taken out on the way.
    pub fn any_page(&mut self, pages: &Pages, place: u32) -> Option<u32> {
        let listed = &mut self.entries[place as usize].pages;
        while let Some(&page) = listed.last() {
            if lies_in(pages, page, place) {
                return Some(page);
            }
            listed.pop();
        }
        None
    }

    pub fn heap_bytes(&self) -> usize {
        let names: usize = self.entries.iter().map(|segment| segment.pages.capacity() * 4).sum();
        names + self.entries.capacity() * size_of::<Segment>() + self.numbers.capacity() * 9
    }

    /// Panic unless each page on nvme is listed, and counted.
    pub fn check(&self, pages: &Pages) {
        let mut live: HashMap<u32, (u32, u64)> = HashMap::new();
        for page in (0..pages.end()).filter(|&page| pages[page].is(ALIVE) && pages[page].is_on_nvme()) {
            let it = &pages[page];
            let counted = live.entry(it.segment).or_default();
            counted.0 += 1;
            counted.1 += u64::from(it.slot_bytes());
        }
        for &place in self.numbers.values() {
            let segment = self.get(place);
            assert_eq!(live.get(&place), Some(&(segment.live, segment.live_bytes)), "a segment's counts");
            assert_eq!(self.pages_of(pages, place).len(), segment.live as usize, "a segment's list");
        }
        assert_eq!(live.len(), self.numbers.len());
        assert_eq!(live.values().map(|it| u64::from(it.0)).sum::<u64>(), self.pages);
        assert_eq!(live.values().map(|it| it.1).sum::<u64>(), self.bytes);
    }
}

fn lies_in(pages: &Pages, page: u32, place: u32) -> bool {
    pages[page].is(ALIVE) && pages[page].segment == place
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pages::Page;

    fn some_pages(count: u32) -> Pages {
        let mut pages = Pages::new();
        for _ in 0..count {
            pages.add(Page::new(0, 0, 5000));
        }
        pages
    }

    #[test]
    fn segment_lists_its_pages_by_offset() {
        let (mut pages, mut segments) = (some_pages(3), Segments::default());
        for page in 0..3 {
            segments.enter(&mut pages, page, 70, 9 - page);
        }
        let place = segments.find(70).unwrap();
        assert_eq!(segments.pages_of(&pages, place), [2, 1, 0]);
        assert_eq!((segments.pages, segments.bytes), (3, 3 * 8192));
        segments.leave(&mut pages, 1);
        assert_eq!(segments.pages_of(&pages, place), [2, 0]);
        segments.check(&pages);
    }

    #[test]
    fn segment_without_pages_is_forgotten() {
        let (mut pages, mut segments) = (some_pages(1), Segments::default());
        segments.enter(&mut pages, 0, 70, 1);
        segments.leave(&mut pages, 0);
        segments.leave(&mut pages, 0);
        assert_eq!(segments.find(70), None);
        segments.enter(&mut pages, 0, 71, 1);
        assert_eq!((segments.get(pages[0].segment).number, segments.pages), (71, 1));
        segments.check(&pages);
    }

    #[test]
    fn list_of_a_segment_does_not_grow_with_what_left_it() {
        let (mut pages, mut segments) = (some_pages(100), Segments::default());
        segments.enter(&mut pages, 99, 70, 99);
        let place = pages[99].segment;
        for turn in 0..10_000 {
            segments.enter(&mut pages, turn % 50, 70, turn);
            segments.leave(&mut pages, turn % 50);
        }
        assert!(segments.get(place).pages.len() <= 70);
        assert_eq!(segments.sample(&pages, place, 64), [99]);
        segments.check(&pages);
    }
}
