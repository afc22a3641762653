//! Recovery: what was found in slots and segments becomes the tree again.
//!
//! Staging enters every page at once, in any order, its parent's node being made where it was not found yet. Linking then
//! goes down from the roots in slices: a page whose parent's page was not found is an orphan and goes, and so does a copy
//! on nvme that was written before an ancestor was deleted. At last the policy is told of what lies in DRAM, coldest first.

use std::collections::HashMap;

use crate::column::NONE;
use crate::error::{Result, value};
use crate::index::{Index, REF_BYTES};
use crate::keys::{Key, LAYOUT_BYTES, MAX_HASH_BYTES, check_hash_length};
use crate::pages::{ALIVE, ATTACHED, MARKED, slot_bytes};
use crate::puts::MAX_PAGE_BYTES;
use crate::tree::{Birth, UNKNOWN, is_node};

/// A packed media entry.
pub const ENTRY_BYTES: usize = 200;
/// Of a hash: what names a deleted block.
const PRINT_BYTES: usize = 16;
/// Uses are put in order by so many steps of time.
const STEPS: usize = 1 << 16;

#[derive(Default, Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    /// More may be staged.
    #[default]
    Staging,
    /// Going through all nodes for those where chains begin.
    Tops,
    /// Going down from them.
    Down,
    /// Going through all pages for those that were not reached.
    Orphans,
    /// Going through the nodes that were entered for their links, for those that nothing hangs on.
    Bare,
    /// Going up again, for the last use of anything below a node.
    Uses,
    Count,
    Sort,
    /// Telling the policy.
    Tell,
    /// Making the chunks' free slots free.
    Slots,
}

#[derive(Default)]
pub struct Recovery {
    phase: Phase,
    /// Staging has begun, and what was staged is not linked yet.
    staged: bool,
    cursor: usize,
    stack: Vec<u32>,
    /// Every node, parents before children.
    order: Vec<u32>,
    /// By node, seconds of the last use of any page at it or below.
    uses: Vec<u32>,
    first_use: u32,
    last_use: u32,
    starts: Vec<u32>,
    /// Every node plus one (0: none yet), coldest first, children before parents of the same step.
    sorted: Vec<u32>,
    chunks: Vec<u16>,
    /// By block, the highest serial of what was deleted with it.
    deleted: HashMap<([u8; LAYOUT_BYTES], [u8; PRINT_BYTES]), u64>,
    /// By page, that of its copy on nvme, if anything was deleted.
    serials: Vec<u64>,
    /// By node, the highest cutoff of it and all above it; left out if there is none.
    cutoffs: HashMap<u32, u64>,
    /// Nodes that were entered for their links alone.
    bare: Vec<u32>,
    pub orphans: u64,
}

impl Recovery {
    /// Whether pages are in the tree that may be orphans. Nothing may be found or stored until they are linked.
    pub fn is_under_way(&self) -> bool {
        self.staged
    }

    pub fn heap_bytes(&self) -> usize {
        let lists = [&self.stack, &self.order, &self.uses, &self.starts, &self.sorted, &self.bare];
        let by_four: usize = lists.iter().map(|list| list.capacity() * 4).sum();
        by_four + self.serials.capacity() * 8 + self.deleted.capacity() * 57 + self.cutoffs.capacity() * 17
    }

    fn next(&mut self, phase: Phase) {
        (self.phase, self.cursor) = (phase, 0);
    }

    /// Up to which serial something written of the block was deleted with it.
    fn cutoff_of(&self, layout: &[u8; LAYOUT_BYTES], hash: &[u8]) -> Option<u64> {
        let mut print = [0; PRINT_BYTES];
        let bytes = hash.len().min(PRINT_BYTES);
        print[..bytes].copy_from_slice(&hash[..bytes]);
        self.deleted.get(&(*layout, print)).copied()
    }

    /// Of the page's copy on nvme; what was entered before anything was said to be deleted counts as newest.
    fn serial_of(&self, page: u32) -> u64 {
        self.serials.get(page as usize).copied().unwrap_or(u64::MAX)
    }

    fn step_of(&self, seconds: u32) -> usize {
        let range = u64::from(self.last_use.saturating_sub(self.first_use)) + 1;
        // A node that was dropped meanwhile has no use at all, or one that was not counted into the range.
        (u64::from(seconds.saturating_sub(self.first_use)) * STEPS as u64 / range).min(STEPS as u64 - 1) as usize
    }
}

