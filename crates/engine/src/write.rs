//! Point writes: put, insert, update, delete, compare-and-set.
//!
//! The steps, under the leaf's lock (`lock.rs`):
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
//! abandoned, and its recovery (`recover_leaf.rs`) finds either the old entry, the new one, or a
//! torn one that the shadow restores or that is dropped. A crash leaves exactly the same states. An
//! operation may take effect once its entry has landed, without its acknowledgement; the history
//! allows that for an operation that has not returned.
//!
//! Full leaves are split (`split.rs`) or relocated first (`relocate.rs`); a delete that leaves a
//! quarter of the slots queues a merge. Writers of one key share a WRITE: members of a group add
//! their values until the leader seals it right before step 3.

use dmtree_fabric::verb::write as write_verb;
use dmtree_fabric::{Buf, Error, ErrorKind, GlobalAddr, OpOutcome, Result, Stage, Step};
use dmtree_parts::combine::{LeaderGuard, Turn, is_given_up};
use dmtree_parts::hash::KeyHash;
use dmtree_parts::held::Unlock;
use dmtree_parts::{Outcome, Write, check_key};
use dmtree_pool::BlockPtr;

use crate::client::{DmTree, HashedKey};
use crate::direct::{Begun, DirectWrite, LockedWrite, end};
use crate::format::slot::{self, Place};
use crate::lock::Locked;
use crate::marks::Mark;
use crate::mutants::Mutant;
use crate::node::Chore;
use crate::probe::Looked;
use crate::steps::{Next, PointWrite, Present};

/// Outcome of a write, for its caller and for the counters.
pub(crate) type Written = (Outcome, OpOutcome);

/// The error for a leaf with a worn-out range that finds no memory to move to.
pub(crate) fn worn_out(leaf: GlobalAddr) -> Error {
    Error::new(
        ErrorKind::Full,
        format!(
            "leaf {leaf} must move to be split again, and no memory is left for that; delete keys, or create the pool with \
             more memory"
        ),
    )
}

