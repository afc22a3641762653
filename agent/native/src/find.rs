//! Lookups: how many leading blocks of a list of hashes are whole, and which pages those are.

use std::collections::HashSet;

use crate::column::NONE;
use crate::error::{Result, malformed};
use crate::index::Index;
use crate::keys::{Key, check_hash_length, fingerprint};
use crate::tree::is_node;

/// What a caller needs of each block: keys as stored, in the order asked.
#[derive(Default, Clone)]
pub struct Wanted {
    /// Each key's number and n of `trailing(n)`; 0: full.
    pub keys: Vec<(u16, u32)>,
    pub full: Vec<u16>,
    pub trailing: Vec<(u16, u32)>,
}

/// The nodes of a leading part of a list: at least those of its last blocks whose pages are wanted.
pub struct Leading {
    /// Blocks of the list that are whole.
    pub blocks: usize,
    /// The nodes of blocks `blocks - nodes.len()..blocks`.
    nodes: Vec<u32>,
}

impl Leading {
    fn none() -> Self {
        Leading { blocks: 0, nodes: Vec::new() }
    }

    /// The node of a block, if it was looked at.
    pub fn node(&self, block: usize) -> Option<u32> {
        let first = self.blocks - self.nodes.len();
        block.checked_sub(first).and_then(|at| self.nodes.get(at)).copied()
    }
}

impl Index {
    /// Refuse keys that contradict themselves or the layout. None: no page has one of them.
    pub fn wanted(&self, layout: Option<u16>, keys: &[Key]) -> Result<Option<Wanted>> {
        if keys.is_empty() {
            return malformed(0, "no pages are named; name at least one (group, shard)");
        }
        let mut seen = HashSet::with_capacity(keys.len());
        for (index, key) in keys.iter().enumerate() {
            if !seen.insert((key.group, key.shard)) {
                return malformed(index, "a page is named twice");
            }
            if let Some(layout) = layout {
                self.tree.layouts.get(layout).check_kind(*key, index)?;
            }
        }
        let mut wanted = Wanted::default();
        for &key in keys {
            let Some(number) = self.keys.find(key) else {
                return Ok(None);
            };
            wanted.keys.push((number, key.trailing));
            if key.trailing == 0 {
                wanted.full.push(number);
            } else {
                wanted.trailing.push((number, key.trailing));
            }
        }
        Ok(Some(wanted))
    }

    /// The layout's number and what is wanted of its blocks. None: nothing of that is there.
    pub fn ask(&self, layout: &[u8], hashes: &[&[u8]], keys: &[Key]) -> Result<Option<(u16, Wanted)>> {
        let layout = self.tree.layouts.find(&fingerprint(layout)?);
        for (index, hash) in hashes.iter().enumerate() {
            match layout {
                Some(layout) => self.tree.layouts.get(layout).check_hash(hash, index)?,
                None => check_hash_length(hash, index)?,
            }
        }
        let wanted = self.wanted(layout, keys)?;
        Ok(layout.zip(wanted).filter(|_| !self.recovery.is_under_way()))
    }

    /// Whole leading blocks in any tier, and those that are whole in DRAM.
    pub fn find(&self, layout: &[u8], hashes: &[&[u8]], keys: &[Key]) -> Result<(usize, usize)> {
        let Some((layout, wanted)) = self.ask(layout, hashes, keys)? else {
            return Ok((0, 0));
        };
        let chain = self.chain(layout, hashes, &wanted);
        let whole = self.whole(&chain, layout, hashes, &wanted, false).blocks;
        if whole == 0 {
            return Ok((0, 0));
        }
        let in_dram = Leading { blocks: self.resident_blocks(&chain, &wanted), ..chain };
        let in_dram = self.whole_of(in_dram, layout, hashes, &wanted, true);
        Ok((whole, in_dram.blocks))
    }

    /// The leading whole blocks of the list, with the nodes of those whose pages are wanted.
    pub fn leading(&self, layout: u16, hashes: &[&[u8]], wanted: &Wanted) -> Leading {
        let chain = self.chain(layout, hashes, wanted);
        self.whole_of(chain, layout, hashes, wanted, false)
    }

    /// The leading blocks of the list that have all full pages wanted, each the child of the one before it.
    ///
    /// Without full pages: all blocks, and no nodes.
    fn chain(&self, layout: u16, hashes: &[&[u8]], wanted: &Wanted) -> Leading {
        if wanted.full.is_empty() {
            return Leading { blocks: hashes.len(), nodes: Vec::new() };
        }
        let find = |hash: &[u8]| self.tree.find(layout, hash).filter(|&node| self.has_all(node, &wanted.full));
        let (mut low, mut high) = (0, hashes.len());
        let mut last = NONE;
        while low < high {
            let middle = (low + high) / 2;
            match find(hashes[middle]) {
                Some(node) => (low, last) = (middle + 1, node),
                None => high = middle,
            }
        }
        if low == 0 {
            return Leading::none();
        }
        let mut nodes = Vec::with_capacity(low);
        for hash in hashes[..low].iter().rev() {
            if !is_node(last) || !self.tree.has_hash(last, hash) {
                nodes.clear();
                break;
            }
            nodes.push(last);
            last = self.tree.nodes[last].parent;
        }
        if nodes.is_empty() {
            for hash in &hashes[..low] {
                match find(hash) {
                    Some(node) if nodes.last().is_none_or(|&above| self.tree.nodes[node].parent == above) => {
                        nodes.push(node);
                    }
                    _ => break,
                }
            }
        } else {
            nodes.reverse();
        }
        Leading { blocks: nodes.len(), nodes }
    }

