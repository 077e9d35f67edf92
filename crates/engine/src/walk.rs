//! The walk: checks the invariants of DESIGN.md section 3 on the whole structure, while no client
//! writes.
//!
//! From the root word down, level by level, it compares each node with the record that names it:
//!
//! - *R*: fences equal the record's key and the next record's key; `next` is the node of the next
//!   record (past relocated tombstones that are not unlinked yet); the first record of an inner
//!   node stands at its lower fence.
//! - *S*: images are accepted under one version only.
//! - *F*: the table is the leaf's (address, version, fence tag), its fingerprints are set exactly
//!   for live slots, and each is the hash of its key.
//! - *P*, as far as one instant shows it: keys lie inside the fences, no key is in two slots, and
//!   every entry's block is whole.
//! - No lock is held, no node or block is reached twice, and no two leaves share a table.
//!
//! An unbuilt table is counted and not an error: its owner is new, and the next writer builds it.
//! So is a table without an owner.
//!
//! L and B speak of the past and cannot be seen at one instant; the checkers' histories and the
//! generation tests cover them.
//!
//! The walk takes no lock and writes nothing. With writers at work it would report states that
//! operations are about to leave; the suites therefore end with it, after all clients have stopped
//! and maintenance has run.

use std::collections::{BTreeMap, BTreeSet};

use dmtree_fabric::{Error, GlobalAddr, OpKind, OpOutcome, Result};
use dmtree_parts::Shape;

use crate::format::{Header, Table, inner, table, unchecked_header};
use crate::leaf::{Blocks, LeafCopy, Leaves, block_of};
use crate::lock::{Confirmed, TableLocks, WordLocks};
use crate::route::InnerRead;
use crate::{Client, KeyHash, fence_tag, is_away};

fn broken(what: &str, at: GlobalAddr) -> Error {
    Error::corrupt(format!("{what} at {at}"))
}

/// A child, as the level above names it.
struct Named {
    low: Vec<u8>,
    child: inner::Child,
}

impl Client {
    pub(crate) async fn walk_op(&self) -> Result<Shape> {
        let scope = self.ep.begin(OpKind::Admin);
        let _pin = self.pin();
        let mut shape = Shape::default();
        let mut seen = BTreeSet::new();
        let root = self.read_root().await?;
        let InnerRead::Whole(top) = self.read_inner(root, None, None).await? else {
            return Err(broken("the root is a tombstone", root));
        };
        shape.levels = u32::from(top.level);
        let table = dmtree_pool::TableId::from_bits(0);
        let child = inner::Child {
            addr: root,
            generation: top.node.generation,
            table,
            slots: self.node.g.fanout,
        };
        let mut named = vec![Named { low: Vec::new(), child }];
        for level in (1..=top.level).rev() {
            named = self.walk_level(level, &named, &mut shape, &mut seen).await?;
        }
        self.walk_leaves(&named, &mut shape, &mut seen).await?;
        if !self.node.has_tables() {
            shape.table_bytes = WordLocks(self).words().await?.at.count() as u64 * 8;
            if let Some((word, _)) = WordLocks(self).words().await?.at.held(&self.ep).await?.first()
            {
                return Err(broken("a held leaf lock", *word));
            }
        }
        scope.end(OpOutcome::Other);
        Ok(shape)
    }

    async fn walk_level(
        &self,
        level: u8,
        named: &[Named],
        shape: &mut Shape,
        seen: &mut BTreeSet<u64>,
    ) -> Result<Vec<Named>> {
        let g = &self.node.g;
        let mut below = Vec::new();
        for (i, n) in named.iter().enumerate() {
            self.ep.renew_deadline();
            let addr = n.child.addr;
            if !seen.insert(addr.bits()) {
                return Err(broken("an inner node is reached twice", addr));
            }
            let bytes = self.ep.read(addr, g.inner_image() as u32).await?;
            let checked = bytes.check(|b| inner::check(g, addr, b).map(|_| ()).ok_or(()));
            let Ok(((), bytes)) = checked else { return Err(broken("a torn inner node", addr)) };
            let h = unchecked_header(g, &bytes).expect("accepted");
            let records: Vec<inner::Record<'_>> = inner::records(g, &bytes).collect();
            if h.level != level || h.ver.generation != n.child.generation || !h.forward.is_null() {
                return Err(broken(
                    "a record names a node of another level or generation, or a tombstone",
                    addr,
                ));
            }
            let lock = crate::format::u64_at(&bytes, g.inner_lock_at());
            if lock != 0 {
                return Err(broken("a held inner lock", addr));
            }
            let next = named.get(i + 1);
            self.check_fences((h.lo, h.hi), &n.low, next.map(|n| &n.low[..]), addr).await?;
            if h.next != next.map_or(GlobalAddr::NULL, |n| n.child.addr) {
                return Err(broken("the right sibling of an inner node has no record", addr));
            }
            shape.inner_nodes += 1;
            shape.structure_bytes += g.inner_bytes() as u64;
            let mut held = Vec::new();
            for r in &records {
                let low = Blocks(self).fence(r.key).await?.unwrap_or_default();
                if let crate::format::area::Stored::Block(at) = r.key {
                    shape.block_bytes += u64::from(at.capacity());
                }
                held.push(Named { low, child: r.child });
            }
            held.sort_by(|a, b| a.low.cmp(&b.low));
            if held.first().is_none_or(|first| first.low != n.low) {
                return Err(broken(
                    "the first record of an inner node is not at its lower fence",
                    addr,
                ));
            }
            below.append(&mut held);
        }
        Ok(below)
    }