impl DmTree {
    /// Writes a key.
    ///
    /// # Errors
    /// As [`dmtree_parts::RangeIndex::write`].
    #[inline]
    pub fn begin_write<'a>(
        &'a self,
        key: &'a [u8],
        w: Write<'a>,
    ) -> Begun<Outcome, impl Future<Output = Result<Outcome>> + 'a> {
        match self.start_write(key, w) {
            Ok((DirectWrite::Ended(outcome), _)) => Begun::Ended(Ok(outcome)),
            Ok((begun, hash)) => Begun::Waits(self.write_with_room(begun, (key, hash), w)),
            Err(e) => Begun::Ended(Err(e)),
        }
    }

    /// The part of a write that need not wait.
    #[inline]
    pub(crate) fn start_write<'a>(
        &'a self,
        key: &'a [u8],
        w: Write<'a>,
    ) -> Result<(DirectWrite<'a, 'a>, KeyHash)> {
        check_key(key)?;
        w.check()?;
        let hash = KeyHash::of(key);
        self.spare.set(false);
        Ok((self.write_direct((key, hash), w), hash))
    }

    /// The rest of a write that has begun.
    pub(crate) async fn write_begun(
        &self,
        begun: DirectWrite<'_, '_>,
        (key, hash): HashedKey<'_>,
        w: Write<'_>,
    ) -> Result<Outcome> {
        let (scope, is_again) = match begun {
            DirectWrite::Ended(outcome) => return Ok(outcome),
            DirectWrite::Locked(begun) => return Box::pin(self.write_locked_here(*begun)).await,
            DirectWrite::Again(scope) => (scope, true),
            DirectWrite::Posted if self.ep.is_in_operation() => (None, false),
            DirectWrite::Posted => {
                self.recover_some_locks().await;
                (Some(self.ep.begin(w.kind())), false)
            }
        };
        let (outcome, counted) = self.write_shared(key, hash, w).await?;
        self.op.retried.set(self.op.retried.get() || is_again);
        end(scope, self.op.outcome(counted));
        Ok(outcome)
    }

    /// The rest of a write that has its lock.
    async fn write_locked_here(&self, begun: LockedWrite<'_, '_>) -> Result<Outcome> {
        let LockedWrite { scope, pin, locked, steps, looked } = begun;
        let (key, hash, w) = (steps.key, steps.hash, steps.write);
        let (outcome, counted) = match self.write_from(locked, steps, looked, &mut None).await? {
            Some(written) => written,
            None => self.write_pinned((key, hash), w, &mut None).await?,
        };
        pin.end();
        end(scope, counted);
        Ok(outcome)
    }

    async fn write_shared(&self, key: &[u8], hash: KeyHash, w: Write<'_>) -> Result<Written> {
        let mut leader = None;
        if let Some(intent) = w.intent().filter(|_| self.node.o.techniques.combining) {
            let (writers, none) = (&self.node.writers, &mut Vec::new());
            let rest = || self.op.quiescent_section();
            match writers.turn(&self.ep, (key, hash), &intent, none, rest).await? {
                Turn::Shared(Err(e)) if is_given_up(&e) => Mark::LeaderDropped.hit(),
                Turn::Shared(shared) => {
                    Mark::WriteShared.hit();
                    return Ok((shared?.wrote(), OpOutcome::Shared));
                }
                Turn::Own(own) => leader = own,
            }
        }
        let written = self.write_alone((key, hash), w, &mut leader).await;
        if let Some(leader) = leader {
            let outcome = written.as_ref().map(|w| w.0).map_err(Clone::clone);
            leader.finish_write(&self.ep, outcome).await;
        }
        written
    }

    pub(crate) async fn write_alone(
        &self,
        key: HashedKey<'_>,
        w: Write<'_>,
        flight: &mut Option<LeaderGuard>,
    ) -> Result<Written> {
        self.stop_for_death().await;
        let pin = self.pin();
        let written = self.write_pinned(key, w, flight).await;
        pin.end();
        written
    }

    async fn write_pinned(
        &self,
        key: HashedKey<'_>,
        w: Write<'_>,
        flight: &mut Option<LeaderGuard>,
    ) -> Result<Written> {
        loop {
            let l = self.lock_leaf(key.0).await.map_err(untouched)?;
            if let Some(written) = self.write_locked(l, key, w, flight).await? {
                return Ok(written);
            }
            self.op.retried.set(true);
        }
    }

    /// The write under the lock; `None` when the leaf had to be relocated first.
    pub(crate) async fn write_locked(
        &self,
        l: Locked,
        (key, hash): HashedKey<'_>,
        w: Write<'_>,
        flight: &mut Option<LeaderGuard>,
    ) -> Result<Option<Written>> {
        if !self.node.has_tables() {
            return self.write_by_lock_word(l, (key, hash), w).await;
        }
        let steps = PointWrite::new(key, hash, w, self.found.take());
        self.write_from(l, steps, None, flight).await
    }

    /// The rest of a write under the lock. The next slot may have been READ already.
    pub(crate) async fn write_from(
        &self,
        mut l: Locked,
        mut steps: PointWrite<'_>,
        mut looked: Option<Looked>,
        flight: &mut Option<LeaderGuard>,
    ) -> Result<Option<Written>> {
        let (key, hash) = (steps.key, steps.hash);
        self.ep.stage_cost(Stage::FingerprintScan, 1);
        let next = loop {
            match steps.next(&l.table) {
                Next::Probe(slot) => {
                    let place = Place { leaf: l.route.leaf, slot };
                    let probed =
                        self.probe(place, looked.take(), (key, hash), &mut steps.old).await;
                    let probe;
                    (l, probe) = self.under(l, probed).await?;
                    steps.saw(slot, &probe);
                }
                next => break next,
            }
        };
        let pair = (key, hash, steps.write.value().unwrap_or(&[]));
        self.found.set(steps.old);
        match next {
            Next::Probe(_) => unreachable!("the loop goes on"),
            Next::Refuse(outcome, counted) => {
                // An absence that no memory node has confirmed: a table of this node, or of an
                // owner that hangs, proves nothing by itself.
                let (l, ()) = self.under(l, self.check_lease_untouched()).await?;
                if let Some(flight) = flight {
                    flight.close(&mut Vec::new());
                }
                self.unlock(l).await?;
                Ok(Some((outcome, self.op.outcome(counted))))
            }
            Next::Free(p) => self.delete_locked(l, key, p).await.map(Some),
            Next::Replace(p) => self.update_locked(l, pair, p, flight).await.map(Some),
            Next::Fill => self.insert_locked(l, pair, flight).await,
        }
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

    async fn update_locked(
        &self,
        l: Locked,
        pair: (&[u8], KeyHash, &[u8]),
        p: Present,
        flight: &mut Option<LeaderGuard>,
    ) -> Result<Written> {
        let mut combined = Vec::new();
        let late = self.node.has(Mutant::CombineLate);
        let own = if late { &mut None } else { &mut *flight };
        let value = Self::final_value(pair.2, own, &mut combined);
        let place = Place { leaf: l.route.leaf, slot: p.slot };
        let written = self.write_entry(&l, place, (pair.0, pair.1, value), Some(p.crc)).await;
        let (l, ()) = self.under(l, written).await?;
        self.unlock(l).await?;
        self.retire_block(p.block);
        if let Some(flight) = flight.as_mut().filter(|_| late) {
            flight.close(&mut Vec::new());
        }
        Ok((Outcome::Done, self.op.outcome(OpOutcome::Hit)))
    }

    async fn insert_locked(
        &self,
        l: Locked,
        pair: (&[u8], KeyHash, &[u8]),
        flight: &mut Option<LeaderGuard>,
    ) -> Result<Option<Written>> {
        let mut l = l;
        let Some(slot) = l.table.free_slot() else {
            if let Some(capacity) = self.must_relocate(&l) {
                match Box::pin(self.relocate(l, capacity)).await? {
                    // Nothing is sealed yet: the write starts over, and other writers may still
                    // join it.
                    None => return Ok(None),
                    Some(locked) if locked.table.ver.range == u8::MAX => {
                        let e = worn_out(locked.route.leaf);
                        return self.fail(locked, e).await;
                    }
                    // No memory for a larger leaf: there may be some for a smaller one.
                    Some(locked) => l = locked,
                }
            }
            let mut combined = Vec::new();
            let value = Self::final_value(pair.2, flight, &mut combined);
            return Box::pin(self.split(l, (pair.0, pair.1, value))).await.map(Some);
        };
        let mut combined = Vec::new();
        let value = Self::final_value(pair.2, flight, &mut combined);
        let place = Place { leaf: l.route.leaf, slot };
        let written = self.write_entry(&l, place, (pair.0, pair.1, value), None).await;
        let (mut l, ()) = self.under(l, written).await?;
        l.table.set(slot, pair.1.fingerprint());
        self.note_mirror(pair.0, &l.route, slot, pair.1.fingerprint());
        self.unlock_with_table(l).await?;
        Ok(Some((Outcome::Done, self.op.outcome(OpOutcome::InsertPlain))))
    }

    async fn delete_locked(&self, l: Locked, key: &[u8], p: Present) -> Result<Written> {
        let place = Place { leaf: l.route.leaf, slot: p.slot };
        let at = place.leaf.plus(self.node.g.slot_at(p.slot) as u64);
        let free = slot::free_word(place, l.table.ver);
        debug_assert!(self.op.holds(l.tag), "an entry of {} is freed without its lock", place.leaf);
        debug_assert_ne!(l.table.fps()[p.slot], 0, "F: the table has the freed slot");
        let (mut l, ()) = self.under(l, self.check_lease_untouched()).await?;
        if self.node.has(Mutant::DeleteTableFirst) {
            let mut table = l.table.clone();
            table.set(p.slot, 0);
            let body = self.table_body(&mut table, l.route.table).await?;
            let body_at = l.at.plus(crate::format::table::BODY_AT as u64);
            self.ep
                .chain((write_verb(body_at, body), dmtree_fabric::verb::cas(l.at, l.tag.0, 0)))
                .await?;
        }
        self.ep.step(Step::Entry);
        if self.node.has(Mutant::DeleteEarly) {
            self.ep.detach(dmtree_fabric::verb::write_word(at, free), None);
        } else {
            (l, ()) = self.under(l, self.ep.write_word(at, free).await).await?;
        }
        l.table.set(p.slot, 0);
        let small = l.table.live() * 4 <= l.route.capacity;
        self.note_mirror(key, &l.route, p.slot, 0);
        self.unlock_with_table(l).await?;
        Ok(self.deleted(key, p, small))
    }

    /// A delete has unlocked its leaf; `small`: few pairs are left in it.
    pub(crate) fn deleted(&self, key: &[u8], p: Present, small: bool) -> Written {
        self.retire_block(p.block);
        if small {
            self.node.push_chore(Chore::Merge(key.to_vec()));
        }
        (Outcome::Done, self.op.outcome(OpOutcome::Hit))
    }

    /// Encodes and WRITEs an entry, its block first. Replacing a live entry without `whole_write`
    /// needs the shadow: recovery must be able to restore what a torn WRITE destroyed.
    async fn write_entry(
        &self,
        l: &Locked,
        place: Place,
        pair: (&[u8], KeyHash, &[u8]),
        replaces: Option<u32>,
    ) -> Result<()> {
        let g = &self.node.g;
        let is_live = l.table.fps()[place.slot] != 0;
        debug_assert!(
            self.op.holds(l.tag),
            "an entry of {} is written without its lock",
            place.leaf
        );
        debug_assert_eq!(is_live, replaces.is_some(), "F: the table has the replaced slots only");
        let at = place.leaf.plus(g.slot_at(place.slot) as u64);
        let (block, shadow, entry) = self.entry_images(l, place, pair, replaces).await?;
        // Nothing that other clients can reach has been written under the lock.
        self.check_lease_untouched()?;
        let shadow_at = place.leaf.plus(g.shadow_at(l.route.capacity) as u64);
        self.ep.step(Step::Entry);
        let (block, shadow, entry) = match (block, shadow) {
            (None, None) if self.node.has(Mutant::AcknowledgeEarly) => {
                self.ep.detach(write_verb(at, entry), None);
                return Ok(());
            }
            (None, Some(s)) if self.node.has(Mutant::ShadowBehindEntry) => {
                return self
                    .ep
                    .chain((write_verb(at, entry), write_verb(shadow_at, s)))
                    .await
                    .map(|_| ());
            }
            (Some((b, buf)), _) if self.node.has(Mutant::EntryBesideBlock) => {
                self.ep.detach(write_verb(b.addr(), buf), None);
                return self.ep.write(at, entry).await.map(|_| ());
            }
            other => (other.0, other.1, entry),
        };
        match (block, shadow) {
            (None, None) => self.ep.write(at, entry).await.map(|_| ()),
            (None, Some(s)) => {
                self.ep.chain((write_verb(shadow_at, s), write_verb(at, entry))).await.map(|_| ())
            }
            (Some((b, buf)), shadow) if b.addr().node() == place.leaf.node() => {
                let block = write_verb(b.addr(), buf);
                let entry = write_verb(at, entry);
                match shadow {
                    None => self.ep.chain((block, entry)).await.map(|_| ()),
                    Some(s) => {
                        let s = write_verb(shadow_at, s);
                        self.ep.chain((block, s, entry)).await.map(|_| ())
                    }
                }
            }
            (Some((b, buf)), shadow) => {
                self.ep.write(b.addr(), buf).await?;
                match shadow {
                    None => self.ep.write(at, entry).await.map(|_| ()),
                    Some(s) => {
                        let s = write_verb(shadow_at, s);
                        self.ep.chain((s, write_verb(at, entry))).await.map(|_| ())
                    }
                }
            }
        }
    }

    /// The images of an entry: its block, its shadow if the entry replaces one that a WRITE can
    /// tear, and the entry itself.
    pub(crate) async fn entry_images(
        &self,
        l: &Locked,
        place: Place,
        pair: (&[u8], KeyHash, &[u8]),
        replaces: Option<u32>,
    ) -> Result<(Option<(BlockPtr, Buf)>, Option<Buf>, Buf)> {
        let g = &self.node.g;
        let mut entry = self.ep.buf(g.entry() as u32).await?;
        let block = self.encode(place, l.table.ver, pair, &mut entry).await?;
        let whole = self.ep.caps().whole_write_bytes as usize >= g.entry();
        let shadow = match replaces.filter(|_| !whole && !self.node.has(Mutant::NoShadow)) {
            Some(crc) => Some(self.shadow(place, crc, &entry).await?),
            None => None,
        };
        Ok((block, shadow, entry))
    }

    /// The shadow of an entry about to be replaced: its slot and its checksum, then the new image.
    /// A torn slot with the old or the new word0 was torn by this update and by nothing else.
    pub(crate) async fn shadow(&self, place: Place, crc: u32, entry: &[u8]) -> Result<Buf> {
        let mut buf = self.ep.buf(8 + entry.len() as u32).await?;
        let head = place.slot as u64 | u64::from(crc) << 32;
        buf[..8].copy_from_slice(&head.to_le_bytes());
        buf[8..].copy_from_slice(entry);
        Ok(buf)
    }

    pub(crate) fn retire_block(&self, block: BlockPtr) {
        if !block.is_null() && self.node.has(Mutant::BlockFreedAtOnce) {
            self.node.pool.give_back_block(self.node.root.index, block);
        } else if !block.is_null() {
            self.node.pool.retire_block(self.node.root.index, block);
        }
    }
}

/// The error of an operation that has not got its lock. A repair or a lock on the way is no effect
/// of its own; the next incarnation of its node can repeat it.
fn untouched(e: dmtree_fabric::Error) -> dmtree_fabric::Error {
    match e.kind() {
        dmtree_fabric::ErrorKind::Revoked => e.without_effect(),
        _ => e,
    }
}
