//! Recovery of a leaf: completing or undoing the changes of a dead or failed client. One routine
//! serves locks that are taken over, tables that have to be built, and tables that a late WRITE has
//! overwritten.
//!
//! The precondition is that nothing of the former holder executes any more: its node is revoked at
//! every host, or its operation has ended. So memory is stable under the lock, apart from live
//! clients, and everything is derived from it.
//!
//! 1. READ the header, before the lock is taken. A leaf that forwards to another is a tombstone and
//!    is repaired with its successor (`tombstone.rs`).
//! 2. Take the lock over: `CAS abandoned tag -> own tag`, or `0 -> own tag` for an unbuilt table. A
//!    changed word means that another client was faster.
//! 3. Check the lease. READ the leaf, and the right neighbour past relocated tombstones.
//! 4. Decide. The neighbour forwards to this leaf: redo the merge; all of its entries are here,
//!    since m1 was awaited before m2. `hi` is not the sibling's `lo`, or the header is torn: finish
//!    the split. Staged slots of a merge that did not commit go. A torn slot is restored from the
//!    shadow, or freed when the shadow does not name it.
//! 5. WRITE the leaf under one new range, when anything differs. This restores S and R, and the new
//!    version refuses every image that mixes the two states.
//! 6. Add the sibling's record, or finish the merge of the neighbour.
//! 7. `[WRITE table, CAS own tag -> 0]`: F holds again before the lock is free.
//!
//! P holds throughout, because a slot's key and value are never changed here: slots are kept,
//! restored from the shadow, or freed.
//!
//! Every step may be repeated. A client that dies during a recovery leaves its own tag on a leaf
//! that is damaged less or as much as before, and the next client starts from there. An unreachable
//! parent or owner is no reason to keep the lock: the record becomes a chore, and the table is
//! built at its next owner.
//!
//! The READ of step 1 only chooses the routine; steps 3 to 7 use what is READ under the lock.

use dmtree_fabric::verb::write as write_verb;
use dmtree_fabric::{Error, GlobalAddr, Result, Step};

use crate::format::{
    BODY_AT, FenceArea, Geometry, Place, SlotState, Table, Ver, View, slot, u64_at,
};
use crate::hop::{Places, replica, settle};
use crate::inner::Records;
use crate::leaf::{Blocks, Images, LeafImage, Leaves, NodeHeader};
use crate::lock::{LeafLocks, TakenLock};
use crate::log::{Cut, Overlaid, Replay, Since};
use crate::recovery::WordRecovery;
use crate::router::Router;
use crate::{Chore, Client, KeyHash, Mark, Mutant, Route, fence_tag, is_away, reached};

/// Repairs leaves.
#[derive(Clone, Copy)]
pub(crate) struct LeafRecovery<'c>(pub &'c Client);

