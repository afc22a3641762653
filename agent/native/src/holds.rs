//! Holds: pins on the pages that one request needs.

use crate::column::NONE;
use crate::error::{Result, value};
use crate::find::Wanted;
use crate::index::Index;
use crate::keys::Key;
use crate::pages::{ATTACHED, FILLING};
use crate::policy::{MISSING_LOOKED_AT, Request};
use crate::tree::is_node;

/// The pages of the leading whole blocks of a request. Plain data: the index has the pins.
#[derive(Default)]
pub struct Held {
    pub blocks: usize,
    pub pages: Vec<u32>,
    /// By page, whether it was below DRAM when it was first held.
    below: Vec<bool>,
    wanted: Wanted,
    dram_bytes: u64,
    below_bytes: u64,
}

/// One use of a chain, of which the policy is told when its answer has gone.
pub struct Use {
    pages: Vec<u32>,
    request: Option<Told>,
    now: f64,
}

/// A request for a chain: its nodes that are there, how many hashes follow them, and digests of these.
struct Told {
    nodes: Vec<u32>,
    missing: usize,
    digests: Vec<u64>,
}

/// Where a resident page lies, for a client.
pub struct Place {
    pub chunk: u64,
    pub payload_offset: u64,
    pub size: u32,
    pub generation_offset: u64,
    pub generation: u64,
    pub was_below: bool,
}

impl Held {
    /// Where the pages of this block begin in `pages`.
    fn at(&self, block: usize) -> usize {
        let of_trailing = |&(_, n): &(u16, u32)| (block + n as usize).saturating_sub(self.blocks.max(n as usize));
        let trailing: usize = self.wanted.trailing.iter().map(of_trailing).sum();
        block * self.wanted.full.len() + trailing
    }

    /// Payload bytes that were in DRAM, and below it.
    pub fn bytes(&self) -> (u64, u64) {
        (self.dram_bytes, self.below_bytes)
    }
}

impl Index {
    /// Pin the leading whole blocks. The policy is told of their use by `tell_use`, which has to come before all else.
    pub fn hold(&mut self, layout: &[u8], hashes: &[&[u8]], keys: &[Key], now: f64) -> Result<Held> {
        let Some((layout, wanted)) = self.ask(layout, hashes, keys)? else {
            return Ok(Held::default());
        };
        let leading = self.leading(layout, hashes, &wanted);
        let mut held = Held { blocks: leading.blocks, wanted, ..Held::default() };
        self.gather(&mut held, |block| leading.node(block));
        for &page in &held.pages {
            self.pin(page);
            let it = &self.pages[page];
            let is_below = !it.is_resident();
            if is_below {
                held.below_bytes += u64::from(it.size);
            } else {
                held.dram_bytes += u64::from(it.size);
            }
            held.below.push(is_below);
        }
        let request = self.policy.wants_requests().then(|| {
            let missing = &hashes[leading.blocks..];
            Told {
                nodes: (0..leading.blocks).filter_map(|block| leading.node(block)).collect(),
                missing: missing.len(),
                digests: missing.iter().take(MISSING_LOOKED_AT).map(|hash| self.tree.digest(layout, hash)).collect(),
            }
        });
        self.untold = Some(Use { pages: held.pages.clone(), request, now });
        Ok(held)
    }

    /// Tell the policy of what was held last.
    pub fn tell_use(&mut self) {
        if let Some(it) = self.untold.take() {
            self.use_pages(&it.pages, it.now);
            if let Some(request) = it.request {
                self.tell_request(&request);
            }
        }
    }

    fn tell_request(&mut self, told: &Told) {
        let known = told.nodes.last().map_or(0, |&node| self.tree.nodes[node].depth as usize + 1);
        self.policy.begin(&Request { asked: known + told.missing, known, missing: &told.digests });
        told.nodes.iter().for_each(|&node| self.touch_block(node));
    }

    /// The running request hit the block.
    pub fn touch_block(&mut self, node: u32) {
        self.policy.touch(node, self.tree.digest_of(node), self.tree.nodes[node].depth as usize);
    }

