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
//! - *D*, *M*: the published directory and its pages are whole, and the window of each key has its
//!   leaf (`learned/`).
//! - *G5*, *G6*: a leaf with a log that its records change says so in its table, and in the slots.
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
use std::sync::Arc;

use dmtree_fabric::{Error, GlobalAddr, NodeId, OpKind, OpOutcome, Result};
use dmtree_parts::Shape;
use dmtree_pool::BlockPtr;

use crate::format::{
    Child, Geometry, Header, Place, SlotState, Stored, Table, bound, inner, slot, u64_at,
    unchecked_header, with_bound,
};
use crate::hop::replica;
use crate::leaf::{Blocks, Images, LeafCopy, Leaves, NodeHeader, block_of, image_at};
use crate::learned::{LeafEntry, Published};
use crate::lock::{Confirmed, TableLocks, WordLocks};
use crate::log::{Replay, Scan, Since};
use crate::router::{InnerRead, Router};
use crate::{Client, KeyHash, Route, fence_tag, is_away};

fn broken(what: &str, at: GlobalAddr) -> Error {
    Error::corrupt(format!("{what} at {at}"))
}

/// Whether an image is that of a leaf, but for its bound, and no slot behind the bound is in use.
/// Of free slots word0 counts alone.
fn is_image(g: &Geometry, image: &LeafCopy, leaf: &LeafCopy) -> bool {
    let (header, capacity) = (8..g.slot_at(0), leaf.capacity);
    let h0 = u64_at(&image.bytes, 0);
    with_bound(h0, capacity, capacity) == u64_at(&leaf.bytes, 0)
        && image.bytes[header.clone()] == leaf.bytes[header]
        && (0..capacity).all(|i| {
            let (image, leaf) = (image.entry(g, i), leaf.entry(g, i));
            let is_free = slot::unchecked(g, leaf).is_some_and(|s| s.state == SlotState::Free);
            let len = if is_free { 8 } else { leaf.len() };
            image[..len] == leaf[..len] && (is_free || i < bound(h0, capacity))
        })
}

/// A child, as the level above names it.
struct Named {
    low: Vec<u8>,
    child: Child,
}

/// A walk in progress.
pub(crate) struct Walk<'c> {
    c: &'c Client,
    shape: Shape,
    /// Nodes that were reached, and blocks.
    seen: BTreeSet<u64>,
    blocks: BTreeSet<u64>,
    models: Option<Published<'c>>,
    /// What the rings of the log have, by memory node.
    records: BTreeMap<NodeId, Arc<Scan>>,
    /// Slots of the present leaf that records change.
    behind: Vec<usize>,
}

impl<'c> Walk<'c> {
    pub(crate) async fn run(c: &'c Client) -> Result<Shape> {
        let scope = c.ep.begin(OpKind::Admin);
        let _pin = c.pin()?;
        let root = Router(c).read_root().await?;
        let InnerRead::Whole(top) = Router(c).read_inner(root, None, None).await? else {
            return Err(broken("the root is a tombstone", root));
        };
        let shape = Shape { levels: u32::from(top.level), ..Shape::default() };
        let (seen, blocks) = (BTreeSet::new(), BTreeSet::new());
        let (models, records, behind) = (None, BTreeMap::new(), Vec::new());
        let mut walk = Self { c, shape, seen, blocks, models, records, behind };
        let header = NodeHeader::of_inner(&c.node.g, top.node.generation, top.level);
        let mut named = vec![Named { low: Vec::new(), child: header.child(root) }];
        for level in (1..=top.level).rev() {
            named = walk.level(level, &named).await?;
        }
        if let Some(models) = &c.node.models {
            let published = Published::read(c, models).await?;
            for at in &published.blocks {
                walk.block(*at)?;
            }
            walk.models = Some(published);
        }
        walk.leaves(&named).await?;
        if !c.node.has_tables() {
            let words = &WordLocks(c).words().await?.at;
            walk.shape.table_bytes = words.count() as u64 * 8;
            if let Some((word, _)) = words.held(&c.ep).await?.first() {
                return Err(broken("a held leaf lock", *word));
            }
        }
        scope.end(OpOutcome::Other);
        Ok(walk.shape)
    }

