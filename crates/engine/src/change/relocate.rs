//! Moving a leaf to another address: its range is worn out, it shall have more slots, or its cell
//! shall have an image, or none any more (`maintenance/admission.rs`).
//!
//! The steps under the lock of the old leaf L:
//!
//! 1. Take memory for the new leaf S and its table; READ L; lock the parent with room for one more
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
//! takes over the parent blanks L and replaces the record (`recovery/inner.rs`), and the client
//! that takes over L closes its table and queues the unlink (`recovery/tombstone.rs`).
//!
//! When there is no memory for S, the lock comes back to the caller, which splits or fails instead.

use dmtree_fabric::{Error, ErrorKind, GlobalAddr, Result};

use crate::format::Table;
use crate::inner::{InnerLocks, LockedInner, Records};
use crate::invariants::LeafState;
use crate::leaf::{
    Blocks, CellKind, Images, LeafCopy, LeafImage, LeafMemory, Leaves, NewLeaf, NodeHeader,
    Tombstones, image_at,
};
use crate::lock::{LeafLocks, Locked};
use crate::router::{Router, route_of};
use crate::{Chore, Client, Mark, Mutant, Route, Unlock, invariants, is_away, reached};

/// A relocation in progress, under the lock of its leaf.
pub(crate) struct Relocation<'c> {
    c: &'c Client,
    leaf: LeafCopy,
    /// Its lower fence.
    low: Vec<u8>,
    new: NewLeaf,
}