    /// The pages that are needed of each block, whose nodes `node_of` knows where there are any.
    fn gather(&self, held: &mut Held, node_of: impl Fn(usize) -> Option<u32>) {
        let wanted = &held.wanted;
        let mut columns: Vec<Vec<u32>> = Vec::with_capacity(wanted.keys.len());
        for &(key, n) in &wanted.keys {
            let mut column = Vec::new();
            if n == 0 && held.blocks > 0 {
                let mut page = node_of(held.blocks - 1).and_then(|node| self.page_of(node, key)).unwrap_or(NONE);
                for _ in 0..held.blocks {
                    column.push(page);
                    page = self.pages[page].parent;
                }
                column.reverse();
            } else {
                let first = held.blocks.saturating_sub(n as usize);
                column.extend((first..held.blocks).filter_map(|block| self.page_of(node_of(block)?, key)));
            }
            columns.push(column);
        }
        held.pages.clear();
        for block in 0..held.blocks {
            for column in &columns {
                let first = held.blocks - column.len();
                if block >= first {
                    held.pages.push(column[block - first]);
                }
            }
        }
    }

    /// Leading blocks that could be read now.
    pub fn ready_blocks(&self, held: &Held) -> usize {
        self.ready(held, held.blocks)
    }

    /// The most leading blocks, at most `limit`, that are whole in DRAM.
    fn ready(&self, held: &Held, limit: usize) -> usize {
        let full = held.wanted.full.len();
        let mut blocks = limit.min(held.blocks);
        if held.wanted.trailing.is_empty() {
            let resident = held.pages.iter().take(blocks * full).take_while(|&&page| self.pages[page].is_resident());
            return resident.count() / full.max(1);
        }
        let nodes = self.held_nodes(held);
        if full > 0 {
            let is_full = |page: &u32| !self.keys.is_trailing(self.pages[*page].key);
            let missing =
                held.pages.iter().filter(|page| is_full(page)).position(|&page| !self.pages[page].is_resident());
            blocks = blocks.min(missing.map_or(blocks, |at| at / full));
        }
        self.window(
            blocks,
            &held.wanted.trailing,
            |block| nodes.get(block).copied().filter(|&node| node != NONE),
            |page| self.pages[page].is_resident(),
        )
    }

    /// The nodes of the hold's blocks as they are in the tree now; NONE where they are gone.
    fn held_nodes(&self, held: &Held) -> Vec<u32> {
        let mut nodes = vec![NONE; held.blocks];
        for block in (0..held.blocks).rev() {
            let known = nodes.get(block + 1).copied().filter(|&child| child != NONE);
            let above = known.map(|child| self.tree.nodes[child].parent).filter(|&node| is_node(node));
            let own =
                held.pages[held.at(block)..held.at(block + 1)].iter().find(|&&page| self.pages[page].is(ATTACHED));
            nodes[block] = above.or_else(|| own.map(|&page| self.pages[page].node)).unwrap_or(NONE);
        }
        nodes
    }

    /// Pages of the hold that somebody has to bring into DRAM.
    pub fn missing(&self, held: &Held) -> Vec<u32> {
        let is_missing = |page: &&u32| {
            let it = &self.pages[**page];
            !it.is_resident() && !it.is(FILLING)
        };
        held.pages.iter().filter(is_missing).copied().collect()
    }

    /// Keep the leading `blocks` only; with trailing pages, the most of these that are whole in DRAM.
    pub fn settle(&mut self, held: &mut Held, blocks: usize) {
        let mut blocks = blocks.min(held.blocks);
        if held.wanted.trailing.is_empty() {
            let kept = blocks * held.wanted.full.len();
            held.below.truncate(kept);
            let dropped = held.pages.split_off(kept.min(held.pages.len()));
            held.blocks = blocks;
            self.release(&dropped);
            return;
        }
        blocks = self.ready(held, blocks);
        if blocks == held.blocks {
            return;
        }
        let nodes = self.held_nodes(held);
        let (mut pages, mut below) = (Vec::new(), Vec::new());
        for (block, &node) in nodes.iter().enumerate().take(blocks) {
            let mut at = held.at(block);
            for &(key, n) in &held.wanted.keys {
                if n == 0 {
                    while self.pages[held.pages[at]].key != key {
                        at += 1;
                    }
                    pages.push(held.pages[at]);
                    below.push(held.below[at]);
                } else if block + n as usize >= blocks {
                    pages.extend(self.page_of(node, key));
                    below.push(false);
                }
            }
        }
        for &page in &pages {
            self.pin(page);
        }
        held.blocks = blocks;
        held.below = below;
        let dropped = std::mem::replace(&mut held.pages, pages);
        self.release(&dropped);
    }