impl LeafRecovery<'_> {
    /// Repairs the leaf of a route; its lock was found to be `was`: abandoned, or 0 and the table
    /// unbuilt. True: the lock is worth another try. False: the route is stale.
    pub(crate) async fn recover(self, route: &Route, at: GlobalAddr, was: u64) -> Result<bool> {
        let c = self.0;
        let h = NodeHeader::read(c, route.leaf).await?;
        if !h.is_of(route) || h.level != 0 {
            return Ok(false);
        }
        if !h.forward.is_null() && !c.node.has(Mutant::RecoverWithoutSuccessor) {
            // The cell of a tombstone's unbuilt table may belong to another leaf by now: it is left
            // alone.
            return if was == 0 {
                Ok(false)
            } else {
                self.finish_tombstone(route, &h, at, was).await
            };
        }
        let Some(taken) = LeafLocks(c).take_over(route, at, was).await? else { return Ok(true) };
        if was == 0 && taken.table != Some(View::Unbuilt) {
            // Another client was faster.
            return taken.give_back(c).await.map(|()| true);
        }
        let since = match was {
            0 => {
                Mark::TableBuilt.hit();
                Since::Unbuilt(route.table, at)
            }
            _ => {
                Mark::LockTaken.hit();
                if c.node.is_gone(was) { Since::Dead } else { Since::Now }
            }
        };
        DamagedLeaf::repair(c, taken, since).await.map(|()| true)
    }

    /// The cell of a leaf's table holds something else, and its lock is free. A WRITE of a table
    /// may execute long after its operation, when the cell is another leaf's: its partition was
    /// reassigned, or its index was dropped. The table is built anew, if under the lock the leaf
    /// still names it.
    pub(crate) async fn rebuild_table(self, route: &Route) -> Result<()> {
        self.rebuild(route, false).await
    }

    /// `is_torn`: the image behind the table has been found torn.
    async fn rebuild(self, route: &Route, is_torn: bool) -> Result<()> {
        if !self.0.node.has_tables() {
            return Ok(());
        }
        let Some(at) = self.0.cell(route.table).await? else { return Ok(()) };
        let Some(taken) = LeafLocks(self.0).take_over(route, at, 0).await? else { return Ok(()) };
        let own = |t: &Table| t.leaf == route.leaf && t.ver.generation == route.generation;
        let h = NodeHeader::read(self.0, route.leaf).await?;
        let alive = h.is_of(route) && h.level == 0 && h.forward.is_null();
        let is_own = matches!(&taken.table, Some(View::Whole(t)) if own(t));
        if !alive || (is_own && !is_torn) {
            return taken.give_back(self.0).await;
        }
        Mark::TableForeign.hit();
        DamagedLeaf::repair(self.0, taken, Since::Now).await
    }

    /// A reader has met a torn image for long: its writer may be dead, its owner new, or the image
    /// overwritten by a late WRITE of a table. False: the leaf is gone.
    pub(crate) async fn help_image(self, route: &Route) -> Result<bool> {
        let h = NodeHeader::read(self.0, route.leaf).await?;
        if !h.is_of(route) || h.level != 0 {
            return Ok(false);
        }
        // Another reader may have built it meanwhile.
        if self.help_route(route).await? == Inspected::Done && !self.has_image(route).await? {
            self.0.op.part(self.rebuild(route, true)).await?;
        }
        Ok(h.forward.is_null())
    }

    /// Whether the image of a leaf is whole.
    async fn has_image(self, route: &Route) -> Result<bool> {
        let Some(at) = self.0.cell(route.table).await? else { return Ok(false) };
        Ok(Images(self.0).whole_in(at, route).await?.is_some())
    }

    /// A reader has met a torn leaf for long: when the writer is dead, the reader repairs it.
    pub(crate) async fn help(self, addr: GlobalAddr) -> Result<()> {
        let h = NodeHeader::read(self.0, addr).await?;
        if !h.is_leaf(&self.0.node) {
            return Ok(());
        }
        self.help_route(&h.route(addr)).await.map(|_| ())
    }

    /// Repairs the leaf of a route if its lock is abandoned or its table unbuilt.
    pub(crate) async fn help_route(self, route: &Route) -> Result<Inspected> {
        self.0.op.part(self.inspect(route)).await
    }

    pub(crate) async fn inspect(self, route: &Route) -> Result<Inspected> {
        if !self.0.node.has_tables() {
            return Box::pin(WordRecovery(self.0).help(route)).await.map(|()| Inspected::Done);
        }
        let Some(at) = self.0.cell(route.table).await? else { return Ok(Inspected::Open) };
        let len = Table::body_len(route.capacity);
        let Some((was, body)) =
            reached(self.0.cas_and_read(at, (0, 0), at.plus(BODY_AT as u64), len).await)?
        else {
            return Ok(Inspected::Open);
        };
        let unbuilt =
            || body.extract(|b| Table::view(route.table, route.capacity, b)) == View::Unbuilt;
        if self.0.node.is_abandoned(was) || (was == 0 && unbuilt()) {
            Mark::HelpLeaf.hit();
            let recovered = self.recover(route, at, was).await?;
            if !recovered && was == 0 {
                self.help_tombstone(route).await?;
            }
            return Ok(if recovered { Inspected::Open } else { Inspected::Done });
        }
        Ok(if unbuilt() { Inspected::Open } else { Inspected::Done })
    }
}