/// One page as it was found.
struct Found<'a> {
    layout: &'a [u8; LAYOUT_BYTES],
    hash: &'a [u8],
    parent: &'a [u8],
    key: Key,
    size: u32,
    stored_at: u32,
    depth: u32,
    digest: &'a [u8],
}

impl Index {
    fn check_staging(&self) -> Result<()> {
        match self.recovery.phase {
            Phase::Staging => Ok(()),
            _ => value("linking has begun: nothing more can be staged"),
        }
    }

    /// Enter the pages of a chunk's committed slots. Their last use, unix seconds, stands in the place of the segment.
    pub fn stage_slots(&mut self, chunk: u64, records: &[u8]) -> Result<()> {
        self.check_staging()?;
        let place = self.find_chunk(chunk)?;
        if records.len() % REF_BYTES != 0 {
            return value(format!("{} bytes are no whole number of records of {REF_BYTES}", records.len()));
        }
        self.recovery.staged = true;
        for record in records.chunks_exact(REF_BYTES) {
            let (slot, used) = (u32_at(record, 216), u32_at(record, 224));
            let is_staged = found_in_ref(record).is_some_and(|found| self.stage_slot(&found, place, slot, used));
            self.recovery.orphans += u64::from(!is_staged);
        }
        Ok(())
    }

    fn stage_slot(&mut self, found: &Found, chunk: u16, slot: u32, used: u32) -> bool {
        if slot_bytes(found.size) != self.slots.chunk(chunk).slot_bytes {
            return false;
        }
        let Some(page) = self.stage(found, used) else {
            return false;
        };
        if self.pages[page].has_slot() || !self.claim_slot(page, chunk, slot) {
            self.drop_unplaced(page);
            return false;
        }
        if self.pages[page].is_on_nvme() && self.pages[page].digest != found.digest {
            // Stored again after the copy on nvme was given up.
            self.segments.leave(&mut self.pages, page);
        }
        self.pages[page].digest.copy_from_slice(found.digest);
        true
    }

    /// What was deleted, before the segments are entered: first bytes of hashes, each with a serial that what was written
    /// of the block, or of any below it, does not outlive.
    pub fn stage_deleted(&mut self, layout: &[u8; LAYOUT_BYTES], prints: &[u8], cutoffs: &[u8]) -> Result<()> {
        self.check_staging()?;
        if prints.len() % PRINT_BYTES != 0 || cutoffs.len() % 8 != 0 || prints.len() / PRINT_BYTES != cutoffs.len() / 8
        {
            return value(format!("{} bytes of prints do not go with {} of serials", prints.len(), cutoffs.len()));
        }
        for (print, cutoff) in prints.chunks_exact(PRINT_BYTES).zip(cutoffs.chunks_exact(8)) {
            let known = self.recovery.deleted.entry((*layout, print.try_into().expect("16 bytes"))).or_default();
            *known = u64_at(cutoff, 0).max(*known);
        }
        Ok(())
    }

    /// Enter the pages of a segment. `layouts`: those that the entries number. How many were not deleted themselves.
    pub fn stage_entries(&mut self, segment: u32, entries: &[u8], layouts: &[u8]) -> Result<usize> {
        self.check_staging()?;
        if entries.len() % ENTRY_BYTES != 0 || layouts.len() % LAYOUT_BYTES != 0 {
            return value(format!(
                "{} bytes of entries and {} of layouts are no whole numbers of these",
                entries.len(),
                layouts.len()
            ));
        }
        self.recovery.staged = true;
        let mut left = 0;
        for entry in entries.chunks_exact(ENTRY_BYTES) {
            let (serial, offset) = (u64_at(entry, 160), u32_at(entry, 168));
            let found = found_in_entry(entry, layouts);
            let cutoff = found.as_ref().and_then(|found| self.recovery.cutoff_of(found.layout, found.hash));
            if cutoff.is_some_and(|cutoff| serial <= cutoff) {
                self.stage_link(found.as_ref());
                continue;
            }
            left += 1;
            let is_staged = found.is_some_and(|found| self.stage_entry(&found, segment, offset, serial));
            self.recovery.orphans += u64::from(!is_staged);
        }
        Ok(left)
    }

    /// Entries of pages that are gone, for the links of their blocks alone: deletions go down through these.
    pub fn stage_links(&mut self, entries: &[u8], layouts: &[u8]) -> Result<()> {
        self.check_staging()?;
        for entry in entries.chunks_exact(ENTRY_BYTES) {
            self.stage_link(found_in_entry(entry, layouts).as_ref());
        }
        Ok(())
    }

