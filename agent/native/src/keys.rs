//! Layouts and page keys, each as a small number while anything uses it.

use std::collections::HashMap;

use crate::error::{Result, malformed};

pub const LAYOUT_BYTES: usize = 32;
pub const MIN_HASH_BYTES: usize = 16;
pub const MAX_HASH_BYTES: usize = 64;

/// Which page of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    pub group: u32,
    pub shard: u16,
    /// n of `trailing(n)`; 0: full.
    pub trailing: u32,
}

/// The keys that pages have.
#[derive(Default)]
pub struct Keys {
    numbers: HashMap<Key, u16>,
    entries: Vec<(Key, u32)>,
    free: Vec<u16>,
}

impl Keys {
    pub fn find(&self, key: Key) -> Option<u16> {
        self.numbers.get(&key).copied()
    }

    pub fn get(&self, number: u16) -> Key {
        self.entries[usize::from(number)].0
    }

    pub fn is_trailing(&self, number: u16) -> bool {
        self.get(number).trailing != 0
    }

    /// The number of `key` for one more page.
    pub fn acquire(&mut self, key: Key, index: usize) -> Result<u16> {
        if let Some(&number) = self.numbers.get(&key) {
            self.entries[usize::from(number)].1 += 1;
            return Ok(number);
        }
        let number = match self.free.pop() {
            Some(number) => {
                self.entries[usize::from(number)] = (key, 1);
                number
            }
            None if self.entries.len() < usize::from(u16::MAX) => {
                self.entries.push((key, 1));
                (self.entries.len() - 1) as u16
            }
            None => {
                return malformed(index, "the pool has pages under 65,535 different groups and shards already");
            }
        };
        self.numbers.insert(key, number);
        Ok(number)
    }

    /// Undo one `acquire`.
    pub fn release(&mut self, number: u16) {
        let entry = &mut self.entries[usize::from(number)];
        entry.1 -= 1;
        if entry.1 == 0 {
            self.numbers.remove(&entry.0);
            self.free.push(number);
        }
    }

    pub fn pages(&self, number: u16) -> u32 {
        self.entries[usize::from(number)].1
    }

    pub fn heap_bytes(&self) -> usize {
        self.entries.capacity() * size_of::<(Key, u32)>() + self.numbers.capacity() * (size_of::<(Key, u16)>() + 1)
    }
}

/// One layout that blocks have.
pub struct Layout {
    pub fingerprint: [u8; LAYOUT_BYTES],
    pub hash_bytes: u8,
    /// Nodes that have it. It is forgotten with the last one.
    pub nodes: u32,
    /// By group, n of `trailing(n)` or 0.
    groups: HashMap<u32, u32>,
    full_groups: u32,
}

impl Layout {
    pub fn kind(&self, group: u32) -> Option<u32> {
        self.groups.get(&group).copied()
    }

    /// Whether there is a group whose pages are all needed.
    pub fn has_full(&self) -> bool {
        self.full_groups > 0
    }

    pub fn set_kind(&mut self, key: Key) {
        if self.groups.insert(key.group, key.trailing).is_none() && key.trailing == 0 {
            self.full_groups += 1;
        }
    }

    /// Refuse a key whose group is stored under another kind.
    pub fn check_kind(&self, key: Key, index: usize) -> Result<()> {
        match self.kind(key.group) {
            Some(kind) if kind != key.trailing => malformed(
                index,
                format!(
                    "group {} is stored as {}, not {}; what differs belongs into the layout",
                    key.group,
                    kind_name(kind),
                    kind_name(key.trailing)
                ),
            ),
            _ => Ok(()),
        }
    }

    /// Refuse a hash of another length than the layout's.
    pub fn check_hash(&self, hash: &[u8], index: usize) -> Result<()> {
        if hash.len() == usize::from(self.hash_bytes) {
            return Ok(());
        }
        malformed(index, format!("a hash of {} bytes; this layout's have {}", hash.len(), self.hash_bytes))
    }
}

pub fn kind_name(trailing: u32) -> String {
    match trailing {
        0 => "full".into(),
        n => format!("trailing({n})"),
    }
}

