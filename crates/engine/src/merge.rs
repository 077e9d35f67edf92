//! Merging two small neighbours, A <- B, under one parent node.
//!
//! Locks: A, then B by try only, then the parent, so that no step after the commit can fail for
//! want of memory. Each step is awaited before the next:
//!
//! - m1: B's entries are written into free slots of A, staged. A reader ignores staged slots.
//! - m2: `B.forward = A` commits. From here on A answers for both ranges.
//! - m3: A's image: upper fence of B, range one on, staged entries live, `next` still B.
//! - m4: B's slots are freed, under the next range.
//! - m5: `A.next = B.next`.
//! - m6: B's record is removed from the parent, which is unlocked.
//! - m7: A's table and unlock; B's table is closed, awaited; B, its table and its fence blocks are
//!   retired.
//!
//! P holds because m1 is awaited before m2: at the commit A holds every entry of B, and until m4
//! both copies are frozen, since both leaves are locked. B must be A's `next` and not the first
//! child of its parent, because a parent's first record defines where the parent begins.
//!
//! A crash before m2 leaves staged slots in A and nothing else; recovery drops them (R: an unlocked
//! leaf has no staged slot). A crash after m2 leaves a tombstone that forwards to A while `A.next`
//! is still B: recovery of A redoes m3 to m7 from the memory nodes (`recover_leaf.rs`,
//! `recover_tombstone.rs`). Recovery of B first hands over to A's.
//!
//! Inner nodes merge likewise: parent first, then A and B by try; `B.forward = A`, A's image, B's
//! image, `A.next`, the record. Records that A has already stay at their places, so that a torn
//! WRITE of A loses none.
//!
//! A merge is maintenance work. One that finds a neighbour busy or too large gives up, and the next
//! delete queues it again.

use dmtree_fabric::verb::{VerbVec, write as write_verb, write_word};
use dmtree_fabric::{GlobalAddr, Result, Step};
use dmtree_parts::hash::fence_tag;
use dmtree_parts::held::Unlock;
use dmtree_pool::Grant;

use crate::client::{DmTree, LeafCopy, Route};
use crate::format::MAX_RANGE;
use crate::format::area::{Mode, Stored, get_key};
use crate::format::inner::{Record, free_word, put_record};
use crate::format::leaf::{FenceArea, HeaderParts, put_free, put_header, put_slot};
use crate::format::put_u64;
use crate::format::slot::SlotState;
use crate::invariants::{self, LeafState};
use crate::lock::Locked;
use crate::marks::Mark;
use crate::mutants::Mutant;
use crate::node::Chore;
use crate::parent::LockedInner;
use crate::route::route_of;

impl DmTree {
    /// Merges the leaf of a key with a neighbour, if both are small enough and no other client
    /// works there: with the right one, or else with the left one, which deletes in ascending order
    /// leave small.
    pub(crate) async fn merge_leaf(&self, key: &[u8]) -> Result<()> {
        self.route(key).await?;
        let Some((n, i)) = self.node.cache.lookup(1, key) else { return Ok(()) };
        for a in [Some(i), i.checked_sub(1)].into_iter().flatten().filter(|a| a + 1 < n.len()) {
            let (ra, rb) = (route_of(&n.record(a)), route_of(&n.record(a + 1)));
            let low_b = n.keys().get(a + 1).to_vec();
            if self.merge_pair(key, (ra, rb), low_b).await? {
                break;
            }
        }
        Ok(())
    }

