//! The index: pages in the tree, their places and pins, and what happens when they go.

use std::collections::{BTreeSet, HashMap};

use crate::column::NONE;
use crate::error::{Result, value};
use crate::holds::Use;
use crate::keys::{Keys, LAYOUT_BYTES, MAX_HASH_BYTES};
use crate::pages::{ALIVE, ATTACHED, DELETED, FILLING, MARKED, NO_CHUNK, Page, Pages, RESIDENT, WAITING, WRITING};
use crate::policy::{Policy, Seat};
use crate::recovery::Recovery;
use crate::segments::Segments;
use crate::slots::Slots;
use crate::tree::{Birth, Tree, is_node};

/// A packed PageRef.
pub const REF_BYTES: usize = 236;

/// Most pages of one block that puts make.
pub const MAX_PAGES_OF_BLOCK: usize = 1024;

/// Pages of one block that are looked through one by one.
const FEW_PAGES: usize = 16;

/// So many nodes without pages do not count.
const FEW_NODES: usize = 65_536;

/// What is left of the block of a page that was cut while it was pinned.
struct Remains {
    fingerprint: [u8; LAYOUT_BYTES],
    hash: Vec<u8>,
    parent: Vec<u8>,
    stored_at: u32,
    depth: u32,
}

pub struct Index {
    pub tree: Tree,
    pub pages: Pages,
    pub keys: Keys,
    pub slots: Slots,
    pub segments: Segments,
    pub policy: Policy,
    pub recovery: Recovery,
    /// By node, the pages by key of blocks that have, or had, more than a few.
    wide: HashMap<u32, HashMap<u16, u32>>,
    remains: HashMap<u32, Box<Remains>>,
    /// Until when pages stay that a pod pinned, both ways.
    kept: HashMap<u32, u32>,
    kept_until: BTreeSet<(u32, u32)>,
    /// Slots that were filled after their page was deleted.
    late: Vec<(u64, u32)>,
    /// Nodes that have pages, in whatever state.
    paged_nodes: usize,
    pub blocks: u64,
    pub dram_pages: u64,
    pub dram_bytes: u64,
    pub pinned_bytes: u64,
    /// Pages that left DRAM to make room.
    pub evicted_pages: u64,
    /// The latest time that a caller named, unix seconds.
    pub now: f64,
    /// What the policy was not told of yet.
    pub untold: Option<Use>,
}

impl Index {
    /// An empty index; `policy` names one of the policies.
    pub fn new(policy: &str) -> Result<Self> {
        let Some(policy) = Policy::new(policy) else {
            return value(format!("there is no policy {policy:?}; there are \"default\" and \"lru\""));
        };
        Ok(Index {
            tree: Tree::new(),
            pages: Pages::new(),
            keys: Keys::default(),
            slots: Slots::default(),
            segments: Segments::default(),
            policy,
            recovery: Recovery::default(),
            wide: HashMap::new(),
            remains: HashMap::new(),
            kept: HashMap::new(),
            kept_until: BTreeSet::new(),
            late: Vec::new(),
            paged_nodes: 0,
            blocks: 0,
            dram_pages: 0,
            dram_bytes: 0,
            pinned_bytes: 0,
            evicted_pages: 0,
            now: 0.0,
            untold: None,
        })
    }

    /// Take note of the time, and return its whole seconds.
    pub fn tick(&mut self, now: f64) -> u32 {
        if now > self.now {
            self.now = now;
        }
        now.clamp(0.0, f64::from(u32::MAX)) as u32
    }

    pub fn now_s(&self) -> u32 {
        self.now as u32
    }

    /// Refuse a number that names no page.
    pub fn check_page(&self, page: u32) -> Result<()> {
        if page < self.pages.end() && self.pages[page].is(ALIVE) {
            return Ok(());
        }
        value(format!("there is no page {page}"))
    }

    pub fn check_pages(&self, pages: &[u32]) -> Result<()> {
        pages.iter().try_for_each(|&page| self.check_page(page))
    }

    // Pages of a block