    fn stage_link(&mut self, found: Option<&Found>) {
        let Some(found) = found.filter(|found| !self.recovery.deleted.is_empty() && is_chained(found)) else {
            return;
        };
        if self.tree.nodes.is_full() {
            return;
        }
        let layout = self.tree.ensure_layout(found.layout, found.hash, 0);
        if let Some(node) = layout.ok().and_then(|layout| self.stage_node(layout, found)) {
            self.recovery.bare.push(node);
        }
    }

    fn stage_entry(&mut self, found: &Found, segment: u32, offset: u32, serial: u64) -> bool {
        let Some(page) = self.stage(found, 0) else {
            return false;
        };
        let it = &self.pages[page];
        let has_serials = !self.recovery.deleted.is_empty();
        let is_older = it.is_on_nvme()
            && if has_serials {
                self.recovery.serial_of(page) > serial
            } else {
                self.segments.get(it.segment).number > segment
            };
        let is_other = it.is_resident() && it.digest != found.digest;
        if is_older || is_other {
            return true;
        }
        self.enter_nvme(page, segment, offset);
        self.pages[page].digest.copy_from_slice(found.digest);
        if has_serials {
            let serials = &mut self.recovery.serials;
            serials.resize(serials.len().max(page as usize + 1), u64::MAX);
            serials[page as usize] = serial;
        }
        true
    }

    /// The page in the tree, made if it is not there; None: it contradicts what is there.
    fn stage(&mut self, found: &Found, used: u32) -> Option<u32> {
        if self.pages.is_full() || self.tree.nodes.is_full() || !(1..=MAX_PAGE_BYTES).contains(&found.size) {
            return None;
        }
        if !is_chained(found) {
            return None;
        }
        let layout = self.tree.ensure_layout(found.layout, found.hash, 0).ok()?;
        self.tree.layouts.get(layout).check_kind(found.key, 0).ok()?;
        let node = self.stage_node(layout, found)?;
        let used = used.max(found.stored_at);
        let uses = &mut self.recovery.uses;
        uses.resize(uses.len().max(node as usize + 1), 0);
        uses[node as usize] = uses[node as usize].max(used);
        let known = self.keys.find(found.key).and_then(|key| self.page_of(node, key));
        if let Some(page) = known {
            return (self.pages[page].size == found.size).then_some(page);
        }
        let Ok(key) = self.keys.acquire(found.key, 0) else {
            self.settle_node(node);
            return None;
        };
        self.tree.layouts.get_mut(layout).set_kind(found.key);
        Some(self.add_page(node, key, found.size, used))
    }

    fn stage_node(&mut self, layout: u16, found: &Found) -> Option<u32> {
        let known = self.tree.find(layout, found.hash);
        let stored = known.map(|node| self.tree.nodes[node].parent);
        let above = if found.parent.is_empty() {
            NONE
        } else {
            match self.tree.find(layout, found.parent) {
                Some(above) => above,
                None if stored.is_some_and(|parent| parent != UNKNOWN) => return None,
                None => {
                    let birth = Birth { parent: UNKNOWN, depth: found.depth.saturating_sub(1), stored_at: 0, turn: 0 };
                    self.add_node(layout, found.parent, birth)
                }
            }
        };
        let Some(node) = known else {
            let birth = Birth { parent: above, depth: found.depth, stored_at: found.stored_at, turn: 0 };
            return Some(self.add_node(layout, found.hash, birth));
        };
        if stored == Some(UNKNOWN) {
            self.tree.set_birth(node, found.stored_at, found.depth);
            self.tree.link(node, above);
        } else if stored != Some(above) {
            return None;
        }
        Some(node)
    }

    /// Take a page out again that was made for a place that it did not get.
    fn drop_unplaced(&mut self, page: u32) {
        if !self.pages[page].is_present() {
            let node = self.pages[page].node;
            self.detach(page);
            self.settle_node(node);
        }
    }

    /// Work on up to `limit` nodes, pages or slots. Whether all is done, and the index can be used.
    pub fn link_some(&mut self, limit: usize) -> bool {
        for _ in 0..limit {
            if self.link_step() {
                return true;
            }
        }
        false
    }

