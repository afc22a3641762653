//! From a block's layout and hash to its node: a hash table that grows in small steps.

use std::hash::{BuildHasher, Hasher, RandomState};

use hashbrown::HashTable;

const SHARD_BITS: u32 = 10;
/// Growing one shard moves a thousandth of all entries, so that nobody waits for it.
const SHARDS: usize = 1 << SHARD_BITS;

/// Numbers of nodes by a keyed digest: clients choose the hashes, and must not be able to make them collide.
pub struct Table {
    hasher: RandomState,
    shards: Vec<HashTable<u32>>,
}

impl Table {
    pub fn new() -> Self {
        Table { hasher: RandomState::new(), shards: (0..SHARDS).map(|_| HashTable::new()).collect() }
    }

    /// `head` and `rest` are the hash, parted where nodes part theirs.
    #[inline]
    pub fn digest(&self, layout: u16, head: &[u8], rest: &[u8]) -> u64 {
        digest(&self.hasher, layout, head, rest)
    }

    #[inline]
    fn shard(digest: u64) -> usize {
        (digest >> 32) as usize & (SHARDS - 1)
    }

    #[inline]
    pub fn find(&self, digest: u64, is_it: impl Fn(u32) -> bool) -> Option<u32> {
        self.shards[Self::shard(digest)].find(digest, |&node| is_it(node)).copied()
    }

    /// Add a node that is not in the table.
    ///
    /// `hash_of`: the layout and parted hash of another node of the table.
    pub fn insert<'a>(&mut self, of: u64, node: u32, hash_of: impl Fn(u32) -> (u16, &'a [u8], &'a [u8])) {
        let hasher = &self.hasher;
        self.shards[Self::shard(of)].insert_unique(of, node, |&other| {
            let (layout, head, rest) = hash_of(other);
            digest(hasher, layout, head, rest)
        });
    }

    pub fn remove(&mut self, digest: u64, node: u32) {
        if let Ok(entry) = self.shards[Self::shard(digest)].find_entry(digest, |&other| other == node) {
            entry.remove();
        }
    }

    pub fn len(&self) -> usize {
        self.shards.iter().map(HashTable::len).sum()
    }

    pub fn heap_bytes(&self) -> usize {
        let of_shards: usize = self.shards.iter().map(HashTable::allocation_size).sum();
        of_shards + SHARDS * size_of::<HashTable<u32>>()
    }
}

#[inline]
fn digest(hasher: &RandomState, layout: u16, head: &[u8], rest: &[u8]) -> u64 {
    let mut state = hasher.build_hasher();
    state.write_u16(layout);
    state.write(head);
    state.write(rest);
    state.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_finds_what_was_inserted_and_not_removed() {
        let mut table = Table::new();
        let hashes: Vec<[u8; 4]> = (0..50_000u32).map(u32::to_le_bytes).collect();
        let digest = |table: &Table, node: u32| table.digest(1, &hashes[node as usize], b"");
        for node in 0..50_000 {
            let of = digest(&table, node);
            table.insert(of, node, |other| (1, &hashes[other as usize][..], &b""[..]));
        }
        for node in (0..50_000).step_by(2) {
            table.remove(digest(&table, node), node);
        }
        for node in 0..50_000 {
            let found = table.find(digest(&table, node), |other| other == node);
            assert_eq!(found.is_some(), node % 2 == 1);
        }
        assert_eq!(table.len(), 25_000);
    }
}
