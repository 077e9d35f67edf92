//! Several writes with fewer round trips than one by one. Not atomic: each is linearizable by
//! itself.
//!
//! On memory of this process, where a round trip costs nothing, one write follows the other
//! (`direct.rs`), with the lines of the next ones on their way. Elsewhere in rounds over the leaves
//! of the next writes. A round:
//!
//! 1. tries the locks of its leaves together, each with its table: `[CAS 0->tag, READ table] |
//!    ...`;
//! 2. READs the candidates of all of its keys in one batch;
//! 3. WRITEs all entries in one batch, awaited: the linearization points;
//! 4. releases the locks, detached, with tables where a fingerprint has changed.
//!
//! A lock is only tried, never waited for: a client that waited for one leaf's lock while it held
//! another's could form a cycle. A write that meets a held lock or a stale route, or that needs a
//! block, a split or a compare runs alone after the round, through `put.rs`. Writes of one key
//! are never in one round, so they keep their order.
//!
//! P and F hold per leaf exactly as for single writes: entries are awaited before any table is
//! written, under the lock. The lease is checked once before step 3.
//!
//! When a batch fails, the outcome of each of its tries is unknown. All tags are left as abandoned
//! locks, and the client that meets one of them repairs its leaf. Outcomes of earlier rounds stay
//! known; the writes of the failed round report the error, and those still pending have not begun.
//!
//! A crash leaves several locked leaves, each in a state of a single write.

use std::collections::VecDeque;

use dmtree_fabric::verb::VerbVec;
use dmtree_fabric::{GlobalAddr, OpKind, OpOutcome, Result, Step};
use dmtree_parts::fifo_mutex::FifoGuard;
use dmtree_parts::{Outcome, Write, check_key};

use crate::format::{BODY_AT, LockTag, Place, Table, View};
use crate::journal::{Journaled, effect};
use crate::leaf::{Entries, Probe};
use crate::lock::{
    Contenders, HeldLock, LeafFifoGuard, LeafLocks, Lockable, Locked, LockedLeaf, STAMP_BYTES,
    TableLocks,
};
use crate::point::{Direct, Writes};
use crate::router::Router;
use crate::{Client, KeyHash, Route, Unlock, reached};

/// Leaves of one round: a client holds at most this many locks at once.
const MAX_LEAVES: usize = 16;
/// Writes of one round.
const MAX_WRITES: usize = 64;
/// Writes that a round leaves to later ones before it looks no further.
const MAX_LATER: usize = 64;