    fn link_step(&mut self) -> bool {
        let cursor = self.recovery.cursor;
        self.recovery.cursor += 1;
        match self.recovery.phase {
            Phase::Staging => self.recovery.next(Phase::Tops),
            Phase::Tops => {
                let node = cursor as u32;
                if node == self.tree.nodes.end() {
                    self.recovery.next(Phase::Down);
                } else if self.tree.is_there(node) && !is_node(self.tree.nodes[node].parent) {
                    self.recovery.stack.push(node);
                }
            }
            Phase::Down => match self.recovery.stack.pop() {
                Some(node) => self.go_down(node),
                None => self.recovery.next(Phase::Orphans),
            },
            Phase::Orphans => {
                if cursor as u32 == self.pages.end() {
                    self.recovery.next(Phase::Bare);
                } else {
                    self.drop_orphan(cursor as u32);
                }
            }
            Phase::Bare => match self.recovery.bare.pop() {
                Some(node) if self.tree.is_there(node) => self.settle_node(node),
                Some(_) => {}
                None => {
                    self.recovery.uses.resize(self.tree.nodes.end() as usize, 0);
                    self.recovery.first_use = u32::MAX;
                    self.recovery.next(Phase::Uses);
                }
            },
            Phase::Uses => match self.recovery.order.len().checked_sub(cursor + 1) {
                Some(at) => self.note_use(self.recovery.order[at]),
                None => {
                    self.recovery.starts = vec![0; STEPS + 1];
                    self.recovery.next(Phase::Count);
                }
            },
            Phase::Count => match self.recovery.order.get(cursor) {
                Some(&node) => {
                    let step = self.recovery.step_of(self.recovery.uses[node as usize]);
                    self.recovery.starts[step + 1] += 1;
                }
                None => {
                    for step in 0..STEPS {
                        self.recovery.starts[step + 1] += self.recovery.starts[step];
                    }
                    self.recovery.sorted = vec![0; self.recovery.order.len()];
                    self.recovery.next(Phase::Sort);
                }
            },
            Phase::Sort => match self.recovery.order.len().checked_sub(cursor + 1) {
                Some(at) => {
                    let node = self.recovery.order[at];
                    let step = self.recovery.step_of(self.recovery.uses[node as usize]);
                    let place = self.recovery.starts[step];
                    self.recovery.starts[step] += 1;
                    self.recovery.sorted[place as usize] = node + 1;
                }
                None => self.recovery.next(Phase::Tell),
            },
            Phase::Tell => match self.recovery.sorted.get(cursor) {
                Some(&node) => self.tell_policy(node - 1, cursor),
                None => {
                    self.recovery.chunks = self.slots.claimable();
                    self.recovery.next(Phase::Slots);
                }
            },
            Phase::Slots => match self.recovery.chunks.pop() {
                Some(chunk) => self.slots.end_claims(chunk),
                None => {
                    let orphans = self.recovery.orphans;
                    self.recovery = Recovery { orphans, ..Recovery::default() };
                    return true;
                }
            },
        }
        false
    }

    /// Hang the block's pages on those of its parent, and go on to its children.
    fn go_down(&mut self, node: u32) {
        self.recovery.order.push(node);
        self.recovery.stack.extend(self.tree.children(node));
        let above = self.tree.nodes[node].parent;
        let has_full = self.tree.layouts.get(self.tree.nodes[node].layout).has_full();
        let pages: Vec<u32> = self.pages_of(node).filter(|&page| !self.pages[page].is(MARKED)).collect();
        let (mut trailing, mut full): (Vec<u32>, Vec<u32>) =
            pages.into_iter().partition(|&page| self.keys.is_trailing(self.pages[page].key));
        let is_full = !full.is_empty();
        if let Some(cutoff) = self.pass_cutoff_down(node) {
            trailing.retain(|&page| self.outlives(page, cutoff));
            full.retain(|&page| self.outlives(page, cutoff));
        }
        let mut kept = 0;
        for &page in &full {
            let parent = if is_node(above) { self.page_of(above, self.pages[page].key) } else { None };
            match parent {
                Some(parent) if self.pages[parent].is(MARKED) => self.hang(page, parent),
                None if above == NONE => {}
                _ => continue,
            }
            self.pages[page].set(MARKED);
            kept += 1;
        }
        let is_placed = !has_full || above == NONE || is_node(above) && self.has_marked(above);
        if is_placed && (kept > 0 || !is_full) {
            for &page in &trailing {
                self.pages[page].set(MARKED);
            }
        }
        if self.tree.nodes[node].pages == NONE {
            let oldest = self.tree.children(node).map(|child| self.tree.nodes[child].stored_at).min();
            let depth = self.tree.nodes[node].depth;
            self.tree.set_birth(node, oldest.unwrap_or(0), depth);
        }
        self.tree.age(node);
    }

