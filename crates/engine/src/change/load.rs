//! Bulk load: whole leaves and inner nodes are written into an empty index.
//!
//! 1. Lock the only leaf L and the only inner node R0. An index that has keys is loaded by ordinary
//!    batches of puts.
//! 2. Build the new tree beside them, level by level: leaves, tables, inner nodes, up to a root.
//!    All memory is taken and written, awaited, before the commit.
//! 3. `R0.next` = the new root. Nothing reads it as a sibling while the lower fences are equal; it
//!    tells a recovery where the load leads to.
//! 4. `L.forward` = the first leaf: commits. A client with a stale route to L follows it from here
//!    on.
//! 5. `R0.forward` = the new root, and the root word by compare-and-swap from R0. A client that met
//!    R0 meanwhile may have swung it already.
//! 6. Unlock R0, close L's table, retire L and R0.
//!
//! B holds because L has no live entry: no older copy of a key exists. R holds as the new levels
//! are complete before they are reachable. S and L hold as for any new node.
//!
//! A failure before step 3 gives all memory back. A crash before step 4 leaves a tree that no
//! pointer leads to, except `R0.next`; the recovery of R0 clears that word, and the garbage
//! collection finds the memory. A crash after step 4 is a committed load: the recovery of R0, a
//! sweep, or a reader that meets R0 swings the root word (`recovery/inner.rs`,
//! `maintenance/sweep.rs`).
//!
//! The order of steps 3 and 4 protects from hops and repairs only, not from a loss of data.

use std::ops::Range;

use dmtree_fabric::verb::{VerbVec, write as write_verb};
use dmtree_fabric::{Buf, Error, ErrorKind, GlobalAddr, OpKind, OpOutcome, Result};
use dmtree_parts::fill::{Fill, SplitRule};
use dmtree_parts::pairs::Pairs;
use dmtree_parts::{Loaded, Outcome, Write, check_key, check_value};
use dmtree_pool::{BlockPtr, Grant};

use crate::change::split::separator;
use crate::format::{BODY_AT, Child, FenceArea, Place, Stored, Table};
use crate::inner::{InnerLocks, InnerNodes, LockedInner, record_of};
use crate::leaf::{
    Blocks, Entries, LeafImage, LeafMemory, Leaves, NewLeaf, NodeHeader, Tombstones, Unwritten,
};
use crate::lock::{LeafLocks, Locked, TableLocks, WordLocks};
use crate::point::write_many;
use crate::router::Router;
use crate::{Client, KeyHash, Mutant, Unlock, fence_tag};

/// A load in progress: the memory that it has taken, which it gives back when it fails.
pub(crate) struct Load<'c> {
    c: &'c Client,
    fill: Fill,
    leaves: Vec<NewLeaf>,
    inners: Vec<Grant>,
    blocks: Vec<BlockPtr>,
}

/// A level that is complete: lower fences and nodes.
struct Level {
    lows: Vec<Vec<u8>>,
    nodes: Vec<Child>,
}

/// One empty leaf under one inner node. The root word is written last: before it, the index does
/// not exist.
pub(crate) async fn format(c: &Client) -> Result<()> {
    let g = c.node.g;
    let s = LeafMemory(c).take(c.node.o.leaf_capacity as usize, &[]).await?;
    let mut image = LeafImage::new(c, &s, &NodeHeader::of_leaf(&g, &s)).await?;
    (0..s.capacity).for_each(|i| image.free(i));
    c.ep.write(s.grant.addr, image.bytes).await?;
    if c.node.has_tables() {
        let mut table = Table::new(s.grant.addr, s.ver(), fence_tag(None), s.capacity);
        let body = TableLocks(c).body(&mut table, s.table).await?;
        c.ep.write(s.table_at.plus(BODY_AT as u64), body).await?;
    }
    let root = InnerNodes(c).take().await?;
    let header = NodeHeader::of_inner(&g, root.generation, 1);
    let only = std::iter::once(record_of(&header.lo, s.child()));
    let image = InnerNodes(c).image(root.addr, &header, only).await?;
    c.ep.write(root.addr, image).await?;
    if c.ep.cas(c.node.root.word, 0, root.addr.bits()).await? != 0 {
        LeafMemory(c).give_back(&s);
        InnerNodes(c).give_back(root);
        return Err(Error::new(ErrorKind::Exists, "the index has a root already"));
    }
    Ok(())
}

