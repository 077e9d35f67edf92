//! READs of neighbourhoods: by readers, and by writers under the lock.
//!
//! A reader that meets samples of two versions, or a torn slot, READs again. When that lasts, or in
//! a tombstone, the whole leaf answers, and the way from there to a repair is that of any leaf. A
//! replica of another generation or fence shows that the route is stale: then the route is read
//! anew, and once more by a walk along the leaves.
//!
//! A writer's READ is behind the compare-and-swap of its lock. A change of the leaf is announced in
//! the lock's tag, and repaired before a plain tag can follow. So a version or a replica that does
//! not fit means a stale route: the lock is given back. A torn slot is what a dead writer has left;
//! it is repaired under the lock, as without neighbourhoods.
//!
//! *Shadow.* Where the fabric can tear the WRITE of an entry, an update WRITEs a shadow of it
//! first. A leaf has one shadow; a lock holder that READs the whole leaf repairs a torn slot before
//! the next update. A neighbourhood does not show all torn slots. So an update clears the shadow
//! behind its entry, in the same chain, and READs its first word before it overwrites it. A shadow
//! that is in use belongs to a dead writer: the slot that it names is restored first. That is a
//! round trip more for these updates.
//!
//! A crash of a reader, or of a writer before its first WRITE, leaves nothing but a lock.

use std::ops::Range;

use dmtree_fabric::{GlobalAddr, Result, Sampled, Stage, Step};

use crate::format::{Geometry, Mode, Place, SlotState, Table, Ver, slot};
use crate::hop::Places;
use crate::leaf::{Found, HELP_AFTER, LeafCopy, Leaves};
use crate::point::Answer;
use crate::recovery::WordRecovery;
use crate::{Client, HashedKey, Mark, Mutant, Route};

/// The fence tag in replicas that make their neighbourhoods answer nothing: no fence has it.
pub(crate) const NO_FENCE: u32 = 0;

/// Writes a replica into the image of a leaf: its version, and the tag of its upper fence.
pub(crate) fn put_replica(g: &Geometry, place: Place, image: &mut [u8], (ver, fence): (Ver, u32)) {
    let at = g.slot_at(place.slot);
    let bytes = &mut image[at..at + g.entry()];
    bytes.fill(0);
    bytes[8..12].copy_from_slice(&fence.to_le_bytes());
    slot::encode(g, place, bytes, SlotState::Replica, ver, (Mode::Full, Mode::Full));
}

/// Version and fence tag in a replica; `None` when it is torn.
pub(crate) fn replica(g: &Geometry, place: Place, bytes: &[u8]) -> Option<(Ver, u32)> {
    let s = slot::check(g, place, bytes).filter(|s| s.state == SlotState::Replica)?;
    Some((s.ver, u32::from_le_bytes(*s.key.first_chunk()?)))
}

/// A sampled neighbourhood against a route.
enum Seen {
    /// One version; the live slots as bits, from the first one of the neighbourhood on.
    Whole(Ver, u32),
    /// Another leaf than the route meant.
    Stale,
    /// A tombstone, or a leaf that is about to become one.
    Closed,
    /// Several versions, or a torn replica: a change is on its way.
    Mixed,
    /// A torn slot.
    Torn,
}

/// Reads neighbourhoods.
#[derive(Clone, Copy)]
pub(crate) struct Neighbourhoods<'c>(pub &'c Client);

