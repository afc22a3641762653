//! Chunks of slots in DRAM: which slots are free, and which page each other one has.

use std::collections::HashMap;

use crate::column::NONE;
use crate::error::{Result, value};
use crate::pages::NO_CHUNK;

/// In a chunk's `slots`: free, the rest names the next free one.
const FREE: u32 = 1 << 31;
const LAST: u32 = NONE;

/// One chunk file.
pub struct Chunk {
    pub number: u64,
    pub slot_bytes: u32,
    pub payload_at: u64,
    pub header_at: u64,
    pub header_bytes: u64,
    generations: Vec<u64>,
    /// By slot, its page, or that it is free.
    slots: Vec<u32>,
    first_free: u32,
    pub used: u32,
    /// Slots that are being filled, or whose page is pinned.
    pub busy: u32,
    /// Takes no new page.
    pub retired: bool,
    /// The free slots are not linked yet: committed ones may still be claimed.
    claimable: bool,
    pub last_use: f64,
}

impl Chunk {
    pub fn len(&self) -> u32 {
        self.slots.len() as u32
    }

    pub fn generation(&self, slot: u32) -> u64 {
        self.generations[slot as usize]
    }

    /// The page in this slot; NONE: it is free, or there is no such slot.
    pub fn page(&self, slot: u32) -> u32 {
        match self.slots.get(slot as usize) {
            Some(&page) if page < FREE => page,
            _ => NONE,
        }
    }

    pub fn payload_offset(&self, slot: u32) -> u64 {
        self.payload_at + u64::from(slot) * u64::from(self.slot_bytes)
    }

    /// Of the slot's generation.
    pub fn header_offset(&self, slot: u32) -> u64 {
        self.header_at + u64::from(slot) * self.header_bytes
    }

    fn has_free(&self) -> bool {
        (self.used as usize) < self.slots.len()
    }

    fn link_free(&mut self) {
        self.claimable = false;
        self.first_free = LAST;
        for slot in (0..self.slots.len()).rev() {
            if self.slots[slot] >= FREE {
                self.slots[slot] = FREE | (self.first_free & !FREE);
                self.first_free = slot as u32;
            }
        }
    }
}

/// The chunks of one size class.
#[derive(Default)]
struct Class {
    /// Chunks that may have a free slot.
    roomy: Vec<u16>,
    /// Slots that may be taken.
    free: u64,
}

#[derive(Default)]
pub struct Slots {
    chunks: Vec<Option<Chunk>>,
    numbers: HashMap<u64, u16>,
    classes: HashMap<u32, Class>,
    pub used: u64,
}

/// What `add_chunk` is told.
pub struct Cut {
    pub number: u64,
    pub slot_bytes: u32,
    pub slots: u32,
    pub payload_at: u64,
    pub header_at: u64,
    pub header_bytes: u64,
}

impl Slots {
    /// Add a chunk; with `generations` it was there before, and its slots can be claimed.
    pub fn add_chunk(&mut self, cut: &Cut, generations: Option<Vec<u64>>) -> Result<()> {
        if self.numbers.contains_key(&cut.number) {
            return value(format!("chunk {} is there already", cut.number));
        }
        if cut.slots == 0 || cut.slots >= FREE || cut.slot_bytes == 0 || cut.slot_bytes % 4096 != 0 {
            return value(format!("{} slots of {} bytes make no chunk", cut.slots, cut.slot_bytes));
        }
        let end = u64::from(cut.slots).checked_mul(u64::from(cut.slot_bytes).max(cut.header_bytes));
        if end.and_then(|end| end.checked_add(cut.payload_at.max(cut.header_at))).is_none() {
            return value("the chunk's offsets do not fit into 64 bits");
        }
        let known = generations.is_some();
        let generations = generations.unwrap_or_else(|| vec![0; cut.slots as usize]);
        if generations.len() != cut.slots as usize {
            return value(format!("{} generations for {} slots", generations.len(), cut.slots));
        }
        let place = match self.chunks.iter().position(Option::is_none) {
            Some(place) => place,
            None if self.chunks.len() < usize::from(NO_CHUNK) => {
                self.chunks.push(None);
                self.chunks.len() - 1
            }
            None => return value("a pool has 65,535 chunks at most"),
        };
        let mut chunk = Chunk {
            number: cut.number,
            slot_bytes: cut.slot_bytes,
            payload_at: cut.payload_at,
            header_at: cut.header_at,
            header_bytes: cut.header_bytes,
            generations,
            slots: vec![LAST; cut.slots as usize],
            first_free: LAST,
            used: 0,
            busy: 0,
            retired: false,
            claimable: true,
            last_use: 0.0,
        };
        if !known {
            chunk.link_free();
        }
        self.chunks[place] = Some(chunk);
        self.numbers.insert(cut.number, place as u16);
        let class = self.classes.entry(cut.slot_bytes).or_default();
        class.roomy.push(place as u16);
        class.free += u64::from(cut.slots);
        Ok(())
    }