    /// Up to which serial what was written of the node was deleted, with it or with one above it.
    fn pass_cutoff_down(&mut self, node: u32) -> Option<u64> {
        if self.recovery.deleted.is_empty() {
            return None;
        }
        let own = self.recovery.cutoff_of(self.tree.fingerprint(node), &self.tree.hash(node));
        let cutoff = own.max(self.recovery.cutoffs.get(&self.tree.nodes[node].parent).copied())?;
        self.recovery.cutoffs.insert(node, cutoff);
        Some(cutoff)
    }

    /// Whether the page lies somewhere else than in a copy on nvme that was deleted; if so, that copy is forgotten.
    fn outlives(&mut self, page: u32, cutoff: u64) -> bool {
        if !self.pages[page].is_on_nvme() || self.recovery.serial_of(page) > cutoff {
            return true;
        }
        if !self.pages[page].has_slot() {
            return false;
        }
        self.segments.leave(&mut self.pages, page);
        true
    }

    fn has_marked(&self, node: u32) -> bool {
        self.pages_of(node).any(|page| self.pages[page].is(MARKED))
    }

    fn drop_orphan(&mut self, page: u32) {
        let it = &self.pages[page];
        if !it.is(ALIVE | ATTACHED) || it.is(MARKED) {
            return;
        }
        let node = it.node;
        self.recovery.orphans += 1;
        self.detach(page);
        self.settle_node(node);
    }

    /// The node's last use, and so one of its parent's.
    fn note_use(&mut self, node: u32) {
        if !self.tree.is_there(node) {
            return;
        }
        let used = self.recovery.uses[node as usize];
        self.recovery.first_use = self.recovery.first_use.min(used);
        self.recovery.last_use = self.recovery.last_use.max(used);
        let above = self.tree.nodes[node].parent;
        if is_node(above) {
            let of_parent = &mut self.recovery.uses[above as usize];
            *of_parent = used.max(*of_parent);
        }
    }

    /// The policy learns of the node, which is the one of this rank by its use.
    fn tell_policy(&mut self, node: u32, rank: usize) {
        if !self.tree.is_there(node) {
            return;
        }
        let it = &self.tree.nodes[node];
        if it.pages != NONE {
            let total = self.recovery.sorted.len();
            self.policy.recovered(node, it.depth as usize, it.first_child == NONE, rank, total);
        }
        let pages: Vec<u32> = self.pages_of(node).collect();
        for page in pages {
            let it = &mut self.pages[page];
            it.clear(MARKED);
            if it.is_resident() {
                self.policy.arrived(self.seat(page), NONE);
            }
        }
    }
}

/// Whether it may stand in a chain.
fn is_chained(found: &Found) -> bool {
    check_hash_length(found.hash, 0).is_ok()
        && found.hash != found.parent
        && (found.parent.is_empty() || found.parent.len() == found.hash.len())
}

fn found_in_ref(record: &[u8]) -> Option<Found<'_>> {
    Some(Found {
        layout: record[..LAYOUT_BYTES].try_into().ok()?,
        hash: record[32..96].get(..usize::from(record[234]))?,
        parent: record[96..160].get(..usize::from(record[235]))?,
        digest: &record[160..176],
        stored_at: u32_at(record, 192),
        size: u32_at(record, 196),
        depth: u32_at(record, 220),
        key: Key { group: u32_at(record, 200), shard: u16_at(record, 232), trailing: u32_at(record, 204) },
    })
}