    /// False: the two leaves are too large together.
    pub(crate) async fn merge_pair(
        &self,
        key: &[u8],
        (ra, rb): (Route, Route),
        low_b: Vec<u8>,
    ) -> Result<bool> {
        let Some(a) = self.lock_route(&ra).await? else {
            self.fresh_route(key).await?;
            return Ok(true);
        };
        let Some(b) = self.try_lock_route(&rb).await? else {
            Mark::MergeBusy.hit();
            return self.unlock(a).await.map(|()| true);
        };
        let (live_a, live_b) = (a.table.live(), b.table.live());
        let worn = a.table.ver.range.max(b.table.ver.range) >= MAX_RANGE;
        if worn || (live_a + live_b) * 2 > ra.capacity {
            Mark::MergeLarge.hit();
            self.unlock(b).await?;
            return self.unlock(a).await.map(|()| false);
        }
        let copies = async {
            let copy_a = self.read_leaf(ra.leaf, ra.capacity).await?;
            let copy_b = self.read_leaf(rb.leaf, rb.capacity).await?;
            let parent = self.lock_inner(1, &low_b).await?;
            Ok::<_, dmtree_fabric::Error>((copy_a, copy_b, parent))
        };
        let (copy_a, copy_b, parent) = match copies.await {
            Ok((a, b, Some(parent))) => (a, b, parent),
            Ok((_, _, None)) => {
                self.unlock(b).await?;
                return self.unlock(a).await.map(|()| true);
            }
            Err(e) => {
                self.unlock(b).await?;
                return self.fail(a, e).await;
            }
        };
        // B must be A's neighbour, and not the first child of its parent (the first record says
        // where the parent begins).
        let at = parent.node.position(rb.leaf);
        let neighbours = copy_a.header(self).next == rb.leaf;
        let Some(at) = at.filter(|at| *at > 0 && neighbours) else {
            Mark::MergeNoNeighbour.hit();
            self.unlock(parent).await?;
            self.unlock(b).await?;
            return self.unlock(a).await.map(|()| true);
        };
        self.merge_locked(a, b, (&copy_a, &copy_b), parent, at).await.map(|()| true)
    }

    async fn merge_locked(
        &self,
        a: Locked,
        b: Locked,
        copies: (&LeafCopy, &LeafCopy),
        parent: LockedInner,
        at: usize,
    ) -> Result<()> {
        let g = self.node.g;
        Mark::Merge.hit();
        let (mut a, mut b) = (a, b);
        let (copy_a, copy_b) = copies;
        if !self.node.has_tables() {
            self.check_lease()?;
            self.begin_change(&mut [&mut a, &mut b], None).await?;
        }
        let ver = a.table.ver;
        let new_ver = ver.bumped();
        let live = a.table.live() + b.table.live();
        let mut image = self.ep.buf(g.leaf_image(copy_a.capacity) as u32).await?;
        image.copy_from_slice(&copy_a.bytes);
        let mut staged = VerbVec::new();
        let mut taken = Vec::new();
        for (from, slot) in copy_b.live(self) {
            let to = a.table.free_slot().expect("both are small");
            let mut entry = self.ep.buf(g.leaf_image(copy_a.capacity) as u32).await?;
            let live = self.node.has(Mutant::MergeLive);
            let state = if live { SlotState::Live } else { SlotState::Staged };
            put_slot(&g, copy_a.addr, &mut entry, to, &slot, state, ver);
            let range = g.slot_at(to)..g.slot_at(to) + g.entry();
            entry.copy_within(range, 0);
            entry.truncate(g.entry() as u32);
            let at = copy_a.addr.plus(g.slot_at(to) as u64);
            match self.node.has(Mutant::MergeCommitEarly) {
                false => _ = staged.write(at, entry),
                true => self.ep.detach(write_verb(at, entry), None),
            }
            a.table.set(to, b.table.fps()[from]);
            taken.push((from, to));
        }
        if staged.is_empty() {
            Mark::MergeEmpty.hit();
        } else {
            self.ep.step(Step::Structure);
            self.ep.batch(staged).await?; // m1
        }
        for (i, slot) in copy_a.live(self) {
            put_slot(&g, copy_a.addr, &mut image, i, &slot, SlotState::Live, new_ver);
        }
        for i in (0..copy_a.capacity).filter(|i| a.table.fps()[*i] == 0) {
            put_free(&g, copy_a.addr, &mut image, i, new_ver);
        }
        for (from, to) in &taken {
            let slot = copy_b.slot(self, *from);
            put_slot(&g, copy_a.addr, &mut image, *to, &slot, SlotState::Live, new_ver);
        }
        let (header_a, header_b) = (copy_a.header(self), copy_b.header(self));
        let parts = HeaderParts {
            ver: new_ver,
            table: a.route.table,
            slots: copy_a.capacity,
            level: 0,
            lo: &FenceArea::lo_of(&g, &copy_a.bytes),
            hi: &FenceArea::hi_of(&g, &copy_b.bytes),
            next: copy_b.addr,
            forward: GlobalAddr::NULL,
        };
        put_header(&g, copy_a.addr, &mut image, &parts);
        a.table.ver = new_ver;
        let merged = LeafState { addr: copy_a.addr, image: &image, table: &a.table };
        debug_assert!(
            invariants::is_merge(&g, (&copy_a.bytes, &copy_b.bytes), live, &merged),
            "merge of {} into {} breaks P, F, B, R or S",
            copy_b.addr,
            copy_a.addr
        );
        if self.node.has(Mutant::MergeNextEarly) {
            let next = copy_a.addr.plus(g.next_at() as u64);
            self.ep.write_word(next, header_b.next.bits()).await?;
        }
        if self.node.has(Mutant::RetireMergedEarly) {
            let arena = self.node.leaf_arena(b.route.capacity);
            self.node
                .pool
                .give_back(arena, Grant { addr: b.route.leaf, generation: b.route.generation });
        }
        if self.node.has(Mutant::MergeImageEarly) {
            let early = image.to_vec();
            let mut copy = self.ep.buf(early.len() as u32).await?;
            copy.copy_from_slice(&early);
            self.ep.write(copy_a.addr, copy).await?;
        }
        self.commit_forward(copy_b.addr, copy_a.addr).await?; // m2
        self.ep.write(copy_a.addr, image).await?; // m3
        if !self.node.has(Mutant::MergeNoBlank) {
            self.blank(copy_b, &b.table, copy_a.addr).await?; // m4
        }
        let next = copy_a.addr.plus(g.next_at() as u64);
        match self.node.has(Mutant::MergeNextDetached) {
            false => self.ep.write_word(next, header_b.next.bits()).await?, // m5
            true => self.ep.detach(write_word(next, header_b.next.bits()), None),
        }
        let (record, few) = (parent.node.record(at), parent.node.len() * 4 <= g.fanout);
        let (index, record_key) = (record.index, FenceArea::of_record(&record));
        let low_b = parent.node.key(at).to_vec();
        let low_a = self.fence_bytes(header_a.lo).await?.unwrap_or_default();
        self.remove_record(parent, index).await?; // m6
        let hi = self.fence_bytes(header_b.hi).await?;
        a.table.fence = fence_tag(hi.as_deref());
        let route_a = Route { fence: a.table.fence, ..a.route };
        self.fill_mirror(&low_a, &route_a, a.table.fps());
        let tombstone = b.route;
        self.unlock_with_table(a).await?; // m7
        if !self.close_table(b).await? {
            return Ok(());
        }
        let arena = self.node.leaf_arena(tombstone.capacity);
        if !self.node.has(Mutant::RetireMergedEarly) {
            self.node
                .pool
                .retire(arena, Grant { addr: tombstone.leaf, generation: tombstone.generation });
        }
        self.retire_table(tombstone.table);
        self.retire_fence(&FenceArea::lo_of(&g, &copy_b.bytes));
        self.retire_fence(&record_key);
        if few {
            self.node.push_chore(Chore::MergeInner(low_b, 1));
        }
        Ok(())
    }

