//! Point writes: put, insert, update, delete, compare-and-set.
//!
//! The steps, under the leaf's lock (`lock/table.rs`):
//!
//! 1. `[CAS lock 0->tag, READ table]`: the table is exact (F), so its candidates decide whether the
//!    key is present.
//! 2. READ the candidates. An absent key is confirmed by the lease, not by the table alone.
//! 3. WRITE the entry, its block before it in the same chain, and await it. Its last word is the
//!    linearization point. An update without `whole_write` writes the shadow first, so that
//!    recovery can restore a torn entry.
//! 4. Acknowledge. The unlock is detached: `[WRITE table, CAS tag->0]`, or the CAS alone when no
//!    fingerprint has changed.
//!
//! The entry precedes the table on insert, so that a fingerprint never names an unwritten entry. It
//! precedes the table on delete too, so that a fingerprint outlives its entry no longer than the
//! lock is held. Both keep F: whenever the lock is free, a fingerprint is set if and only if the
//! slot is live.
//!
//! Before step 3 the operation checks its lease. A client that was declared dead has lost its lock,
//! and must not write under it.
//!
//! A failure before step 3 gives the lock back, since nothing has changed. A later failure keeps
//! the lock: a WRITE may still land, and must not land under the next holder. The lock is then
//! abandoned, and its recovery (`recovery/leaf.rs`) finds either the old entry, the new one, or a
//! torn one that the shadow restores or that is dropped. A crash leaves exactly the same states. An
//! operation may take effect once its entry has landed, without its acknowledgement; the history
//! allows that for an operation that has not returned.
//!
//! Full leaves are split (`change/split.rs`) or relocated first (`change/relocate.rs`); a delete
//! that leaves a quarter of the slots queues a merge. Writers of one key share a WRITE: members of
//! a group add their values until the leader seals it right before step 3.

use dmtree_fabric::verb::{cas, write as write_verb, write_word};
use dmtree_fabric::{Error, ErrorKind, GlobalAddr, OpOutcome, Result, Stage, Step};
use dmtree_parts::combine::{LeaderGuard, Turn, is_given_up};
use dmtree_parts::{Outcome, Write, check_key};

use crate::change::{Relocation, Split, must_relocate};
use crate::format::{BODY_AT, Place, slot};
use crate::hop::{Neighbourhoods, Places, Shift};
use crate::journal::{Journaled, effect};
use crate::leaf::{
    Blocks, CellKind, Entries, Found, Images, Leaves, Looked, Probe, TableChange, image_at,
};
use crate::lock::{Change, LeafLocks, Locked, TableLocks, WordLocks};
use crate::log::{Appends, MOST_WRITES, Replay};
use crate::point::{Direct, DirectWrite, LockedWrite, Next, PointWrite, Present, end};
use crate::recovery::{has_abandoned_locks, recover_locks_due};
use crate::router::Router;
use crate::{Chore, Client, HashedKey, KeyHash, KeyValue, Mark, Mutant, Unlock};

/// Outcome of a write, for its caller and for the counters.
pub(crate) type Written = (Outcome, OpOutcome);

/// The error for a leaf with a worn-out range that finds no memory to move to.
fn worn_out(leaf: GlobalAddr) -> Error {
    Error::new(
        ErrorKind::Full,
        format!(
            "leaf {leaf} must move to be split again, and no memory is left for that; delete keys, or create the pool with \
             more memory"
        ),
    )
}

/// Point writes.
#[derive(Clone, Copy)]
pub(crate) struct Writes<'c>(pub &'c Client);

