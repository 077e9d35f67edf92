//! Moving a leaf to another address: its range is worn out, or it shall have more slots.
//!
//! The steps under the lock of the old leaf L:
//!
//! 1. READ L; take memory for the new leaf S and its table; lock the parent with room for one more
//!    record. Every step that can fail for want of memory comes before the commit.
//! 2. WRITE S and S's table, awaited. S carries L's fences and all of its live entries.
//! 3. `L.forward = S` commits.
//! 4. L's slots are blanked under the next range. B: S is not published before every older copy of
//!    its keys is gone.
//! 5. `[WRITE new record, WRITE old record free, CAS parent unlock]`. For one instant the parent
//!    shows two records of one key; a reader of such an image reads again.
//! 6. L's table is closed and its lock released, awaited: the cell is retired next, and a late
//!    WRITE would land in another leaf's table.
//! 7. Later, as a chore: the left sibling's `next` is changed from L to the live end of the chain,
//!    under its lock. Only then is L retired.
//!
//! Step 7 keeps L's address unused while any `next` names it. A dangling `next` would let a
//! recovery take another leaf's fences for a sibling's, and destroy data. Tombstones of one chain
//! may be unlinked in any order: the first unlink makes the left sibling name the live end, and the
//! others find themselves bypassed.
//!
//! A crash before step 3 leaves S unreachable (the garbage collection finds it) and L as it was. A
//! crash after it leaves a tombstone with an abandoned lock and the parent's lock: the client that
//! takes over the parent blanks L and replaces the record (`recovery/inner.rs`), and the client that
//! takes over L closes its table and queues the unlink (`recovery/tombstone.rs`).
//!
//! When there is no memory for S, the lock comes back to the caller, which splits or fails instead.

use dmtree_fabric::verb::write as write_verb;
use dmtree_fabric::{ErrorKind, GlobalAddr, Result, Step};
use dmtree_parts::held::Unlock;
use dmtree_pool::{Grant, TableId};

use crate::client::{Client, is_away};
use crate::format::leaf::{FenceArea, HeaderParts, put_free, put_header, put_slot};
use crate::format::slot::SlotState;
use crate::format::table::{BODY_AT, Table};
use crate::inner::{InnerLocks, Records};
use crate::invariants::{self, LeafState};
use crate::leaf::{Blocks, LeafCopy, LeafMemory, Leaves, NewLeaf, Tombstones};
use crate::lock::{LeafLocks, Locked, TableLocks, WordLocks};
use crate::marks::Mark;
use crate::mutants::Mutant;
use crate::node::Chore;

/// Moves leaves.
#[derive(Clone, Copy)]
pub(crate) struct Relocations<'c>(pub &'c Client);