    fn retire_fence(&self, area: &FenceArea) {
        if let (Mode::Block, Some(Stored::Block(at))) = (area.mode, get_key(&area.bytes, area.mode))
        {
            self.retire_block(at);
        }
    }

    /// Merges the inner node that covers a key with a neighbour under the same parent, if both have
    /// few records: the right one, or else the left one.
    pub(crate) async fn merge_inner(&self, key: &[u8], level: u8) -> Result<()> {
        match self.merge_inner_pair(key, level, 0).await? {
            true => Ok(()),
            false => self.merge_inner_pair(key, level, 1).await.map(|_| ()),
        }
    }

    /// The node of a key, or the one `left` of it, with the next one. False: they are too large
    /// together, or there is no neighbour.
    async fn merge_inner_pair(&self, key: &[u8], level: u8, left: usize) -> Result<bool> {
        let g = self.node.g;
        let Some(parent) = self.lock_inner(level + 1, key).await? else { return Ok(true) };
        let i = parent.node.floor(key);
        let Some(ia) = i.checked_sub(left).filter(|ia| ia + 1 < parent.node.len()) else {
            return self.unlock(parent).await.map(|()| false);
        };
        let (ca, cb) = (parent.node.record(ia).child, parent.node.record(ia + 1).child);
        let Some(a) = self.try_lock_inner(ca.addr, ca.generation, level).await? else {
            return self.unlock(parent).await.map(|()| true);
        };
        let b = match self.try_lock_inner(cb.addr, cb.generation, level).await? {
            Some(b) => b,
            None => {
                self.unlock(a).await?;
                return self.unlock(parent).await.map(|()| true);
            }
        };
        let small = (a.node.len() + b.node.len()) * 2 <= g.fanout;
        let next = crate::format::leaf::check_header(&g, a.addr, &a.node.bytes).map(|h| h.next);
        if !small || next != Some(b.addr) {
            Mark::MergeInnerNot.hit();
            self.unlock(b).await?;
            self.unlock(a).await?;
            return self.unlock(parent).await.map(|()| false);
        }
        self.merge_inner_locked(a, b, parent, ia + 1).await.map(|()| true)
    }