/// Counts of writes to a leaf that no record and no table may show to a repair: two, and some more.
const UNSEEN_COUNTS: u32 = 16;

/// A leaf under repair, and the image that it is to get.
struct DamagedLeaf<'c> {
    c: &'c Client,
    route: Route,
    /// The image, with restored slots.
    image: Vec<u8>,
    header: NodeHeader,
    /// Slots that stay, with their keys.
    kept: Vec<(usize, Vec<u8>)>,
    /// The image differs from memory and has to be written.
    is_damaged: bool,
    /// Largest range seen.
    range: u8,
}

impl<'c> DamagedLeaf<'c> {
    /// This operation holds the leaf's lock: repairs leaf, neighbours, parent and table, and
    /// unlocks.
    async fn repair(c: &'c Client, taken: TakenLock, since: Since) -> Result<()> {
        let (g, route) = (c.node.g, taken.route);
        c.check_lease()?;
        c.ep.step(Step::Structure);
        let bytes = c.ep.read(route.leaf, c.node.leaf_bytes(route.capacity) as u32).await?;
        let mut image = bytes.extract(<[u8]>::to_vec);
        let counted = Self::replay(c, (&taken, since), &mut image).await?;
        let header = NodeHeader::of(&g, route.leaf, &image);
        let right = Right::of(c, route.leaf, &header).await?;
        let (hi, next) = match &right {
            Right::End => (FenceArea::infinite(&g), GlobalAddr::NULL),
            Right::Sibling(addr, n) => (n.lo.clone(), *addr),
            Right::Merged(_, b) => (b.hi.clone(), header.next),
        };
        let merged = matches!(right, Right::Merged(..));
        if merged {
            Mark::RecoverMerge.hit();
        } else if !header.whole || header.hi != hi {
            Mark::RecoverSplit.hit();
        }
        let (hi, next) = match c.node.has(Mutant::RecoverNoSplit) {
            true => (header.hi.clone(), header.next),
            false => (hi, next),
        };
        let high = Blocks(c).fence_key(&hi).await?;
        let moved = header.hi != hi || header.next != next || !header.whole;
        let (kept, range) = (Vec::new(), header.ver.range);
        let is_damaged = moved || merged || counted.is_some_and(|of| of.has_changed);
        let mut leaf = Self { c, route, image, header, kept, is_damaged, range };
        leaf.sort_out(merged, high.as_deref()).await?;
        let ver = leaf.restamp((hi, fence_tag(high.as_deref())), next).await?;
        if let Some((at, word)) = counted.and_then(|of| Cut(c).counted(&route, of.count)) {
            c.ep.write_word(at, word).await?;
        }
        match &right {
            Right::End => {}
            Right::Sibling(addr, n) => publish_right(c, *addr, n).await?,
            Right::Merged(addr, b) => {
                let next = LeafRecovery(c).finish_merge(&route, *addr, b).await?;
                leaf.image[g.next_at()..][..8].copy_from_slice(&next.bits().to_le_bytes());
            }
        }
        let shown = match route.is_imaged() {
            false => None,
            true => Some(Images(c).image_of(&leaf.image, route.capacity).await?),
        };
        let mut table = Table::new(route.leaf, ver, fence_tag(high.as_deref()), route.capacity);
        table.writes = counted.map_or(0, |of| of.count);
        let none = c.node.has(Mutant::RecoverOldTable);
        for (i, key) in leaf.kept.iter().filter(|_| !none) {
            table.set(*i, KeyHash::of(key).fingerprint());
        }
        if taken.table.is_none() {
            return taken.unlock_with(c, &mut table, None).await;
        }
        let low = Blocks(c).fence_key(&leaf.header.lo).await?.unwrap_or_default();
        taken.unlock_with(c, &mut table, shown).await?;
        Router(c).fill_mirror(&low, &Route { fence: table.fence, ..route }, table.fps());
        Ok(())
    }

