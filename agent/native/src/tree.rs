//! The blocks of all layouts: a node each, linked with parent, children and siblings.
//!
//! A node without pages stays while it has children, since these name it as their parent. It is *floating* if its own
//! parent is not known.

use std::collections::{BTreeSet, HashMap};

use crate::column::{NONE, Slab};
use crate::error::Result;
use crate::keys::{LAYOUT_BYTES, Layouts, MAX_HASH_BYTES};
use crate::table::Table;

/// The parent is not known: the node is floating.
pub const UNKNOWN: u32 = NONE - 1;
/// The layout of a node that is gone.
const GONE: u16 = u16::MAX;
const SHORT: usize = 32;

/// A block. One cache line: a lookup compares hashes from node to parent.
#[repr(C, align(64))]
pub struct Node {
    /// Its first bytes; what is longer lies aside.
    hash: [u8; SHORT],
    pub parent: u32,
    pub first_child: u32,
    next: u32,
    previous: u32,
    /// The first of its pages.
    pub pages: u32,
    /// Blocks before it in its chain.
    pub depth: u32,
    /// Unix seconds.
    pub stored_at: u32,
    /// How many puts its chain had before the one that brought it.
    pub turn: u16,
    pub layout: u16,
}

const _: () = assert!(size_of::<Node>() == 64);

pub struct Tree {
    pub nodes: Slab<Node>,
    pub layouts: Layouts,
    table: Table,
    long: HashMap<u32, [u8; MAX_HASH_BYTES - SHORT]>,
    /// By age, every node that is not younger than its parent, roots among them: each other one has an older ancestor.
    oldest: BTreeSet<(u32, u32)>,
}

/// What a new node is like.
pub struct Birth {
    pub parent: u32,
    pub depth: u32,
    pub stored_at: u32,
    pub turn: u16,
}

impl Tree {
    pub fn new() -> Self {
        Tree {
            nodes: Slab::new(),
            layouts: Layouts::default(),
            table: Table::new(),
            long: HashMap::new(),
            oldest: BTreeSet::new(),
        }
    }