    async fn merge_inner_locked(
        &self,
        a: LockedInner,
        b: LockedInner,
        parent: LockedInner,
        at: usize,
    ) -> Result<()> {
        let g = self.node.g;
        Mark::MergeInner.hit();
        let (ver_a, ver_b) = (a.ver.bumped(), b.ver.bumped());
        let next =
            crate::format::leaf::check_header(&g, b.addr, &b.node.bytes).expect("accepted").next;
        let mut image_a = self.ep.buf(g.inner_image() as u32).await?;
        image_a.copy_from_slice(&a.node.bytes);
        let mut image_b = self.ep.buf(g.inner_image() as u32).await?;
        image_b.copy_from_slice(&b.node.bytes);
        let parts = |n: &LockedInner, ver, lo, hi, next, forward| HeaderParts {
            ver,
            table: dmtree_pool::TableId::from_bits(0),
            slots: g.fanout,
            level: n.level,
            lo,
            hi,
            next,
            forward,
        };
        let (lo_a, lo_b) =
            (FenceArea::lo_of(&g, &a.node.bytes), FenceArea::lo_of(&g, &b.node.bytes));
        let hi = FenceArea::hi_of(&g, &b.node.bytes);
        put_header(
            &g,
            a.addr,
            &mut image_a,
            &parts(&a, ver_a, &lo_a, &hi, b.addr, GlobalAddr::NULL),
        );
        put_header(&g, b.addr, &mut image_b, &parts(&b, ver_b, &lo_b, &hi, next, a.addr));
        // A's records stay where they are: a WRITE that is cut half way must not lose one.
        let mut all: Vec<Option<Record<'_>>> = vec![None; g.fanout];
        let moves = self.node.has(Mutant::InnerMergeMoves);
        for (i, r) in a.node.records().enumerate() {
            all[if moves { i } else { r.index }] = Some(r);
        }
        let free = all.iter_mut().filter(|r| r.is_none());
        free.zip(b.node.records()).for_each(|(r, b)| *r = Some(b));
        for (i, r) in all.iter().enumerate() {
            let at = g.record_at(i);
            match r {
                Some(r) => {
                    let raw = &mut image_a[at..at + g.record()];
                    put_record(&g, a.addr, ver_a, i, raw, (r.area, r.mode), &r.child);
                }
                None => put_u64(&mut image_a, at, free_word(a.addr, ver_a, i)),
            }
            put_u64(&mut image_b, at, free_word(b.addr, ver_b, i));
        }
        debug_assert!(
            invariants::keeps_records(
                &g,
                &[(a.addr, &a.node.bytes), (b.addr, &b.node.bytes)],
                &[(a.addr, &image_a)]
            ),
            "merge of inner node {} into {} breaks P, R or S",
            b.addr,
            a.addr
        );
        let forward = b.addr.plus(g.forward_at() as u64);
        self.ep.step(Step::Structure);
        self.check_lease()?;
        self.ep.write_word(forward, a.addr.bits()).await?;
        if self.node.has(Mutant::InnerMergeBlankEarly) {
            self.write_around_lock(b.addr, &image_b).await?;
        }
        self.write_around_lock(a.addr, &image_a).await?;
        self.write_around_lock(b.addr, &image_b).await?;
        self.ep.write_word(a.addr.plus(g.next_at() as u64), next.bits()).await?;
        let (record, few) = (parent.node.record(at), parent.node.len() * 4 <= g.fanout);
        let (index, record_key) = (record.index, FenceArea::of_record(&record));
        let (low, level) = (parent.node.key(at).to_vec(), parent.level);
        self.remove_record(parent, index).await?;
        put_u64(&mut image_a, g.next_at(), next.bits());
        self.cache_inner(a.addr, &image_a).await?;
        let tombstone = Grant { addr: b.addr, generation: b.ver.generation };
        let is_bottom = a.level == 1;
        self.unlock(a).await?;
        self.unlock(b).await?;
        self.node.pool.retire(&self.node.inner_arena, tombstone);
        self.retire_fence(&lo_b);
        self.retire_fence(&record_key);
        if is_bottom {
            // Leaves that could not merge, as they were children of two nodes.
            self.node.push_chore(Chore::Merge(low.clone()));
        }
        if few {
            self.node.push_chore(Chore::MergeInner(low, level));
        }
        Ok(())
    }
}