impl Relocations<'_> {
    /// Moves the locked leaf to a new one of `capacity` slots. The lock comes back when there is no
    /// memory for that.
    pub(crate) async fn relocate(self, mut l: Locked, capacity: usize) -> Result<Option<Locked>> {
        let c = self.0;
        let leaf = Leaves(c).image_of(&mut l).await;
        let (l, leaf) = c.under(l, leaf).await?;
        let s = match LeafMemory(c).take(capacity).await {
            Err(e) if e.kind() == ErrorKind::Full => return Ok(Some(l)),
            s => s,
        };
        let (mut l, s) = c.under(l, s).await?;
        let low = Blocks(c).fence(leaf.header(c).lo).await?.unwrap_or_default();
        let parent = match InnerLocks(c).lock_with_room(&low).await {
            Ok(parent) => parent,
            Err(e) => {
                LeafMemory(c).give_back(&s);
                if e.kind() == ErrorKind::Full {
                    return Ok(Some(l));
                }
                return c.fail(l, e).await;
            }
        };
        let Some(at) = parent.node.position(leaf.addr) else {
            // The record is still missing (its publication found no memory): there is nothing to
            // replace.
            Mark::RelocateNoRecord.hit();
            c.unlock(parent).await?;
            LeafMemory(c).give_back(&s);
            return Ok(Some(l));
        };
        let table = match self.write_relocated(&mut l, &leaf, &s).await {
            Ok(table) => table,
            Err(e)
                if is_away(&e)
                    && c.node.has_tables()
                    && c.ep.cas(s.table_at, 0, 0).await.is_err() =>
            {
                // The owner of the new table is away: handled like missing memory.
                LeafMemory(c).give_back(&s);
                c.unlock(parent).await?;
                return Ok(Some(l));
            }
            Err(e) => return Err(e),
        };
        if c.node.has(Mutant::BlankBeforeInto) {
            Tombstones(c).blank(&leaf, &l.table, GlobalAddr::NULL).await?;
        }
        Tombstones(c).forward(leaf.addr, s.grant.addr).await?;
        if !c.node.has(Mutant::NoBlank) {
            Tombstones(c).blank(&leaf, &l.table, s.grant.addr).await?;
        }
        Records(c).replace(parent, at, &s).await?;
        c.fill_mirror(&low, &s.route(table.fence), table.fps());
        let route = l.route;
        if !LeafLocks(c).close(l).await? {
            return Ok(None);
        }
        let chore = Chore::Unlink {
            lo: low,
            leaf: route.leaf,
            generation: route.generation,
            capacity: route.capacity,
            table: route.table,
        };
        if c.node.has(Mutant::RetireRelocatedEarly) {
            let tombstone = Grant { addr: route.leaf, generation: route.generation };
            c.node.pool.retire(c.node.leaf_arena(route.capacity), tombstone);
            LeafMemory(c).retire_table(route.table);
            return Ok(None);
        }
        c.node.push_chore(chore);
        Ok(None)
    }

    /// The new leaf and its table.
    async fn write_relocated(self, l: &mut Locked, leaf: &LeafCopy, s: &NewLeaf) -> Result<Table> {
        let c = self.0;
        let g = &c.node.g;
        let (header, ver, addr) = (leaf.header(c), s.ver(), s.grant.addr);
        let mut image = c.ep.buf(g.leaf_bytes(s.capacity) as u32).await?;
        image.fill(0);
        let parts = HeaderParts {
            ver,
            table: s.table,
            slots: s.capacity,
            level: 0,
            lo: &FenceArea::lo_of(g, &leaf.bytes),
            hi: &FenceArea::hi_of(g, &leaf.bytes),
            next: header.next,
            forward: GlobalAddr::NULL,
        };
        put_header(g, addr, &mut image, &parts);
        let mut table = Table::new(addr, ver, l.table.fence, s.capacity);
        let mut used = 0;
        for (from, slot) in leaf.live(c) {
            put_slot(g, addr, &mut image, used, &slot, SlotState::Live, ver);
            table.set(used, l.table.fps()[from]);
            used += 1;
        }
        (used..s.capacity).for_each(|i| put_free(g, addr, &mut image, i, ver));
        let moved = LeafState { addr, image: &image, table: &table };
        debug_assert!(
            invariants::is_relocation(g, (&leaf.bytes, l.table.live()), &moved),
            "relocation of {} to {addr} breaks P, F, B, R or S",
            leaf.addr
        );
        if !c.node.has_tables() {
            c.check_lease()?;
            WordLocks(c).begin_change(&mut [l], Some((s.grant, image))).await?;
            return Ok(table);
        }
        let body = TableLocks(c).body(&mut table, s.table).await?;
        let table_at = s.table_at.plus(BODY_AT as u64);
        c.ep.step(Step::Structure);
        if c.node.has(Mutant::RelocateBeforeSibling) {
            c.ep.detach(write_verb(addr, image), None);
            c.ep.write(table_at, body).await?;
            return Ok(table);
        }
        c.ep.batch((write_verb(addr, image), write_verb(table_at, body))).await?;
        Ok(table)
    }

    /// Makes the left sibling of a relocated tombstone name its successor, and retires the leaf.
    /// False when it has to be tried again.
    pub(crate) async fn unlink(
        self,
        lo: &[u8],
        tombstone: Grant,
        capacity: usize,
        table: TableId,
    ) -> Result<bool> {
        let c = self.0;
        let leaf = Leaves(c).read(tombstone.addr, capacity).await?;
        if leaf.header(c).ver.generation != tombstone.generation || leaf.header(c).forward.is_null()
        {
            return Err(dmtree_fabric::Error::corrupt(format!(
                "leaf {} is no tombstone",
                tombstone.addr
            )));
        }
        if !lo.is_empty() {
            let parent = c.descend_below(Some(lo)).await?;
            let Some(i) = parent.keys().below(Some(lo)) else { return Ok(false) };
            let route = crate::route::route_of(&parent.records()[i]);
            let Some(left) = LeafLocks(c).lock(&route).await? else {
                c.fresh_route(parent.keys().get(i)).await?;
                return Ok(false);
            };
            let copy = Leaves(c).read(route.leaf, route.capacity).await?;
            // The leaf that named the tombstone ended where the tombstone begins. A leaf that
            // reaches over that place has taken all of them in: the successor was merged away,
            // behind a chain that the unlinking of another leaf, or a repair, had bypassed.
            let hi = Blocks(c).fence(copy.header(c).hi).await?;
            let reaches = hi.is_none_or(|hi| &hi[..] >= lo);
            let next = copy.header(c).next;
            let (successor, through) = self.live_successor(next, tombstone.addr, capacity).await?;
            if successor != next {
                let at = route.leaf.plus(c.node.g.next_at() as u64);
                c.ep.write_word(at, successor.bits()).await?;
            }
            c.unlock(left).await?;
            if !through && !reaches {
                Mark::UnlinkAgain.hit();
                return Ok(false);
            }
        }
        Mark::Unlinked.hit();
        c.node.pool.log_retired(tombstone.addr);
        c.node.pool.retire(c.node.leaf_arena(capacity), tombstone);
        LeafMemory(c).retire_table(table);
        Ok(true)
    }

    /// The live leaf at the end of a chain of tombstones, and whether the chain passes through
    /// `dead`. Leaves of one chain may be unlinked in any order: the first client makes the left
    /// sibling name the live end.
    async fn live_successor(
        self,
        first: GlobalAddr,
        tombstone: GlobalAddr,
        capacity: usize,
    ) -> Result<(GlobalAddr, bool)> {
        let c = self.0;
        let (mut at, mut through) = (first, false);
        while !at.is_null() {
            through |= at == tombstone;
            let forward = Leaves(c).read(at, capacity).await?.header(c).forward;
            if forward.is_null() {
                break;
            }
            at = forward;
            c.ep.check_deadline("the end of a chain of tombstones", at.bits())?;
        }
        Ok((at, through))
    }
}