    /// Lays the records of the leaf over its bytes, where there is a log. The count that the leaf
    /// is to have is above that of every write so far: also of one that has failed, or that was
    /// dropped, since its record may come later. That has the next count behind the table's, and
    /// at most one WRITE of a table in a row has no record.
    async fn replay(
        c: &Client,
        (taken, since): (&TakenLock, Since),
        image: &mut [u8],
    ) -> Result<Option<Overlaid>> {
        let route = &taken.route;
        if c.node.log.is_none() || !route.is_imaged() {
            return Ok(None);
        }
        let mut of = Replay(c).records(route.leaf, since).await?.overlay(c, route, image);
        if of.has_changed {
            Mark::LogReplayed.hit();
        }
        if let Some(View::Whole(table)) = &taken.table
            && route.is_of(table)
        {
            of.count = of.count.max(table.writes);
        }
        of.count += UNSEEN_COUNTS;
        Ok(Some(of))
    }

    /// Separates the slots that stay from those that go.
    async fn sort_out(&mut self, merged: bool, high: Option<&[u8]>) -> Result<()> {
        let (c, g, route) = (self.c, self.c.node.g, self.route);
        let mut staged = Vec::new();
        for i in 0..route.capacity {
            let place = Place { leaf: route.leaf, slot: i };
            let span = g.slot_at(i)..g.slot_at(i) + g.entry();
            if c.node.places.is_replica(i) {
                let wanted = Some((self.header.ver, fence_tag(high)));
                self.is_damaged |= replica(&g, place, &self.image[span]) != wanted;
                continue;
            }
            let sound = slot::check(&g, place, &self.image[span.clone()]);
            if sound.is_none_or(|s| s.ver.generation != route.generation) {
                self.is_damaged = true;
                let blind = c.node.has(Mutant::RecoverDropsTorn);
                let shadow = from_shadow(&g, place, route.capacity, &self.image);
                let Some(entry) = shadow.filter(|_| !blind) else {
                    Mark::RecoverTorn.hit();
                    continue;
                };
                Mark::RecoverShadow.hit();
                self.image[span.clone()].copy_from_slice(&entry);
            }
            let Some(s) = slot::check(&g, place, &self.image[span]) else { continue };
            self.range = self.range.max(s.ver.range);
            self.is_damaged |= s.ver != self.header.ver;
            match s.state {
                SlotState::Free | SlotState::Replica => continue,
                SlotState::Staged if !merged && c.node.places != Places::Any => {
                    self.is_damaged = true;
                    let key = Leaves(c).whole_key(&s, route.leaf).await?.into_owned();
                    staged.push((i, key));
                    continue;
                }
                SlotState::Staged if !merged && !c.node.has(Mutant::RecoverStagedLive) => {
                    Mark::RecoverStaged.hit();
                    self.is_damaged = true;
                    continue;
                }
                SlotState::Staged | SlotState::Live => {}
            }
            let key = Leaves(c).whole_key(&s, route.leaf).await?.into_owned();
            if high.is_some_and(|high| &key[..] >= high) {
                self.is_damaged = true;
                continue;
            }
            self.kept.push((i, key));
        }
        if c.node.places != Places::Any {
            staged.retain(|(_, key)| high.is_none_or(|high| &key[..] < high));
            self.is_damaged |= settle(c, &mut self.kept, staged);
        }
        Ok(())
    }