    /// The block's page under this key, whatever its state.
    #[inline]
    pub fn page_of(&self, node: u32, key: u16) -> Option<u32> {
        let mut page = self.tree.nodes[node].pages;
        for _ in 0..FEW_PAGES {
            if page == NONE {
                return None;
            }
            let it = &self.pages[page];
            if it.key == key {
                return Some(page);
            }
            page = it.next;
        }
        self.wide.get(&node)?.get(&key).copied()
    }

    /// How many pages the block has, in whatever state.
    pub fn page_count(&self, node: u32) -> usize {
        self.wide.get(&node).map_or_else(|| self.pages_of(node).count(), HashMap::len)
    }

    pub fn pages_of(&self, node: u32) -> PagesOf<'_> {
        PagesOf { pages: &self.pages, next: self.tree.nodes[node].pages }
    }

    pub fn has_present(&self, node: u32) -> bool {
        self.pages_of(node).any(|page| self.pages[page].is_present())
    }

    /// A node that was not there.
    pub fn add_node(&mut self, layout: u16, hash: &[u8], birth: Birth) -> u32 {
        let node = self.tree.add(layout, hash, birth);
        self.policy.reset_block(node);
        node
    }

    /// A page of the node that nothing knows yet; the key was acquired for it.
    pub fn add_page(&mut self, node: u32, key: u16, size: u32, used_at: u32) -> u32 {
        let page = self.pages.add(Page::new(node, key, size));
        let first = self.tree.nodes[node].pages;
        self.pages[page].next = first;
        self.tree.nodes[node].pages = page;
        self.paged_nodes += usize::from(first == NONE);
        self.widen(node, page);
        self.policy.born(page, used_at);
        page
    }

    /// Keep the new page by its key as well, and with it all of a block that comes to have more than a few.
    fn widen(&mut self, node: u32, page: u32) {
        if let Some(by_key) = self.wide.get_mut(&node) {
            by_key.insert(self.pages[page].key, page);
        } else if self.pages_of(node).nth(FEW_PAGES).is_some() {
            let by_key = self.pages_of(node).map(|page| (self.pages[page].key, page)).collect();
            self.wide.insert(node, by_key);
        }
    }

    /// Hang the page on the same page of the parent block.
    pub fn hang(&mut self, page: u32, parent: u32) {
        self.pages[page].parent = parent;
        if parent != NONE {
            self.pages[parent].kids += 1;
        }
    }

    /// Where an attached page belongs, for the policy.
    pub fn seat(&self, page: u32) -> Seat {
        let it = &self.pages[page];
        Seat { page, class: it.slot_bytes(), node: it.node, above: self.tree.nodes[it.node].parent }
    }

    /// The page may be found now: it could not before. Counts its block.
    fn appeared(&mut self, page: u32) {
        let node = self.pages[page].node;
        let mut others = self.pages_of(node).filter(|&other| other != page);
        if !others.any(|other| self.pages[other].is_present()) {
            self.blocks += 1;
        }
    }

    /// The page cannot be found any more.
    fn vanished(&mut self, page: u32) {
        let node = self.pages[page].node;
        let mut others = self.pages_of(node).filter(|&other| other != page);
        if !others.any(|other| self.pages[other].is_present()) {
            self.blocks -= 1;
        }
    }

    // Pins

    pub fn pin(&mut self, page: u32) {
        let it = &mut self.pages[page];
        it.pins += 1;
        if it.pins == 1 && it.chunk != NO_CHUNK && !it.is(FILLING) {
            self.slots.chunk_mut(it.chunk).busy += 1;
        }
    }

    /// Undo one pin. A page that was cut goes with its last one.
    pub fn unpin(&mut self, page: u32) {
        let it = &mut self.pages[page];
        assert!(it.pins > 0, "page {page} is not pinned");
        it.pins -= 1;
        if it.pins > 0 {
            return;
        }
        if it.chunk != NO_CHUNK && !it.is(FILLING) {
            self.slots.chunk_mut(it.chunk).busy -= 1;
        }
        if !self.pages[page].is(ATTACHED) {
            self.free_slot(page);
            self.forget(page);
        }
    }

    /// Undo one `pin` of each page. Refuses when a page is pinned less often than it is named.
    pub fn unpin_all(&mut self, pages: &[u32]) -> Result<()> {
        let mut named: HashMap<u32, u32> = HashMap::with_capacity(pages.len());
        for &page in pages {
            self.check_page(page)?;
            *named.entry(page).or_default() += 1;
        }
        if let Some((page, _)) = named.iter().find(|&(&page, &times)| self.pages[page].pins < times) {
            return value(format!("page {page} is not pinned so often"));
        }
        for &page in pages.iter().rev() {
            self.unpin(page);
        }
        Ok(())
    }

    // Slots

    /// Give the page, which has none, a free slot to be filled. Whether there was one.
    pub fn take_slot(&mut self, page: u32, now: f64) -> bool {
        let class = self.pages[page].slot_bytes();
        let Some((chunk, slot)) = self.slots.take(class, page) else {
            return false;
        };
        let it = &mut self.pages[page];
        (it.chunk, it.slot) = (chunk, slot);
        it.set(FILLING);
        let chunk = self.slots.chunk_mut(chunk);
        chunk.busy += 1;
        chunk.last_use = chunk.last_use.max(now);
        true
    }

    /// The page's slot is complete: it may be read.
    pub fn becomes_resident(&mut self, page: u32) {
        let it = &mut self.pages[page];
        let was_present = it.is_present();
        it.clear(FILLING | WAITING);
        it.set(RESIDENT);
        let (chunk, pins, parent, class) = (it.chunk, it.pins, it.parent, it.slot_bytes());
        if pins == 0 {
            self.slots.chunk_mut(chunk).busy -= 1;
        }
        self.dram_pages += 1;
        self.dram_bytes += u64::from(class);
        if !self.pages[page].is(ATTACHED) {
            return;
        }
        let beside = if parent != NONE && self.pages[parent].slot_bytes() == class { parent } else { NONE };
        self.policy.arrived(self.seat(page), beside);
        if !was_present {
            self.appeared(page);
        }
    }

    /// The page's slot, if it has one, may be taken again. Does not look at what becomes of the page.
    fn free_slot(&mut self, page: u32) {
        if self.pages[page].chunk == NO_CHUNK {
            return;
        }
        if self.pages[page].is(RESIDENT | ATTACHED) {
            self.policy.left(self.seat(page));
        }
        let it = &mut self.pages[page];
        let (chunk, slot, class) = (it.chunk, it.slot, it.slot_bytes());
        let busy = it.is(FILLING) || it.pins > 0;
        let resident = it.is_resident();
        it.chunk = NO_CHUNK;
        it.clear(FILLING | RESIDENT | WAITING);
        if resident {
            self.dram_pages -= 1;
            self.dram_bytes -= u64::from(class);
        }
        if busy {
            self.slots.chunk_mut(chunk).busy -= 1;
        }
        self.slots.release(chunk, slot);
    }

    /// The page's slot is given up before it was complete.
    pub fn stop_filling(&mut self, page: u32) {
        self.free_slot(page);
    }

    /// The page leaves DRAM, and the index with all below it if it lies nowhere else.
    pub fn leave_dram(&mut self, page: u32) {
        if self.pages[page].is(ATTACHED) && !self.pages[page].is_on_nvme() {
            self.cut(page);
        } else {
            self.free_slot(page);
        }
    }

    /// The page was found complete in this very slot. Whether the slot was free; the policy is told later.
    pub fn claim_slot(&mut self, page: u32, chunk: u16, slot: u32) -> bool {
        if !self.slots.claim(chunk, slot, page) {
            return false;
        }
        let it = &mut self.pages[page];
        let was_present = it.is_present();
        (it.chunk, it.slot) = (chunk, slot);
        it.set(RESIDENT);
        self.dram_pages += 1;
        self.dram_bytes += u64::from(it.slot_bytes());
        if !was_present {
            self.appeared(page);
        }
        true
    }

    // Nvme

    /// The page lies on nvme at this place now, and nowhere else there.
    pub fn enter_nvme(&mut self, page: u32, number: u32, offset: u32) {
        let was_present = self.pages[page].is_present();
        self.segments.leave(&mut self.pages, page);
        self.segments.enter(&mut self.pages, page, number, offset);
        if !was_present {
            self.appeared(page);
        }
    }

    /// The page leaves nvme, and the index with all below it if it is not resident.
    pub fn leave_nvme(&mut self, page: u32) {
        if self.pages[page].is_resident() || !self.pages[page].is(ATTACHED) {
            self.segments.leave(&mut self.pages, page);
        } else {
            self.cut(page);
        }
    }

    // Leaving the tree

    /// Take the page, and the same page of every descendant, out of the tree. Slots of pinned ones stay until then.
    pub fn cut(&mut self, page: u32) {
        let mut below = vec![page];
        let mut next = 0;
        while next < below.len() {
            let above = below[next];
            next += 1;
            if self.pages[above].kids == 0 {
                continue;
            }
            let key = self.pages[above].key;
            let children = self.tree.children(self.pages[above].node);
            below.extend(children.filter_map(|child| self.page_of(child, key)));
        }
        for &page in below.iter().rev() {
            self.cut_leaf(page);
        }
    }

    /// Take up to `limit` pages of those at and below `page` out of the tree, from the leaves on; how many were.
    pub fn cut_some(&mut self, page: u32, limit: usize) -> usize {
        let first_child = |index: &Self, page: u32| index.tree.nodes[index.pages[page].node].first_child;
        let key = self.pages[page].key;
        let mut path = vec![(page, first_child(self, page))];
        let mut gone = 0;
        while gone < limit {
            let Some((last, child)) = path.last_mut() else {
                break;
            };
            if *child != NONE && self.pages[*last].kids > 0 {
                let looked_at = *child;
                *child = self.tree.next_sibling(looked_at);
                if let Some(below) = self.page_of(looked_at, key) {
                    path.push((below, first_child(self, below)));
                }
            } else {
                let leaf = *last;
                path.pop();
                self.cut_leaf(leaf);
                gone += 1;
            }
        }
        gone
    }

    /// Take a page on which none hangs out of the tree. Its block goes with its last page.
    fn cut_leaf(&mut self, page: u32) {
        let node = self.pages[page].node;
        let was_full = !self.is_trailing(page);
        self.detach(page);
        if was_full && !self.pages_of(node).any(|other| !self.is_trailing(other)) {
            while self.tree.nodes[node].pages != NONE {
                self.detach(self.tree.nodes[node].pages);
            }
        }
        self.settle_node(node);
    }

    fn is_trailing(&self, page: u32) -> bool {
        self.keys.is_trailing(self.pages[page].key)
    }

    /// Take a page off its block and its parent. The caller settles the block.
    pub fn detach(&mut self, page: u32) {
        assert_eq!(self.pages[page].kids, 0, "pages hang on page {page}");
        if self.pages[page].is_present() {
            self.vanished(page);
        }
        if self.pages[page].is_resident() {
            self.policy.left(self.seat(page));
        }
        if self.pages[page].pins > 0 {
            let remains = self.remains_of(page);
            self.remains.insert(page, remains);
        }
        let Page { node, next, parent, key, .. } = self.pages[page];
        let mut before = self.tree.nodes[node].pages;
        if before == page {
            self.tree.nodes[node].pages = next;
            self.paged_nodes -= usize::from(next == NONE);
        } else {
            while self.pages[before].next != page {
                before = self.pages[before].next;
            }
            self.pages[before].next = next;
        }
        if let Some(by_key) = self.wide.get_mut(&node) {
            by_key.remove(&key);
            if by_key.is_empty() {
                self.wide.remove(&node);
            }
        }
        if parent != NONE {
            self.pages[parent].kids -= 1;
        }
        self.segments.leave(&mut self.pages, page);
        let it = &mut self.pages[page];
        it.clear(ATTACHED | MARKED);
        (it.node, it.next, it.parent) = (NONE, NONE, NONE);
        let waiting = it.is(WAITING);
        self.pin(page);
        if self.kept.contains_key(&page) {
            self.let_go(page);
        }
        if waiting {
            self.filled_in_vain(page);
        }
        self.unpin(page);
    }

    /// The slot of a page that was cut meanwhile is filled: ends the pin of whoever filled it.
    pub fn filled_in_vain(&mut self, page: u32) {
        let it = &mut self.pages[page];
        if it.is(DELETED) {
            it.clear(FILLING | WAITING);
            let (chunk, slot) = (it.chunk, it.slot);
            self.late.push((self.slots.chunk(chunk).number, slot));
        } else {
            self.unpin(page);
        }
    }

    /// The number names no page any more.
    fn forget(&mut self, page: u32) {
        self.keys.release(self.pages[page].key);
        self.remains.remove(&page);
        self.pages[page].flags = 0;
        self.pages.remove(page);
    }

    /// A node without pages goes, unless it has children; and so, perhaps, do those above it.
    ///
    /// It stays with its children, so that a deletion further up takes them along. If nodes are kept for more of such
    /// children than is reasonable, it floats instead, so that those above it can go.
    pub fn settle_node(&mut self, mut node: u32) {
        while is_node(node) && self.tree.nodes[node].pages == NONE {
            let parent = self.tree.nodes[node].parent;
            self.policy.reset_block(node);
            if self.tree.nodes[node].first_child == NONE {
                self.tree.remove(node);
            } else if is_node(parent) && self.has_many_bare_nodes() {
                self.tree.float(node);
            } else {
                return;
            }
            node = parent;
        }
    }

    fn has_many_bare_nodes(&self) -> bool {
        let bare = self.tree.nodes.live() - self.paged_nodes;
        bare > self.paged_nodes.max(FEW_NODES)
    }

    /// Cut the block and all below it. Returns the hashes of those that had pages, and the slots that have to be cleared
    /// before they are used again: `free_deleted` does that.
    pub fn delete(&mut self, layout: &[u8; LAYOUT_BYTES], hash: &[u8]) -> (Vec<u8>, Vec<(u64, u32)>) {
        let (mut hashes, mut slots) = (Vec::new(), Vec::new());
        let Some(top) = self.tree.layouts.find(layout).and_then(|layout| {
            self.tree.layouts.get(layout).check_hash(hash, 0).ok()?;
            self.tree.find(layout, hash)
        }) else {
            return (hashes, slots);
        };
        let mut below = vec![top];
        let mut next = 0;
        while next < below.len() {
            below.extend(self.tree.children(below[next]));
            next += 1;
        }
        for &node in below.iter().rev() {
            if !self.tree.is_there(node) {
                continue; // It had no pages, and went with its last child.
            }
            if self.tree.nodes[node].pages != NONE {
                hashes.extend_from_slice(self.tree.hash_into(node, &mut [0; MAX_HASH_BYTES]));
            }
            while self.tree.nodes[node].pages != NONE {
                let page = self.tree.nodes[node].pages;
                self.pages[page].set(DELETED);
                if self.pages[page].is_resident() {
                    self.pin(page);
                    let it = &self.pages[page];
                    slots.push((self.slots.chunk(it.chunk).number, it.slot));
                }
                self.detach(page);
            }
            self.settle_node(node);
        }
        (hashes, slots)
    }

    /// The slots are cleared: nobody finds the deleted pages there any more. Slots that none waits for are passed over.
    pub fn free_deleted(&mut self, slots: &[(u64, u32)]) {
        for &(chunk, slot) in slots {
            let page = self.slots.find(chunk).map_or(NONE, |chunk| self.slots.chunk(chunk).page(slot));
            if page == NONE {
                continue;
            }
            let it = &mut self.pages[page];
            if it.is(DELETED) && !it.is(FILLING) {
                it.clear(DELETED);
                self.unpin(page);
            }
        }
    }

    /// Slots that were filled after their page was deleted, since this was last asked.
    pub fn take_late(&mut self) -> Vec<(u64, u32)> {
        std::mem::take(&mut self.late)
    }

    // Pages that a pod pinned

    /// Keep the page until this time, unix seconds, in place of what was said before.
    pub fn keep(&mut self, page: u32, until: u32) {
        match self.kept.insert(page, until) {
            Some(before) => {
                self.kept_until.remove(&(before, page));
            }
            None => {
                self.pin(page);
                self.pinned_bytes += u64::from(self.pages[page].slot_bytes());
            }
        }
        self.kept_until.insert((until, page));
    }

    /// Undo `keep`.
    pub fn let_go(&mut self, page: u32) {
        if let Some(until) = self.kept.remove(&page) {
            self.kept_until.remove(&(until, page));
            self.pinned_bytes -= u64::from(self.pages[page].slot_bytes());
            self.unpin(page);
        }
    }

    pub fn is_kept(&self, page: u32) -> bool {
        self.kept.contains_key(&page)
    }

    /// Up to `limit` blocks stored before this time that are to be deleted with all below them, oldest first.
    pub fn expired(&self, before: u32, limit: usize) -> Vec<u32> {
        let limit = if self.recovery.is_under_way() { 0 } else { limit };
        self.tree.oldest_before(before).take(limit).collect()
    }

    /// Undo every `keep` whose time is over.
    pub fn unpin_expired(&mut self, now: u32) {
        while let Some(&(until, page)) = self.kept_until.first() {
            if until > now {
                return;
            }
            self.let_go(page);
        }
    }

    // What others are told of pages

    fn remains_of(&self, page: u32) -> Box<Remains> {
        let node = self.pages[page].node;
        let it = &self.tree.nodes[node];
        Box::new(Remains {
            fingerprint: *self.tree.fingerprint(node),
            hash: self.tree.hash(node),
            parent: if is_node(it.parent) { self.tree.hash(it.parent) } else { Vec::new() },
            stored_at: it.stored_at,
            depth: it.depth,
        })
    }

    /// Append the packed reference of a page.
    pub fn pack_ref(&self, page: u32, packed: &mut Vec<u8>) {
        let it = &self.pages[page];
        let found;
        let remains = match self.remains.get(&page) {
            Some(remains) => remains,
            None => {
                found = self.remains_of(page);
                &found
            }
        };
        let key = self.keys.get(it.key);
        let (chunk, slot, generation, payload) = if it.has_slot() {
            let chunk = self.slots.chunk(it.chunk);
            (chunk.number, it.slot, chunk.generation(it.slot), chunk.payload_offset(it.slot))
        } else {
            (0, NONE, 0, 0)
        };
        let (segment, offset) =
            if it.is_on_nvme() { (self.segments.get(it.segment).number, it.offset) } else { (NONE, 0) };
        let begin = packed.len();
        packed.extend_from_slice(&remains.fingerprint);
        extend_padded(packed, &remains.hash);
        extend_padded(packed, &remains.parent);
        packed.extend_from_slice(&it.digest);
        packed.extend_from_slice(&generation.to_le_bytes());
        packed.extend_from_slice(&payload.to_le_bytes());
        for number in [remains.stored_at, it.size, key.group, key.trailing] {
            packed.extend_from_slice(&number.to_le_bytes());
        }
        packed.extend_from_slice(&chunk.to_le_bytes());
        for number in [slot, remains.depth, segment, offset] {
            packed.extend_from_slice(&number.to_le_bytes());
        }
        packed.extend_from_slice(&key.shard.to_le_bytes());
        packed.push(remains.hash.len() as u8);
        packed.push(remains.parent.len() as u8);
        assert_eq!(packed.len() - begin, REF_BYTES);
    }

    pub fn heap_bytes(&self) -> usize {
        self.tree.heap_bytes()
            + self.pages.heap_bytes()
            + self.keys.heap_bytes()
            + self.slots.heap_bytes()
            + self.segments.heap_bytes()
            + self.policy.heap_bytes()
            + self.recovery.heap_bytes()
            + self.wide.capacity() * (size_of::<(u32, HashMap<u16, u32>)>() + 1)
            + self.wide.values().map(|by_key| by_key.capacity() * 9).sum::<usize>()
            + self.remains.capacity() * 9
            + self.remains.len() * (size_of::<Remains>() + 64)
            + self.kept.capacity() * 9
            + self.kept_until.len() * 14
    }

    /// Panic unless every link and every count is right. For tests: looks at everything.
    pub fn check(&self) {
        self.tree.check();
        self.slots.check();
        self.segments.check(&self.pages);
        let resident = |page: u32| self.pages[page].is(ALIVE | ATTACHED | RESIDENT);
        let class_of = |page: u32| resident(page).then(|| self.pages[page].slot_bytes());
        let resident_of = |node: u32| self.pages_of(node).filter(|&page| resident(page)).count();
        let state_of = |node: u32| {
            if !self.tree.is_there(node) {
                return (0, 0);
            }
            (resident_of(node), self.tree.children(node).filter(|&child| resident_of(child) > 0).count())
        };
        self.policy.check(self.pages.end(), class_of, self.tree.nodes.end(), state_of);
        let (mut blocks, mut attached, mut paged) = (0, 0, 0);
        for node in (0..self.tree.nodes.end()).filter(|&node| self.tree.is_there(node)) {
            blocks += u64::from(self.has_present(node));
            paged += usize::from(self.tree.nodes[node].pages != NONE);
            assert!(
                self.tree.nodes[node].pages != NONE || self.tree.nodes[node].first_child != NONE,
                "a node is of no use"
            );
            for page in self.pages_of(node) {
                attached += 1;
                self.check_attached(node, page);
            }
        }
        assert_eq!((blocks, paged), (self.blocks, self.paged_nodes));
        for (&node, by_key) in &self.wide {
            let pages: HashMap<u16, u32> = self.pages_of(node).map(|page| (self.pages[page].key, page)).collect();
            assert_eq!(&pages, by_key, "a block's pages by key");
        }
        self.check_counts(attached);
    }

    fn check_attached(&self, node: u32, page: u32) {
        let it = &self.pages[page];
        assert!(it.is(ALIVE | ATTACHED) && it.node == node && !it.is(MARKED), "a page of a block");
        assert!(it.is_present() || it.is(FILLING), "a page is in the tree for nothing");
        assert_eq!(self.page_of(node, it.key), Some(page), "a block has two pages of one key");
        let children = self.tree.children(node).filter_map(|child| self.page_of(child, it.key));
        let kids = if self.keys.is_trailing(it.key) { 0 } else { children.count() };
        assert_eq!(kids, it.kids as usize, "a page's kids");
        let above = self.tree.nodes[node].parent;
        if self.keys.is_trailing(it.key) || !is_node(above) {
            assert_eq!(it.parent, NONE);
            return;
        }
        assert_eq!(self.page_of(above, it.key), Some(it.parent), "a page's parent");
        if it.is_present() {
            assert!(self.pages[it.parent].is_present(), "a page outlived its parent");
        }
    }

    fn check_counts(&self, attached: usize) {
        let (mut dram, mut bytes, mut slots, mut cut) = (0, 0, 0, 0);
        let mut busy: HashMap<u16, u32> = HashMap::new();
        let mut of_key: HashMap<u16, u32> = HashMap::new();
        for page in (0..self.pages.end()).filter(|&page| self.pages[page].is(ALIVE)) {
            let it = &self.pages[page];
            *of_key.entry(it.key).or_default() += 1;
            cut += usize::from(!it.is(ATTACHED));
            assert!(it.is(ATTACHED) || it.pins > 0, "a page stays for nothing");
            assert_eq!(self.remains.contains_key(&page), !it.is(ATTACHED));
            let uses_slot = it.is(FILLING) || it.is_resident();
            assert!(it.has_slot() == uses_slot || it.has_slot() && !it.is(ATTACHED), "a slot for nothing, or none");
            if it.has_slot() {
                slots += 1;
                assert_eq!(self.slots.chunk(it.chunk).page(it.slot), page, "a slot's page");
                *busy.entry(it.chunk).or_default() += u32::from(it.is(FILLING) || it.pins > 0);
            }
            if it.is_resident() {
                dram += 1;
                bytes += u64::from(it.slot_bytes());
            }
            assert!(!it.is(WRITING) || it.pins > 0);
        }
        assert_eq!(attached + cut, self.pages.live());
        assert_eq!((dram, bytes, slots), (self.dram_pages, self.dram_bytes, self.slots.used));
        for (&key, &pages) in &of_key {
            assert_eq!(self.keys.pages(key), pages);
        }
        for chunk in self.slots.iter() {
            let place = self.slots.find(chunk.number).expect("a chunk has its number");
            assert_eq!(busy.get(&place).copied().unwrap_or(0), chunk.busy, "a chunk's busy slots");
        }
        let kept: u64 = self.kept.keys().map(|&page| u64::from(self.pages[page].slot_bytes())).sum();
        assert_eq!((kept, self.kept.len()), (self.pinned_bytes, self.kept_until.len()));
    }
}

