//! Several operations with fewer round trips than one by one. Not atomic: each is linearizable by
//! itself.
//!
//! *get_many*: one batch of READs for the first slot that each key's mirror names; a hit of the
//! route's generation is the answer, as in step 1 of `get.rs`. Every other key runs alone.
//!
//! *write_many*: rounds over distinct leaves. A round:
//!
//! 1. tries the locks of its leaves together, each with its table: `[CAS 0->tag, READ table] |
//!    ...`;
//! 2. READs the candidates of all of its keys in one batch;
//! 3. WRITEs all entries in one batch, awaited: the linearization points;
//! 4. releases the locks, detached, with tables where a fingerprint has changed.
//!
//! A lock is only tried, never waited for: a client that waited for one leaf's lock while it held
//! another's could form a cycle. A write that meets a held lock or a stale route, or that needs a
//! block, a split or a compare runs alone after the round, through `write.rs`. Writes of one key
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
use dmtree_fabric::{OpKind, OpOutcome, Result, Step};
use dmtree_parts::hash::KeyHash;
use dmtree_parts::held::Unlock;
use dmtree_parts::{Outcome, Values, Write, check_key};

use crate::client::{DmTree, HeldLock, Lockable, Route, is_away};
use crate::fair::STAMP_BYTES;
use crate::format::slot::Place;
use crate::format::table::{BODY_AT, Table, View};
use crate::lock::{LeafFifoGuard, Locked};
use crate::probe::{Looked, Probe};

/// Keys of one batch of READs.
const READ_TOGETHER: usize = 64;

/// The first candidate of a key.
enum First {
    /// It has the key, and its value was copied out.
    Done,
    /// It has not, or it takes a block to tell; the generation of the route.
    Looked(Looked, u16),
}

/// Writes of one round. A round holds at most this many locks at once.
const MAX_TOGETHER: usize = 16;

impl DmTree {
    /// Reads the first slot that each key's mirror names in one batch; the rest goes one by one.
    pub(crate) async fn get_many_op(&self, keys: &[&[u8]], out: &mut Values) -> Result<()> {
        for key in keys {
            check_key(key)?;
        }
        out.reset(keys.len());
        let scope = self.ep.begin(OpKind::GetMany);
        let _pin = self.pin();
        let mut value = Vec::new();
        for (n, chunk) in keys.chunks(READ_TOGETHER).enumerate() {
            let hashes: Vec<KeyHash> = chunk.iter().map(|key| KeyHash::of(key)).collect();
            let mut seen = self.first_candidates(chunk, &hashes, n * READ_TOGETHER, out).await?;
            for (i, (key, hash)) in chunk.iter().zip(hashes).enumerate() {
                let done = match seen[i].take() {
                    None => false,
                    Some(First::Done) => continue,
                    Some(First::Looked(looked, generation)) => {
                        let probe = self.judge_looked(looked, key, &mut value).await?;
                        probe.is_some_and(|p| p.is_hit_of(generation))
                    }
                };
                if done || self.get_pinned(key, hash, &mut value).await? {
                    out.set(n * READ_TOGETHER + i, &value);
                }
            }
        }
        scope.end(OpOutcome::Other);
        Ok(())
    }

    /// READs the first candidate of each key together. Inline values of hits go to `out`, where the
    /// first key has this number.
    async fn first_candidates(
        &self,
        keys: &[&[u8]],
        hashes: &[KeyHash],
        number: usize,
        out: &mut Values,
    ) -> Result<Vec<Option<First>>> {
        let g = &self.node.g;
        let (mut reads, mut places) =
            (Vec::with_capacity(keys.len()), Vec::with_capacity(keys.len()));
        self.cached_routes(keys, hashes, |i, (route, candidates)| {
            if let Some(slot) = candidates.and_then(|mut slots| slots.next()) {
                reads.push((route.leaf.plus(g.slot_at(slot) as u64), g.entry() as u32));
                places.push((i, Place { leaf: route.leaf, slot }, route.generation));
            }
        });
        let mut seen: Vec<Option<First>> = keys.iter().map(|_| None).collect();
        let mut value = Vec::new();
        let mut look = |read: usize, bytes: &[u8]| {
            let (i, place, generation) = places[read];
            let looked = self.look(place, bytes, keys[i], hashes[i], &mut value);
            seen[i] = Some(match looked.probe() {
                Some(probe) if probe.is_hit_of(generation) => {
                    out.set(number + i, &value);
                    First::Done
                }
                _ => First::Looked(looked, generation),
            });
        };
        self.ep.step(Step::Entry);
        match self.ep.read_all_now(&reads, &mut look) {
            Some(read) => read?,
            None if reads.is_empty() => {}
            None => {
                let mut batch = VerbVec::new();
                reads.iter().for_each(|(at, len)| _ = batch.read(*at, *len));
                let mut results = self.ep.batch(batch).await?;
                for read in 0..reads.len() {
                    results.take_sampled(read).extract(|bytes| look(read, bytes));
                }
            }
        }
        Ok(seen)
    }