    pub fn find(&self, number: u64) -> Option<u16> {
        self.numbers.get(&number).copied()
    }

    /// The chunk in this place. A page never names a place that has none.
    #[inline]
    pub fn chunk(&self, place: u16) -> &Chunk {
        self.chunks[usize::from(place)].as_ref().expect("a page lies in a chunk that is gone")
    }

    #[inline]
    pub fn chunk_mut(&mut self, place: u16) -> &mut Chunk {
        self.chunks[usize::from(place)].as_mut().expect("a page lies in a chunk that is gone")
    }

    pub fn iter(&self) -> impl Iterator<Item = &Chunk> {
        self.chunks.iter().flatten()
    }

    pub fn free(&self, slot_bytes: u32) -> u64 {
        self.classes.get(&slot_bytes).map_or(0, |class| class.free)
    }

    /// A free slot of this class for `page`, its generation moved on.
    pub fn take(&mut self, slot_bytes: u32, page: u32) -> Option<(u16, u32)> {
        let class = self.classes.get_mut(&slot_bytes)?;
        while let Some(&place) = class.roomy.last() {
            match self.chunks[usize::from(place)].as_mut() {
                Some(chunk) if chunk.slot_bytes == slot_bytes && !chunk.retired && chunk.has_free() => {
                    if chunk.claimable {
                        chunk.link_free();
                    }
                    let slot = chunk.first_free;
                    let next = chunk.slots[slot as usize] & !FREE;
                    chunk.first_free = if next == LAST & !FREE { LAST } else { next };
                    chunk.slots[slot as usize] = page;
                    let generation = &mut chunk.generations[slot as usize];
                    *generation = generation.wrapping_add(1);
                    chunk.used += 1;
                    if !chunk.has_free() {
                        class.roomy.pop();
                    }
                    class.free -= 1;
                    self.used += 1;
                    return Some((place, slot));
                }
                _ => {
                    class.roomy.pop();
                }
            }
        }
        None
    }

    /// Take this very slot, its generation left, for a page that was found in it. Whether it could be.
    pub fn claim(&mut self, place: u16, slot: u32, page: u32) -> bool {
        let chunk = self.chunk_mut(place);
        if !chunk.claimable || slot >= chunk.len() || chunk.slots[slot as usize] < FREE {
            return false;
        }
        chunk.slots[slot as usize] = page;
        chunk.used += 1;
        let (slot_bytes, retired) = (chunk.slot_bytes, chunk.retired);
        if !retired {
            self.classes.entry(slot_bytes).or_default().free -= 1;
        }
        self.used += 1;
        true
    }

    /// No slot is claimed any more: the free ones may be taken.
    pub fn end_claims(&mut self, place: u16) {
        let chunk = self.chunk_mut(place);
        if chunk.claimable {
            chunk.link_free();
        }
    }

    /// Places of the chunks whose slots may still be claimed.
    pub fn claimable(&self) -> Vec<u16> {
        let places = self.chunks.iter().enumerate();
        places
            .filter(|(_, chunk)| chunk.as_ref().is_some_and(|chunk| chunk.claimable))
            .map(|(place, _)| place as u16)
            .collect()
    }

    /// The slot may be taken again.
    pub fn release(&mut self, place: u16, slot: u32) {
        let chunk = self.chunk_mut(place);
        let was_full = !chunk.has_free();
        if chunk.claimable {
            chunk.slots[slot as usize] = LAST;
        } else {
            chunk.slots[slot as usize] = FREE | (chunk.first_free & !FREE);
            chunk.first_free = slot;
        }
        chunk.used -= 1;
        let (slot_bytes, retired) = (chunk.slot_bytes, chunk.retired);
        self.used -= 1;
        if !retired {
            let class = self.classes.entry(slot_bytes).or_default();
            class.free += 1;
            if was_full {
                class.roomy.push(place);
            }
        }
    }

    /// Take no new page into the chunk.
    pub fn retire(&mut self, place: u16) {
        let chunk = self.chunk_mut(place);
        if chunk.retired {
            return;
        }
        chunk.retired = true;
        let free = u64::from(chunk.len() - chunk.used);
        let slot_bytes = chunk.slot_bytes;
        let class = self.classes.entry(slot_bytes).or_default();
        class.free -= free;
        class.roomy.retain(|&other| other != place);
    }

    /// Undo `retire`.
    pub fn reopen(&mut self, place: u16) {
        let chunk = self.chunk_mut(place);
        if !chunk.retired {
            return;
        }
        chunk.retired = false;
        let (free, slot_bytes) = (u64::from(chunk.len() - chunk.used), chunk.slot_bytes);
        let class = self.classes.entry(slot_bytes).or_default();
        class.free += free;
        class.roomy.push(place);
    }