impl<'c> Relocation<'c> {
    /// Moves the locked leaf to a new one of `capacity` slots, with a cell of some kind. The lock
    /// comes back when there is no memory for that, or when the record of the leaf is missing.
    pub(crate) async fn run(
        c: &'c Client,
        mut l: Locked,
        (capacity, cell): (usize, CellKind<'_>),
    ) -> Result<Option<Locked>> {
        let taken = match LeafMemory(c).take(capacity, cell).await {
            Err(e) if e.kind() == ErrorKind::Full => return Ok(Some(l)),
            taken => taken,
        };
        let new;
        (l, new) = c.under(l, taken).await?;
        let leaf = Leaves(c).image_of(&mut l).await;
        let leaf = leaf.inspect_err(|_| LeafMemory(c).give_back_unwritten(&new));
        let (mut l, leaf) = c.under(l, leaf).await?;
        let low = Leaves(c).low_of(&leaf).await?;
        let this = Self { c, leaf, low, new };
        let parent = match InnerLocks(c).lock_with_room(&this.low).await {
            Ok(parent) => parent,
            Err(e) => {
                LeafMemory(c).give_back_unwritten(&this.new);
                if e.kind() == ErrorKind::Full {
                    return Ok(Some(l));
                }
                return c.fail(l, e).await;
            }
        };
        let Some(at) = parent.node.position(this.leaf.addr) else {
            // The record is still missing (its publication found no memory): there is nothing to
            // replace.
            Mark::RelocateNoRecord.hit();
            c.unlock(parent).await?;
            LeafMemory(c).give_back_unwritten(&this.new);
            return Ok(Some(l));
        };
        let table = match this.write_new(&mut l).await {
            Ok(table) => table,
            Err(e) if is_away(&e) && Images(c).is_away(&l).await => {
                // Nothing has been committed: the write starts over, and waits for the next owner
                // of the leaf without a lock.
                c.unlock(parent).await?;
                c.op.give_up(l.tag);
                return Ok(None);
            }
            Err(e) if is_away(&e) && this.is_owner_away().await => {
                // The owner of the new table is away: handled like missing memory.
                LeafMemory(c).give_back(&this.new);
                c.unlock(parent).await?;
                Images(c).reopen(&l, &this.leaf).await?;
                return Ok(Some(l));
            }
            Err(e) => return Err(e),
        };
        this.commit(l, (parent, at), &table).await.map(|()| None)
    }

    async fn is_owner_away(&self) -> bool {
        self.c.node.has_tables() && self.c.ep.cas(self.new.table_at, 0, 0).await.is_err()
    }

    /// Step 2: the new leaf and its table.
    async fn write_new(&self, l: &mut Locked) -> Result<Table> {
        let Self { c, leaf, new, .. } = self;
        let g = &c.node.g;
        let (ver, addr) = (new.ver(), new.grant.addr);
        let old = NodeHeader::of(g, leaf.addr, &leaf.bytes);
        let header = NodeHeader { ver, table: new.table, slots: new.capacity, ..old };
        let mut image = LeafImage::new(c, new, (&header, l.table.fence)).await?;
        let mut table = Table::new(addr, ver, l.table.fence, new.capacity);
        (0..new.capacity).for_each(|i| image.free(i));
        for (n, (from, slot)) in leaf.live(c).enumerate() {
            let to = c.node.places.copied(n, from);
            image.put(to, &slot);
            table.set(to, l.table.fps()[from]);
        }
        let moved = LeafState { addr, image: &image.bytes, table: &table };
        debug_assert!(
            invariants::is_relocation(g, (&leaf.bytes, l.table.live()), &moved),
            "relocation of {} to {addr} breaks P, F, B, R or S",
            leaf.addr
        );
        c.check_lease()?;
        let early = (Mutant::RelocateBeforeSibling, None);
        LeafMemory(c).write((l, new), image.bytes, &mut table, early).await?;
        Ok(table)
    }

    /// From step 3 on.
    async fn commit(
        self,
        l: Locked,
        (parent, at): (LockedInner, usize),
        table: &Table,
    ) -> Result<()> {
        let Self { c, leaf, low, new } = self;
        if c.node.has(Mutant::BlankBeforeInto) {
            Tombstones(c).blank(&leaf, &l.table, GlobalAddr::NULL).await?;
        }
        Tombstones(c).forward(&l.route, new.grant.addr).await?;
        if !c.node.has(Mutant::NoBlank) {
            Tombstones(c).blank(&leaf, &l.table, new.grant.addr).await?;
        }
        Records(c).replace(parent, at, &new.child()).await?;
        Router(c).fill_mirror(&low, &new.route(table.fence), table.fps());
        let route = l.route;
        if LeafLocks(c).close(l).await? {
            match c.node.has(Mutant::RetireRelocatedEarly) {
                false => c.node.push_chore(Chore::Unlink { lo: low, route }),
                true => LeafMemory(c).retire(&route),
            }
        }
        Ok(())
    }
}

/// Makes the left sibling of a relocated tombstone name its successor, and retires the leaf.
/// False when it has to be tried again.
pub(crate) async fn unlink(c: &Client, lo: &[u8], tombstone: &Route) -> Result<bool> {
    let leaf = Leaves(c).read(tombstone.leaf, tombstone.capacity).await?;
    let h = leaf.header(c);
    if h.ver.generation != tombstone.generation || h.forward.is_null() {
        return Err(Error::corrupt(format!("leaf {} is no tombstone", tombstone.leaf)));
    }
    if !lo.is_empty() {
        let parent = Router(c).descend_below(Some(lo)).await?;
        let Some(i) = parent.keys().below(Some(lo)) else { return Ok(false) };
        let route = route_of(&parent.record(i));
        let Some(left) = LeafLocks(c).lock(&route).await? else {
            Router(c).fresh_route(parent.keys().get(i)).await?;
            return Ok(false);
        };
        let copy = Leaves(c).read(route.leaf, route.capacity).await?;
        // The leaf that named the tombstone ended where the tombstone begins. A leaf that
        // reaches over that place has taken all of them in: the successor was merged away,
        // behind a chain that the unlinking of another leaf, or a repair, had bypassed.
        let hi = Blocks(c).fence(copy.header(c).hi).await?;
        let reaches = hi.is_none_or(|hi| &hi[..] >= lo);
        let next = copy.header(c).next;
        let (successor, through) = live_successor(c, next, tombstone).await?;
        if successor != next {
            let at = route.leaf.plus(c.node.g.next_at() as u64);
            c.ep.write_word(at, successor.bits()).await?;
            if route.is_imaged() {
                let next = Images(c).copy_of(&successor.bits().to_le_bytes()).await?;
                let at = image_at(left.at, route.capacity).plus(c.node.g.next_at() as u64);
                if reached(c.ep.write(at, next).await.map(|_| ()))?.is_none() {
                    // Its readers still hop to the tombstone.
                    c.unlock(left).await?;
                    return Ok(false);
                }
            }
        }
        c.unlock(left).await?;
        if !through && !reaches {
            Mark::UnlinkAgain.hit();
            return Ok(false);
        }
    }
    Mark::Unlinked.hit();
    c.node.pool.collection().log_retired(tombstone.leaf);
    LeafMemory(c).retire(tombstone);
    Ok(true)
}

/// The live leaf at the end of a chain of tombstones, and whether the chain passes through
/// `tombstone`. Leaves of one chain may be unlinked in any order: the first client makes the left
/// sibling name the live end.
async fn live_successor(
    c: &Client,
    first: GlobalAddr,
    tombstone: &Route,
) -> Result<(GlobalAddr, bool)> {
    let (mut at, mut through) = (first, false);
    while !at.is_null() {
        through |= at == tombstone.leaf;
        let forward = Leaves(c).read(at, tombstone.capacity).await?.header(c).forward;
        if forward.is_null() {
            break;
        }
        at = forward;
        c.ep.check_deadline("the end of a chain of tombstones", at.bits())?;
    }
    Ok((at, through))
}