    /// Rounds of writes to distinct leaves: locks and tables in one round trip, candidates in one,
    /// entries in one. A write that a round cannot do (held lock, stale route, split, block) runs
    /// alone. Writes of one key keep their order.
    pub(crate) async fn write_many_op(
        &self,
        writes: &[(&[u8], Write<'_>)],
        outcomes: &mut Vec<Result<Outcome>>,
    ) -> Result<()> {
        for (key, w) in writes {
            check_key(key)?;
            w.check()?;
        }
        outcomes.clear();
        outcomes.resize_with(writes.len(), || Ok(Outcome::Done));
        let scope = self.ep.begin(OpKind::WriteMany);
        let mut pending: VecDeque<usize> = (0..writes.len()).collect();
        while !pending.is_empty() {
            self.ep.renew_deadline();
            let mut round = Round::default();
            if let Err(e) = self.write_together(writes, &mut pending, &mut round, outcomes).await {
                // Outcomes of earlier rounds stay known.
                for i in round.members.into_iter().chain(round.alone).chain(pending) {
                    outcomes[i] = Err(e.clone());
                }
                break;
            }
            for i in round.alone {
                let (key, w) = writes[i];
                let written = self.write_alone(key, KeyHash::of(key), w, &mut None).await;
                outcomes[i] = written.map(|(outcome, _)| outcome);
            }
        }
        scope.end(OpOutcome::Other);
        Ok(())
    }

    /// Takes writes of different leaves out of `pending` and executes them. After an error, the
    /// writes of the round may have had their effect; the pending ones have not begun.
    async fn write_together(
        &self,
        writes: &[(&[u8], Write<'_>)],
        pending: &mut VecDeque<usize>,
        round: &mut Round,
        outcomes: &mut [Result<Outcome>],
    ) -> Result<()> {
        let mut later = VecDeque::new();
        let pin = self.pin();
        while let Some(i) = pending.pop_front() {
            if !self.node.has_tables() {
                round.alone.push(i);
                continue;
            }
            let route = match self.route(writes[i].0).await {
                Ok(route) => route,
                Err(e) => {
                    pending.push_front(i);
                    pending.append(&mut later);
                    return Err(e);
                }
            };
            let other = round.routes.iter().any(|r: &Route| r.table == route.table)
                || round.members.iter().any(|m: &usize| writes[*m].0 == writes[i].0);
            if other || round.members.len() == MAX_TOGETHER {
                later.push_back(i);
                if round.members.len() == MAX_TOGETHER {
                    break;
                }
            } else {
                round.members.push(i);
                round.routes.push(route);
            }
        }
        later.append(pending);
        *pending = later;
        let ran = self.run_round(writes, round, outcomes).await;
        pin.end();
        ran
    }

    async fn run_round(
        &self,
        writes: &[(&[u8], Write<'_>)],
        round: &mut Round,
        outcomes: &mut [Result<Outcome>],
    ) -> Result<()> {
        let mut locked = self.lock_round(round).await?;
        // One batch for the candidates of all writes.
        let g = &self.node.g;
        let mut batch = VerbVec::new();
        let mut probes = Vec::new();
        for (n, (i, l)) in locked.iter().enumerate() {
            for slot in l.table.slots(KeyHash::of(writes[*i].0).fingerprint()) {
                batch.read(l.route.leaf.plus(g.slot_at(slot) as u64), g.entry() as u32);
                probes.push((n, slot));
            }
        }
        self.ep.step(Step::Entry);
        let mut results = if batch.is_empty() { batch } else { self.ep.batch(batch).await? };
        let mut present: Vec<Option<usize>> = vec![None; locked.len()];
        let mut unclear = vec![false; locked.len()];
        let mut old = Vec::new();
        for (at, (n, slot)) in probes.iter().enumerate() {
            let (i, l) = &locked[*n];
            let place = Place { leaf: l.route.leaf, slot: *slot };
            let (key, bytes) = (writes[*i].0, results.take_sampled(at));
            match self.judge(place, &bytes, key, KeyHash::of(key), &mut old).await? {
                Some(Probe::Hit { block, .. }) if block.is_null() => present[*n] = Some(*slot),
                Some(Probe::Other { .. }) => {}
                _ => unclear[*n] = true,
            }
        }
        // Plain puts, inserts and updates of inline pairs share a batch; everything else runs
        // alone.
        let mut batch = VerbVec::new();
        let mut written = Vec::new();
        for (n, (i, mut l)) in locked.drain(..).enumerate() {
            let (key, w) = writes[i];
            let (value, wanted) = match w {
                Write::Put(v) => (v, None),
                Write::Insert(v) => (v, Some(false)),
                Write::Update(v) => (v, Some(true)),
                _ => (&[][..], None),
            };
            let simple = matches!(w, Write::Put(_) | Write::Insert(_) | Write::Update(_))
                && key.len() <= g.k
                && value.len() <= g.v
                && !unclear[n]
                && wanted.is_none_or(|there| there == present[n].is_some())
                && self.ep.caps().whole_write_bytes as usize >= g.entry();
            let slot = present[n].or_else(|| l.table.free_slot());
            let (true, Some(slot)) = (simple, slot) else {
                self.unlock(l).await?;
                round.alone.push(i);
                continue;
            };
            let place = Place { leaf: l.route.leaf, slot };
            let mut entry = self.ep.buf(g.entry() as u32).await?;
            let hash = KeyHash::of(key);
            self.encode(place, l.table.ver, (key, hash, value), &mut entry).await?;
            batch.write(l.route.leaf.plus(g.slot_at(slot) as u64), entry);
            let fresh = present[n].is_none();
            if fresh {
                l.table.set(slot, hash.fingerprint());
                self.note_mirror(key, &l.route, slot, hash.fingerprint());
            }
            outcomes[i] = Ok(Outcome::Done);
            written.push((l, fresh));
        }
        if !batch.is_empty() {
            self.check_lease()?;
            self.ep.step(Step::Entry);
            self.ep.batch(batch).await?;
        }
        for (l, fresh) in written {
            if fresh { self.unlock_with_table(l).await? } else { self.unlock(l).await? }
        }
        round.alone.sort_unstable();
        Ok(())
    }

    /// Tries the locks of a round together; a write with a failed try runs alone. No client waits
    /// while it holds a lock.
    async fn lock_round(&self, round: &mut Round) -> Result<Vec<(usize, Locked)>> {
        let mut batch = VerbVec::new();
        let mut tried = Vec::new();
        for (i, route) in round.members.iter().zip(&round.routes) {
            let Some(fifo_guard) = self.try_fifo_guard(route) else {
                round.alone.push(*i);
                continue;
            };
            let at = match self.node.pool.resolve(&self.ep, route.table).await {
                Ok(at) => at,
                Err(e) if is_away(&e) => {
                    round.alone.push(*i);
                    continue;
                }
                Err(e) => return Err(e),
            };
            let tag = self.next_tag();
            self.op.doubt(HeldLock { tag, on: Lockable::Leaf(*route) });
            let len = Table::body_len(route.capacity) as u32;
            let verb = batch.cas(at, 0, tag.0);
            batch.then().read(at.plus(BODY_AT as u64), len);
            let stamps =
                self.stamps_at(route, at, &fifo_guard).map(|at| batch.read(at, STAMP_BYTES));
            tried.push((*i, *route, at, tag, fifo_guard, (verb, stamps)));
        }
        if batch.is_empty() {
            return Ok(Vec::new());
        }
        self.ep.step(Step::Lock);
        let mut results = match self.ep.batch(batch).await {
            Ok(results) => results,
            Err(e) if is_away(&e) => {
                // The outcome of every try is unknown. A client that meets one of these tags
                // repairs the leaf.
                for (i, route, _, tag, ..) in tried {
                    self.op.leave_try(HeldLock { tag, on: Lockable::Leaf(route) });
                    round.alone.push(i);
                }
                return Ok(Vec::new());
            }
            Err(e) => return Err(e),
        };
        let mut locked = Vec::with_capacity(tried.len());
        for (i, route, at, tag, fifo_guard, (verb, stamps)) in tried {
            let bytes = results.take_sampled(verb + 1);
            self.op.forget_try(tag);
            if results.word(verb) != 0 {
                round.alone.push(i);
                continue;
            }
            let said = stamps.map(|l| results.take_sampled(l));
            self.took(&route, said.as_ref());
            match bytes.extract(|b| Table::view(route.table, route.capacity, b)) {
                View::Whole(table) if route.matches(&table) => {
                    self.hold(tag, Lockable::Leaf(route));
                    let fifo_guard = LeafFifoGuard::Table(Some(fifo_guard));
                    let table = Box::new(table);
                    locked.push((i, Locked { route, at, tag, table, fifo_guard, image: None }));
                }
                _ => {
                    self.free_leaf(&route, at, tag, None).await?;
                    round.alone.push(i);
                }
            }
        }
        Ok(locked)
    }
}

#[derive(Default)]
struct Round {
    members: Vec<usize>,
    routes: Vec<Route>,
    /// Writes that have to run alone.
    alone: Vec<usize>,
}
