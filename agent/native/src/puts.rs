//! Puts: what of one is new, slots for that, and its pages' way into the tree.

use std::collections::{HashMap, HashSet};

use crate::column::NONE;
use crate::error::{Code, Error, Result, malformed, refused, value};
use crate::index::{Index, MAX_PAGES_OF_BLOCK};
use crate::keys::{Key, LAYOUT_BYTES, check_hash_length, fingerprint};
use crate::pages::{ALIVE, ATTACHED, FILLING, MARKED, Pages, RESIDENT, WAITING, WRITING, slot_bytes};
use crate::policy::{MISSING_LOOKED_AT, Request, Victim};
use crate::slots::Slots;
use crate::tree::{Birth, UNKNOWN, is_node};

/// Largest page that is stored.
pub const MAX_PAGE_BYTES: u32 = 256 << 20;
/// Trailing pages further up are left to the policy as they are.
const FURTHEST_DEMOTED: u32 = 1024;

/// One page of a put.
#[derive(Clone, Copy)]
pub struct Given<'a> {
    pub hash: &'a [u8],
    pub key: Key,
    pub size: u32,
}

/// What `check_put` says of a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// Is there.
    Known = 0,
    /// Is new.
    Fresh = 1,
    /// Is being stored by someone else, or its parent is.
    Busy = 2,
}

/// The block that a put is at.
#[derive(Clone, Copy)]
struct Block<'a> {
    hash: &'a [u8],
    parent: Option<&'a [u8]>,
    /// NONE: it is not there.
    node: u32,
    /// NONE: it is not there, or the block is a root.
    above: u32,
}

impl Index {
    /// What of a put is there, new, or under way.
    ///
    /// Refuses what contradicts itself or what is stored. Nothing is changed.
    pub fn check_put(&self, layout: &[u8], parent: Option<&[u8]>, pages: &[Given]) -> Result<Vec<State>> {
        let layout = self.tree.layouts.find(&fingerprint(layout)?);
        check_given(parent, pages)?;
        self.check_kinds(layout, parent, pages)?;
        if self.recovery.is_under_way() {
            return Ok(vec![State::Busy; pages.len()]);
        }
        let all_trailing = pages.iter().all(|page| page.key.trailing != 0)
            && layout.is_none_or(|layout| !self.tree.layouts.get(layout).has_full());
        let mut states = Vec::with_capacity(pages.len());
        let mut before: HashMap<Key, State> = HashMap::new();
        let mut own: HashMap<Key, State> = HashMap::new();
        let mut block: Option<Block> = None;
        let mut in_block = 0;
        for (index, page) in pages.iter().enumerate() {
            let here = match block {
                Some(here) if here.hash == page.hash => here,
                _ => {
                    let above = block.map_or(parent, |last| Some(last.hash));
                    before = std::mem::take(&mut own);
                    let entered = self.enter_block(layout, page.hash, above, index)?;
                    block = Some(entered);
                    in_block = self.count_of(&entered);
                    entered
                }
            };
            let state = match self.known_state(here.node, page, index)? {
                Some(state) => state,
                None => {
                    check_count(&here, in_block, index)?;
                    in_block += 1;
                    self.state_of_new(&here, page, &before, all_trailing, index)?
                }
            };
            own.insert(page.key, state);
            states.push(state);
        }
        Ok(states)
    }

    /// Refuse hashes of a length, and keys of a kind, that the layout does not have.
    fn check_kinds(&self, layout: Option<u16>, parent: Option<&[u8]>, pages: &[Given]) -> Result<()> {
        let mut kinds: HashMap<u32, u32> = HashMap::new();
        let first_bytes = pages.first().map_or(0, |page| page.hash.len());
        for (index, hash) in parent.into_iter().map(|hash| (0, hash)).chain(pages.iter().map(|it| it.hash).enumerate())
        {
            check_hash_length(hash, index)?;
            if let Some(layout) = layout {
                self.tree.layouts.get(layout).check_hash(hash, index)?;
            } else if hash.len() != first_bytes {
                return malformed(index, "hashes of one layout have one length");
            }
        }
        for (index, page) in pages.iter().enumerate() {
            if let Some(layout) = layout {
                self.tree.layouts.get(layout).check_kind(page.key, index)?;
            }
            if *kinds.entry(page.key.group).or_insert(page.key.trailing) != page.key.trailing {
                return malformed(index, format!("group {} is of two kinds in this put", page.key.group));
            }
        }
        Ok(())
    }