    /// The node's hash is put together in `buffer`.
    pub fn hash_into<'b>(&self, node: u32, buffer: &'b mut [u8; MAX_HASH_BYTES]) -> &'b [u8] {
        let bytes = usize::from(self.layouts.get(self.nodes[node].layout).hash_bytes);
        buffer[..SHORT].copy_from_slice(&self.nodes[node].hash);
        if bytes > SHORT {
            buffer[SHORT..].copy_from_slice(&self.long[&node]);
        }
        &buffer[..bytes]
    }

    pub fn hash(&self, node: u32) -> Vec<u8> {
        self.hash_into(node, &mut [0; MAX_HASH_BYTES]).to_vec()
    }

    pub fn fingerprint(&self, node: u32) -> &[u8; LAYOUT_BYTES] {
        &self.layouts.get(self.nodes[node].layout).fingerprint
    }

    /// Whether this is the node's hash, whose length is the layout's.
    #[inline]
    pub fn has_hash(&self, node: u32, hash: &[u8]) -> bool {
        let own = &self.nodes[node].hash;
        if hash.len() == SHORT {
            return own == hash;
        }
        self.has_odd_hash(node, hash)
    }

    #[cold]
    fn has_odd_hash(&self, node: u32, hash: &[u8]) -> bool {
        let own = &self.nodes[node].hash;
        if hash.len() < SHORT {
            return &own[..hash.len()] == hash;
        }
        own == &hash[..SHORT] && self.long[&node][..hash.len() - SHORT] == hash[SHORT..]
    }

    /// The node of this hash, with or without pages. The hash has the layout's length.
    #[inline]
    pub fn find(&self, layout: u16, hash: &[u8]) -> Option<u32> {
        let (head, rest) = part(hash);
        self.table.find(self.table.digest(layout, head, rest), |node| {
            self.nodes[node].layout == layout && self.has_hash(node, hash)
        })
    }

    /// A keyed digest of a hash, the same for one block as long as the index lives.
    pub fn digest(&self, layout: u16, hash: &[u8]) -> u64 {
        let (head, rest) = part(hash);
        self.table.digest(layout, head, rest)
    }

    pub fn digest_of(&self, node: u32) -> u64 {
        self.digest(self.nodes[node].layout, self.hash_into(node, &mut [0; MAX_HASH_BYTES]))
    }

    /// A node that was not there.
    pub fn add(&mut self, layout: u16, hash: &[u8], birth: Birth) -> u32 {
        let mut short = [0; SHORT];
        let head = hash.len().min(SHORT);
        short[..head].copy_from_slice(&hash[..head]);
        let node = self.nodes.add(Node {
            hash: short,
            parent: NONE,
            first_child: NONE,
            next: NONE,
            previous: NONE,
            pages: NONE,
            depth: birth.depth,
            stored_at: birth.stored_at,
            turn: birth.turn,
            layout,
        });
        if hash.len() > SHORT {
            let mut rest = [0; MAX_HASH_BYTES - SHORT];
            rest[..hash.len() - SHORT].copy_from_slice(&hash[SHORT..]);
            self.long.insert(node, rest);
        }
        self.layouts.get_mut(layout).nodes += 1;
        let (head, rest) = part(hash);
        let digest = self.table.digest(layout, head, rest);
        let (nodes, layouts, long) = (&self.nodes, &self.layouts, &self.long);
        self.table.insert(digest, node, |other| {
            let it = &nodes[other];
            let bytes = usize::from(layouts.get(it.layout).hash_bytes);
            match bytes.checked_sub(SHORT) {
                None | Some(0) => (it.layout, &it.hash[..bytes], &[][..]),
                Some(rest) => (it.layout, &it.hash[..], &long[&other][..rest]),
            }
        });
        self.link(node, birth.parent);
        node
    }

    /// Hang a node that hangs nowhere below `parent`, which may be NONE or UNKNOWN.
    pub fn link(&mut self, node: u32, parent: u32) {
        self.nodes[node].parent = parent;
        let stored_at = self.nodes[node].stored_at;
        if is_node(parent) {
            let first = self.nodes[parent].first_child;
            self.nodes[node].next = first;
            self.nodes[node].previous = NONE;
            if first != NONE {
                self.nodes[first].previous = node;
            }
            self.nodes[parent].first_child = node;
            if stored_at >= self.nodes[parent].stored_at {
                return;
            }
        }
        self.oldest.insert((stored_at, node));
    }

    /// Take a node off its parent; it is floating then.
    pub fn float(&mut self, node: u32) {
        self.unlink(node);
        self.oldest.insert((self.nodes[node].stored_at, node));
    }

    fn unlink(&mut self, node: u32) {
        let (parent, next, previous) = {
            let it = &self.nodes[node];
            (it.parent, it.next, it.previous)
        };
        if is_node(parent) {
            if previous == NONE {
                self.nodes[parent].first_child = next;
            } else {
                self.nodes[previous].next = next;
            }
            if next != NONE {
                self.nodes[next].previous = previous;
            }
        }
        let it = &mut self.nodes[node];
        (it.parent, it.next, it.previous) = (UNKNOWN, NONE, NONE);
    }

    /// Forget a node that has neither pages nor children.
    pub fn remove(&mut self, node: u32) {
        self.unlink(node);
        let layout = self.nodes[node].layout;
        let mut buffer = [0; MAX_HASH_BYTES];
        let (head, rest) = part(self.hash_into(node, &mut buffer));
        let digest = self.table.digest(layout, head, rest);
        self.table.remove(digest, node);
        self.oldest.remove(&(self.nodes[node].stored_at, node));
        self.long.remove(&node);
        self.nodes[node].layout = GONE;
        self.nodes.remove(node);
        self.layouts.get_mut(layout).nodes -= 1;
        self.layouts.tidy(layout);
    }

    /// The layout's number, made if it is not there.
    pub fn ensure_layout(&mut self, fingerprint: &[u8; LAYOUT_BYTES], hash: &[u8], index: usize) -> Result<u16> {
        let layout = self.layouts.ensure(fingerprint, hash.len(), index)?;
        self.layouts.get(layout).check_hash(hash, index)?;
        Ok(layout)
    }

    /// Correct what was guessed of a node before it was found. `age` follows when its parent is known too.
    pub fn set_birth(&mut self, node: u32, stored_at: u32, depth: u32) {
        self.oldest.remove(&(self.nodes[node].stored_at, node));
        let it = &mut self.nodes[node];
        (it.stored_at, it.depth) = (stored_at, depth);
    }

    /// Enter the node among the oldest if it belongs there.
    pub fn age(&mut self, node: u32) {
        let it = &self.nodes[node];
        if !is_node(it.parent) || it.stored_at < self.nodes[it.parent].stored_at {
            self.oldest.insert((it.stored_at, node));
        }
    }

    pub fn is_there(&self, node: u32) -> bool {
        self.nodes[node].layout != GONE
    }

    pub fn next_sibling(&self, node: u32) -> u32 {
        self.nodes[node].next
    }

    pub fn children(&self, node: u32) -> Children<'_> {
        Children { tree: self, next: self.nodes[node].first_child }
    }

    /// Whether `above` is `node` or one of its ancestors.
    pub fn is_above(&self, above: u32, mut node: u32) -> bool {
        while is_node(node) {
            if node == above {
                return true;
            }
            node = self.nodes[node].parent;
        }
        false
    }

    /// Nodes stored before this time none of whose ancestors needs to be, oldest first.
    pub fn oldest_before(&self, time: u32) -> impl Iterator<Item = u32> + '_ {
        self.oldest.range(..(time, 0)).map(|&(_, node)| node)
    }

    pub fn heap_bytes(&self) -> usize {
        self.nodes.heap_bytes()
            + self.table.heap_bytes()
            + self.layouts.heap_bytes()
            + self.long.capacity() * 40
            + self.oldest.len() * 14
    }

    /// Panic unless every link and count of the nodes is right. Returns how many nodes there are.
    pub fn check(&self) -> usize {
        let mut there = 0;
        for node in (0..self.nodes.end()).filter(|&node| self.is_there(node)) {
            there += 1;
            let it = &self.nodes[node];
            assert_eq!(self.find(it.layout, &self.hash(node)), Some(node), "a node is not found by its hash");
            let mut previous = NONE;
            for child in self.children(node) {
                assert_eq!(self.nodes[child].parent, node, "a child has another parent");
                assert_eq!(self.nodes[child].previous, previous, "siblings are linked wrongly");
                previous = child;
            }
            if is_node(it.parent) {
                let above = &self.nodes[it.parent];
                assert!(self.children(it.parent).any(|child| child == node), "a parent lacks its child");
                let listed = self.oldest.contains(&(it.stored_at, node));
                assert!(listed || it.stored_at >= above.stored_at, "an old node would not expire");
            } else {
                assert!(self.oldest.contains(&(it.stored_at, node)), "a root would not expire");
            }
        }
        assert_eq!(there, self.nodes.live());
        assert_eq!(there, self.table.len());
        assert!(self.oldest.iter().all(|&(at, node)| self.is_there(node) && self.nodes[node].stored_at == at));
        there
    }
}