impl Neighbourhoods<'_> {
    /// Where a part of a leaf is, and how long.
    pub(crate) fn span(self, leaf: GlobalAddr, part: &Range<usize>) -> (GlobalAddr, usize) {
        let g = &self.0.node.g;
        (leaf.plus(g.slot_at(part.start) as u64), part.len() * g.entry())
    }

    /// A point read; `None` when the whole leaf has to answer.
    pub(crate) async fn get(
        self,
        route: &Route,
        part: &Range<usize>,
        key: HashedKey<'_>,
        out: &mut Vec<u8>,
    ) -> Result<Option<Answer>> {
        let c = self.0;
        let (at, len) = self.span(route.leaf, part);
        let mut backoff = c.ep.backoff("a neighbourhood being written", at);
        while backoff.steps() < HELP_AFTER {
            c.ep.step(Step::Entry);
            let bytes = c.ep.read(at, len as u32).await?;
            c.ep.stage_cost(Stage::NodeImage, part.len() as u32);
            let seen = bytes.extract(|b| self.judge(route, part, b));
            match seen {
                Seen::Stale => {
                    Mark::HopStale.hit();
                    return Ok(Some(Answer::Stale));
                }
                Seen::Closed => break,
                Seen::Whole(..) | Seen::Mixed | Seen::Torn => {}
            }
            if let Seen::Whole(..) = seen
                && let Some(copy) = copy_of(route, part, bytes)
            {
                match Leaves(c).find(&copy, key, out).await? {
                    Found::At(_) => return Ok(Some(Answer::Found)),
                    Found::Nowhere => return Ok(Some(Answer::Absent)),
                    Found::Torn => {}
                }
            }
            Mark::HopTorn.hit();
            c.op.retried.set(true);
            c.op.quiescent_point();
            backoff.step().await?;
        }
        Mark::HopWhole.hit();
        Ok(None)
    }

    /// A part of a locked leaf, and as much of a table as it tells; `None` when the route is stale.
    /// It may have been READ already. A dead writer has left a torn slot: it is repaired.
    pub(crate) async fn locked(
        self,
        route: &Route,
        part: &Range<usize>,
        mut first: Option<Sampled>,
    ) -> Result<Option<(LeafCopy, Table)>> {
        let c = self.0;
        let (at, len) = self.span(route.leaf, part);
        let mut backoff = c.ep.backoff("a torn slot to be repaired", at);
        loop {
            let bytes = match first.take() {
                Some(bytes) => bytes,
                None => {
                    c.ep.step(Step::Entry);
                    c.ep.read(at, len as u32).await?
                }
            };
            c.ep.stage_cost(Stage::NodeImage, part.len() as u32);
            let (ver, live) = match bytes.extract(|b| self.judge(route, part, b)) {
                Seen::Whole(ver, live) => (ver, live),
                Seen::Stale | Seen::Closed | Seen::Mixed => return Ok(None),
                Seen::Torn => {
                    Mark::WordTorn.hit();
                    c.op.retried.set(true);
                    WordRecovery(c).repair_slots(route).await?;
                    backoff.step().await?;
                    continue;
                }
            };
            let Some(image) = copy_of(route, part, bytes) else { return Ok(None) };
            let mut table = Table::new(route.leaf, ver, route.fence, route.capacity);
            let slots = part.clone().enumerate().filter(|(n, _)| live >> n & 1 == 1);
            slots.for_each(|(_, i)| table.set(i, 1));
            return Ok(Some((image, table)));
        }
    }

    /// Before an update overwrites the shadow of a locked leaf: a slot that it may have to restore
    /// is whole. Only a neighbourhood was READ, and a dead writer may have torn a slot outside.
    pub(crate) async fn free_shadow(self, route: &Route) -> Result<()> {
        let c = self.0;
        if c.node.has(Mutant::HopShadowUnread) {
            return Ok(());
        }
        c.ep.step(Step::Entry);
        let at = route.leaf.plus(c.node.g.shadow_at(route.capacity) as u64);
        if c.ep.read(at, 8).await?.word(0) != 0 {
            Mark::HopShadowInUse.hit();
            WordRecovery(c).repair_slots(route).await?;
        }
        Ok(())
    }

    fn judge(self, route: &Route, part: &Range<usize>, bytes: &[u8]) -> Seen {
        let c = self.0;
        let (g, Places::Near(hop)) = (&c.node.g, c.node.places) else { return Seen::Mixed };
        let slot = |i: usize| {
            let at = (i - part.start) * g.entry();
            (Place { leaf: route.leaf, slot: i }, &bytes[at..at + g.entry()])
        };
        let replica_at = part.clone().find(|i| hop.is_replica(*i));
        let replica = replica_at.and_then(|i| replica(g, slot(i).0, slot(i).1));
        let Some((ver, fence)) = replica else { return Seen::Mixed };
        let other = fence != route.fence && !c.node.has(Mutant::HopReplicaUnchecked);
        if ver.generation != route.generation {
            return Seen::Stale;
        }
        if fence == NO_FENCE && !c.node.has(Mutant::HopTombstoneUnchecked) {
            return Seen::Closed;
        }
        if fence != NO_FENCE && other {
            return Seen::Stale;
        }
        let (mut live, mut is_torn) = (0u32, false);
        for i in hop.slots(part.clone()) {
            let (place, bytes) = slot(i);
            match slot::check(g, place, bytes) {
                None => is_torn = true,
                Some(s) if s.ver != ver && !c.node.has(Mutant::HopMixed) => {
                    return Seen::Mixed;
                }
                Some(s) => live |= u32::from(s.state == SlotState::Live) << (i - part.start),
            }
        }
        if is_torn { Seen::Torn } else { Seen::Whole(ver, live) }
    }
}

/// An accepted part of a leaf.
fn copy_of(route: &Route, part: &Range<usize>, bytes: Sampled) -> Option<LeafCopy> {
    let ((), bytes) = bytes.check(|_| Ok::<_, ()>(())).ok()?;
    Some(LeafCopy::part(route, part.clone(), bytes))
}