    pub fn retire_all(&mut self) {
        for place in 0..self.chunks.len() {
            if self.chunks[place].is_some() {
                self.retire(place as u16);
            }
        }
    }

    /// Forget a retired chunk without pages.
    pub fn remove(&mut self, place: u16) {
        if let Some(chunk) = self.chunks[usize::from(place)].take() {
            self.numbers.remove(&chunk.number);
        }
    }

    pub fn heap_bytes(&self) -> usize {
        self.iter().map(|chunk| chunk.slots.len() * 12 + size_of::<Chunk>()).sum()
    }

    /// Panic unless the counts are right.
    pub fn check(&self) {
        let mut used = 0;
        let mut free: HashMap<u32, u64> = HashMap::new();
        for (place, chunk) in self.chunks.iter().enumerate() {
            let Some(chunk) = chunk else { continue };
            let taken = chunk.slots.iter().filter(|&&page| page < FREE).count();
            assert_eq!(taken, chunk.used as usize, "a chunk's used slots");
            used += taken as u64;
            assert_eq!(self.numbers.get(&chunk.number), Some(&(place as u16)));
            if !chunk.claimable {
                let (mut linked, mut slot) = (0, chunk.first_free);
                while slot != LAST {
                    linked += 1;
                    let next = chunk.slots[slot as usize];
                    assert!(next >= FREE, "a free slot has a page");
                    slot = if next & !FREE == LAST & !FREE { LAST } else { next & !FREE };
                }
                assert_eq!(linked, chunk.slots.len() - taken, "a chunk's free slots");
            }
            if !chunk.retired {
                *free.entry(chunk.slot_bytes).or_default() += (chunk.slots.len() - taken) as u64;
                let roomy = &self.classes[&chunk.slot_bytes].roomy;
                assert!(taken == chunk.slots.len() || roomy.contains(&(place as u16)), "a roomy chunk is not listed");
            }
        }
        assert_eq!(used, self.used);
        for (slot_bytes, class) in &self.classes {
            assert_eq!(class.free, free.get(slot_bytes).copied().unwrap_or(0), "free slots of a class");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cut(number: u64, slots: u32) -> Cut {
        Cut { number, slot_bytes: 4096, slots, payload_at: 8192, header_at: 4096, header_bytes: 512 }
    }

    #[test]
    fn taken_slot_has_the_next_generation_and_comes_back_when_released() {
        let mut slots = Slots::default();
        slots.add_chunk(&cut(7, 2), None).unwrap();
        let (place, slot) = slots.take(4096, 5).unwrap();
        assert_eq!((slots.chunk(place).generation(slot), slots.chunk(place).page(slot)), (1, 5));
        let other = slots.take(4096, 6).unwrap();
        assert_eq!(slots.take(4096, 7), None);
        slots.check();
        slots.release(place, slot);
        assert_eq!(slots.take(4096, 8), Some((place, slot)));
        assert_eq!(slots.chunk(place).generation(slot), 2);
        slots.release(other.0, other.1);
        slots.check();
        assert_eq!((slots.free(4096), slots.used), (1, 1));
    }

    #[test]
    fn claimed_slot_keeps_its_generation_and_is_not_taken() {
        let mut slots = Slots::default();
        slots.add_chunk(&cut(7, 3), Some(vec![10, 20, 30])).unwrap();
        assert!(slots.claim(0, 1, 4));
        assert!(!slots.claim(0, 1, 5));
        assert!(!slots.claim(0, 3, 5));
        slots.end_claims(0);
        slots.check();
        assert_eq!(slots.take(4096, 6), Some((0, 0)));
        assert_eq!(slots.take(4096, 7), Some((0, 2)));
        assert_eq!(slots.take(4096, 8), None);
        assert_eq!((slots.chunk(0).generation(1), slots.chunk(0).generation(2)), (20, 31));
    }

    #[test]
    fn retired_chunk_gives_no_slots() {
        let mut slots = Slots::default();
        slots.add_chunk(&cut(7, 2), None).unwrap();
        let (place, slot) = slots.take(4096, 5).unwrap();
        slots.retire_all();
        slots.release(place, slot);
        assert_eq!((slots.take(4096, 6), slots.free(4096)), (None, 0));
        slots.check();
        slots.remove(place);
        assert_eq!(slots.find(7), None);
        slots.check();
    }

    #[test]
    fn cut_that_makes_no_sense_is_refused() {
        let mut slots = Slots::default();
        slots.add_chunk(&cut(7, 2), None).unwrap();
        assert!(slots.add_chunk(&cut(7, 2), None).is_err());
        assert!(slots.add_chunk(&cut(8, 0), None).is_err());
        assert!(slots.add_chunk(&cut(8, 2), Some(vec![1])).is_err());
        let odd = Cut { slot_bytes: 100, ..cut(8, 2) };
        assert!(slots.add_chunk(&odd, None).is_err());
    }
}