    /// The block as it is stored. Refuses it under another parent than the one it is stored under.
    fn enter_block<'a>(
        &self,
        layout: Option<u16>,
        hash: &'a [u8],
        parent: Option<&'a [u8]>,
        index: usize,
    ) -> Result<Block<'a>> {
        let find = |hash: &[u8]| layout.and_then(|layout| self.tree.find(layout, hash)).unwrap_or(NONE);
        let block = Block { hash, parent, node: find(hash), above: parent.map_or(NONE, find) };
        if block.node == NONE {
            return Ok(block);
        }
        let stored = self.tree.nodes[block.node].parent;
        if stored == UNKNOWN {
            if block.above != NONE && self.tree.is_above(block.node, block.above) {
                return malformed(index, format!("block {} is its own ancestor", hex(hash)));
            }
        } else if stored != block.above || is_node(stored) != parent.is_some() {
            return refused(Code::ParentAbsent, index, format!("block {} is stored under another parent", hex(hash)));
        }
        Ok(block)
    }

    /// The state of a page that the tree has. Refuses one of another size.
    fn known_state(&self, node: u32, page: &Given, index: usize) -> Result<Option<State>> {
        let Some(found) = self.find_page(node, page.key) else {
            return Ok(None);
        };
        let it = &self.pages[found];
        if it.size != page.size {
            return refused(
                Code::SizeMismatch,
                index,
                format!(
                    "block {} is stored with {} bytes, not {}; what differs belongs into the layout",
                    hex(page.hash),
                    it.size,
                    page.size
                ),
            );
        }
        Ok(Some(if it.is_present() { State::Known } else { State::Busy }))
    }

    /// The state of a page that is not in the tree. `before`: those of the block before it in the put.
    fn state_of_new(
        &self,
        block: &Block,
        page: &Given,
        before: &HashMap<Key, State>,
        all_trailing: bool,
        index: usize,
    ) -> Result<State> {
        if block.parent.is_none() {
            return Ok(State::Fresh);
        }
        if page.key.trailing != 0 {
            if all_trailing || !before.is_empty() || block.above != NONE {
                return Ok(State::Fresh);
            }
        } else if let Some(state) = before.get(&page.key) {
            return Ok(if *state == State::Busy { State::Busy } else { State::Fresh });
        } else if let Some(above) = self.find_page(block.above, page.key) {
            let is_there = self.pages[above].is_present();
            return Ok(if is_there { State::Fresh } else { State::Busy });
        }
        parent_absent(block, index)
    }

    /// How many pages the block has.
    fn count_of(&self, block: &Block) -> usize {
        if block.node == NONE { 0 } else { self.page_count(block.node) }
    }

    fn find_page(&self, node: u32, key: Key) -> Option<u32> {
        if node == NONE {
            return None;
        }
        self.page_of(node, self.keys.find(key)?)
    }

    /// Take slots for the new ones of `pages` from `start` on, evicting where allowed.
    ///
    /// Stops at the first that gets none, that someone else stores, or when `max_slots` are in use. The rest of the put is
    /// as `check_put` found it, or is refused. `ahead`: pages of the put that follow `pages`, in a later call.
    #[allow(clippy::too_many_arguments)]
    pub fn reserve(
        &mut self,
        layout: &[u8],
        parent: Option<&[u8]>,
        pages: &[Given],
        start: usize,
        ahead: usize,
        now: f64,
        max_slots: u64,
    ) -> Result<Reserved> {
        let print = fingerprint(layout)?;
        let seconds = self.tick(now);
        let mut at = Reserving { print, now, seconds, max_slots, ahead, has_begun: false, marked: None };
        let mut reserved = Reserved { taken: Vec::new(), stopped: pages.len(), is_busy: false };
        if self.recovery.is_under_way() {
            return Ok(Reserved { stopped: start, is_busy: true, ..reserved });
        }
        let mut hash: Option<&[u8]> = None;
        let mut above = parent_before(parent, pages, start);
        let mut refusal = None;
        for (index, page) in pages.iter().enumerate().skip(start) {
            if let Some(last) = hash.filter(|&last| last != page.hash) {
                above = Some(last);
            }
            hash = Some(page.hash);
            match self.reserve_page(&mut at, above, pages, index) {
                Ok(Step::Taken(number)) => {
                    reserved.taken.push((index, number));
                    continue;
                }
                Ok(Step::Known) => continue,
                Ok(Step::Busy) => reserved.is_busy = true,
                Ok(Step::NoSlot) => {}
                Err(error) => refusal = Some(error),
            }
            reserved.stopped = index;
            break;
        }
        for page in at.marked.into_iter().flatten() {
            self.pages[page].clear(MARKED);
        }
        match refusal {
            Some(error) if reserved.taken.is_empty() => Err(error),
            _ => Ok(reserved),
        }
    }

    fn reserve_page(
        &mut self,
        at: &mut Reserving,
        parent: Option<&[u8]>,
        given: &[Given],
        index: usize,
    ) -> Result<Step> {
        let page = &given[index];
        check_size(page, index)?;
        if parent == Some(page.hash) {
            return malformed(index, "a block is its own parent");
        }
        let class = slot_bytes(page.size);
        let mut evicted = false;
        let (block, hangs_on) = loop {
            let layout = self.tree.layouts.find(&at.print);
            self.check_kinds(layout, parent, std::slice::from_ref(page))?;
            let block = self.enter_block(layout, page.hash, parent, index)?;
            match self.known_state(block.node, page, index)? {
                Some(State::Known) => {
                    if at.marked.is_some() {
                        self.mark_block(block.node, &mut at.marked);
                    }
                    return Ok(Step::Known);
                }
                Some(_) => return Ok(Step::Busy),
                None => {}
            }
            check_count(&block, self.count_of(&block), index)?;
            let Some(hangs_on) = self.hanger(layout, &block, page) else {
                return parent_absent(&block, index);
            };
            if self.pages.is_full() || self.tree.nodes.is_full() {
                return Ok(Step::NoSlot);
            }
            if self.slots.used < at.max_slots && self.slots.free(class) > 0 {
                break (block, hangs_on);
            }
            if at.marked.is_none() {
                at.marked = Some(Vec::new());
                self.mark_chain(block.node, &mut at.marked);
                self.mark_chain(block.above, &mut at.marked);
            }
            // What goes may be all that kept the layout or a floating parent: then look again.
            if evicted || !self.evict_one(class) {
                return Ok(Step::NoSlot);
            }
            evicted = true;
        };
        if !self.policy.wants_requests() {
            if hangs_on != NONE && self.pages[hangs_on].is_present() {
                self.warm_above(hangs_on, at.seconds);
            }
        } else if !at.has_begun {
            at.has_begun = true;
            self.begin_put(at, &block, given, index);
        }
        let node = self.place_block(&at.print, &block, page, index, at.seconds)?;
        let layout = self.tree.nodes[node].layout;
        let key = match self.keys.acquire(page.key, index) {
            Ok(key) => key,
            Err(error) => {
                self.settle_node(node);
                return Err(error);
            }
        };
        self.tree.layouts.get_mut(layout).set_kind(page.key);
        let number = self.add_page(node, key, page.size, at.seconds);
        self.hang(number, hangs_on);
        if at.has_begun {
            self.policy.insert(node, self.tree.digest_of(node), self.tree.nodes[node].depth as usize);
        }
        self.pin(number);
        let has_slot = self.take_slot(number, at.now);
        assert!(has_slot, "a free slot could not be taken");
        Ok(Step::Taken(number))
    }

    /// Tell the policy of a put whose first new page is at `index`; and, unless it knows, of the use of what is before.
    fn begin_put(&mut self, at: &Reserving, block: &Block, given: &[Given], index: usize) {
        let mut hashes: Vec<&[u8]> = given[index..].iter().map(|page| page.hash).collect();
        let pages = hashes.len();
        hashes.dedup();
        let behind = at.ahead.div_ceil((pages / hashes.len()).max(1));
        let layout = self.tree.layouts.find(&at.print);
        let looked_at = hashes.iter().take(MISSING_LOOKED_AT);
        let missing: Vec<u64> =
            layout.map_or_else(Vec::new, |layout| looked_at.map(|hash| self.tree.digest(layout, hash)).collect());
        let above = if block.node == NONE { block.above } else { self.tree.nodes[block.node].parent };
        let known = if is_node(above) { self.tree.nodes[above].depth as usize + 1 } else { 0 };
        let asked = known + hashes.len() + behind;
        self.policy.begin(&Request { asked, known, missing: &missing });
        if is_node(above) && !self.policy.is_fresh(above) {
            self.touch_chain(above);
        }
    }

    /// The running request is for this block and all before it.
    fn touch_chain(&mut self, node: u32) {
        let mut chain = Vec::new();
        let mut above = node;
        while is_node(above) {
            chain.push(above);
            above = self.tree.nodes[above].parent;
        }
        for &node in chain.iter().rev() {
            self.touch_block(node);
        }
    }

    /// The page of the parent block that this one is to hang on, NONE if on none; None: it has to and cannot.
    fn hanger(&self, layout: Option<u16>, block: &Block, page: &Given) -> Option<u32> {
        if block.parent.is_none() {
            return Some(NONE);
        }
        if page.key.trailing == 0 {
            return self.find_page(block.above, page.key);
        }
        let has_full = layout.is_some_and(|layout| self.tree.layouts.get(layout).has_full());
        (!has_full || block.above != NONE).then_some(NONE)
    }

    /// The block's node, made or hung where it belongs; and its parent's, if that is not known.
    fn place_block(
        &mut self,
        print: &[u8; LAYOUT_BYTES],
        block: &Block,
        page: &Given,
        index: usize,
        stored_at: u32,
    ) -> Result<u32> {
        let layout = self.tree.ensure_layout(print, page.hash, index)?;
        let stored = if block.node == NONE { NONE } else { self.tree.nodes[block.node].parent };
        if block.node != NONE && stored != UNKNOWN {
            return Ok(block.node);
        }
        let above = match block.parent {
            None => NONE,
            Some(_) if block.above != NONE => block.above,
            Some(hash) => self.add_node(layout, hash, Birth { parent: UNKNOWN, depth: 0, stored_at, turn: 0 }),
        };
        if block.node != NONE {
            self.tree.link(block.node, above);
            return Ok(block.node);
        }
        let (depth, turn) = if is_node(above) {
            let it = &self.tree.nodes[above];
            let turn = it.turn.saturating_add(u16::from(self.has_present(above)));
            (it.depth.saturating_add(1), turn)
        } else {
            (0, 0)
        };
        let birth = Birth { parent: above, depth, stored_at, turn };
        Ok(self.add_node(layout, page.hash, birth))
    }

    /// Mark the pages of the block and of all before it, so that none is evicted for what comes behind them.
    fn mark_chain(&mut self, mut node: u32, marked: &mut Option<Vec<u32>>) {
        while is_node(node) {
            let first = self.tree.nodes[node].pages;
            if first != NONE && self.pages[first].is(MARKED) {
                return;
            }
            self.mark_block(node, marked);
            node = self.tree.nodes[node].parent;
        }
    }

    /// The page and those it hangs on are of use: ancestors are the warmer ones.
    fn warm_above(&mut self, mut page: u32, seconds: u32) {
        while page != NONE {
            let it = &self.pages[page];
            let above = it.parent;
            self.policy.used(page, it.slot_bytes(), seconds);
            page = above;
        }
    }

    fn mark_block(&mut self, node: u32, marked: &mut Option<Vec<u32>>) {
        let mut page = self.tree.nodes[node].pages;
        while page != NONE {
            let it = &mut self.pages[page];
            if !it.is(MARKED) {
                it.set(MARKED);
                marked.get_or_insert_default().push(page);
            }
            page = it.next;
        }
    }

    // Eviction

    fn victim(&mut self, class: u32) -> Option<Victim> {
        let (tree, pages, slots) = (&self.tree, &self.pages, &self.slots);
        let may_leave = |page: u32| may_leave(pages, slots, class, page);
        let any_may_leave = |node: u32| {
            let mut page = tree.nodes[node].pages;
            while page != NONE && !may_leave(page) {
                page = pages[page].next;
            }
            page != NONE
        };
        self.policy.victim(class, may_leave, any_may_leave)
    }

    /// Whether a slot of this class can be had by eviction.
    pub fn can_evict(&mut self, class: u32) -> bool {
        self.victim(class).is_some()
    }

    /// Evict what the policy names to have a slot of this class. Whether there was something.
    pub fn evict_one(&mut self, class: u32) -> bool {
        match self.victim(class) {
            None => return false,
            Some(Victim::Page(page)) => self.evict(page),
            Some(Victim::Block(node)) => {
                let pages: Vec<u32> = self.pages_of(node).collect();
                for page in pages {
                    // One may have gone with another, and the block with it.
                    let it = &self.pages[page];
                    if it.node == node && may_leave(&self.pages, &self.slots, it.slot_bytes(), page) {
                        self.evict(page);
                    }
                }
            }
        }
        true
    }

    fn evict(&mut self, page: u32) {
        self.leave_dram(page);
        self.evicted_pages += 1;
    }

    // The end of a put

    /// Filling pages are resident. Returns how many, without those that were cut meanwhile.
    pub fn commit(&mut self, pages: &[u32], digests: &[u8]) -> Result<usize> {
        self.check_filling(pages)?;
        if digests.len() != 16 * pages.len() {
            return value(format!("{} bytes of digests for {} pages", digests.len(), pages.len()));
        }
        let mut resident = 0;
        for (&page, digest) in pages.iter().zip(digests.chunks_exact(16)) {
            let it = &mut self.pages[page];
            it.digest.copy_from_slice(digest);
            if !it.is(ATTACHED) {
                self.filled_in_vain(page);
                continue;
            }
            resident += 1;
            let parent = it.parent;
            if parent != NONE && !self.pages[parent].is_present() {
                self.pages[page].set(WAITING);
            } else {
                self.appear(page);
            }
        }
        Ok(resident)
    }

    /// The page is resident now, and so are those below it that waited for it.
    fn appear(&mut self, page: u32) {
        let mut next = vec![page];
        while let Some(page) = next.pop() {
            self.becomes_resident(page);
            self.unpin(page);
            self.demote_far_above(page);
            let it = &self.pages[page];
            if it.kids > 0 {
                let (node, key) = (it.node, it.key);
                let below = self.tree.children(node).filter_map(|child| self.page_of(child, key));
                next.extend(below.filter(|&child| self.pages[child].is(WAITING)));
            }
        }
    }

    /// A trailing(n) page that came: the one n blocks above it is needed by shorter requests only, if the chain does not
    /// part on the way.
    fn demote_far_above(&mut self, page: u32) {
        let key = self.pages[page].key;
        let n = self.keys.get(key).trailing;
        if n == 0 || n > FURTHEST_DEMOTED {
            return;
        }
        let mut node = self.pages[page].node;
        for _ in 0..n {
            let above = self.tree.nodes[node].parent;
            if !is_node(above) || self.tree.next_sibling(self.tree.nodes[above].first_child) != NONE {
                return;
            }
            node = above;
        }
        if let Some(old) = self.page_of(node, key) {
            self.policy.demote(old, self.pages[old].slot_bytes(), node);
        }
    }

    /// Filling pages are given up: their slots are free.
    pub fn abort(&mut self, pages: &[u32]) -> Result<()> {
        self.check_filling(pages)?;
        for &page in pages {
            if self.pages[page].is(ATTACHED) {
                self.cut(page);
                self.unpin(page);
            } else {
                self.filled_in_vain(page);
            }
        }
        Ok(())
    }

    /// Refuse pages that are not being filled by a put, and lists that name one twice.
    fn check_filling(&self, pages: &[u32]) -> Result<()> {
        let mut seen = HashSet::with_capacity(pages.len());
        for &page in pages {
            self.check_page(page)?;
            let it = &self.pages[page];
            if !it.is(FILLING | ALIVE) || it.is(WAITING) || it.is_on_nvme() || it.is(WRITING) {
                return value(format!("page {page} is not being filled by a put"));
            }
            if !seen.insert(page) {
                return value(format!("page {page} is named twice"));
            }
        }
        Ok(())
    }
}

