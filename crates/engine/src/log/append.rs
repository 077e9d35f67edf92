//! The way of a write into the log.
//!
//! Under the lock of its leaf, when nothing can refuse the write any more:
//!
//! 1. The record goes into the ring of the client's group. The ring of a node's first write is
//!    looked for in the list of rings, or made.
//! 2. The client takes the turn of the group. Its record is durable by then, when the client before
//!    it has written it along; otherwise the client WRITEs all that waits, awaited.
//! 3. The caller writes the image (G4).
//!
//! An update of a leaf that no record says anything of ([`Table::behind`](crate::format::Table))
//! goes to the leaf as without a log when the ring takes no more leaves. So writes that go on for
//! long, and come to each leaf rarely, cost no more than without a log. The same holds for updates
//! of some leaves while owners are loaded more than memory nodes (`balance.rs`), and of leaves that
//! nodes contend for; for these a slot of the image is enough that no record says anything of (G6).
//!
//! A full ring does not block: the write goes *through*. The client writes the leaf back, and then
//! WRITEs the slot there (`cut.rs`). So does an update of a contended leaf that is behind: from
//! then on its updates go to the leaf.
//!
//! *Failures.* Once the record is in the ring a later client may write it, whatever becomes of this
//! one. So an error has an unknown effect and leaves the lock abandoned, as a dropped caller does.
//! The repair gives the leaf a count above that of the record: it is in the leaf by then, or never
//! counts.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use dmtree_fabric::sync::locked;
use dmtree_fabric::{Buf, Error, ErrorKind, GlobalAddr, Nanos, NodeId, Result, Stage, Step};
use dmtree_pool::ArenaKey;

use super::record::{HEAD_BYTES, RingHead};
use super::replay::Replay;
use super::ring::{Group, Ring};
use super::{Cut, GroupState, LogGroup, RingName, WriteLog};
use crate::format::{Place, SlotState, put_u64, slot};
use crate::journal::{Journaled, effect};
use crate::leaf::EntryImages;
use crate::lock::Locked;
use crate::{Client, KeyValue, Mark, Mutant, Route};

/// Pause before a memory node without room for a ring is asked again, ns.
const TRY_AGAIN_NS: u64 = 500_000;
/// The kinds of chunks that have rings, and their heads.
const KIND_RING: u8 = 3;
const KIND_HEAD: u8 = 4;

/// Appends writes to the log of this node.
#[derive(Clone, Copy)]
pub(crate) struct Appends<'c>(pub &'c Client);

