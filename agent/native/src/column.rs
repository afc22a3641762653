//! Growing storage without doubling copies: blocks of 65,536 entries, and numbers handed out from them.

use std::ops;

const BITS: u32 = 16;
const BLOCK: usize = 1 << BITS;

/// No entry.
pub const NONE: u32 = u32::MAX;

/// A vector whose growth never copies what it has.
pub struct Column<T> {
    blocks: Vec<Vec<T>>,
    len: usize,
}

impl<T> Column<T> {
    pub fn new() -> Self {
        Column { blocks: Vec::new(), len: 0 }
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn push(&mut self, entry: T) {
        if self.len % BLOCK == 0 {
            self.blocks.push(Vec::with_capacity(BLOCK));
        }
        self.blocks[self.len / BLOCK].push(entry);
        self.len += 1;
    }

    /// Heap that is in use; the rest of the last block is reserved, but not touched.
    pub fn heap_bytes(&self) -> usize {
        self.len * size_of::<T>() + self.blocks.capacity() * size_of::<Vec<T>>()
    }
}

impl<T> ops::Index<u32> for Column<T> {
    type Output = T;

    #[inline]
    fn index(&self, number: u32) -> &T {
        &self.blocks[(number >> BITS) as usize][number as usize & (BLOCK - 1)]
    }
}

impl<T> ops::IndexMut<u32> for Column<T> {
    #[inline]
    fn index_mut(&mut self, number: u32) -> &mut T {
        &mut self.blocks[(number >> BITS) as usize][number as usize & (BLOCK - 1)]
    }
}

/// Numbered entries; numbers of entries that are gone are used again.
pub struct Slab<T> {
    entries: Column<T>,
    free: Vec<u32>,
}

/// Most entries of one kind.
pub const MAX_ENTRIES: usize = 1 << 31;

impl<T> Slab<T> {
    pub fn new() -> Self {
        Slab { entries: Column::new(), free: Vec::new() }
    }

    /// Whether one more entry would be too many.
    pub fn is_full(&self) -> bool {
        self.free.is_empty() && self.entries.len() >= MAX_ENTRIES
    }

    pub fn add(&mut self, entry: T) -> u32 {
        match self.free.pop() {
            Some(number) => {
                self.entries[number] = entry;
                number
            }
            None => {
                assert!(!self.is_full(), "more than 2^31 entries");
                self.entries.push(entry);
                (self.entries.len() - 1) as u32
            }
        }
    }

    /// The entry's number may be used again; what it holds stays readable until then.
    pub fn remove(&mut self, number: u32) {
        self.free.push(number);
    }

    /// Numbers that were ever handed out.
    pub fn end(&self) -> u32 {
        self.entries.len() as u32
    }

    /// Entries that are there.
    pub fn live(&self) -> usize {
        self.entries.len() - self.free.len()
    }

    pub fn heap_bytes(&self) -> usize {
        self.entries.heap_bytes() + self.free.capacity() * size_of::<u32>()
    }
}

impl<T> ops::Index<u32> for Slab<T> {
    type Output = T;

    #[inline]
    fn index(&self, number: u32) -> &T {
        &self.entries[number]
    }
}

impl<T> ops::IndexMut<u32> for Slab<T> {
    #[inline]
    fn index_mut(&mut self, number: u32) -> &mut T {
        &mut self.entries[number]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn column_over_several_blocks_keeps_every_entry() {
        let mut column = Column::new();
        for number in 0..200_000u32 {
            column.push(number);
        }
        assert!((0..200_000).all(|number| column[number] == number));
    }

    #[test]
    fn slab_uses_numbers_of_removed_entries_again() {
        let mut slab = Slab::new();
        let (a, b) = (slab.add('a'), slab.add('b'));
        slab.remove(a);
        assert_eq!(slab.add('c'), a);
        assert_eq!((slab[a], slab[b], slab.live()), ('c', 'b', 2));
    }
}