/// Whether the page is a resident one of the class and may leave DRAM: nothing needs it there, and nothing goes with it
/// that hangs on it.
fn may_leave(pages: &Pages, slots: &Slots, class: u32, page: u32) -> bool {
    let it = &pages[page];
    let may_go = it.is_on_nvme() || (it.kids == 0 && !it.is(MARKED));
    it.is(ALIVE | ATTACHED | RESIDENT)
        && it.pins == 0
        && may_go
        && it.slot_bytes() == class
        && !slots.chunk(it.chunk).retired
}

/// What `reserve` did.
pub struct Reserved {
    /// Positions in the put and numbers of the pages that are filling now.
    pub taken: Vec<(usize, u32)>,
    /// The position where it stopped; the end: everything is done.
    pub stopped: usize,
    /// Whether it stopped because someone else stores that page.
    pub is_busy: bool,
}

/// What stays the same, or grows, from page to page of one `reserve`.
struct Reserving {
    print: [u8; LAYOUT_BYTES],
    now: f64,
    seconds: u32,
    max_slots: u64,
    ahead: usize,
    /// Whether the policy was told of the put.
    has_begun: bool,
    /// The pages of the chain, once something has to be evicted.
    marked: Option<Vec<u32>>,
}

enum Step {
    Taken(u32),
    Known,
    Busy,
    NoSlot,
}