/// Rounds of writes to some leaves: locks and tables in one round trip, candidates in one,
/// entries in one. A write that a round cannot do (held lock, stale route, split, block) runs
/// alone. Writes of one key keep their order.
pub(crate) async fn write_many(
    c: &Client,
    writes: &[(&[u8], Write<'_>)],
    outcomes: &mut Vec<Result<Outcome>>,
) -> Result<()> {
    for (key, w) in writes {
        check_key(key)?;
        w.check()?;
    }
    outcomes.clear();
    outcomes.resize_with(writes.len(), || Ok(Outcome::Done));
    let scope = c.ep.begin(OpKind::WriteMany);
    if c.is_direct {
        write_each(c, writes, outcomes).await;
        scope.end(OpOutcome::Other);
        return Ok(());
    }
    let mut pending: VecDeque<usize> = (0..writes.len()).collect();
    while !pending.is_empty() {
        c.ep.renew_deadline();
        let mut round = Round::new(c, writes);
        if let Err(e) = round.write_together(&mut pending, outcomes).await {
            // Outcomes of earlier rounds stay known.
            let members = round.leaves.into_iter().flat_map(|(_, group)| group);
            for i in members.chain(round.alone).chain(pending) {
                outcomes[i] = Err(e.clone());
            }
            break;
        }
        round.again.into_iter().rev().for_each(|i| pending.push_front(i));
        for i in round.alone {
            let (key, w) = writes[i];
            let written = Writes(c).alone((key, KeyHash::of(key)), w, &mut None).await;
            outcomes[i] = written.map(|(outcome, _)| outcome);
        }
    }
    scope.end(OpOutcome::Other);
    Ok(())
}

/// Writes on memory of this process, in their order.
async fn write_each(c: &Client, writes: &[(&[u8], Write<'_>)], outcomes: &mut [Result<Outcome>]) {
    let mut done = 0;
    while done < writes.len() {
        let (ended, waits) = Direct(c).write_some(&writes[done..], &mut outcomes[done..]);
        done += ended;
        if let Some(begun) = waits {
            c.ep.renew_deadline();
            let (key, w) = writes[done];
            let rest = Box::pin(Writes(c).rest(begun, (key, KeyHash::of(key)), w));
            outcomes[done] = rest.await;
            done += 1;
        }
    }
}

/// Some of the writes, executed together.
struct Round<'c, 'w> {
    c: &'c Client,
    writes: &'w [(&'w [u8], Write<'w>)],
    /// The leaves and their writes.
    leaves: Vec<(Route, Vec<usize>)>,
    /// Writes that have to run alone.
    alone: Vec<usize>,
    /// Writes for the next round, behind the one of their leaf that runs alone: it may make room.
    again: Vec<usize>,
}

/// A try for the lock of a leaf of a round.
struct Try {
    route: Route,
    group: Vec<usize>,
    at: GlobalAddr,
    tag: LockTag,
    fifo_guard: FifoGuard,
    /// The numbers of the compare-and-swap and of the READ of stamps.
    verb: usize,
    stamps: Option<usize>,
}

/// What a locked leaf has of a key.
#[derive(Default)]
struct Seen {
    present: Option<usize>,
    /// It takes a block to tell.
    is_unclear: bool,
}

impl<'c, 'w> Round<'c, 'w> {
    fn new(c: &'c Client, writes: &'w [(&'w [u8], Write<'w>)]) -> Self {
        Self { c, writes, leaves: Vec::new(), alone: Vec::new(), again: Vec::new() }
    }

    /// How many writes.
    fn len(&self) -> usize {
        self.leaves.iter().map(|(_, group)| group.len()).sum()
    }

    /// The writes of a leaf that the round cannot do.
    fn leave(&mut self, group: &[usize]) {
        if let Some((first, rest)) = group.split_first() {
            self.alone.push(*first);
            self.again.extend(rest);
        }
    }

    /// Adds write `i`, or leaves one that must be shown in an image alone; false when another one
    /// has its key, or when there is no room for its leaf.
    fn add(&mut self, i: usize, route: Route) -> bool {
        let mut members = self.leaves.iter().flat_map(|(_, group)| group).chain(&self.alone);
        if members.any(|m| self.writes[*m].0 == self.writes[i].0) {
            return false;
        }
        match self.leaves.iter().position(|(r, _)| r.table == route.table) {
            None if route.is_imaged() && self.alone.len() == MAX_LEAVES => return false,
            None if route.is_imaged() => self.alone.push(i),
            Some(leaf) => self.leaves[leaf].1.push(i),
            None if self.leaves.len() == MAX_LEAVES => return false,
            None => self.leaves.push((route, vec![i])),
        }
        true
    }

    /// Takes writes of distinct keys out of `pending` and executes them, leaf by leaf together.
    /// After an error, the writes of the round may have had their effect; the pending ones have
    /// not begun.
    async fn write_together(
        &mut self,
        pending: &mut VecDeque<usize>,
        outcomes: &mut [Result<Outcome>],
    ) -> Result<()> {
        let c = self.c;
        if !c.node.has_tables() {
            self.alone.extend(pending.drain(..));
            return Ok(());
        }
        let pin = c.pin()?;
        let mut later = Vec::new();
        let mut routed = Ok(());
        while self.len() < MAX_WRITES && later.len() < MAX_LATER {
            let Some(i) = pending.pop_front() else { break };
            match Router(c).route(self.writes[i].0).await {
                Ok(route) if self.add(i, route) => {}
                Ok(_) => later.push(i),
                Err(e) => {
                    later.push(i);
                    routed = Err(e);
                    break;
                }
            }
        }
        later.into_iter().rev().for_each(|i| pending.push_front(i));
        routed?;
        let ran = self.run(outcomes).await;
        pin.end();
        ran
    }

    async fn run(&mut self, outcomes: &mut [Result<Outcome>]) -> Result<()> {
        let (c, writes) = (self.c, self.writes);
        let mut locked = self.lock().await?;
        let seen = self.find(&locked).await?;
        let mut seen = seen.into_iter();
        // Plain puts, inserts and updates of inline pairs share a batch; everything else runs
        // alone.
        let mut batch = VerbVec::new();
        let mut effects = Vec::new();
        let mut written = Vec::new();
        for (group, mut l) in locked.drain(..) {
            let mut has_changed = false;
            let mut left = Vec::new();
            for (i, seen) in group.into_iter().zip(seen.by_ref()) {
                let Some(slot) = self.slot_for(writes[i], &seen, &l) else {
                    left.push(i);
                    continue;
                };
                let (key, hash) = (writes[i].0, KeyHash::of(writes[i].0));
                let place = Place { leaf: l.route.leaf, slot };
                let mut entry = c.ep.buf(c.node.g.entry() as u32).await?;
                let pair = (key, writes[i].1.value().unwrap_or(&[]));
                let fits = Entries(c).encode_inline(place, l.table.ver, pair, &mut entry);
                debug_assert!(fits, "only inline pairs are written together");
                batch.write(Entries(c).at(place), entry);
                effects.push(effect(key, Some(pair.1)));
                if seen.present.is_none() {
                    has_changed = true;
                    l.table.set(slot, hash.fingerprint());
                    Router(c).note_mirror(key, &l.route, slot, hash.fingerprint());
                }
                outcomes[i] = Ok(Outcome::Done);
            }
            self.leave(&left);
            written.push((l, has_changed));
        }
        if !batch.is_empty() {
            c.check_lease()?;
            Journaled(c).append(&effects).await?;
            c.ep.step(Step::Entry);
            c.ep.batch(batch).await?;
        }
        for (l, has_changed) in written {
            if has_changed { LeafLocks(c).unlock_with_table(l).await? } else { c.unlock(l).await? }
        }
        self.alone.sort_unstable();
        self.again.sort_unstable();
        Ok(())
    }

    /// What the locked leaves have of the keys of their writes, in order: one batch of READs.
    async fn find(&self, locked: &[(Vec<usize>, Locked)]) -> Result<Vec<Seen>> {
        let (c, writes) = (self.c, self.writes);
        let mut seen: Vec<Seen> = Vec::new();
        let mut batch = VerbVec::new();
        let mut probes = Vec::new();
        for (group, l) in locked {
            for i in group {
                for slot in l.table.slots(KeyHash::of(writes[*i].0).fingerprint()) {
                    let place = Place { leaf: l.route.leaf, slot };
                    batch.read(Entries(c).at(place), c.node.g.entry() as u32);
                    probes.push((seen.len(), *i, (place, l.route.generation)));
                }
                seen.push(Seen::default());
            }
        }
        c.ep.step(Step::Entry);
        let mut results = if batch.is_empty() { batch } else { c.ep.batch(batch).await? };
        let mut old = Vec::new();
        for (at, (n, i, (place, generation))) in probes.into_iter().enumerate() {
            let (key, bytes) = (writes[i].0, results.take_sampled(at));
            let judged =
                Entries(c).judge((place, generation), &bytes, (key, KeyHash::of(key)), &mut old);
            match judged.await? {
                Some(Probe::Hit { block, .. }) if block.is_null() => {
                    seen[n].present = Some(place.slot);
                }
                Some(Probe::Other { .. }) => {}
                _ => seen[n].is_unclear = true,
            }
        }
        Ok(seen)
    }

    /// The slot that a write of a round fills or replaces; `None` for one that has to run alone.
    fn slot_for(&self, (key, w): (&[u8], Write<'_>), seen: &Seen, l: &Locked) -> Option<usize> {
        let g = &self.c.node.g;
        let wants = match w {
            Write::Put(_) => None,
            Write::Insert(_) => Some(false),
            Write::Update(_) => Some(true),
            Write::Delete | Write::CompareAndSet { .. } => return None,
        };
        let fits = key.len() <= g.k && w.value().is_some_and(|v| v.len() <= g.v);
        let is_plain = !seen.is_unclear
            && fits
            && wants.is_none_or(|there| there == seen.present.is_some())
            && self.c.ep.caps().whole_write_bytes as usize >= g.entry();
        if is_plain { seen.present.or_else(|| l.table.free_slot()) } else { None }
    }

    /// Tries the locks of the round together; the writes of a failed try run alone. No client waits
    /// while it holds a lock.
    async fn lock(&mut self) -> Result<Vec<(Vec<usize>, Locked)>> {
        let c = self.c;
        let (batch, tries) = self.tries().await?;
        if batch.is_empty() {
            return Ok(Vec::new());
        }
        c.ep.step(Step::Lock);
        let Some(mut results) = reached(c.ep.batch(batch).await)? else {
            // The outcome of every try is unknown. A client that meets one of these tags repairs
            // the leaf.
            for Try { route, group, tag, .. } in tries {
                c.op.leave_try(HeldLock { tag, on: Lockable::Leaf(route) });
                self.leave(&group);
            }
            return Ok(Vec::new());
        };
        let mut locked = Vec::with_capacity(tries.len());
        for Try { route, group, at, tag, fifo_guard, verb, stamps } in tries {
            let bytes = results.take_sampled(verb + 1);
            c.op.forget_try(tag);
            if results.word(verb) != 0 {
                self.leave(&group);
                continue;
            }
            let said = stamps.map(|l| results.take_sampled(l));
            Contenders(c).took(&route, said.as_ref());
            match bytes.extract(|b| Table::view(route.table, route.capacity, b)) {
                View::Whole(table) if route.matches(&table) => {
                    c.hold(tag, Lockable::Leaf(route));
                    let fifo_guard = LeafFifoGuard::Table(Some(fifo_guard));
                    let table = Box::new(table);
                    locked.push((group, LockedLeaf::new(&route, (at, tag), table, fifo_guard)));
                }
                _ => {
                    TableLocks(c).free(&route, at, tag, None).await?;
                    self.leave(&group);
                }
            }
        }
        Ok(locked)
    }

    /// The tries, and their verbs: `[CAS 0->tag, READ table] | ...`.
    async fn tries(&mut self) -> Result<(VerbVec, Vec<Try>)> {
        let c = self.c;
        let mut batch = VerbVec::new();
        let mut tries = Vec::new();
        for (route, group) in self.leaves.clone() {
            let Some(fifo_guard) = Contenders(c).try_fifo_guard(&route) else {
                self.leave(&group);
                continue;
            };
            let Some(at) = c.cell(route.table).await? else {
                self.leave(&group);
                continue;
            };
            let tag = c.tags.next();
            c.op.doubt(HeldLock { tag, on: Lockable::Leaf(route) });
            let verb = batch.cas(at, 0, tag.0);
            batch.then().read(at.plus(BODY_AT as u64), Table::body_len(route.capacity) as u32);
            let words = Contenders(c).stamps_at(&route, at, &fifo_guard);
            let stamps = words.map(|at| batch.read(at, STAMP_BYTES));
            tries.push(Try { route, group, at, tag, fifo_guard, verb, stamps });
        }
        Ok((batch, tries))
    }
}