    async fn level(&mut self, level: u8, named: &[Named]) -> Result<Vec<Named>> {
        let (c, g) = (self.c, &self.c.node.g);
        let mut below = Vec::new();
        for (i, n) in named.iter().enumerate() {
            c.ep.renew_deadline();
            let addr = n.child.addr;
            if !self.seen.insert(addr.bits()) {
                return Err(broken("an inner node is reached twice", addr));
            }
            let bytes = c.ep.read(addr, g.inner_image() as u32).await?;
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
            let lock = u64_at(&bytes, g.inner_lock_at());
            if lock != 0 {
                return Err(broken("a held inner lock", addr));
            }
            let next = named.get(i + 1);
            self.check_fences((h.lo, h.hi), &n.low, next.map(|n| &n.low[..]), addr).await?;
            if h.next != next.map_or(GlobalAddr::NULL, |n| n.child.addr) {
                return Err(broken("the right sibling of an inner node has no record", addr));
            }
            self.shape.inner_nodes += 1;
            self.shape.structure_bytes += g.inner_bytes() as u64;
            let mut held = Vec::new();
            for r in &records {
                let low = Blocks(c).fence(r.key).await?.unwrap_or_default().into_owned();
                if let Stored::Block(at) = r.key {
                    self.shape.block_bytes += u64::from(at.capacity());
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
        fences: (Stored<'_>, Stored<'_>),
        low: &[u8],
        high: Option<&[u8]>,
        addr: GlobalAddr,
    ) -> Result<()> {
        if Blocks(self.c).fence(fences.0).await?.as_deref() != Some(low) {
            return Err(broken("a lower fence that is not its record's key", addr));
        }
        if Blocks(self.c).fence(fences.1).await?.as_deref() != high {
            return Err(broken("an upper fence that is not the next record's key", addr));
        }
        Ok(())
    }

    async fn leaves(&mut self, named: &[Named]) -> Result<()> {
        let (c, g) = (self.c, &self.c.node.g);
        let mut capacities: BTreeMap<u32, u64> = BTreeMap::new();
        let mut tables = BTreeSet::new();
        for (i, n) in named.iter().enumerate() {
            c.ep.renew_deadline();
            let addr = n.child.addr;
            if !self.seen.insert(addr.bits()) {
                return Err(broken("a leaf is reached twice", addr));
            }
            let mut leaf = Leaves(c).read(addr, n.child.slots).await?;
            let route = NodeHeader::of(g, addr, &leaf.bytes).route(addr);
            self.behind.clear();
            if c.node.log.is_some() && route.is_imaged() {
                let records = self.records(addr).await?;
                let raw = std::mem::replace(&mut leaf, Replay(c).overlaid(&route, &records).await?);
                let differs = |i: &usize| raw.entry(g, *i) != leaf.entry(g, *i);
                self.behind = (0..leaf.capacity).filter(differs).collect();
            }
            let h = leaf.header(c);
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
            if c.node.has_tables() && !tables.insert(h.table.bits()) {
                return Err(broken("two leaves with one table", addr));
            }
            let live = self.leaf(&leaf, (&n.low, high)).await?;
            if self.shape.fill.len() <= live {
                self.shape.fill.resize(live + 1, 0);
            }
            self.shape.fill[live] += 1;
            self.shape.keys += live as u64;
            *capacities.entry(leaf.capacity as u32).or_default() += 1;
            self.shape.structure_bytes += c.node.leaf_bytes(leaf.capacity);
            if c.node.has_tables() {
                self.shape.table_bytes += u64::from(h.table.lines()) * 64;
            }
        }
        self.shape.leaves = capacities.into_iter().collect();
        Ok(())
    }

    /// What the rings on the memory node of a leaf have.
    async fn records(&mut self, leaf: GlobalAddr) -> Result<Arc<Scan>> {
        if let Some(known) = self.records.get(&leaf.node()) {
            return Ok(known.clone());
        }
        let records = Replay(self.c).records(leaf, Since::Now).await?;
        self.records.insert(leaf.node(), records.clone());
        Ok(records)
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
            let leaf = Leaves(self.c).read(at, self.c.node.capacity()).await?;
            at = leaf.header(self.c).forward;
        }
        Ok(false)
    }

    /// The table of a leaf; `None` while it is unbuilt, or has no owner.
    async fn table(
        &self,
        addr: GlobalAddr,
        h: &Header<'_>,
        capacity: usize,
        high: Option<&[u8]>,
    ) -> Result<Option<Table>> {
        let table = match TableLocks(self.c).confirm(h.table, capacity).await? {
            Confirmed::Exact(table) => table,
            Confirmed::Unbuilt => return Ok(None),
            Confirmed::Locked => return Err(broken("a held leaf lock", addr)),
            Confirmed::Odd => {
                return match self.c.node.pool.resolve(&self.c.ep, h.table).await {
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

    /// The image of a leaf with a table is the leaf (I3).
    async fn image(&self, leaf: &LeafCopy, h: &Header<'_>) -> Result<()> {
        let (c, addr) = (self.c, leaf.addr);
        let (generation, table, capacity) = (h.ver.generation, h.table, leaf.capacity);
        let route = Route { leaf: addr, generation, table, capacity, fence: 0 };
        if !route.is_imaged() {
            return Ok(());
        }
        let Some(cell) = c.cell(table).await? else { return Ok(()) };
        match Images(c).whole_in(cell, &route).await? {
            Some(image) if is_image(&c.node.g, &image, leaf) => {
                self.logged(cell, leaf, &route).await
            }
            Some(_) => Err(broken("an image that is not its leaf", addr)),
            None => match c.cell(table).await? {
                Some(_) => Err(broken("a table without its leaf's image", addr)),
                None => Ok(()),
            },
        }
    }

    /// The live slots of a leaf that its records change are logged in its image (G6).
    async fn logged(&self, cell: GlobalAddr, leaf: &LeafCopy, route: &Route) -> Result<()> {
        let (c, g) = (self.c, &self.c.node.g);
        let mut live = leaf.live(c).map(|(i, _)| i).filter(|i| self.behind.contains(i)).peekable();
        if live.peek().is_none() {
            return Ok(());
        }
        let len = g.leaf_image(route.capacity) as u32;
        let image = c.ep.read(image_at(cell, route.capacity), len).await?;
        let is_logged = |i| image.extract(|b| slot::is_logged(&b[g.slot_at(i)..]));
        match live.all(is_logged) {
            true => Ok(()),
            false => Err(broken("a slot with a record that is not logged", leaf.addr)),
        }
    }

    /// A block has one owner.
    fn block(&mut self, at: BlockPtr) -> Result<()> {
        if !self.blocks.insert(at.bits()) {
            return Err(broken("a block with two owners", at.addr()));
        }
        self.shape.block_bytes += u64::from(at.capacity());
        Ok(())
    }

    /// One leaf against its table; the number of live pairs.
    async fn leaf(&mut self, leaf: &LeafCopy, range: (&[u8], Option<&[u8]>)) -> Result<usize> {
        let c = self.c;
        let addr = leaf.addr;
        let h = leaf.header(c);
        let table = match c.node.has_tables() {
            true => self.table(addr, &h, leaf.capacity, range.1).await?,
            false => None,
        };
        if let Some(table) = &table {
            if !table.behind && !self.behind.is_empty() {
                return Err(broken("a leaf with records, and a table that does not say so", addr));
            }
            self.image(leaf, &h).await?;
        }
        self.shape.unbuilt_tables += u64::from(c.node.has_tables() && table.is_none());
        for i in (0..leaf.capacity).filter(|i| c.node.places.is_replica(*i)) {
            let place = Place { leaf: addr, slot: i };
            let wanted = Some((h.ver, fence_tag(range.1)));
            if replica(&c.node.g, place, &leaf.bytes[c.node.g.slot_at(i)..]) != wanted {
                return Err(broken("a replica of another version or range", addr));
            }
        }
        let entry = LeafEntry::new(addr, h.ver.generation, fence_tag(range.1));
        let mut keys = BTreeSet::new();
        let mut live = 0;
        for (i, slot) in leaf.live(c) {
            live += 1;
            let key = Leaves(c).whole_key(&slot, addr).await?;
            if *key < *range.0 || range.1.is_some_and(|high| *key >= *high) {
                return Err(broken("a key outside its leaf", addr));
            }
            if let Some(models) = &self.models
                && !models.has(&key, &entry)
            {
                return Err(broken("the window of a key lacks its leaf", addr));
            }
            let hash = KeyHash::of(&key);
            if c.node.places.reach(hash).is_some_and(|near| !near.contains(&i)) {
                return Err(broken("a key outside its neighbourhood", addr));
            }
            let fingerprint = hash.fingerprint();
            if table.as_ref().is_some_and(|t| t.fps()[i] != fingerprint) {
                return Err(broken("a wrong fingerprint", addr));
            }
            if !keys.insert(key.into_owned()) {
                return Err(broken("a key that is in two slots", addr));
            }
            if let Some(at) = block_of(&slot) {
                self.block(at)?;
                if !Blocks(c).read(at, |_, _| ()).await? {
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