fn part(hash: &[u8]) -> (&[u8], &[u8]) {
    hash.split_at(hash.len().min(SHORT))
}

/// Whether this names a node, rather than NONE or UNKNOWN.
#[inline]
pub fn is_node(number: u32) -> bool {
    number < UNKNOWN
}

pub struct Children<'a> {
    tree: &'a Tree,
    next: u32,
}

impl Iterator for Children<'_> {
    type Item = u32;

    fn next(&mut self) -> Option<u32> {
        let child = self.next;
        if child == NONE {
            return None;
        }
        self.next = self.tree.nodes[child].next;
        Some(child)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn birth(parent: u32, stored_at: u32) -> Birth {
        Birth { parent, depth: 0, stored_at, turn: 0 }
    }

    fn tree() -> (Tree, u16) {
        let mut tree = Tree::new();
        let layout = tree.ensure_layout(&[1; 32], &[0; 40], 0).unwrap();
        (tree, layout)
    }

    #[test]
    fn node_is_found_by_every_byte_of_its_hash() {
        let (mut tree, layout) = tree();
        let node = tree.add(layout, &[7; 40], birth(NONE, 1));
        let mut other = [7; 40];
        other[39] = 8;
        let second = tree.add(layout, &other, birth(node, 1));
        assert_eq!((tree.find(layout, &[7; 40]), tree.find(layout, &other)), (Some(node), Some(second)));
        assert_eq!((tree.hash(node), tree.hash(second)), (vec![7; 40], other.to_vec()));
        assert!(!tree.has_hash(node, &other));
        tree.check();
    }

    #[test]
    fn removed_node_leaves_its_siblings_linked() {
        let (mut tree, layout) = tree();
        let root = tree.add(layout, &[0; 40], birth(NONE, 1));
        let children: Vec<u32> = (1..4).map(|byte| tree.add(layout, &[byte; 40], birth(root, 1))).collect();
        tree.remove(children[1]);
        assert_eq!(tree.children(root).collect::<Vec<u32>>(), [children[2], children[0]]);
        tree.check();
        tree.remove(children[2]);
        tree.remove(children[0]);
        tree.remove(root);
        assert_eq!((tree.check(), tree.layouts.find(&[1; 32])), (0, None));
    }

    #[test]
    fn floating_node_hangs_nowhere_until_it_is_linked() {
        let (mut tree, layout) = tree();
        let root = tree.add(layout, &[0; 40], birth(NONE, 5));
        let child = tree.add(layout, &[1; 40], birth(root, 6));
        let below = tree.add(layout, &[2; 40], birth(child, 6));
        tree.float(child);
        assert!(!tree.is_above(root, below) && tree.is_above(child, below));
        tree.check();
        tree.link(child, root);
        assert!(tree.is_above(root, below));
        tree.check();
    }

    #[test]
    fn nodes_older_than_their_parents_expire_by_themselves() {
        let (mut tree, layout) = tree();
        let root = tree.add(layout, &[0; 40], birth(NONE, 5));
        tree.add(layout, &[1; 40], birth(root, 6));
        let old = tree.add(layout, &[2; 40], birth(root, 4));
        assert_eq!(tree.oldest_before(5).collect::<Vec<u32>>(), [old]);
        assert_eq!(tree.oldest_before(9).collect::<Vec<u32>>(), [old, root]);
    }
}