    async fn check_fences(
        &self,
        fences: (crate::format::area::Stored<'_>, crate::format::area::Stored<'_>),
        low: &[u8],
        high: Option<&[u8]>,
        addr: GlobalAddr,
    ) -> Result<()> {
        if Blocks(self).fence(fences.0).await?.as_deref() != Some(low) {
            return Err(broken("a lower fence that is not its record's key", addr));
        }
        if Blocks(self).fence(fences.1).await?.as_deref() != high {
            return Err(broken("an upper fence that is not the next record's key", addr));
        }
        Ok(())
    }

    async fn walk_leaves(
        &self,
        named: &[Named],
        shape: &mut Shape,
        seen: &mut BTreeSet<u64>,
    ) -> Result<()> {
        let g = self.node.g;
        let mut capacities: BTreeMap<u32, u64> = BTreeMap::new();
        let mut tables = BTreeSet::new();
        let mut blocks = BTreeSet::new();
        for (i, n) in named.iter().enumerate() {
            self.ep.renew_deadline();
            let addr = n.child.addr;
            if !seen.insert(addr.bits()) {
                return Err(broken("a leaf is reached twice", addr));
            }
            let leaf = Leaves(self).read(addr, n.child.slots).await?;
            let h = leaf.header(self);
            let right = h.ver.generation == n.child.generation
                && h.table == n.child.table
                && h.slots == n.child.slots
                && h.forward.is_null();
            if !right {
                return Err(broken(
                    "a record names another generation or table, or a tombstone",
                    addr,
                ));
            }
            let next = named.get(i + 1);
            let high = next.map(|n| &n.low[..]);
            self.check_fences((h.lo, h.hi), &n.low, high, addr).await?;
            let expected = next.map_or(GlobalAddr::NULL, |n| n.child.addr);
            if h.next != expected && !self.leads_to(h.next, expected).await? {
                return Err(broken("the right sibling of a leaf has no record", addr));
            }
            if self.node.has_tables() && !tables.insert(h.table.bits()) {
                return Err(broken("two leaves with one table", addr));
            }
            let live = self.walk_leaf(&leaf, (&n.low, high), shape, &mut blocks).await?;
            if shape.fill.len() <= live {
                shape.fill.resize(live + 1, 0);
            }
            shape.fill[live] += 1;
            shape.keys += live as u64;
            *capacities.entry(leaf.capacity as u32).or_default() += 1;
            shape.structure_bytes += g.leaf_bytes(leaf.capacity) as u64;
            if self.node.has_tables() {
                shape.table_bytes += table::bytes(leaf.capacity).next_multiple_of(64) as u64;
            }
        }
        shape.leaves = capacities.into_iter().collect();
        Ok(())
    }

    /// Whether a relocated tombstone, not unlinked yet, leads to the leaf that has its range now.
    async fn leads_to(&self, mut at: GlobalAddr, wanted: GlobalAddr) -> Result<bool> {
        for _ in 0..64 {
            if at == wanted {
                return Ok(true);
            }
            if at.is_null() {
                return Ok(false);
            }
            let leaf = Leaves(self).read(at, self.node.o.leaf_capacity as usize).await?;
            at = leaf.header(self).forward;
        }
        Ok(false)
    }

    /// The table of a leaf; `None` while it is unbuilt, or has no owner.
    async fn walk_table(
        &self,
        addr: GlobalAddr,
        h: &Header<'_>,
        capacity: usize,
        high: Option<&[u8]>,
    ) -> Result<Option<Table>> {
        let table = match TableLocks(self).confirm(h.table, capacity).await? {
            Confirmed::Exact(table) => table,
            Confirmed::Unbuilt => return Ok(None),
            Confirmed::Locked => return Err(broken("a held leaf lock", addr)),
            Confirmed::Odd => {
                return match self.node.pool.resolve(&self.ep, h.table).await {
                    Err(e) if is_away(&e) => Ok(None),
                    _ => Err(broken("a leaf without a table", addr)),
                };
            }
        };
        let is_own = table.leaf == addr && table.ver == h.ver && table.fence == fence_tag(high);
        if !is_own || table.closed {
            return Err(broken("a table of another leaf, version or range", addr));
        }
        Ok(Some(table))
    }

    /// One leaf against its table; the number of live pairs.
    async fn walk_leaf(
        &self,
        leaf: &LeafCopy,
        range: (&[u8], Option<&[u8]>),
        shape: &mut Shape,
        blocks: &mut BTreeSet<u64>,
    ) -> Result<usize> {
        let addr = leaf.addr;
        let h = leaf.header(self);
        let table = match self.node.has_tables() {
            true => self.walk_table(addr, &h, leaf.capacity, range.1).await?,
            false => None,
        };
        shape.unbuilt_tables += u64::from(self.node.has_tables() && table.is_none());
        let mut keys = BTreeSet::new();
        let mut live = 0;
        for (i, slot) in leaf.live(self) {
            live += 1;
            let key = Leaves(self).whole_key(&slot, addr).await?;
            if *key < *range.0 || range.1.is_some_and(|high| *key >= *high) {
                return Err(broken("a key outside its leaf", addr));
            }
            let fingerprint = KeyHash::of(&key).fingerprint();
            if table.as_ref().is_some_and(|t| t.fps()[i] != fingerprint) {
                return Err(broken("a wrong fingerprint", addr));
            }
            if !keys.insert(key.into_owned()) {
                return Err(broken("a key that is in two slots", addr));
            }
            if let Some(at) = block_of(&slot) {
                if !blocks.insert(at.bits()) {
                    return Err(broken("a block with two owners", at.addr()));
                }
                shape.block_bytes += u64::from(at.capacity());
                if !Blocks(self).read(at, |_, _| ()).await? {
                    return Err(broken("an entry with a garbage block", at.addr()));
                }
            }
        }
        if table.is_some_and(|t| t.live() != live) {
            return Err(broken("a table that names free slots", addr));
        }
        Ok(live)
    }
}