fn found_in_entry<'a>(entry: &'a [u8], layouts: &'a [u8]) -> Option<Found<'a>> {
    let begin = usize::from(u16_at(entry, 192)) * LAYOUT_BYTES;
    Some(Found {
        layout: layouts.get(begin..begin + LAYOUT_BYTES)?.try_into().ok()?,
        hash: entry[..MAX_HASH_BYTES].get(..usize::from(entry[196]))?,
        parent: entry[64..128].get(..usize::from(entry[197]))?,
        digest: &entry[128..144],
        stored_at: u32_at(entry, 176),
        size: u32_at(entry, 172),
        depth: u32_at(entry, 188),
        key: Key { group: u32_at(entry, 180), shard: u16_at(entry, 194), trailing: u32_at(entry, 184) },
    })
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(std::array::from_fn(|byte| bytes[at + byte]))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(std::array::from_fn(|byte| bytes[at + byte]))
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::puts::{Given, State};
    use crate::testing::{KEY, LAYOUT, entry, hash, index};

    fn link(index: &mut Index, limit: usize) -> usize {
        (1..).find(|_| index.link_some(limit)).expect("linking ends")
    }

    #[test]
    fn chain_found_backwards_is_linked_in_slices() {
        let mut index = Index::new("lru").unwrap();
        let found: Vec<u8> = (0..100u32).rev().flat_map(|block| entry(block, block.checked_sub(1))).collect();
        index.stage_entries(3, &found, &LAYOUT).unwrap();
        assert!(link(&mut index, 7) > 100);
        index.check();
        let hashes: Vec<Vec<u8>> = (0..100).map(hash).collect();
        let hashes: Vec<&[u8]> = hashes.iter().map(Vec::as_slice).collect();
        assert_eq!(index.find(&LAYOUT, &hashes, &[KEY]), Ok((100, 0)));
        assert_eq!((index.recovery.orphans, index.segments.pages), (0, 100));
    }

    #[test]
    fn nothing_is_found_or_stored_until_all_is_linked() {
        let mut index = index(8);
        let found: Vec<u8> = (0..3u32).flat_map(|block| entry(block, block.checked_sub(1))).collect();
        index.stage_entries(3, &found, &LAYOUT).unwrap();
        let hashes: Vec<Vec<u8>> = (0..3).map(hash).collect();
        let hashes: Vec<&[u8]> = hashes.iter().map(Vec::as_slice).collect();
        while !index.link_some(1) {
            assert_eq!(index.find(&LAYOUT, &hashes, &[KEY]), Ok((0, 0)));
            assert_eq!(index.hold(&LAYOUT, &hashes, &[KEY], 1.0).unwrap().blocks, 0);
            assert!(index.expired(u32::MAX, 10).is_empty());
            let given = [Given { hash: hashes[2], key: KEY, size: 4096 }];
            assert_eq!(index.check_put(&LAYOUT, Some(hashes[1]), &given), Ok(vec![State::Busy]));
            let reserved = index.reserve(&LAYOUT, Some(hashes[1]), &given, 0, 0, 1.0, 8).unwrap();
            assert!(reserved.is_busy && reserved.taken.is_empty());
        }
        assert_eq!(index.find(&LAYOUT, &hashes, &[KEY]), Ok((3, 0)));
        index.check();
    }

    #[test]
    fn pages_below_a_missing_one_are_orphans() {
        let mut index = Index::new("lru").unwrap();
        let found: Vec<u8> =
            (0..100u32).filter(|&block| block != 60).flat_map(|block| entry(block, block.checked_sub(1))).collect();
        index.stage_entries(3, &found, &LAYOUT).unwrap();
        link(&mut index, 1000);
        index.check();
        assert_eq!((index.recovery.orphans, index.blocks, index.tree.nodes.live()), (39, 60, 60));
    }

    #[test]
    fn what_was_written_below_a_deleted_block_is_gone_and_what_is_newer_is_not() {
        let mut index = Index::new("lru").unwrap();
        let written = |block: u32, serial: u64| {
            let mut packed = entry(block, block.checked_sub(1));
            packed[160..168].copy_from_slice(&serial.to_le_bytes());
            packed
        };
        index.stage_deleted(&LAYOUT, &hash(1)[..16], &20u64.to_le_bytes()).unwrap();
        let old: Vec<u8> = (0..6).flat_map(|block| written(block, 10)).collect();
        let new: Vec<u8> = (1..4).flat_map(|block| written(block, 21)).collect();
        assert_eq!(index.stage_entries(4, &new, &LAYOUT), Ok(3));
        assert_eq!(index.stage_entries(3, &old, &LAYOUT), Ok(5));
        link(&mut index, 1000);
        index.check();
        let hashes: Vec<Vec<u8>> = (0..6).map(hash).collect();
        let hashes: Vec<&[u8]> = hashes.iter().map(Vec::as_slice).collect();
        assert_eq!(index.find(&LAYOUT, &hashes, &[KEY]), Ok((4, 0)));
        assert_eq!((index.recovery.orphans, index.segments.pages), (2, 4));
    }

    #[test]
    fn empty_index_is_linked_at_once() {
        let mut index = Index::new("lru").unwrap();
        assert!(index.link_some(100));
        index.check();
    }
}