/// Refuse a put that contradicts itself.
fn check_given(parent: Option<&[u8]>, pages: &[Given]) -> Result<()> {
    if pages.is_empty() {
        return malformed(0, "a put has no pages");
    }
    let mut seen: HashSet<&[u8]> = parent.into_iter().collect();
    let mut keys: HashSet<(u32, u16)> = HashSet::new();
    let mut hash = None;
    for (index, page) in pages.iter().enumerate() {
        check_size(page, index)?;
        if hash != Some(page.hash) {
            hash = Some(page.hash);
            keys.clear();
            if !seen.insert(page.hash) {
                return malformed(index, "a block comes twice; pages of one block stand together");
            }
        }
        if !keys.insert((page.key.group, page.key.shard)) {
            return malformed(index, "a page comes twice");
        }
    }
    Ok(())
}

fn check_size(page: &Given, index: usize) -> Result<()> {
    if (1..=MAX_PAGE_BYTES).contains(&page.size) {
        return Ok(());
    }
    malformed(index, format!("a page of {} bytes; 1 to {MAX_PAGE_BYTES} are taken", page.size))
}

/// The parent of the block that `start` belongs to.
fn parent_before<'a>(parent: Option<&'a [u8]>, pages: &[Given<'a>], start: usize) -> Option<&'a [u8]> {
    let Some(page) = pages.get(start) else {
        return parent;
    };
    let before = pages[..start].iter().rev().find(|other| other.hash != page.hash);
    before.map(|page| page.hash).or(parent)
}

/// Refuse a new page of a block that has so many.
fn check_count(block: &Block, pages: usize, index: usize) -> Result<()> {
    if pages < MAX_PAGES_OF_BLOCK {
        return Ok(());
    }
    refused(
        Code::Limit,
        index,
        format!("block {} has {pages} pages; no more than {MAX_PAGES_OF_BLOCK} are taken", hex(block.hash)),
    )
}

fn parent_absent<T>(block: &Block, index: usize) -> Result<T> {
    let parent = block.parent.map(hex).unwrap_or_default();
    Err(Error::Refused {
        code: Code::ParentAbsent,
        index,
        message: format!(
            "the parent {parent} of block {} is not stored; put the chain from its first absent block on",
            hex(block.hash)
        ),
    })
}

fn hex(hash: &[u8]) -> String {
    hash.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{KEY, LAYOUT, find, hash, index, reserve, store};

    #[test]
    fn room_is_made_of_the_coldest_leaves_but_not_of_the_chain_itself() {
        let mut index = index(4);
        store(&mut index, None, &[1, 2]);
        store(&mut index, None, &[8, 9]);
        assert_eq!(store(&mut index, Some(2), &[3, 4, 5]).len(), 2);
        index.check();
        assert_eq!((find(&index, &[1, 2, 3, 4, 5]), find(&index, &[8, 9])), ((4, 4), (0, 0)));
    }

    #[test]
    fn page_waits_for_the_one_above_it() {
        let mut index = index(4);
        let above = reserve(&mut index, None, &[1]);
        store(&mut index, Some(1), &[2, 3]);
        assert_eq!(find(&index, &[1, 2, 3]), (0, 0));
        index.commit(&above, &[0; 16]).unwrap();
        assert_eq!(find(&index, &[1, 2, 3]), (3, 3));
        index.check();
    }

    #[test]
    fn given_up_page_takes_those_below_it_along() {
        let mut index = index(4);
        let above = reserve(&mut index, None, &[1]);
        store(&mut index, Some(1), &[2, 3]);
        index.abort(&above).unwrap();
        index.check();
        assert_eq!((index.slots.used, index.tree.nodes.live()), (0, 0));
    }

    #[test]
    fn parent_in_front_of_a_position_is_the_block_before_it() {
        let (a, b) = (hash(1), hash(2));
        let other = Key { shard: 1, ..KEY };
        let page = |hash, key| Given { hash, key, size: 1 };
        let pages = [page(&a[..], KEY), page(&a[..], other), page(&b[..], KEY), page(&b[..], other)];
        let before = |start| parent_before(Some(&LAYOUT), &pages, start);
        assert_eq!((before(1), before(2), before(3)), (Some(&LAYOUT[..]), Some(&a[..]), Some(&a[..])));
    }
}