impl<'c> Load<'c> {
    pub(crate) fn new(c: &'c Client, fill: Fill) -> Self {
        Self { c, fill, leaves: Vec::new(), inners: Vec::new(), blocks: Vec::new() }
    }

    pub(crate) async fn run(
        self,
        pairs: &mut dyn Iterator<Item = (Vec<u8>, Vec<u8>)>,
        sorted: bool,
    ) -> Result<Loaded> {
        let mut all = Pairs::collect(pairs, sorted, |key, value| {
            check_key(key).and_then(|()| check_value(value))
        })?;
        let scope = self.c.ep.begin(OpKind::Load);
        let loaded = self.load_sorted(&mut all).await?;
        scope.end(OpOutcome::Other);
        Ok(loaded)
    }

    async fn load_sorted(self, all: &mut Pairs) -> Result<Loaded> {
        let (c, pairs) = (self.c, all.len() as u64);
        if all.is_empty() {
            return Ok(Loaded::default());
        }
        // Deadlines bound waiting for other clients; a load is long by itself.
        let pin = c.pin();
        if let Some((l, r0)) = self.lock_empty().await? {
            let leaves = self.replace_empty(l, r0, all).await?;
            return Ok(Loaded { pairs, leaves });
        }
        drop(pin);
        let mut outcomes = Vec::new();
        for first in (0..all.len()).step_by(256) {
            let chunk = (first..all.len().min(first + 256)).map(|i| all.get(i));
            let writes: Vec<(&[u8], Write<'_>)> = chunk.map(|(k, v)| (k, Write::Put(v))).collect();
            write_many(c, &writes, &mut outcomes).await?;
            for outcome in outcomes.drain(..) {
                let done = outcome?;
                debug_assert_eq!(done, Outcome::Done);
            }
        }
        Ok(Loaded { pairs, leaves: 0 })
    }

    /// Locks the only leaf and the only inner node of an index without keys; `None` when the index
    /// is anything else.
    async fn lock_empty(&self) -> Result<Option<(Locked, LockedInner)>> {
        let c = self.c;
        let l = LeafLocks(c).of_key(&[0]).await?;
        let leaf = Leaves(c).read(l.route.leaf, l.route.capacity).await?;
        let h = leaf.header(c);
        let whole = h.lo == Stored::Inline(&[]) && h.hi == Stored::Infinite;
        if !whole || l.table.live() > 0 {
            c.unlock(l).await?;
            return Ok(None);
        }
        let Some(r0) = InnerLocks(c).lock(1, &[0]).await? else {
            c.unlock(l).await?;
            return Ok(None);
        };
        let root = Router(c).read_root().await?;
        if root != r0.addr || r0.node.len() != 1 || r0.hi.is_some() {
            c.unlock(r0).await?;
            c.unlock(l).await?;
            return Ok(None);
        }
        Ok(Some((l, r0)))
    }

    async fn replace_empty(mut self, l: Locked, r0: LockedInner, all: &mut Pairs) -> Result<u64> {
        let (c, mut l) = (self.c, l);
        let root = match self.build(all).await {
            Ok(root) => root,
            Err(e) => {
                self.give_back();
                c.unlock(r0).await?;
                c.unlock(l).await?;
                return Err(e);
            }
        };
        let first_leaf = self.leaves[0].grant.addr;
        LeafLocks(c).begin_change(&mut [&mut l]).await?;
        // R0.next names the new root, so that the client that finishes a dead loader's work finds
        // it; L.forward commits.
        c.check_lease()?;
        if c.node.has(Mutant::LoadCommitEarly) {
            Tombstones(c).forward(l.route.leaf, first_leaf).await?;
        }
        c.ep.write_word(r0.addr.plus(c.node.g.next_at() as u64), root.bits()).await?;
        Tombstones(c).forward(l.route.leaf, first_leaf).await?;
        if let Some(copy) = l.image.take() {
            // Without a table only the header tells a client with a stale record that the leaf is a
            // tombstone.
            Tombstones(c).blank(&copy, &l.table, first_leaf).await?;
        }
        Tombstones(c).forward(r0.addr, root).await?;
        // A client that met the old node meanwhile has swung the root itself, and the tree may have
        // grown since.
        c.ep.cas(c.node.root.word, r0.addr.bits(), root.bits()).await?;
        c.node.cache.clear();
        let (dead, tombstone) = ((r0.addr, r0.ver.generation), l.route);
        c.unlock(r0).await?;
        let closed = LeafLocks(c).close(l).await?;
        InnerNodes(c).retire(dead.0, dead.1);
        if closed {
            LeafMemory(c).retire(&tombstone);
        }
        Ok(self.leaves.len() as u64)
    }

    fn give_back(self) {
        let c = self.c;
        self.leaves.iter().for_each(|s| LeafMemory(c).give_back(s));
        self.inners.into_iter().for_each(|grant| InnerNodes(c).give_back(grant));
        self.blocks.into_iter().for_each(|at| Blocks(c).give_back_one(at));
    }

    /// A node keeps half of what a full one and the pending pair hold, rounded down.
    fn rule(slots: usize) -> SplitRule {
        SplitRule::new(slots as u32, slots as u32 / 2)
    }

    /// Builds leaves and inner nodes, level by level; returns the root.
    async fn build(&mut self, all: &mut Pairs) -> Result<GlobalAddr> {
        let mut below = self.build_leaves(all).await?;
        let mut level = 1;
        loop {
            below = self.build_level(level, &below).await?;
            if let [root] = &below.nodes[..] {
                return Ok(root.addr);
            }
            level += 1;
        }
    }

    async fn build_leaves(&mut self, all: &mut Pairs) -> Result<Level> {
        let c = self.c;
        let capacity = c.node.o.leaf_capacity as usize;
        let mut chunks: Vec<Range<usize>> = Vec::new();
        for size in self.fill.sizes(Self::rule(capacity), all.len() as u64, 0) {
            let first = chunks.last().map_or(0, |c| c.end);
            chunks.push(first..first + size);
        }
        for _ in 0..chunks.len() {
            c.ep.renew_deadline();
            self.leaves.push(LeafMemory(c).take(capacity, &[]).await?);
        }
        let mut lows: Vec<Vec<u8>> = vec![Vec::new()];
        for chunk in &chunks[1..] {
            lows.push(separator(all.key(chunk.start - 1), all.key(chunk.start)).to_vec());
        }
        // From the end, so that memory of pairs is freed as leaves are built.
        let mut above = None;
        for (i, chunk) in chunks.into_iter().enumerate().rev() {
            c.ep.renew_deadline();
            // A leaf's upper fence is the next leaf's lower fence, block included: exactly one of
            // them owns the block.
            let low = self.written_area(&lows[i]).await?;
            let high = (above.as_ref(), lows.get(i + 1).map(Vec::as_slice));
            let first = chunk.start;
            self.build_leaf(i, &low, high, (all, chunk)).await?;
            above = Some(low);
            all.truncate(first);
        }
        Ok(Level { lows, nodes: self.leaves.iter().map(NewLeaf::child).collect() })
    }

    /// WRITEs leaf number `i` with some of the pairs, and its table.
    async fn build_leaf(
        &mut self,
        i: usize,
        low: &FenceArea,
        (hi, high): (Option<&FenceArea>, Option<&[u8]>),
        (all, range): (&Pairs, Range<usize>),
    ) -> Result<()> {
        let Self { c, leaves, blocks, .. } = self;
        let s = &leaves[i];
        let (addr, count) = (s.grant.addr, range.len());
        let whole = NodeHeader::of_leaf(&c.node.g, s);
        let next = leaves.get(i + 1).map_or(GlobalAddr::NULL, |s| s.grant.addr);
        let hi = hi.unwrap_or(&whole.hi).clone();
        let header = NodeHeader { lo: low.clone(), hi, next, ..whole };
        let mut image = LeafImage::new(c, s, &header).await?;
        let mut table = Table::new(addr, s.ver(), fence_tag(high), s.capacity);
        let mut later = Unwritten::new();
        for (slot, (key, value)) in range.map(|n| all.get(n)).enumerate() {
            let hash = KeyHash::of(key);
            let (place, entry) = (Place { leaf: addr, slot }, image.entry(slot));
            let block = Entries(c).encode(place, s.ver(), (key, hash, value), entry).await?;
            blocks.extend(block.iter().map(|(at, _)| *at));
            later.extend(block);
            table.set(slot, hash.fingerprint());
        }
        (count..s.capacity).for_each(|slot| image.free(slot));
        if !c.node.has_tables() {
            Blocks(c).write(&mut later).await?;
            let mut list = VerbVec::new();
            WordLocks(c).add_new_leaf(&mut list, s.grant, image.bytes);
            return c.ep.batch(list).await.map(|_| ());
        }
        let body = TableLocks(c).body(&mut table, s.table).await?;
        Blocks(c).write(&mut later).await?;
        let table_at = s.table_at.plus(BODY_AT as u64);
        c.ep.batch((write_verb(addr, image.bytes), write_verb(table_at, body))).await.map(|_| ())
    }

    async fn build_level(&mut self, level: u8, below: &Level) -> Result<Level> {
        let (c, g) = (self.c, self.c.node.g);
        let count = below.nodes.len() as u64;
        let sizes: Vec<_> =
            self.fill.sizes(Self::rule(g.fanout), count, u32::from(level)).collect();
        let mut grants = Vec::with_capacity(sizes.len());
        for _ in &sizes {
            grants.push(InnerNodes(c).take().await?);
            self.inners.extend(grants.last());
        }
        let mut first = 0;
        let mut ranges = Vec::with_capacity(sizes.len());
        for size in sizes {
            ranges.push(first..first + size);
            first += size;
        }
        let lows: Vec<Vec<u8>> = ranges.iter().map(|r| below.lows[r.start].clone()).collect();
        let mut areas = Vec::with_capacity(lows.len());
        for low in &lows {
            areas.push(self.written_area(low).await?);
        }
        let mut nodes = Vec::with_capacity(lows.len());
        for (i, range) in ranges.into_iter().enumerate() {
            c.ep.renew_deadline();
            let Grant { addr, generation } = grants[i];
            let whole = NodeHeader::of_inner(&g, generation, level);
            let hi = areas.get(i + 1).unwrap_or(&whole.hi).clone();
            let next = grants.get(i + 1).map_or(GlobalAddr::NULL, |n| n.addr);
            let header = NodeHeader { lo: areas[i].clone(), hi, next, ..whole };
            let image = self.inner_image(addr, &header, below, range).await?;
            c.ep.write(addr, image).await?;
            nodes.push(header.child(addr));
        }
        Ok(Level { lows, nodes })
    }

    /// The image of an inner node; the blocks of its records are written.
    async fn inner_image(
        &mut self,
        addr: GlobalAddr,
        header: &NodeHeader,
        below: &Level,
        range: Range<usize>,
    ) -> Result<Buf> {
        let (mut later, mut keys) = (Unwritten::new(), Vec::with_capacity(range.len()));
        for low in &below.lows[range.clone()] {
            let key = Blocks(self.c).area(low, &mut later).await;
            // A failure gives back the blocks of the records before.
            let taken = later.iter().map(|(at, _)| *at);
            keys.push(key.inspect_err(|_| self.blocks.extend(taken))?);
        }
        self.blocks.extend(later.iter().map(|(at, _)| *at));
        let records =
            keys.iter().zip(&below.nodes[range]).map(|(key, child)| record_of(key, *child));
        let image = InnerNodes(self.c).image(addr, header, records).await?;
        Blocks(self.c).write(&mut later).await?;
        Ok(image)
    }

    async fn written_area(&mut self, key: &[u8]) -> Result<FenceArea> {
        let mut later = Unwritten::new();
        let area = Blocks(self.c).area(key, &mut later).await?;
        self.blocks.extend(later.iter().map(|(at, _)| *at));
        Blocks(self.c).write(&mut later).await?;
        Ok(area)
    }
}