pub struct PagesOf<'a> {
    pages: &'a Pages,
    next: u32,
}

impl Iterator for PagesOf<'_> {
    type Item = u32;

    #[inline]
    fn next(&mut self) -> Option<u32> {
        let page = self.next;
        if page == NONE {
            return None;
        }
        self.next = self.pages[page].next;
        Some(page)
    }
}

fn extend_padded(packed: &mut Vec<u8>, hash: &[u8]) {
    packed.extend_from_slice(hash);
    packed.resize(packed.len() + MAX_HASH_BYTES - hash.len(), 0);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::Key;
    use crate::puts::Given;
    use crate::testing::{LAYOUT, find, hash, index, reserve, store};

    #[test]
    fn cut_takes_all_below_and_pinned_pages_later() {
        let mut index = index(8);
        let pages = store(&mut index, None, &[1, 2, 3]);
        store(&mut index, Some(2), &[4]);
        index.pin(pages[2]);
        let mut before = Vec::new();
        index.pack_ref(pages[2], &mut before);
        index.cut(pages[1]);
        index.check();
        assert_eq!((find(&index, &[1, 2]), index.slots.used), ((1, 1), 2));
        let mut after = Vec::new();
        index.pack_ref(pages[2], &mut after);
        assert_eq!(before, after);
        index.unpin(pages[2]);
        index.check();
        assert_eq!((index.slots.used, index.pages.live()), (1, 1));
    }

    #[test]
    fn cut_in_steps_leaves_a_whole_tree_after_each() {
        let mut index = index(32);
        let pages = store(&mut index, None, &[1, 2, 3]);
        for branch in [10, 20, 30] {
            store(&mut index, Some(2), &[branch, branch + 1]);
        }
        let mut steps = 0;
        while index.pages[pages[0]].is(ALIVE) {
            assert!(index.cut_some(pages[0], 2) > 0);
            index.check();
            steps += 1;
        }
        assert_eq!((steps, index.blocks), (5, 0));
    }

    #[test]
    fn pages_of_a_wide_block_are_found_by_key_as_they_come_and_go() {
        let mut index = index(64);
        let block = hash(1);
        let key = |shard: u16| Key { group: 0, shard, trailing: 0 };
        let given: Vec<Given> = (0..64).map(|shard| Given { hash: &block, key: key(shard), size: 1 }).collect();
        let taken = index.reserve(&LAYOUT, None, &given, 0, 0, 1.0, u64::MAX).unwrap().taken;
        let pages: Vec<u32> = taken.iter().map(|&(_, page)| page).collect();
        let node = index.pages[pages[0]].node;
        let is_found = |index: &Index, at: usize| index.page_of(node, index.pages[pages[at]].key) == Some(pages[at]);
        index.commit(&pages, &[0; 16 * 64]).unwrap();
        index.check();
        assert!((0..64).all(|at| is_found(&index, at)));
        assert_eq!((index.page_count(node), index.wide.len()), (64, 1));
        for &page in pages.iter().step_by(2) {
            index.cut(page);
        }
        index.check();
        assert_eq!((index.page_count(node), is_found(&index, 1), is_found(&index, 63)), (32, true, true));
        index.delete(&LAYOUT, &block);
        assert!(index.wide.is_empty());
    }

    #[test]
    fn deleted_slots_wait_for_their_clearing() {
        let mut index = index(4);
        store(&mut index, None, &[1, 2]);
        let filling = reserve(&mut index, Some(2), &[3]);
        let (hashes, slots) = index.delete(&LAYOUT, &hash(1));
        assert_eq!((hashes.len(), slots.len(), index.slots.used), (96, 2, 3));
        assert_eq!(index.commit(&filling, &[0; 16]), Ok(0));
        assert_eq!(index.take_late().len(), 1);
        index.free_deleted(&slots);
        index.check();
        assert_eq!(index.slots.used, 1);
    }

    #[test]
    fn kept_page_is_pinned_once_and_until_the_last_time_said() {
        let mut index = index(4);
        let pages = store(&mut index, None, &[1]);
        index.keep(pages[0], 10);
        index.keep(pages[0], 20);
        index.unpin_expired(15);
        assert_eq!((index.pages[pages[0]].pins, index.pinned_bytes), (1, 4096));
        index.check();
        index.unpin_expired(20);
        assert_eq!((index.pages[pages[0]].pins, index.pinned_bytes), (0, 0));
    }
}
