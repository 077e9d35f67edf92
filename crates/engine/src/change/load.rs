//! Bulk load: whole leaves and inner nodes are written into an empty index.
//!
//! 1. Lock the only leaf L and the only inner node R0. An index that has keys is loaded by ordinary
//!    batches of puts.
//! 2. Build the new tree beside them, level by level: leaves, tables, inner nodes, up to a root.
//!    All memory is taken and written, awaited, before the commit. Sorted pairs are taken as leaves
//!    need them, so that a load of any size holds the pairs of two leaves.
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

use std::mem::swap;
use std::ops::Range;

use dmtree_fabric::verb::{VerbVec, write as write_verb};
use dmtree_fabric::{Buf, Error, ErrorKind, GlobalAddr, OpKind, OpOutcome, Result};
use dmtree_journal::Append;
use dmtree_parts::fill::Fill;
use dmtree_parts::pairs::{Arriving, Pairs};
use dmtree_parts::{Loaded, Outcome, Write, check_key, check_value};
use dmtree_pool::{BlockPtr, Grant};

use crate::change::load_pairs::{LeafPairs, placed, rule};
use crate::change::split::separator;
use crate::format::{BODY_AT, Child, FenceArea, Place, Stored, Table};
use crate::hop::{NO_FENCE, Places};
use crate::inner::{InnerLocks, InnerNodes, LockedInner, record_of};
use crate::journal::{Journaled, effect};
use crate::leaf::{
    Blocks, CellKind, Entries, Images, LeafImage, LeafMemory, Leaves, NewLeaf, NodeHeader,
    Tombstones, Unwritten, image_at,
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
    /// The last append of a durable index.
    /// What the journal is to accept before the load commits.
    appends: Vec<Append<'c>>,
    /// Bytes of pairs in them.
    appended_bytes: usize,
}

/// A load waits for the journal behind so many bytes: it may be a remote one.
const MOST_APPENDED_BYTES: usize = 4 << 20;

/// A level that is complete: lower fences and nodes.
struct Level {
    lows: Vec<Vec<u8>>,
    nodes: Vec<Child>,
}

