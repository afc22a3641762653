//! What the unit tests of several modules need.

use crate::index::Index;
use crate::keys::Key;
use crate::puts::Given;
use crate::slots::Cut;

pub const LAYOUT: [u8; 32] = [9; 32];
pub const KEY: Key = Key { group: 0, shard: 0, trailing: 0 };
pub const SLOT: u32 = 4096;

pub fn hash(block: u32) -> Vec<u8> {
    [block.to_be_bytes().as_slice(), &[0; 28]].concat()
}

/// An index with one chunk.
pub fn index(slots: u32) -> Index {
    let mut index = Index::new("lru").unwrap();
    let cut = Cut { number: 1, slot_bytes: SLOT, slots, payload_at: 1 << 20, header_at: 4096, header_bytes: 512 };
    index.slots.add_chunk(&cut, None).unwrap();
    index
}

/// Pages that are filling, of a put of these blocks.
pub fn reserve(index: &mut Index, parent: Option<u32>, blocks: &[u32]) -> Vec<u32> {
    let hashes: Vec<Vec<u8>> = blocks.iter().copied().map(hash).collect();
    let pages: Vec<Given> = hashes.iter().map(|hash| Given { hash, key: KEY, size: SLOT }).collect();
    let parent = parent.map(hash);
    let reserved = index.reserve(&LAYOUT, parent.as_deref(), &pages, 0, 0, 1.0, u64::MAX).unwrap();
    reserved.taken.into_iter().map(|(_, page)| page).collect()
}

/// Pages of a put that ended.
pub fn store(index: &mut Index, parent: Option<u32>, blocks: &[u32]) -> Vec<u32> {
    let pages = reserve(index, parent, blocks);
    index.commit(&pages, &vec![0; 16 * pages.len()]).unwrap();
    pages
}

/// How many leading blocks are whole, and are so in DRAM.
pub fn find(index: &Index, blocks: &[u32]) -> (usize, usize) {
    let hashes: Vec<Vec<u8>> = blocks.iter().copied().map(hash).collect();
    let hashes: Vec<&[u8]> = hashes.iter().map(Vec::as_slice).collect();
    index.find(&LAYOUT, &hashes, &[KEY]).unwrap()
}

/// A packed media entry.
pub fn entry(block: u32, parent: Option<u32>) -> Vec<u8> {
    let mut packed = vec![0; crate::recovery::ENTRY_BYTES];
    packed[..32].copy_from_slice(&hash(block));
    if let Some(parent) = parent {
        packed[64..96].copy_from_slice(&hash(parent));
    }
    packed[168..172].copy_from_slice(&block.to_le_bytes());
    packed[172..176].copy_from_slice(&SLOT.to_le_bytes());
    packed[176..180].copy_from_slice(&7u32.to_le_bytes());
    packed[188..192].copy_from_slice(&block.to_le_bytes());
    (packed[196], packed[197]) = (32, if parent.is_some() { 32 } else { 0 });
    packed
}