    /// Where the pages of blocks `start..stop` lie, block after block.
    pub fn places(&self, held: &Held, start: usize, stop: usize) -> Result<Vec<Place>> {
        if start > stop || stop > held.blocks {
            return value(format!("blocks {start} to {stop} of a hold of {}", held.blocks));
        }
        let mut places = Vec::new();
        for at in held.at(start)..held.at(stop) {
            let it = &self.pages[held.pages[at]];
            if !it.is_resident() {
                return value(format!("page {} is not in DRAM", held.pages[at]));
            }
            let chunk = self.slots.chunk(it.chunk);
            places.push(Place {
                chunk: chunk.number,
                payload_offset: chunk.payload_offset(it.slot),
                size: it.size,
                generation_offset: chunk.header_offset(it.slot),
                generation: chunk.generation(it.slot),
                was_below: held.below[at],
            });
        }
        Ok(places)
    }

    /// Undo one pin of each of these pages.
    pub fn release(&mut self, pages: &[u32]) {
        for &page in pages.iter().rev() {
            self.unpin(page);
        }
    }

    /// Tell the policy that these pages, in chain order, are of use.
    pub fn use_pages(&mut self, pages: &[u32], now: f64) {
        let seconds = self.tick(now);
        for &page in pages.iter().rev() {
            let it = &self.pages[page];
            let class = it.slot_bytes();
            if it.has_slot() {
                let chunk = self.slots.chunk_mut(it.chunk);
                chunk.last_use = chunk.last_use.max(now);
            }
            self.policy.used(page, class, seconds);
        }
    }

    /// As `use_pages`, for all pages of the leading blocks that are there.
    pub fn touch(&mut self, layout: &[u8], hashes: &[&[u8]], now: f64) -> Result<()> {
        let nodes = self.present_nodes(layout, hashes)?;
        let pages: Vec<u32> = nodes.iter().flat_map(|&node| self.pages_of(node)).collect();
        self.use_pages(&pages, now);
        if !nodes.is_empty() && self.policy.wants_requests() {
            self.tell_request(&Told { nodes, missing: 0, digests: Vec::new() });
        }
        Ok(())
    }

    /// Keep the leading blocks that are there until this time, as far as no more than `limit_bytes` are kept in all; no
    /// longer if it is 0. How many blocks those are.
    pub fn pin_prefix(&mut self, layout: &[u8], hashes: &[&[u8]], until: f64, limit_bytes: u64) -> Result<usize> {
        let nodes = self.present_nodes(layout, hashes)?;
        let until = until.clamp(0.0, f64::from(u32::MAX)).ceil() as u32;
        for (block, &node) in nodes.iter().enumerate() {
            let pages: Vec<u32> = self.pages_of(node).filter(|&page| self.pages[page].is_present()).collect();
            if until == 0 {
                pages.iter().for_each(|&page| self.let_go(page));
                continue;
            }
            let new = pages.iter().filter(|&&page| !self.is_kept(page));
            let bytes: u64 = new.map(|&page| u64::from(self.pages[page].slot_bytes())).sum();
            if self.pinned_bytes + bytes > limit_bytes {
                return Ok(block);
            }
            pages.iter().for_each(|&page| self.keep(page, until));
        }
        Ok(nodes.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{KEY, LAYOUT, find, hash, index, reserve, store};

    fn hold(index: &mut Index, blocks: &[u32]) -> Held {
        let hashes: Vec<Vec<u8>> = blocks.iter().copied().map(hash).collect();
        let hashes: Vec<&[u8]> = hashes.iter().map(Vec::as_slice).collect();
        index.hold(&LAYOUT, &hashes, &[KEY], 1.0).unwrap()
    }

    #[test]
    fn held_pages_stay_and_settled_ones_go() {
        let mut index = index(3);
        store(&mut index, None, &[1, 2, 3]);
        let mut held = hold(&mut index, &[1, 2, 3]);
        assert!(reserve(&mut index, None, &[8]).is_empty());
        index.settle(&mut held, 2);
        assert_eq!(reserve(&mut index, None, &[8]).len(), 1);
        assert_eq!((held.pages.len(), index.ready_blocks(&held), find(&index, &[1, 2, 3])), (2, 2, (2, 2)));
        index.release(&held.pages);
        index.check();
    }

    #[test]
    fn pages_of_a_block_begin_behind_those_of_the_blocks_before_it() {
        let wanted = Wanted { full: vec![0, 1], trailing: vec![(2, 2), (3, 9)], ..Wanted::default() };
        let held = Held { blocks: 4, wanted, ..Held::default() };
        assert_eq!([0, 1, 2, 3, 4].map(|block| held.at(block)), [0, 3, 6, 10, 14]);
    }
}
