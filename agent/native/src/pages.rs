//! The pages of blocks: what is known of each, in 60 bytes.

use crate::column::{NONE, Slab};

/// No chunk: the page has no slot.
pub const NO_CHUNK: u16 = u16::MAX;
const UNIT: u32 = 4096;

/// The slot is complete and may be read.
pub const RESIDENT: u8 = 1;
/// The slot is taken for the page, and being filled by a put or a load.
pub const FILLING: u8 = 2;
/// Is being written to nvme, or waits for that.
pub const WRITING: u8 = 4;
/// Is in the tree.
pub const ATTACHED: u8 = 8;
/// The number names a page.
pub const ALIVE: u8 = 16;
/// Was deleted while something needed the slot.
pub const DELETED: u8 = 32;
/// Filled, and waits for its parent, which is not yet.
pub const WAITING: u8 = 64;
/// Belongs to the chain for which room is made; or, in recovery: hangs on a root.
pub const MARKED: u8 = 128;

pub struct Page {
    /// NONE when it was cut and is still pinned.
    pub node: u32,
    /// The next page of the same block.
    pub next: u32,
    /// The same page of the parent block; NONE for a root's, and for trailing pages.
    pub parent: u32,
    /// Pages of child blocks whose parent it is.
    pub kids: u32,
    /// Holds and jobs that need it, or its slot, to stay.
    pub pins: u32,
    pub size: u32,
    pub slot: u32,
    /// The number in `Segments`; NONE: it is not on nvme.
    pub segment: u32,
    /// In the segment, in units of 4,096 bytes.
    pub offset: u32,
    /// Of the payload.
    pub digest: [u8; 16],
    pub key: u16,
    pub chunk: u16,
    pub flags: u8,
}

const _: () = assert!(size_of::<Page>() == 60);

impl Page {
    pub fn new(node: u32, key: u16, size: u32) -> Self {
        Page {
            node,
            next: NONE,
            parent: NONE,
            kids: 0,
            pins: 0,
            size,
            slot: 0,
            segment: NONE,
            offset: 0,
            digest: [0; 16],
            key,
            chunk: NO_CHUNK,
            flags: ALIVE | ATTACHED,
        }
    }

    #[inline]
    pub fn is(&self, flags: u8) -> bool {
        self.flags & flags == flags
    }

    #[inline]
    pub fn set(&mut self, flags: u8) {
        self.flags |= flags;
    }

    #[inline]
    pub fn clear(&mut self, flags: u8) {
        self.flags &= !flags;
    }

    /// Whether it is in the tree and may be found.
    #[inline]
    pub fn is_present(&self) -> bool {
        self.is(ATTACHED) && (self.is(RESIDENT) || self.segment != NONE)
    }

    #[inline]
    pub fn is_resident(&self) -> bool {
        self.is(RESIDENT)
    }

    #[inline]
    pub fn has_slot(&self) -> bool {
        self.chunk != NO_CHUNK
    }

    #[inline]
    pub fn is_on_nvme(&self) -> bool {
        self.segment != NONE
    }

    /// The size class of its slot, and what it takes on nvme.
    pub fn slot_bytes(&self) -> u32 {
        slot_bytes(self.size)
    }

    /// Where it ends on nvme, in units of 4,096 bytes.
    pub fn nvme_end(&self) -> u64 {
        u64::from(self.offset) + u64::from(self.slot_bytes() / UNIT)
    }
}

/// Bytes of the slot of a page of this size.
pub fn slot_bytes(size: u32) -> u32 {
    size.div_ceil(UNIT) * UNIT
}

pub type Pages = Slab<Page>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_takes_whole_units_of_a_slot_and_of_nvme() {
        assert_eq!([1, 4096, 4097, 256 << 20].map(slot_bytes), [4096, 4096, 8192, 256 << 20]);
        let page = Page { offset: u32::MAX, ..Page::new(0, 0, 8000) };
        assert_eq!(page.nvme_end(), u64::from(u32::MAX) + 2);
    }

    #[test]
    fn page_is_present_where_it_can_be_read_from() {
        let mut page = Page::new(0, 0, 1);
        page.set(FILLING);
        assert!(!page.is_present());
        page.set(RESIDENT);
        assert!(page.is_present());
        page.clear(RESIDENT | FILLING);
        page.segment = 3;
        assert!(page.is_present());
        page.clear(ATTACHED);
        assert!(!page.is_present());
    }
}