    /// Whether the block has a page under each of these keys.
    fn has_all(&self, node: u32, keys: &[u16]) -> bool {
        keys.iter().all(|&key| self.page_of(node, key).is_some_and(|page| self.pages[page].is_present()))
    }

    /// How many leading blocks of the chain have their full pages in DRAM.
    fn resident_blocks(&self, chain: &Leading, wanted: &Wanted) -> usize {
        let mut resident = chain.blocks;
        let Some(&last) = chain.nodes.last() else {
            return resident;
        };
        for &key in &wanted.full {
            let mut page = self.page_of(last, key).unwrap_or(NONE);
            for block in (0..chain.blocks).rev() {
                if !self.pages[page].is_resident() {
                    resident = resident.min(block);
                }
                page = self.pages[page].parent;
            }
        }
        resident
    }

    fn whole(&self, chain: &Leading, layout: u16, hashes: &[&[u8]], wanted: &Wanted, resident: bool) -> Leading {
        let chain = Leading { blocks: chain.blocks, nodes: chain.nodes.clone() };
        self.whole_of(chain, layout, hashes, wanted, resident)
    }

    /// The largest part of the chain whose last blocks have the trailing pages wanted, resident ones if asked.
    fn whole_of(&self, chain: Leading, layout: u16, hashes: &[&[u8]], wanted: &Wanted, resident: bool) -> Leading {
        let Leading { blocks, mut nodes } = chain;
        if wanted.trailing.is_empty() {
            nodes.truncate(blocks);
            return Leading { blocks, nodes };
        }
        let is_there = |page: u32| {
            let it = &self.pages[page];
            if resident { it.is_resident() } else { it.is_present() }
        };
        if !wanted.full.is_empty() {
            let blocks = self.window(blocks, &wanted.trailing, |block| Some(nodes[block]), is_there);
            nodes.truncate(blocks);
            return Leading { blocks, nodes };
        }
        let find = |block: usize| self.tree.find(layout, hashes[block]);
        let blocks = self.window(blocks, &wanted.trailing, find, is_there);
        let longest = wanted.trailing.iter().map(|&(_, n)| n as usize).max().unwrap_or(0);
        let first = blocks.saturating_sub(longest);
        let nodes = (first..blocks).filter_map(find).collect();
        Leading { blocks, nodes }
    }

    /// The largest count of leading blocks, at most `blocks`, whose last n have their page, for each trailing(n).
    pub fn window(
        &self,
        mut blocks: usize,
        trailing: &[(u16, u32)],
        node_of: impl Fn(usize) -> Option<u32>,
        is_there: impl Fn(u32) -> bool,
    ) -> usize {
        let longest = trailing.iter().map(|&(_, n)| n as usize).max().unwrap_or(0);
        'shorter: while blocks > 0 {
            let mut child = NONE;
            for block in (blocks.saturating_sub(longest)..blocks).rev() {
                let Some(node) = node_of(block) else {
                    blocks = block;
                    continue 'shorter;
                };
                if child != NONE && self.tree.nodes[child].parent != node {
                    blocks = block + 1;
                    continue 'shorter;
                }
                child = node;
                for &(key, n) in trailing {
                    let is_needed = block + n as usize >= blocks;
                    if is_needed && !self.page_of(node, key).is_some_and(&is_there) {
                        blocks = block;
                        continue 'shorter;
                    }
                }
            }
            return blocks;
        }
        0
    }

    /// The nodes of the leading blocks of the list that have any page, each the child of the one before it.
    pub fn present_nodes(&self, layout: &[u8], hashes: &[&[u8]]) -> Result<Vec<u32>> {
        let Some(layout) = self.tree.layouts.find(&fingerprint(layout)?) else {
            return Ok(Vec::new());
        };
        if self.recovery.is_under_way() {
            return Ok(Vec::new());
        }
        let mut nodes: Vec<u32> = Vec::new();
        for (index, hash) in hashes.iter().enumerate() {
            self.tree.layouts.get(layout).check_hash(hash, index)?;
            match self.tree.find(layout, hash) {
                Some(node)
                    if self.has_present(node)
                        && nodes.last().is_none_or(|&above| self.tree.nodes[node].parent == above) =>
                {
                    nodes.push(node);
                }
                _ => break,
            }
        }
        Ok(nodes)
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::{find, index, store};

    #[test]
    fn leading_blocks_of_a_chain_are_found() {
        let mut index = index(64);
        store(&mut index, None, &[1, 2, 3]);
        store(&mut index, Some(2), &[4]);
        assert_eq!(find(&index, &[1, 2, 3, 4]), (3, 3));
        assert_eq!(find(&index, &[1, 2, 4, 9]), (3, 3));
        assert_eq!(find(&index, &[1, 3, 2]), (1, 1));
        assert_eq!(find(&index, &[9, 1]), (0, 0));
        assert_eq!(find(&index, &[]), (0, 0));
    }
}
