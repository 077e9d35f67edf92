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
//! sweep, or a reader that meets R0 swings the root word (`recovery/inner.rs`, `maintenance/sweep.rs`).
//!
//! The order of steps 3 and 4 protects from hops and repairs only, not from a loss of data.

use std::ops::Range;

use dmtree_fabric::verb::{VerbVec, write as write_verb};
use dmtree_fabric::{Buf, Error, GlobalAddr, OpKind, OpOutcome, Result};
use dmtree_parts::fill::{Fill, SplitRule};
use dmtree_parts::hash::{KeyHash, fence_tag};
use dmtree_parts::held::Unlock;
use dmtree_parts::pairs::Pairs;
use dmtree_parts::{Loaded, Outcome, Write, check_key, check_value};
use dmtree_pool::{BlockPtr, Grant, TableId};

use crate::change::separator;
use crate::client::Client;
use crate::format::inner::{Child, free_word, put_record};
use crate::format::leaf::{FenceArea, HeaderParts, put_free, put_header};
use crate::format::slot::Place;
use crate::format::table::{BODY_AT, Table};
use crate::format::{Ver, put_u64};
use crate::inner::{InnerChange, InnerLocks, LockedInner};
use crate::leaf::{Blocks, Entries, LeafMemory, Leaves, NewLeaf, Tombstones};
use crate::lock::{LeafLocks, Locked, TableLocks, WordLocks};
use crate::mutants::Mutant;
use crate::point::WriteMany;

/// Memory that a load has taken, given back when the load fails.
#[derive(Default)]
struct Taken {
    leaves: Vec<NewLeaf>,
    inners: Vec<Grant>,
    blocks: Vec<BlockPtr>,
}

/// Fills an empty index.
#[derive(Clone, Copy)]
pub(crate) struct Loads<'c>(pub &'c Client);