    /// WRITEs the leaf anew under one version, if it is damaged. Only word0s, the upper fence and
    /// `next` differ from what is there.
    async fn restamp(&mut self, (hi, fence): (FenceArea, u32), next: GlobalAddr) -> Result<Ver> {
        let (c, g, route) = (self.c, self.c.node.g, self.route);
        let mut ver = Ver { generation: route.generation, range: self.range };
        if !self.is_damaged {
            Mark::RecoverNothing.hit();
            return Ok(ver);
        }
        let kept = c.node.has(Mutant::RecoverNoRestamp);
        ver.range = ver.range.saturating_add(u8::from(!kept));
        let forward = GlobalAddr::NULL;
        let header = NodeHeader { ver, level: 0, hi, next, forward, ..self.header.clone() };
        let mut image = LeafImage::copied(c, route.leaf, &self.image, (&header, fence)).await?;
        for i in 0..route.capacity {
            let place = Place { leaf: route.leaf, slot: i };
            match slot::check(&g, place, &self.image[g.slot_at(i)..][..g.entry()]) {
                Some(s) if self.kept.iter().any(|(k, _)| *k == i) => image.put(i, &s),
                _ => image.free(i),
            }
        }
        let len = image.bytes.len();
        self.image[..len].copy_from_slice(&image.bytes);
        c.ep.step(Step::Structure);
        if c.node.has(Mutant::RecoverDetached) {
            c.ep.detach(write_verb(route.leaf, image.bytes), None);
        } else {
            c.ep.write(route.leaf, image.bytes).await?;
        }
        Ok(ver)
    }
}

/// The right sibling's record is in the parent, or is put there.
async fn publish_right(c: &Client, addr: GlobalAddr, n: &NodeHeader) -> Result<()> {
    if c.node.has(Mutant::RecoverNoPublish) {
        return Ok(());
    }
    let low = Blocks(c).fence_key(&n.lo).await?.unwrap_or_default();
    let named = async {
        let known = Router(c).route(&low).await?.leaf == addr;
        Ok::<_, Error>(known || Router(c).fresh_route(&low).await?.leaf == addr)
    };
    match named.await {
        Ok(true) => return Ok(()),
        Ok(false) => {}
        Err(e) if is_away(&e) => {
            c.node.push_chore(Chore::Publish(low));
            return Ok(());
        }
        Err(e) => return Err(e),
    }
    Mark::RecoverPublish.hit();
    Records(c).publish(&low, &n.child(addr)).await
}

/// Result of checking a leaf's table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Inspected {
    /// The table is there and its lock holder lives, or the leaf is a tombstone.
    Done,
    /// Unknown: the owner is away, or a live client has locked an unbuilt table. That client may
    /// build it, or only have tried for the lock.
    Open,
}

/// The right neighbour of a leaf.
enum Right {
    End,
    Sibling(GlobalAddr, NodeHeader),
    /// The sibling has merged into this leaf, and this leaf does not bypass it yet.
    Merged(GlobalAddr, NodeHeader),
}

impl Right {
    /// The live right sibling, past relocated ones, or a neighbour that was being merged into this
    /// leaf.
    async fn of(c: &Client, leaf: GlobalAddr, header: &NodeHeader) -> Result<Self> {
        let mut at = header.next;
        while !at.is_null() {
            let n = NodeHeader::read(c, at).await?;
            if n.forward == leaf {
                return Ok(Self::Merged(at, n));
            }
            if n.forward.is_null() {
                if at != header.next {
                    Mark::RecoverNext.hit();
                }
                return Ok(Self::Sibling(at, n));
            }
            at = n.forward;
            c.ep.check_deadline("the end of a chain of tombstones", at.bits())?;
        }
        Ok(Self::End)
    }
}

/// The new image of a slot that an update has torn. The shadow was written before the entry, and
/// names the checksum of what it replaces: a slot with neither the old nor the new word0 was torn
/// by something else.
pub(crate) fn from_shadow(
    g: &Geometry,
    place: Place,
    capacity: usize,
    image: &[u8],
) -> Option<Vec<u8>> {
    let at = g.shadow_at(capacity);
    let head = u64_at(image, at);
    if head & 0xffff != place.slot as u64 {
        return None;
    }
    let entry = &image[at + 8..at + 8 + g.entry()];
    let new = slot::check(g, place, entry).filter(|s| s.state == SlotState::Live)?;
    let torn = u64_at(image, g.slot_at(place.slot));
    let is_new = torn == u64_at(entry, 0);
    let is_old = torn >> 32 == head >> 32 && Ver::from_bits(torn as u32 >> 8) == new.ver;
    (is_new || is_old).then(|| entry.to_vec())
}