/// The layouts that blocks have.
#[derive(Default)]
pub struct Layouts {
    numbers: HashMap<[u8; LAYOUT_BYTES], u16>,
    entries: Vec<Layout>,
    free: Vec<u16>,
}

impl Layouts {
    pub fn find(&self, fingerprint: &[u8; LAYOUT_BYTES]) -> Option<u16> {
        self.numbers.get(fingerprint).copied()
    }

    pub fn get(&self, number: u16) -> &Layout {
        &self.entries[usize::from(number)]
    }

    pub fn get_mut(&mut self, number: u16) -> &mut Layout {
        &mut self.entries[usize::from(number)]
    }

    /// The layout, made if it is not there. It stays when a node comes to have it.
    pub fn ensure(&mut self, fingerprint: &[u8; LAYOUT_BYTES], hash_bytes: usize, index: usize) -> Result<u16> {
        if let Some(number) = self.find(fingerprint) {
            return Ok(number);
        }
        let layout = Layout {
            fingerprint: *fingerprint,
            hash_bytes: hash_bytes as u8,
            nodes: 0,
            groups: HashMap::new(),
            full_groups: 0,
        };
        let number = match self.free.pop() {
            Some(number) => {
                self.entries[usize::from(number)] = layout;
                number
            }
            None if self.entries.len() < usize::from(u16::MAX) => {
                self.entries.push(layout);
                (self.entries.len() - 1) as u16
            }
            None => return malformed(index, "the pool has 65,535 layouts already"),
        };
        self.numbers.insert(*fingerprint, number);
        Ok(number)
    }

    /// Forget the layout if no node has it.
    pub fn tidy(&mut self, number: u16) {
        let layout = &self.entries[usize::from(number)];
        if layout.nodes == 0 && self.numbers.get(&layout.fingerprint) == Some(&number) {
            self.numbers.remove(&layout.fingerprint);
            self.free.push(number);
        }
    }

    pub fn heap_bytes(&self) -> usize {
        self.entries.capacity() * (size_of::<Layout>() + 64) + self.numbers.capacity() * (LAYOUT_BYTES + 3)
    }
}

/// The fingerprint that a caller gave.
pub fn fingerprint(layout: &[u8]) -> Result<[u8; LAYOUT_BYTES]> {
    layout
        .try_into()
        .or_else(|_| malformed(0, format!("the layout has {} bytes instead of {LAYOUT_BYTES}", layout.len())))
}

/// Refuse a hash that no layout can have.
pub fn check_hash_length(hash: &[u8], index: usize) -> Result<()> {
    if (MIN_HASH_BYTES..=MAX_HASH_BYTES).contains(&hash.len()) {
        return Ok(());
    }
    malformed(index, format!("a hash of {} bytes; {MIN_HASH_BYTES} to {MAX_HASH_BYTES} are allowed", hash.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: Key = Key { group: 3, shard: 1, trailing: 0 };

    #[test]
    fn key_number_is_free_again_after_its_last_page() {
        let mut keys = Keys::default();
        let number = keys.acquire(KEY, 0).unwrap();
        assert_eq!(keys.acquire(KEY, 0), Ok(number));
        keys.release(number);
        assert_eq!(keys.find(KEY), Some(number));
        keys.release(number);
        assert_eq!(keys.find(KEY), None);
        let other = Key { shard: 2, ..KEY };
        assert_eq!(keys.acquire(other, 0), Ok(number));
        assert_eq!(keys.get(number), other);
    }

    #[test]
    fn layout_without_nodes_is_forgotten_with_its_kinds() {
        let mut layouts = Layouts::default();
        let number = layouts.ensure(&[7; 32], 32, 0).unwrap();
        layouts.get_mut(number).set_kind(KEY);
        assert!(layouts.get(number).has_full());
        let trailing = Key { trailing: 4, ..KEY };
        assert!(layouts.get(number).check_kind(trailing, 0).is_err());
        layouts.tidy(number);
        assert_eq!(layouts.find(&[7; 32]), None);
        let again = layouts.ensure(&[7; 32], 16, 0).unwrap();
        assert!(!layouts.get(again).has_full());
    }
}
