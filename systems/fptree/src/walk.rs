//! Checks the whole structure; no client may write meanwhile.
//!
//! The walk READs all inner nodes level by level, and then the leaves with their tables along the
//! right links. It checks these invariants: fence keys without gap or overlap, and every key
//! between those of its leaf; right links in order; one version in record, table, header and
//! entries; the right fingerprint for every valid entry, and used slots that are a prefix; no leaf
//! without a record but an empty one without a range; and no held lock. A violation is a `Corrupt`
//! error.

use dmtree_fabric::{GlobalAddr, Result};
use dmtree_parts::Shape;
use dmtree_parts::blink::{lowest, upper};
use dmtree_parts::hash::KeyHash;
use dmtree_parts::published::must;

use crate::client::{FpTree, Route};
use crate::format::inner::{Child, Inner};
use crate::format::leaf::{self, Sibling};
use crate::format::table;
use crate::lock::LeafLocks;
use crate::options::Locks;
use crate::route::Routes;

/// A child, with the lower fence key that its parent has for it.
type Named = (Vec<u8>, Child);

/// A look at the whole tree.
pub(crate) struct Walks<'c>(pub(crate) &'c FpTree);

impl Walks<'_> {
    pub(crate) async fn walk_tree(&self, shape: &mut Shape) -> Result<()> {
        let lock = self.0.node.root.aux();
        must(self.word(lock).await? == 0, "the root lock is held", lock)?;
        let root = Routes(self.0).read_root().await?;
        let top = Child { addr: root, ..Child::default() };
        let mut level = vec![(lowest(self.0.node.g.key), top)];
        let leaves = loop {
            self.0.ep.renew_deadline();
            let (below, bottom) = self.walk_level(&level, root).await?;
            shape.levels += 1;
            shape.inner_nodes += level.len() as u64;
            if bottom {
                break below;
            }
            level = below;
        };
        self.walk_leaves(&leaves, shape).await?;
        shape.structure_bytes += shape.inner_nodes * self.0.node.g.inner_bytes() as u64;
        Ok(())
    }

    async fn word(&self, at: GlobalAddr) -> Result<u64> {
        Ok(self.0.ep.read(at, 8).await?.word(0))
    }

    /// Checks the nodes of one level, in order. Returns their children, and whether these are
    /// leaves.
    async fn walk_level(&self, level: &[Named], root: GlobalAddr) -> Result<(Vec<Named>, bool)> {
        let g = &self.0.node.g;
        let mut below = Vec::new();
        let mut bottom = None;
        for (i, (low, named)) in level.iter().enumerate() {
            self.0.ep.renew_deadline();
            let at = named.addr;
            let image = Routes(self.0).read_inner(at).await?;
            let n = Inner::of(g, &image);
            let next = level.get(i + 1);
            must(n.min() == low, "lower fence differs from the parent's", at)?;
            must(upper(n.max()) == next.map(|(low, _)| &low[..]), "fences leave a gap", at)?;
            let right = next.map_or(GlobalAddr::NULL, |(_, c)| c.addr);
            must(n.right() == right, "wrong right sibling", at)?;
            must(n.is_root() == (at == root), "wrong root mark", at)?;
            must(n.lock() == 0, "locked", at)?;
            must(bottom.is_none_or(|b| b == n.next_is_leaf()), "levels differ in depth", at)?;
            bottom = Some(n.next_is_leaf());
            below.extend((0..n.len()).map(|i| (n.key(i).to_vec(), n.child(i))));
        }
        Ok((below, bottom.unwrap_or(true)))
    }

    async fn walk_leaves(&self, leaves: &[Named], shape: &mut Shape) -> Result<()> {
        let c = leaves[0].1;
        let mut at = Sibling { leaf: c.addr, table: c.table, capacity: c.capacity };
        let mut low = leaves[0].0.clone();
        let mut rest = leaves.iter();
        let mut expected = rest.next();
        loop {
            self.0.ep.renew_deadline();
            // A leaf that has given all its keys away may be on the chain only.
            let record = expected.filter(|(_, c)| c.addr == at.leaf);
            let (right, max) = self.walk_leaf(&at, &low, record, shape).await?;
            if record.is_some() {
                expected = rest.next();
            }
            if right.leaf.is_null() {
                must(upper(&max).is_none(), "the last leaf has an upper fence", at.leaf)?;
                return must(expected.is_none(), "the chain ends before the records", at.leaf);
            }
            (at, low) = (right, max);
        }
    }

    /// Checks one leaf with its table. Returns its right sibling and its upper fence key.
    async fn walk_leaf(
        &self,
        at: &Sibling,
        low: &[u8],
        record: Option<&Named>,
        shape: &mut Shape,
    ) -> Result<(Sibling, Vec<u8>)> {
        let g = &self.0.node.g;
        let Sibling { leaf: addr, table, capacity } = *at;
        let bytes = self.0.ep.read(addr, g.leaf_bytes(capacity) as u32).await?;
        let r = Route { leaf: addr, table, capacity, version: 0, bottom: addr, cached: false };
        let t = LeafLocks(self.0).read_table(&r).await?;
        must(self.word(LeafLocks(self.0).lock_addr(&r)).await? == 0, "locked", addr)?;
        let found = bytes.check(|b| -> Result<_> {
            let h = leaf::check(g, b, capacity, capacity);
            must(h.is_some(), "header and entries are of two versions", addr)?;
            let h = h.expect("just seen");
            must(t.version == u64::from(h.version), "table and leaf differ in version", addr)?;
            must(h.min == low, "begins where its left sibling does not end", addr)?;
            if let Some((low, c)) = record {
                let same = (c.table, c.capacity, c.version) == (table, capacity, h.version);
                must(same && h.min == &low[..], "differs from its record", addr)?;
            }
            let max = upper(h.max);
            let mut keys = Vec::new();
            for i in 0..capacity {
                let e = leaf::entry_of(g, b, i);
                let fp = if e.valid { KeyHash::of(e.key).fingerprint() } else { 0 };
                must(t.fps()[i] == fp, "a fingerprint differs from its entry", addr)?;
                if e.valid {
                    must(e.key >= h.min && max.is_none_or(|m| e.key < m), "key outside", addr)?;
                    keys.push(e.key);
                }
            }
            let used = keys.len();
            must(t.free_slot().unwrap_or(capacity) == used, "a gap among the slots", addr)?;
            keys.sort_unstable();
            must(keys.windows(2).all(|w| w[0] != w[1]), "a key occurs twice", addr)?;
            let gone = record.is_some() || (used == 0 && h.min == h.max);
            must(gone, "has keys or a range and no record", addr)?;
            Ok((h.right, h.max.to_vec(), used))
        });
        let ((right, max, used), _) = found?;
        let lock = if self.0.node.o.locks == Locks::Leaf { 8 } else { 0 };
        shape.add_leaf(capacity, used, (g.leaf_bytes(capacity) + lock) as u64);
        shape.table_bytes += table::bytes(capacity) as u64;
        Ok((right, max))
    }
}