/// One empty leaf under one inner node. The root word is written last: before it, the index does
/// not exist.
pub(crate) async fn format(c: &Client) -> Result<()> {
    let g = c.node.g;
    let s = LeafMemory(c).take(c.node.capacity(), CellKind::Any(&[])).await?;
    let mut image = LeafImage::new(c, &s, (&NodeHeader::of_leaf(&g, &s), fence_tag(None))).await?;
    (0..s.capacity).for_each(|i| image.free(i));
    if s.route(0).is_imaged() {
        let copy = Images(c).image_of(&image.bytes, s.capacity).await?;
        c.ep.write(image_at(s.table_at, s.capacity), copy).await?;
    }
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

/// Puts pairs into an index that has keys.
async fn put_all(c: &Client, all: &Pairs) -> Result<Loaded> {
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
    Ok(Loaded { pairs: all.len() as u64, leaves: 0 })
}

impl<'c> Load<'c> {
    pub(crate) fn new(c: &'c Client, fill: Fill) -> Self {
        let (leaves, inners, blocks) = (Vec::new(), Vec::new(), Vec::new());
        Self { c, fill, leaves, inners, blocks, appends: Vec::new(), appended_bytes: 0 }
    }

    pub(crate) async fn run(
        self,
        pairs: &mut dyn Iterator<Item = (Vec<u8>, Vec<u8>)>,
        sorted: bool,
    ) -> Result<Loaded> {
        let check = |key: &[u8], value: &[u8]| check_key(key).and_then(|()| check_value(value));
        let arriving = Arriving::new(pairs, sorted, &check);
        let leaves = (self.c.node.places, self.c.node.capacity());
        let mut pairs = LeafPairs::new(arriving, self.fill, leaves)?;
        let scope = self.c.ep.begin(OpKind::Load);
        let loaded = self.load_sorted(&mut pairs).await?;
        scope.end(OpOutcome::Other);
        Ok(loaded)
    }

    async fn load_sorted(self, pairs: &mut LeafPairs<'_>) -> Result<Loaded> {
        let (c, mut first) = (self.c, Pairs::default());
        pairs.next(&mut first)?;
        if first.is_empty() {
            return Ok(Loaded::default());
        }
        // Deadlines bound waiting for other clients; a load is long by itself.
        let pin = c.pin()?;
        if let Some((l, r0)) = self.lock_empty().await? {
            return self.replace_empty(l, r0, (first, pairs)).await;
        }
        drop(pin);
        // All of them are checked before one is stored.
        pairs.rest(&mut first)?;
        put_all(c, &first).await
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

    async fn replace_empty(
        mut self,
        mut l: Locked,
        r0: LockedInner,
        all: (Pairs, &mut LeafPairs<'_>),
    ) -> Result<Loaded> {
        let c = self.c;
        let built = async {
            let built = self.build(all).await?;
            Images(c).close(&l).await?;
            Ok::<_, Error>(built)
        };
        let (pairs, root) = match built.await {
            Ok(built) => built,
            Err(mut e) => {
                // They end first: none comes behind the removal.
                self.appends.clear();
                if Journaled(c).clear().is_err() {
                    e = e.effect_unknown();
                }
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
        if c.node.places != Places::Any {
            self.close_neighbourhoods(&mut l).await?;
        }
        if c.node.has(Mutant::LoadCommitEarly) {
            Tombstones(c).forward(&l.route, first_leaf).await?;
        }
        c.ep.write_word(r0.addr.plus(c.node.g.next_at() as u64), root.bits()).await?;
        Tombstones(c).forward(&l.route, first_leaf).await?;
        if let Some(copy) = l.image.take() {
            // Without a table only the header tells a client with a stale record that the leaf is a
            // tombstone.
            Tombstones(c).blank(&copy, &l.table, first_leaf).await?;
        }
        Tombstones(c).forward_inner(r0.addr, root).await?;
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
        Ok(Loaded { pairs, leaves: self.leaves.len() as u64 })
    }

    /// Neighbourhoods do not show the commit: those of the leaf that is replaced, which is empty,
    /// stop answering before it. Until then the whole leaf answers.
    async fn close_neighbourhoods(&self, l: &mut Locked) -> Result<()> {
        let (c, leaf) = (self.c, Leaves(self.c).image_of(l).await?);
        l.table.ver = l.table.ver.bumped();
        let old = NodeHeader::of(&c.node.g, leaf.addr, &leaf.bytes);
        let header = NodeHeader { ver: l.table.ver, ..old };
        let mut image = LeafImage::of(c, &leaf, (&header, NO_FENCE)).await?;
        (0..leaf.capacity).for_each(|i| image.free(i));
        l.image = Some(leaf);
        match c.node.has(Mutant::HopLoadOpen) {
            true => Ok(()),
            false => c.ep.write(l.route.leaf, image.bytes).await.map(|_| ()),
        }
    }

    fn give_back(self) {
        let c = self.c;
        self.leaves.iter().for_each(|s| LeafMemory(c).give_back(s));
        self.inners.into_iter().for_each(|grant| InnerNodes(c).give_back(grant));
        self.blocks.into_iter().for_each(|at| Blocks(c).give_back_one(at));
    }

    /// Builds leaves and inner nodes, level by level: how many pairs they have, and the root.
    async fn build(
        &mut self,
        (first, source): (Pairs, &mut LeafPairs<'_>),
    ) -> Result<(u64, GlobalAddr)> {
        let c = self.c;
        let (pairs, mut below) = self.build_leaves(first, source).await?;
        let mut level = 1;
        loop {
            below = self.build_level(level, &below).await?;
            if let [root] = &below.nodes[..] {
                c.ep.renew_deadline();
                self.accepted().await?;
                return Ok((pairs, root.addr));
            }
            level += 1;
        }
    }

    /// A leaf is written when the next one is known: its address, and the fence between them.
    async fn build_leaves(
        &mut self,
        first: Pairs,
        source: &mut LeafPairs<'_>,
    ) -> Result<(u64, Level)> {
        let c = self.c;
        let capacity = c.node.capacity();
        let (mut here, mut following, mut pairs) = (first, Pairs::default(), 0);
        let (mut lows, mut low) = (vec![Vec::new()], self.written_area(&[]).await?);
        self.leaves.push(LeafMemory(c).take(capacity, CellKind::Any(&[])).await?);
        loop {
            c.ep.renew_deadline();
            pairs += here.len() as u64;
            self.append(&here).await?;
            let i = lows.len() - 1;
            source.next(&mut following)?;
            if following.is_empty() {
                self.build_leaf(i, &low, None, &here).await?;
                break;
            }
            let fence = separator(here.key(here.len() - 1), following.key(0)).to_vec();
            // A leaf's upper fence is the next leaf's lower fence, block included: exactly one of
            // them owns the block.
            let high = self.written_area(&fence).await?;
            self.leaves.push(LeafMemory(c).take(capacity, CellKind::Any(&[])).await?);
            self.build_leaf(i, &low, Some((&high, &fence)), &here).await?;
            lows.push(fence);
            low = high;
            swap(&mut here, &mut following);
        }
        let nodes = self.leaves.iter().map(NewLeaf::child).collect();
        Ok((pairs, Level { lows, nodes }))
    }

    /// The pairs of a leaf, into the journal of a durable index.
    async fn append(&mut self, pairs: &Pairs) -> Result<()> {
        if Journaled(self.c).is_on() {
            let pairs = (0..pairs.len()).map(|i| pairs.get(i));
            self.appended_bytes += pairs.clone().map(|(k, v)| k.len() + v.len()).sum::<usize>();
            let effects: Vec<_> = pairs.map(|(key, value)| effect(key, Some(value))).collect();
            self.appends.extend(Journaled(self.c).begin(&effects)?);
            if self.appended_bytes > MOST_APPENDED_BYTES {
                self.accepted().await?;
            }
        }
        Ok(())
    }

    /// Waits until everything that was appended is accepted.
    async fn accepted(&mut self) -> Result<()> {
        self.appended_bytes = 0;
        for append in self.appends.drain(..) {
            append.accepted(&self.c.ep).await?;
        }
        Ok(())
    }

    /// WRITEs leaf number `i` with these pairs, and its table. `high`: its upper fence, which the
    /// next leaf has as the lower one.
    async fn build_leaf(
        &mut self,
        i: usize,
        low: &FenceArea,
        high: Option<(&FenceArea, &[u8])>,
        pairs: &Pairs,
    ) -> Result<()> {
        let slots = placed(self.c.node.places, pairs).expect("they have a placement");
        let Self { c, leaves, blocks, .. } = self;
        let s = &leaves[i];
        let addr = s.grant.addr;
        let whole = NodeHeader::of_leaf(&c.node.g, s);
        let next = leaves.get(i + 1).map_or(GlobalAddr::NULL, |s| s.grant.addr);
        let hi = high.map_or(&whole.hi, |(area, _)| area).clone();
        let header = NodeHeader { lo: low.clone(), hi, next, ..whole };
        let tag = fence_tag(high.map(|(_, key)| key));
        let mut table = Table::new(addr, s.ver(), tag, s.capacity);
        let mut image = LeafImage::new(c, s, (&header, table.fence)).await?;
        (0..s.capacity).for_each(|slot| image.free(slot));
        let mut later = Unwritten::new();
        for (n, slot) in slots.into_iter().enumerate() {
            let (key, value) = pairs.get(n);
            let hash = KeyHash::of(key);
            let (place, entry) = (Place { leaf: addr, slot }, image.entry(slot));
            let block = Entries(c).encode(place, s.ver(), (key, hash, value), entry).await?;
            blocks.extend(block.iter().map(|(at, _)| *at));
            later.extend(block);
            table.set(slot, hash.fingerprint());
        }
        if !c.node.has_tables() {
            Blocks(c).write(&mut later).await?;
            let mut list = VerbVec::new();
            WordLocks(c).add_new_leaf(&mut list, s.grant, image.bytes);
            return c.ep.batch(list).await.map(|_| ());
        }
        let body = TableLocks(c).body(&mut table, s.table).await?;
        Blocks(c).write(&mut later).await?;
        let table_at = s.table_at.plus(BODY_AT as u64);
        if s.route(0).is_imaged() {
            let copy = Images(c).image_of(&image.bytes, s.capacity).await?;
            let copy = write_verb(image_at(s.table_at, s.capacity), copy);
            let leaf = (write_verb(addr, image.bytes), write_verb(table_at, body), copy);
            return c.ep.batch(leaf).await.map(|_| ());
        }
        c.ep.batch((write_verb(addr, image.bytes), write_verb(table_at, body))).await.map(|_| ())
    }

    async fn build_level(&mut self, level: u8, below: &Level) -> Result<Level> {
        let (c, g) = (self.c, self.c.node.g);
        let count = below.nodes.len() as u64;
        let sizes: Vec<_> = self.fill.sizes(rule(g.fanout), count, u32::from(level)).collect();
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