impl Appends<'_> {
    /// Makes an entry durable that fills a slot of a locked leaf, or replaces one there. Returns
    /// its buffer, as the image is to have it (G6), and whether it has a record.
    pub(crate) async fn entry(
        self,
        l: &Locked,
        place: Place,
        (key, _, value): KeyValue<'_>,
        (replaces, (block, _, mut entry)): (Option<u32>, EntryImages),
    ) -> Result<(Buf, bool)> {
        let c = self.0;
        debug_assert!(c.op.holds(l.tag), "a record of {} is written without its lock", place.leaf);
        c.check_lease_untouched()?;
        if Journaled(c).is_on() {
            Journaled(c).append(&[effect(key, Some(value))]).await?;
        }
        if let Some((block, buf)) = block {
            c.ep.step(Step::Entry);
            c.ep.write(block.addr(), buf).await?;
        }
        let has_record = self.slot(l, (place, &entry), replaces).await?;
        if has_record && !c.node.has(Mutant::LogUnmarked) {
            slot::set_logged(&mut entry, true);
        }
        Ok((entry, has_record))
    }

    /// Makes it durable that a slot of a locked leaf is free. False: without a record.
    pub(crate) async fn free(self, l: &Locked, place: Place, word0: u64) -> Result<bool> {
        let mut entry = vec![0; self.0.node.g.entry()];
        put_u64(&mut entry, 0, word0);
        self.slot(l, (place, &entry), None).await
    }

    /// Makes the new bytes of a slot durable. False: in the leaf, and no record of it counts.
    async fn slot(
        self,
        l: &Locked,
        (place, bytes): (Place, &[u8]),
        replaces: Option<u32>,
    ) -> Result<bool> {
        // An update, and the leaf is behind: else it would have gone past the log.
        let leaves = |log| replaces.is_some() && self.is_contended(log, &l.route);
        if self.0.node.log.as_ref().is_some_and(leaves) {
            Mark::LogLeft.hit();
        } else if self.append(l, place, bytes).await? {
            return Ok(true);
        } else {
            Mark::LogFull.hit();
        }
        // Of a free slot word0 counts alone.
        let is_free =
            slot::unchecked(&self.0.node.g, bytes).is_some_and(|s| s.state == SlotState::Free);
        let len = if is_free { 8 } else { bytes.len() };
        Box::pin(Cut(self.0).through(l, (place, &bytes[..len]), replaces)).await.map(|()| false)
    }

    /// Whether updates of a leaf are to go past the log, if there is one.
    pub(crate) fn is_past(self, route: &Route) -> bool {
        let Some(log) = &self.0.node.log else { return true };
        log.balance.is_past(route.leaf) || self.is_contended(log, route)
    }

    /// Whether nodes contend for the lock of a leaf, which is held longer for a record: its client
    /// waits for its group's WRITE.
    fn is_contended(self, log: &WriteLog, route: &Route) -> bool {
        log.balance.moves() && self.0.node.contenders.is_contended(route.table.bits())
    }

    /// Whether a write that replaces an entry of a locked leaf goes to the leaf: no record says
    /// anything of it, and updates of this leaf are to go past the log, or the ring has no room for
    /// one more leaf.
    pub(crate) fn passes(self, l: &Locked) -> bool {
        let Some(log) = &self.0.node.log else { return true };
        if l.table.is_part() {
            // The slot was not logged (G6).
            Mark::LogPassedBySlot.hit();
            return true;
        }
        let behind = l.table.behind && !self.0.node.has(Mutant::LogBehindIgnored);
        let takes = || log.ring(self.ring_of(log, l.route.leaf)).with(|r| r.takes_leaves());
        let passes = !behind && (self.is_past(&l.route) || takes() == Some(false));
        if passes {
            Mark::LogPassed.hit();
        }
        passes
    }

    fn ring_of(self, log: &WriteLog, leaf: GlobalAddr) -> RingName {
        (leaf.node(), self.0.tags.client() % log.groups)
    }

    /// False: the ring has no place for the record.
    async fn append(self, l: &Locked, place: Place, bytes: &[u8]) -> Result<bool> {
        let (c, Some(log)) = (self.0, &self.0.node.log) else { return Ok(false) };
        let name = self.ring_of(log, place.leaf);
        let group = log.ring(name);
        let count = l.table.writes.wrapping_add(1);
        let blindly = c.node.has(Mutant::LogCutEarly);
        let append = |ring: &mut Ring| {
            let until = ring.append((&l.route, place.slot), count, bytes, blindly);
            if until.is_some() && !l.table.behind {
                ring.leaves_behind();
            }
            (until, ring.is_cut_due())
        };
        let mut appended = group.with(append);
        if appended.is_none() {
            Box::pin(self.open_in_turn(log, name, &group)).await?;
            appended = group.with(append);
        }
        let Some((until, is_due)) = appended else { return Ok(false) };
        if is_due {
            log.is_cut_due.store(true, Ordering::Relaxed);
        }
        let Some(until) = until else { return Ok(false) };
        c.ep.stage_cost(Stage::LogRecord, 1);
        if c.node.has(Mutant::LogAckEarly) {
            return Ok(true);
        }
        self.settle(&group, until).await.map_err(Error::effect_unknown)?;
        Ok(true)
    }

    /// Opens a ring that is closed, unless it is to stay so for a while.
    async fn open_in_turn(self, log: &WriteLog, name: RingName, group: &LogGroup) -> Result<()> {
        let c = self.0;
        if !group.is_to_open(c.ep.now()) {
            return Ok(());
        }
        let turn = group.turn.lock(&c.ep, 0).await?;
        if group.is_to_open(c.ep.now()) {
            let opened = self.open(log, name).await?;
            *locked(&group.state) = opened;
        }
        drop(turn);
        Ok(())
    }

    /// Waits until the ring is durable up to a record.
    async fn settle(self, group: &Arc<LogGroup>, until: u64) -> Result<()> {
        let turn = group.turn.lock(&self.0.ep, 0).await?;
        let next_until = |ring: &mut Ring| match ring.is_durable(until) {
            true => None,
            false => ring.next_group(),
        };
        let mut next = group.with(next_until).flatten();
        if next.is_none() {
            Mark::LogShared.hit();
        }
        while let Some(first) = next {
            self.write(group, &first).await?;
            let rest = |ring: &mut Ring| {
                ring.written(&first);
                next_until(ring)
            };
            next = group.with(rest).flatten();
        }
        drop(turn);
        Ok(())
    }

    /// WRITEs what waits. The client has the turn.
    async fn write(self, group: &Arc<LogGroup>, next: &Group) -> Result<()> {
        let mut buf = self.0.ep.buf(next.len as u32).await?;
        group.with(|ring| buf.copy_from_slice(ring.bytes_of(next)));
        let mut dropped = Dropped { c: Some(self.0), group, segment: next.segment };
        self.0.ep.step(Step::Entry);
        let began = self.sample();
        let written = self.0.ep.write(next.at, buf).await;
        dropped.c = None;
        self.wrote_since(began);
        written.map(|_| ())
    }

    /// A slot that was READ alone is logged, or is not.
    pub(crate) fn looked(self, is_logged: bool) {
        self.0.node.log.iter().for_each(|log| log.balance.looked(is_logged));
    }

    /// The time, if what is posted next is a sample of the loads.
    pub(crate) fn sample(self) -> Option<Nanos> {
        let log = self.0.node.log.as_ref()?;
        log.balance.samples().then(|| self.0.ep.now())
    }

    /// A try for a lock has begun then, and ended now.
    pub(crate) fn tried_since(self, began: Option<Nanos>) {
        if let (Some(log), Some(began)) = (&self.0.node.log, began) {
            log.balance.tried(self.0.ep.now() - began);
        }
    }

    /// A WRITE at a memory node has begun then, and ended now.
    pub(crate) fn wrote_since(self, began: Option<Nanos>) {
        if let (Some(log), Some(began)) = (&self.0.node.log, began) {
            let now = self.0.ep.now();
            log.balance.wrote(now - began, now);
        }
    }

    /// Finds the ring that a former incarnation of this node has left, or makes one.
    async fn open(self, log: &WriteLog, (home, group): RingName) -> Result<GroupState> {
        let c = self.0;
        let rings = Replay(c).rings(home).await?;
        let is_own =
            |head: &&RingHead| head.node == c.ep.node() && usize::from(head.group) == group;
        if let Some(RingHead { ring, .. }) = rings.iter().find(is_own) {
            Mark::LogAdopted.hit();
            let bytes = Replay(c).bytes(*ring).await?;
            return Ok(GroupState::Open(Box::new(Ring::adopted(log.layout, *ring, &bytes))));
        }
        match self.make(log, (home, group)).await {
            Ok(ring) => Ok(GroupState::Open(Box::new(Ring::new(log.layout, ring)))),
            Err(e) if e.kind() == ErrorKind::Full => {
                Ok(GroupState::Closed(c.ep.now().saturating_add(TRY_AGAIN_NS)))
            }
            Err(e) => Err(e),
        }
    }

    /// Makes a ring, and puts its head in front of the list. Its client holds the lock of a leaf,
    /// so memory that is not there at once is not waited for.
    async fn make(self, log: &WriteLog, (home, group): RingName) -> Result<GlobalAddr> {
        let (c, root) = (self.0, self.0.node.root);
        let pool = &c.node.pool;
        let key = ArenaKey { index: root.index, kind: KIND_HEAD, object_bytes: HEAD_BYTES as u32 };
        // With the inner nodes: a ring of another memory node must not hide this one's.
        let arena = pool.arena(key);
        let grant = pool.alloc_at_once(&c.ep, &arena, NodeId::memory(0)).await?;
        let (head, bytes, of) = (grant.addr, log.layout.bytes(), (root.index, KIND_RING));
        let ring = pool.supply().alloc_region_at_once(&c.ep, of, bytes, home).await;
        let ring = ring.inspect_err(|_| pool.give_back_unwritten(&arena, grant))?;
        let mut first = c.ep.read(root.aux(), 8).await?.word(0);
        loop {
            let (next, node) = (GlobalAddr::from_bits(first), c.ep.node());
            let bytes = RingHead { next, node, group: group as u16, ring }.bytes(head);
            c.ep.write_bytes(head, &bytes).await?;
            match c.ep.cas(root.aux(), first, head.bits()).await? {
                was if was == first => return Ok(ring),
                was => first = was,
            }
            c.ep.check_deadline("the list of logs", root.word.bits())?;
        }
    }
}

/// A WRITE to the ring that its client may drop.
struct Dropped<'c> {
    c: Option<&'c Client>,
    group: &'c Arc<LogGroup>,
    segment: usize,
}

impl Drop for Dropped<'_> {
    fn drop(&mut self) {
        let (Some(c), group, segment) = (self.c, self.group.clone(), self.segment) else { return };
        group.with(|ring| ring.in_doubt(segment));
        c.ep.when_quiet(move || _ = group.with(|ring| ring.settled(segment)));
    }
}