impl Loads<'_> {
    /// One empty leaf under one inner node. The root word is written last: before it, the index
    /// does not exist.
    pub(crate) async fn format(self) -> Result<()> {
        let c = self.0;
        let g = c.node.g;
        let s = LeafMemory(c).take(c.node.o.leaf_capacity as usize).await?;
        let bottom = FenceArea::inline(&g, &[]).expect("nothing fits anywhere");
        let top = FenceArea::infinite(&g);
        let header = |ver, table, slots, level| HeaderParts {
            ver,
            table,
            slots,
            level,
            lo: &bottom,
            hi: &top,
            next: GlobalAddr::NULL,
            forward: GlobalAddr::NULL,
        };
        let (addr, ver) = (s.grant.addr, s.ver());
        let mut image = c.ep.buf(g.leaf_bytes(s.capacity) as u32).await?;
        image.fill(0);
        put_header(&g, addr, &mut image, &header(ver, s.table, s.capacity, 0));
        (0..s.capacity).for_each(|i| put_free(&g, addr, &mut image, i, ver));
        c.ep.write(addr, image).await?;
        if c.node.has_tables() {
            let mut table = Table::new(addr, ver, fence_tag(None), s.capacity);
            let body = TableLocks(c).body(&mut table, s.table).await?;
            c.ep.write(s.table_at.plus(BODY_AT as u64), body).await?;
        }

        let grant = InnerChange(c).alloc().await?;
        let ver = crate::format::Ver { generation: grant.generation, range: 0 };
        let mut image = c.ep.buf(g.inner_image() as u32).await?;
        image.fill(0);
        let none = dmtree_pool::TableId::from_bits(0);
        put_header(&g, grant.addr, &mut image, &header(ver, none, g.fanout, 1));
        for i in 1..g.fanout {
            put_u64(&mut image, g.record_at(i), free_word(grant.addr, ver, i));
        }
        let at = g.record_at(0);
        let raw = &mut image[at..at + g.record()];
        put_record(&g, grant.addr, ver, 0, raw, (&bottom.bytes, bottom.mode), &s.child());
        c.ep.write(grant.addr, image).await?;
        let was = c.ep.cas(c.node.root.word, 0, grant.addr.bits()).await?;
        if was != 0 {
            LeafMemory(c).give_back(&s);
            c.node.pool.give_back(&c.node.inner_arena, grant);
            return Err(Error::new(
                dmtree_fabric::ErrorKind::Exists,
                "the index has a root already",
            ));
        }
        Ok(())
    }

    pub(crate) async fn load(
        self,
        pairs: &mut dyn Iterator<Item = (Vec<u8>, Vec<u8>)>,
        sorted: bool,
        fill: Fill,
    ) -> Result<Loaded> {
        let mut all = Pairs::collect(pairs, sorted, |key, value| {
            check_key(key).and_then(|()| check_value(value))
        })?;
        let scope = self.0.ep.begin(OpKind::Load);
        let loaded = self.load_sorted(&mut all, fill).await?;
        scope.end(OpOutcome::Other);
        Ok(loaded)
    }

    async fn load_sorted(self, all: &mut Pairs, fill: Fill) -> Result<Loaded> {
        let pairs = all.len() as u64;
        if all.is_empty() {
            return Ok(Loaded::default());
        }
        // Deadlines bound waiting for other clients; a load is long by itself.
        let pin = self.0.pin();
        if let Some((l, r0)) = self.lock_empty().await? {
            let leaves = self.replace_empty(l, r0, all, fill).await?;
            return Ok(Loaded { pairs, leaves });
        }
        drop(pin);
        let mut outcomes = Vec::new();
        for first in (0..all.len()).step_by(256) {
            let chunk = (first..all.len().min(first + 256)).map(|i| all.get(i));
            let writes: Vec<(&[u8], Write<'_>)> = chunk.map(|(k, v)| (k, Write::Put(v))).collect();
            WriteMany(self.0).write(&writes, &mut outcomes).await?;
            for outcome in outcomes.drain(..) {
                let done = outcome?;
                debug_assert_eq!(done, Outcome::Done);
            }
        }
        Ok(Loaded { pairs, leaves: 0 })
    }

    /// Locks the only leaf and the only inner node of an index without keys; `None` when the index
    /// is anything else.
    async fn lock_empty(self) -> Result<Option<(Locked, LockedInner)>> {
        let c = self.0;
        let l = LeafLocks(c).of_key(&[0]).await?;
        let leaf = Leaves(c).read(l.route.leaf, l.route.capacity).await?;
        let h = leaf.header(c);
        let whole = h.lo == crate::format::area::Stored::Inline(&[])
            && h.hi == crate::format::area::Stored::Infinite;
        if !whole || l.table.live() > 0 {
            c.unlock(l).await?;
            return Ok(None);
        }
        let Some(r0) = InnerLocks(c).lock(1, &[0]).await? else {
            c.unlock(l).await?;
            return Ok(None);
        };
        let root = c.read_root().await?;
        if root != r0.addr || r0.node.len() != 1 || r0.hi.is_some() {
            c.unlock(r0).await?;
            c.unlock(l).await?;
            return Ok(None);
        }
        Ok(Some((l, r0)))
    }

    async fn replace_empty(
        self,
        l: Locked,
        r0: LockedInner,
        all: &mut Pairs,
        fill: Fill,
    ) -> Result<u64> {
        let c = self.0;
        let mut taken = Taken::default();
        let built = self.build(all, fill, &mut taken).await;
        let root = match built {
            Ok(built) => built,
            Err(e) => {
                self.give_all_back(taken);
                c.unlock(r0).await?;
                c.unlock(l).await?;
                return Err(e);
            }
        };
        let mut l = l;
        let first_leaf = taken.leaves[0].grant.addr;
        if !c.node.has_tables() {
            c.check_lease()?;
            WordLocks(c).begin_change(&mut [&mut l], None).await?;
        }
        // R0.next names the new root, so that the client that finishes a dead loader's work finds
        // it; L.forward commits.
        let g = c.node.g;
        c.check_lease()?;
        if c.node.has(Mutant::LoadCommitEarly) {
            Tombstones(c).forward(l.route.leaf, first_leaf).await?;
        }
        c.ep.write_word(r0.addr.plus(g.next_at() as u64), root.bits()).await?;
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
        let dead_inner = Grant { addr: r0.addr, generation: r0.ver.generation };
        c.node.cache.clear();
        c.unlock(r0).await?;
        let tombstone = l.route;
        let pool = &c.node.pool;
        let closed = LeafLocks(c).close(l).await?;
        pool.retire(&c.node.inner_arena, dead_inner);
        if !closed {
            return Ok(taken.leaves.len() as u64);
        }
        pool.retire(
            c.node.leaf_arena(tombstone.capacity),
            Grant { addr: tombstone.leaf, generation: tombstone.generation },
        );
        LeafMemory(c).retire_table(tombstone.table);
        Ok(taken.leaves.len() as u64)
    }

    fn give_all_back(self, taken: Taken) {
        let c = self.0;
        taken.leaves.iter().for_each(|s| LeafMemory(c).give_back(s));
        for grant in taken.inners {
            c.node.pool.give_back(&c.node.inner_arena, grant);
        }
        for at in taken.blocks {
            c.node.pool.give_back_block(c.node.root.index, at);
        }
    }

    /// Builds leaves and inner nodes; returns the root.
    async fn build(self, all: &mut Pairs, fill: Fill, taken: &mut Taken) -> Result<GlobalAddr> {
        let capacity = self.0.node.o.leaf_capacity as usize;
        // A leaf keeps half of what a full leaf and the pending pair hold, rounded down; a full
        // inner node likewise.
        let rule = |slots: usize| SplitRule::new(slots as u32, slots as u32 / 2);
        let mut chunks: Vec<Range<usize>> = Vec::new();
        for size in fill.sizes(rule(capacity), all.len() as u64, 0) {
            let first = chunks.last().map_or(0, |c| c.end);
            chunks.push(first..first + size);
        }
        for _ in 0..chunks.len() {
            self.0.ep.renew_deadline();
            taken.leaves.push(LeafMemory(self.0).take(capacity).await?);
        }
        // Level by level: lower fences and children.
        let mut lows: Vec<Vec<u8>> = vec![Vec::new()];
        for chunk in &chunks[1..] {
            lows.push(separator(all.key(chunk.start - 1), all.key(chunk.start)).to_vec());
        }
        // From the end, so that memory of pairs is freed as leaves are built.
        let mut above = None;
        for (i, chunk) in chunks.iter().enumerate().rev() {
            self.0.ep.renew_deadline();
            let hi = lows.get(i + 1).map(Vec::as_slice);
            // A leaf's upper fence is the next leaf's lower fence, block included: exactly one of
            // them owns the block.
            let area = self.written_area(&lows[i], taken).await?;
            let fences = (&area, above.as_ref());
            let next = taken.leaves.get(i + 1).map_or(GlobalAddr::NULL, |s| s.grant.addr);
            let mut blocks = Vec::new();
            let written = self.build_leaf(
                &taken.leaves[i],
                (&*all, chunk.clone()),
                fences,
                hi,
                next,
                &mut blocks,
            );
            let written = written.await;
            taken.blocks.extend(blocks.iter().map(|(at, _)| *at));
            let (image, body) = written?;
            Blocks(self.0).write(&mut blocks).await?;
            above = Some(area);
            all.truncate(chunk.start);
            let s = &taken.leaves[i];
            let Some(body) = body else {
                let mut list = VerbVec::new();
                WordLocks(self.0).add_new_leaf(&mut list, s.grant, image);
                self.0.ep.batch(list).await?;
                continue;
            };
            let table_at = s.table_at.plus(BODY_AT as u64);
            self.0.ep.batch((write_verb(s.grant.addr, image), write_verb(table_at, body))).await?;
        }
        let mut children: Vec<Child> = taken.leaves.iter().map(NewLeaf::child).collect();
        let mut level = 1;
        loop {
            let rule = rule(self.0.node.g.fanout);
            let sizes: Vec<_> = fill.sizes(rule, children.len() as u64, u32::from(level)).collect();
            let (upper_lows, upper) =
                self.build_level(level, &sizes, &lows, &children, taken).await?;
            if let [root] = &upper[..] {
                return Ok(root.addr);
            }
            (lows, children) = (upper_lows, upper);
            level += 1;
        }
    }

    /// Fence areas of some keys; the blocks of long ones are written.
    async fn fence_areas(self, keys: &[Vec<u8>], taken: &mut Taken) -> Result<Vec<FenceArea>> {
        let mut areas = Vec::with_capacity(keys.len());
        for key in keys {
            areas.push(self.written_area(key, taken).await?);
        }
        Ok(areas)
    }

    async fn written_area(self, key: &[u8], taken: &mut Taken) -> Result<FenceArea> {
        let mut blocks = Vec::new();
        let area = Blocks(self.0).area(key, &mut blocks).await;
        taken.blocks.extend(blocks.iter().map(|(at, _)| *at));
        let area = area?;
        Blocks(self.0).write(&mut blocks).await?;
        Ok(area)
    }

    async fn build_leaf(
        self,
        s: &NewLeaf,
        (all, range): (&Pairs, Range<usize>),
        fences: (&FenceArea, Option<&FenceArea>),
        high: Option<&[u8]>,
        next: GlobalAddr,
        blocks: &mut Vec<(BlockPtr, Buf)>,
    ) -> Result<(Buf, Option<Buf>)> {
        let c = self.0;
        let g = &c.node.g;
        let (addr, ver) = (s.grant.addr, s.ver());
        let top = FenceArea::infinite(g);
        let mut image = c.ep.buf(g.leaf_bytes(s.capacity) as u32).await?;
        image.fill(0);
        let parts = HeaderParts {
            ver,
            table: s.table,
            slots: s.capacity,
            level: 0,
            lo: fences.0,
            hi: fences.1.unwrap_or(&top),
            next,
            forward: GlobalAddr::NULL,
        };
        put_header(g, addr, &mut image, &parts);
        let mut table = Table::new(addr, ver, fence_tag(high), s.capacity);
        let count = range.len();
        for (i, (key, value)) in range.map(|n| all.get(n)).enumerate() {
            let hash = KeyHash::of(key);
            let at = g.slot_at(i);
            let entry = &mut image[at..at + g.entry()];
            let place = Place { leaf: addr, slot: i };
            blocks.extend(Entries(c).encode(place, ver, (key, hash, value), entry).await?);
            table.set(i, hash.fingerprint());
        }
        (count..s.capacity).for_each(|i| put_free(g, addr, &mut image, i, ver));
        let body = match c.node.has_tables() {
            true => Some(TableLocks(c).body(&mut table, s.table).await?),
            false => None,
        };
        Ok((image, body))
    }

    async fn build_level(
        self,
        level: u8,
        sizes: &[usize],
        lows: &[Vec<u8>],
        children: &[Child],
        taken: &mut Taken,
    ) -> Result<(Vec<Vec<u8>>, Vec<Child>)> {
        let c = self.0;
        let g = c.node.g;
        let count = sizes.len();
        let firsts: Vec<usize> =
            sizes.iter().scan(0, |at, size| Some(std::mem::replace(at, *at + size))).collect();
        let mut grants = Vec::with_capacity(count);
        for _ in 0..count {
            let grant = InnerChange(c).alloc().await?;
            taken.inners.push(grant);
            grants.push(grant);
        }
        let upper_lows: Vec<Vec<u8>> = firsts.iter().map(|i| lows[*i].clone()).collect();
        let (areas, top) = (self.fence_areas(&upper_lows, taken).await?, FenceArea::infinite(&g));
        for i in 0..count {
            c.ep.renew_deadline();
            let range = firsts[i]..firsts[i] + sizes[i];
            let mut blocks = Vec::new();
            let image = async {
                let ver = Ver { generation: grants[i].generation, range: 0 };
                let addr = grants[i].addr;
                let mut image = c.ep.buf(g.inner_image() as u32).await?;
                image.fill(0);
                let parts = HeaderParts {
                    ver,
                    table: TableId::from_bits(0),
                    slots: g.fanout,
                    level,
                    lo: &areas[i],
                    hi: areas.get(i + 1).unwrap_or(&top),
                    next: grants.get(i + 1).map_or(GlobalAddr::NULL, |n| n.addr),
                    forward: GlobalAddr::NULL,
                };
                put_header(&g, addr, &mut image, &parts);
                for slot in 0..g.fanout {
                    let at = g.record_at(slot);
                    let Some(n) = range.clone().nth(slot) else {
                        put_u64(&mut image, at, free_word(addr, ver, slot));
                        continue;
                    };
                    let key = Blocks(c).area(&lows[n], &mut blocks).await?;
                    let raw = &mut image[at..at + g.record()];
                    put_record(&g, addr, ver, slot, raw, (&key.bytes, key.mode), &children[n]);
                }
                Ok::<_, Error>(image)
            }
            .await;
            taken.blocks.extend(blocks.iter().map(|(at, _)| *at));
            let image = image?;
            Blocks(c).write(&mut blocks).await?;
            c.ep.write(grants[i].addr, image).await?;
        }
        let upper = grants
            .iter()
            .map(|grant| Child {
                addr: grant.addr,
                generation: grant.generation,
                table: TableId::from_bits(0),
                slots: g.fanout,
            })
            .collect();
        Ok((upper_lows, upper))
    }
}