impl<'c> Writes<'c> {
    /// The part of a write that need not wait.
    #[inline]
    pub(crate) fn begin<'w>(
        self,
        key: &'w [u8],
        w: Write<'w>,
    ) -> Result<(DirectWrite<'c, 'w>, KeyHash)> {
        check_key(key)?;
        w.check()?;
        let hash = KeyHash::of(key);
        self.0.spare.set(false);
        self.0.alone.set(false);
        Ok((Direct(self.0).write((key, hash), w), hash))
    }

    /// The rest of a write that has begun.
    pub(crate) async fn rest(
        self,
        begun: DirectWrite<'_, '_>,
        (key, hash): HashedKey<'_>,
        w: Write<'_>,
    ) -> Result<Outcome> {
        let (scope, is_again) = match begun {
            DirectWrite::Ended(outcome) => return Ok(outcome),
            DirectWrite::Locked(begun) => return self.locked_here(*begun).await,
            DirectWrite::Again(scope) => (scope, true),
            DirectWrite::Posted if self.0.ep.is_in_operation() => (None, false),
            DirectWrite::Posted => {
                if has_abandoned_locks(self.0) {
                    recover_locks_due(self.0).await;
                }
                (Some(self.0.ep.begin(w.kind())), false)
            }
        };
        let (outcome, counted) = self.shared(key, hash, w).await?;
        self.0.op.retried.set(self.0.op.retried.get() || is_again);
        end(scope, self.0.op.outcome(counted));
        Ok(outcome)
    }

    /// The rest of a write that has its lock.
    async fn locked_here(self, begun: LockedWrite<'_, '_>) -> Result<Outcome> {
        let LockedWrite { scope, pin, locked, steps, looked } = begun;
        let (key, hash, w) = (steps.key, steps.hash, steps.write);
        let (outcome, counted) = match self.under_lock(locked, steps, looked, &mut None).await? {
            Some(written) => written,
            None => self.pinned((key, hash), w, &mut None).await?,
        };
        pin.end();
        end(scope, counted);
        Ok(outcome)
    }

    async fn shared(self, key: &[u8], hash: KeyHash, w: Write<'_>) -> Result<Written> {
        let mut leader = None;
        let joins = self.0.node.o.techniques.combining && !self.0.alone.get();
        if let Some(intent) = w.intent().filter(|_| joins) {
            let (writers, none) = (&self.0.node.writers, &mut Vec::new());
            let rest = || self.0.op.quiescent_section();
            match writers.turn(&self.0.ep, (key, hash), &intent, none, rest).await? {
                Turn::Shared(Err(e)) if is_given_up(&e) => Mark::LeaderDropped.hit(),
                Turn::Shared(shared) => {
                    Mark::WriteShared.hit();
                    return Ok((shared?.wrote(), OpOutcome::Shared));
                }
                Turn::Own(own) => leader = own,
            }
        }
        let written = self.alone((key, hash), w, &mut leader).await;
        if let Some(leader) = leader {
            let outcome = written.as_ref().map(|w| w.0).map_err(Clone::clone);
            leader.finish_write(&self.0.ep, outcome).await;
        }
        written
    }

    pub(crate) async fn alone(
        self,
        key: HashedKey<'_>,
        w: Write<'_>,
        flight: &mut Option<LeaderGuard>,
    ) -> Result<Written> {
        self.0.stop_for_death().await;
        let pin = self.0.pin()?;
        let written = self.pinned(key, w, flight).await;
        pin.end();
        written
    }

    async fn pinned(
        self,
        (key, hash): HashedKey<'_>,
        w: Write<'_>,
        flight: &mut Option<LeaderGuard>,
    ) -> Result<Written> {
        loop {
            let l = LeafLocks(self.0).of_pair((key, hash), &w).await.map_err(untouched)?;
            let steps = PointWrite::new(key, hash, w, self.0.found.take());
            if let Some(written) = self.under_lock(l, steps, None, flight).await? {
                return Ok(written);
            }
            self.0.op.retried.set(true);
        }
    }

    /// The write under the lock; `None` when the leaf had to be relocated first. The next slot may
    /// have been READ already.
    async fn under_lock(
        self,
        l: Locked,
        mut steps: PointWrite<'_>,
        looked: Option<Looked>,
        flight: &mut Option<LeaderGuard>,
    ) -> Result<Option<Written>> {
        if self.0.node.log.is_some() && l.route.is_imaged() && l.table.writes >= MOST_WRITES {
            // Counts of records begin anew at another place.
            let capacity = l.route.capacity;
            let moved = Relocation::run(self.0, l, (capacity, CellKind::Any(&[])));
            let Some(l) = Box::pin(moved).await? else { return Ok(None) };
            let e = worn_out(l.route.leaf);
            return self.0.fail(l, e).await;
        }
        let (l, next) = self.find(l, &mut steps, looked).await?;
        let pair = (steps.key, steps.hash, steps.write.value().unwrap_or(&[]));
        self.0.had.set(steps.is_present());
        self.0.found.set(steps.old);
        match next {
            Next::Probe(_) => unreachable!("all are READ"),
            Next::Refuse(outcome, counted) => {
                // An absence that no memory node has confirmed: a table of this node, or of an
                // owner that hangs, proves nothing by itself.
                let sure = if l.is_word() { Ok(()) } else { self.0.check_lease_untouched() };
                let (l, ()) = self.0.under(l, sure).await?;
                if let Some(flight) = flight {
                    flight.close(&mut Vec::new());
                }
                self.0.unlock(l).await?;
                Ok(Some((outcome, self.0.op.outcome(counted))))
            }
            Next::Free(p) => self.delete(l, pair.0, p).await.map(Some),
            Next::Replace(p) => {
                let late = self.0.node.has(Mutant::CombineLate);
                let (mut combined, own) = (Vec::new(), if late { &mut None } else { &mut *flight });
                let pair = (pair.0, pair.1, Self::final_value(pair.2, own, &mut combined));
                self.store(l, p.slot, pair, Some(p.crc)).await?;
                Blocks(self.0).retire(p.block);
                if let Some(flight) = flight.as_mut().filter(|_| late) {
                    flight.close(&mut Vec::new());
                }
                Ok(Some((Outcome::Done, self.0.op.outcome(OpOutcome::Hit))))
            }
            Next::Fill => self.insert(l, pair, flight).await,
        }
    }

    /// What the write has to do, given what the leaf has of its key: the candidates that the table
    /// names are READ; without a table the leaf was READ as a whole.
    async fn find(
        self,
        mut l: Locked,
        steps: &mut PointWrite<'_>,
        mut looked: Option<Looked>,
    ) -> Result<(Locked, Next)> {
        let c = self.0;
        let key = (steps.key, steps.hash);
        if let Some(image) = &l.image {
            let found = match Leaves(c).find(image, key, &mut steps.old).await {
                // With its mutant only: no look behind the first free slot.
                Ok(Found::At(present))
                    if c.node.has(Mutant::HopFirstHole)
                        && c.node
                            .places
                            .free_slot(&l.table, key.1)
                            .is_some_and(|free| free < present.slot) =>
                {
                    Ok(None)
                }
                Ok(Found::At(present)) => Ok(Some(present)),
                Ok(Found::Nowhere) => Ok(None),
                Ok(Found::Torn) => {
                    Err(Error::corrupt(format!("locked leaf {} points to garbage", l.route.leaf)))
                }
                Err(e) => Err(e),
            };
            let (l, present) = c.under(l, found).await?;
            steps.saw_all(present);
            let next = steps.next(&l.table);
            return Ok((l, next));
        }
        c.ep.stage_cost(Stage::FingerprintScan, 1);
        loop {
            match steps.next(&l.table) {
                Next::Probe(slot) => {
                    // The value that the near slot has is in `old` until another slot is looked at.
                    let near = l.near.take().filter(|near| near.slot == slot);
                    let looked = near.map(|near| near.looked).or(looked.take());
                    if let Some(probe) = looked.as_ref().and_then(Looked::probe) {
                        steps.saw(slot, &probe);
                        continue;
                    }
                    match Self::probe(c, &l, slot, looked, key, &mut steps.old).await {
                        Ok(probe) => steps.saw(slot, &probe),
                        Err(e) => return c.fail(l, e).await,
                    }
                }
                next => return Ok((l, next)),
            }
        }
    }

    /// READs a slot of a locked leaf against a key: of its image, if it has one and the owner
    /// answers. Under the lock the leaf at the memory node is as good.
    async fn probe(
        c: &Client,
        l: &Locked,
        slot: usize,
        looked: Option<Looked>,
        key: HashedKey<'_>,
        old: &mut Vec<u8>,
    ) -> Result<Probe> {
        let place = Place { leaf: l.route.leaf, slot };
        if !l.route.is_imaged() {
            return Entries(c).probe((place, l.route.generation), looked, key, old).await;
        }
        if let Some(looked) = looked
            && let Some(probe) =
                Entries(c).judge_looked((looked, l.route.generation), key.0, old).await?
        {
            return Ok(probe);
        }
        if let Some(probe) = Images(c).slot_in(l.at, &l.route, slot, key, old).await? {
            return Ok(probe);
        }
        if c.node.log.is_some() {
            // The leaf at the memory node may be behind.
            let leaf = Replay(c).leaf(&l.route).await?;
            let looked = Entries(c).look(place, leaf.entry(&c.node.g, slot), key, old);
            if let Some(probe) =
                Entries(c).judge_looked((looked, l.route.generation), key.0, old).await?
            {
                return Ok(probe);
            }
            return Err(Error::corrupt(format!("locked leaf {} points to garbage", place.leaf)));
        }
        Entries(c).probe((place, l.route.generation), None, key, old).await
    }

    /// The value to be written: the flight's, sealed now, or the caller's.
    fn final_value<'a>(
        value: &'a [u8],
        flight: &mut Option<LeaderGuard>,
        combined: &'a mut Vec<u8>,
    ) -> &'a [u8] {
        match flight.as_mut().filter(|flight| flight.is_shared()) {
            None => value,
            Some(flight) => {
                combined.extend_from_slice(value);
                flight.close(combined);
                combined
            }
        }
    }

    async fn insert(
        self,
        mut l: Locked,
        pair: KeyValue<'_>,
        flight: &mut Option<LeaderGuard>,
    ) -> Result<Option<Written>> {
        let slot = self.0.node.places.free_slot(&l.table, pair.1);
        let mut shift = None;
        if slot.is_none() && self.0.node.places != Places::Any {
            (l, shift) = Box::pin(Shift::prepare(self.0, l, pair.1)).await?;
        }
        if slot.is_none()
            && shift.is_none()
            && let Some(capacity) = must_relocate(self.0, &l)
        {
            match Box::pin(Relocation::run(self.0, l, (capacity, CellKind::Any(&[])))).await? {
                // Nothing is sealed yet: the write starts over, and other writers may still join
                // it.
                None => return Ok(None),
                Some(locked) if locked.table.ver.range == u8::MAX => {
                    let e = worn_out(locked.route.leaf);
                    return self.0.fail(locked, e).await;
                }
                // No memory for a larger leaf: there may be some for a smaller one.
                Some(locked) => l = locked,
            }
        }
        let mut combined = Vec::new();
        let value = Self::final_value(pair.2, flight, &mut combined);
        let pair = (pair.0, pair.1, value);
        if let Some(shift) = shift {
            Box::pin(shift.run(self.0, l, pair)).await?;
            return Ok(Some((Outcome::Done, self.0.op.outcome(OpOutcome::InsertPlain))));
        }
        let Some(slot) = slot else { return Box::pin(Split::run(self.0, l, pair)).await };
        self.store(l, slot, pair, None).await?;
        Ok(Some((Outcome::Done, self.0.op.outcome(OpOutcome::InsertPlain))))
    }

    /// Step 3 and 4 of a write that fills a slot, or replaces the entry with a checksum there.
    async fn store(
        self,
        l: Locked,
        slot: usize,
        pair: KeyValue<'_>,
        replaces: Option<u32>,
    ) -> Result<()> {
        let c = self.0;
        let place = Place { leaf: l.route.leaf, slot };
        if l.is_word() {
            return Box::pin(self.store_by_word(l, place, pair, replaces)).await;
        }
        if l.route.is_imaged() {
            return self.store_imaged(l, place, pair, replaces).await;
        }
        let written = Entries(c).write(&l, place, pair, replaces).await;
        let (mut l, ()) = c.under(l, written).await?;
        if replaces.is_some() {
            return c.unlock(l).await;
        }
        l.table.set(slot, pair.1.fingerprint());
        Router(c).note_mirror(pair.0, &l.route, slot, pair.1.fingerprint());
        LeafLocks(c).unlock_with_table(l).await
    }

    /// The same without a table.
    async fn store_by_word(
        self,
        l: Locked,
        place: Place,
        pair: KeyValue<'_>,
        replaces: Option<u32>,
    ) -> Result<()> {
        let c = self.0;
        let images = Entries(c).images(&l, place, pair, replaces).await;
        let (mut l, images) = c.under(l, images).await?;
        if images.1.is_some() && c.node.places != Places::Any {
            let shadow = Neighbourhoods(c).free_shadow(&l.route).await;
            (l, ()) = c.under(l, shadow).await?;
        }
        WordLocks(c).unlock_with(l, place, Change::Entry(images)).await
    }

    /// The same for an imaged leaf: durable at the memory node, then shown, then acknowledged.
    async fn store_imaged(
        self,
        mut l: Locked,
        place: Place,
        pair: KeyValue<'_>,
        replaces: Option<u32>,
    ) -> Result<()> {
        let c = self.0;
        let is_logged = c.node.log.is_some() && !(replaces.is_some() && Appends(c).passes(&l));
        // What a log has needs no shadow.
        let torn = replaces.filter(|_| !is_logged);
        let images = match Entries(c).images(&l, place, pair, torn).await {
            Ok(images) => images,
            Err(e) => return c.fail(l, e).await,
        };
        if c.node.has(Mutant::ImagedFirst) {
            let early = Images(c).copy_of(&images.2).await?;
            let slot = c.node.g.slot_at(place.slot) as u64;
            c.ep.write(image_at(l.at, l.route.capacity).plus(slot), early).await?;
        }
        let began = if is_logged { None } else { Appends(c).sample() };
        let written = match is_logged {
            false => {
                let written = Entries(c).write_images(&l, place, pair, (replaces, images)).await;
                written.map(|entry| (entry, false))
            }
            true => Appends(c).entry(&l, place, pair, (replaces, images)).await,
        };
        let (entry, has_record) = match written {
            Ok(written) => written,
            Err(e) => return c.fail(l, e).await,
        };
        Appends(c).wrote_since(began);
        if replaces.is_none() {
            l.table.set(place.slot, pair.1.fingerprint());
            Router(c).note_mirror(pair.0, &l.route, place.slot, pair.1.fingerprint());
        }
        // A record has the write count that the table is to have.
        let changes = match (is_logged, replaces.is_some()) {
            (false, true) => TableChange::None,
            (true, true) if l.table.behind && has_record => TableChange::Count,
            _ => TableChange::Any,
        };
        l.table.behind = has_record || (l.table.behind && !is_logged);
        Images(c).unlock(l, (place.slot, entry), changes).await
    }

    async fn delete(self, mut l: Locked, key: &[u8], p: Present) -> Result<Written> {
        let c = self.0;
        let place = Place { leaf: l.route.leaf, slot: p.slot };
        let free = slot::free_word(place, l.table.ver);
        let is_small = c.node.places.is_small(&l.table);
        debug_assert!(c.op.holds(l.tag), "an entry of {} is freed without its lock", place.leaf);
        debug_assert_ne!(l.table.fps()[p.slot], 0, "F: the table has the freed slot");
        if l.is_word() {
            WordLocks(c).unlock_with(l, place, Change::Free(free)).await?;
        } else {
            (l, ()) = c.under(l, c.check_lease_untouched()).await?;
            (l, ()) = c.under(l, Journaled(c).append(&[effect(key, None)]).await).await?;
            if c.node.has(Mutant::DeleteTableFirst) {
                let mut table = l.table.clone();
                table.set(p.slot, 0);
                let body = TableLocks(c).body(&mut table, l.route.table).await?;
                let list = (write_verb(l.at.plus(BODY_AT as u64), body), cas(l.at, l.tag.0, 0));
                c.ep.chain(list).await?;
            }
            (l, l.table.behind) = self.free(l, place, free).await?;
            l.table.set(p.slot, 0);
            Router(c).note_mirror(key, &l.route, p.slot, 0);
            if l.route.is_imaged() {
                let word = Images(c).copy_of(&free.to_le_bytes()).await?;
                Images(c).unlock(l, (p.slot, word), TableChange::Any).await?;
            } else {
                LeafLocks(c).unlock_with_table(l).await?;
            }
        }
        Blocks(c).retire(p.block);
        if is_small {
            c.node.push_chore(Chore::Merge(key.to_vec()));
        }
        Ok((Outcome::Done, c.op.outcome(OpOutcome::Hit)))
    }

    /// Makes it durable that a slot is free; true: by a record of a log.
    async fn free(self, l: Locked, place: Place, free: u64) -> Result<(Locked, bool)> {
        let (c, at) = (self.0, Entries(self.0).at(place));
        if l.route.is_imaged() && c.node.log.is_some() {
            let freed = Appends(c).free(&l, place, free).await;
            return c.under(l, freed).await;
        }
        c.ep.step(Step::Entry);
        match c.node.has(Mutant::DeleteEarly) {
            false => {
                let (l, ()) = c.under(l, c.ep.write_word(at, free).await).await?;
                Ok((l, false))
            }
            true => {
                c.ep.detach(write_word(at, free), None);
                Ok((l, false))
            }
        }
    }
}

/// The error of an operation that has not got its lock. A repair or a lock on the way is no effect
/// of its own; the next incarnation of its node can repeat it.
fn untouched(e: Error) -> Error {
    match e.kind() {
        ErrorKind::Revoked => e.without_effect(),
        _ => e,
    }
}
