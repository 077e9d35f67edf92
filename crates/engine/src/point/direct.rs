//! Point operations on memory of this process: the steps of `steps.rs`, each executed at once.
//!
//! Nothing suspends between the first verb and the last, and no other client of the thread runs. So
//! a write needs no place in the queue for its leaf's lock, no record of the lock for a caller that
//! drops it, and shares its verbs with no other client. The verbs, their order and their counts are
//! those of the posted operation.
//!
//! An operation that meets anything unusual goes on as a posted one, from the step it has reached:
//!
//! - nothing cached, a stale route, an entry that is torn or in a block: a read goes on with its
//!   route and candidates;
//! - a held lock, other clients in the queue, a foreign table: a write starts over, and waits;
//! - under the lock, an entry that is torn or in a block, a full leaf, a lease that has ended, a
//!   verb that was refused: a write goes on with its lock and its steps.
//!
//! Mutants are steps of posted operations. With any mutant enabled nothing runs here.
//!
//! *Crash.* The states that are left are those of a posted write: the lock's tag, with the entry
//! before or after its WRITE.

use dmtree_fabric::{DirectOp, Error, GlobalAddr, OpKind, OpOutcome, OpScope, Result};
use dmtree_parts::cache::CachedNode;
use dmtree_parts::held::{BriefPin, Pinned};
use dmtree_parts::sync::reading;
use dmtree_parts::{Outcome, Write};

use crate::format::{BODY_AT, LockTag, MAX_BODY, Place, Table, slot};
use crate::journal::Journaled;
use crate::leaf::{Entries, Looked};
use crate::lock::{LeafFifoGuard, Lockable, Locked, LockedLeaf};
use crate::point::{Answer, Next, PointWrite, Start, candidates, verdict};
use crate::router::{MAX_CANDIDATES, Router};
use crate::{Chore, Client, DmNode, HashedKey, KeyHash, Mark, Route};

/// Writes with lines that are on their way at once.
const TOGETHER: usize = 16;
/// The leaves of so many inner nodes, 2 MiB or so, are in a processor's second-level cache: nothing
/// is gained by finding several leaves in step, and fetching their lines before.
const NEAR_NODES: u64 = 64;
/// Longest entry that is executed here, bytes.
pub(crate) const MAX_ENTRY: usize = 128;

/// An operation that has begun.
#[derive(Debug)]
pub enum Begun<T, F> {
    /// It has ended: nothing had to wait.
    Ended(Result<T>),
    /// The rest of it may wait.
    Waits(F),
}

/// An operation has ended; a part of another one has no scope.
pub(crate) fn end(scope: Option<OpScope<'_>>, outcome: OpOutcome) {
    if let Some(scope) = scope {
        scope.end(outcome);
    }
}

/// How far a read has come.
pub(crate) enum DirectGet<'c> {
    /// It has ended: whether the key is there.
    Ended(bool),
    /// It goes on from here.
    GoesOn(Option<OpScope<'c>>, Pinned<'c, DmNode>, Start),
    /// It has not begun.
    Posted,
}

impl<'c> DirectGet<'c> {
    #[cold]
    fn goes_on(op: DirectOp<'c>, pin: BriefPin<'c, DmNode>, start: Start) -> Self {
        Self::GoesOn(op.go_on(), pin.lasting(), start)
    }
}

/// How far a write has come.
pub(crate) enum DirectWrite<'c, 'w> {
    /// It has ended.
    Ended(Outcome),
    /// It goes on under its lock.
    Locked(Box<LockedWrite<'c, 'w>>),
    /// It starts over, after a try that has failed.
    Again(Option<OpScope<'c>>),
    /// It has not begun.
    Posted,
}

/// A write that has its lock.
pub(crate) struct LockedWrite<'c, 'w> {
    pub scope: Option<OpScope<'c>>,
    pub pin: Pinned<'c, DmNode>,
    pub locked: Locked,
    pub steps: PointWrite<'w>,
    /// The next slot, if it was READ already and does not answer alone.
    pub looked: Option<Looked>,
}

/// The leaf that a write has locked here.
struct OwnLeaf<'r> {
    route: Route,
    /// The table's cell.
    at: GlobalAddr,
    tag: LockTag,
    table: Box<Table>,
    /// Its place in the cache.
    parent: (&'r CachedNode, usize),
}

/// What a write has done under its lock.
enum Done {
    /// Nothing was changed, or the fingerprints are as they were.
    SameTable(Outcome, OpOutcome),
    /// A slot has this fingerprint now.
    Slot(usize, u8, OpOutcome),
}

/// A step that has to be posted, with a slot that was READ already.
struct MustWait(Option<Looked>);

impl From<Error> for MustWait {
    /// A verb that was refused has no effect. The posted one says why.
    fn from(_: Error) -> Self {
        Self(None)
    }
}

/// Point operations that execute at once, on memory of this process.
#[derive(Clone, Copy)]
pub(crate) struct Direct<'c>(pub &'c Client);

impl<'c> Direct<'c> {
    /// A point read, as far as it need not wait.
    pub(crate) fn get(self, key: &[u8], hash: KeyHash, out: &mut Vec<u8>) -> DirectGet<'c> {
        let Some(mut op) = self.0.begin_direct(OpKind::Get) else { return DirectGet::Posted };
        // The posted operation says why it is refused.
        let Ok(pin) = self.0.op.pin_briefly() else {
            op.cancel();
            return DirectGet::Posted;
        };
        let r = reading();
        let Some(parent) = self.0.node.cache.find(1, key, &r) else {
            return DirectGet::goes_on(op, pin, Start::default());
        };
        self.0.hits.count();
        let (route, mirrored) =
            Router(self.0).route_with_slots(parent.0, parent.1, hash.fingerprint());
        let mut entry = [0; MAX_ENTRY];
        let (mut tried, mut looked) = (0, None);
        let found = 'read: {
            let Some(slots) = mirrored else { break 'read None };
            for slot in slots.take(MAX_CANDIDATES) {
                let place = Place { leaf: route.leaf, slot };
                let Some(entry) = self.fetch(&mut op, place, &mut entry) else {
                    break 'read None;
                };
                let now = Looked::at(&self.0.node.g, place, entry, (key, hash), out);
                match now.probe() {
                    Some(probe) if probe.is_hit_of(route.generation) => break 'read Some(true),
                    Some(probe) if probe.ver().generation == route.generation => tried += 1,
                    _ => {
                        looked = Some(now);
                        break 'read None;
                    }
                }
            }
            self.confirm(&mut op, (parent, route), (key, hash), out)
        };
        match found {
            Some(found) => {
                op.end(if found { OpOutcome::Hit } else { OpOutcome::Absent });
                DirectGet::Ended(found)
            }
            None => {
                let start = Start { cached: Some((route, mirrored)), tried, looked };
                DirectGet::goes_on(op, pin, start)
            }
        }
    }

    /// READs a slot once.
    #[inline(always)]
    fn fetch<'b>(
        self,
        op: &mut DirectOp<'_>,
        place: Place,
        entry: &'b mut [u8; MAX_ENTRY],
    ) -> Option<&'b [u8]> {
        let entry = &mut entry[..self.0.entry];
        op.list();
        op.read(Entries(self.0).at(place), entry).ok()?;
        Some(entry)
    }

    /// Step (2) of a read (`get.rs`).
    #[inline(never)]
    fn confirm(
        self,
        op: &mut DirectOp<'_>,
        (parent, route): ((&CachedNode, usize), Route),
        key: HashedKey<'_>,
        out: &mut Vec<u8>,
    ) -> Option<bool> {
        let route = &route;
        let at = self.own_table(route)?;
        let mut body = [0; MAX_BODY];
        let body = &mut body[..Table::body_len(route.capacity)];
        op.list();
        let confirm = op.list_at(at.node(), |verbs| {
            let was = verbs.cas(at, 0, 0)?;
            verbs.read(at.plus(BODY_AT as u64), body)?;
            Ok(was)
        });
        let was = confirm.ok()?;
        let mut table = self.0.spare_table();
        let is_exact =
            was == 0 && table.load(route.table, route.capacity, body) && route.matches(&table);
        let found = is_exact.then(|| self.search(op, route, &table, key, out));
        if is_exact && self.0.node.o.techniques.mirrors {
            parent.0.fill_mirror(parent.1, table.fps());
        }
        self.0.keep_table(table);
        found.flatten()
    }

    /// Whether a key is there, by an exact table.
    fn search(
        self,
        op: &mut DirectOp<'_>,
        route: &Route,
        table: &Table,
        key: HashedKey<'_>,
        out: &mut Vec<u8>,
    ) -> Option<bool> {
        let mut entry = [0; MAX_ENTRY];
        for slot in candidates(table, key.1)? {
            let place = Place { leaf: route.leaf, slot };
            let entry = self.fetch(op, place, &mut entry)?;
            let looked = Looked::at(&self.0.node.g, place, entry, key, out);
            match verdict(&looked.probe()?, route, table) {
                Some(Answer::Found) => return Some(true),
                Some(_) => return None,
                None => {}
            }
        }
        self.0.check_lease().ok()?;
        out.clear();
        Some(false)
    }

    /// The cell of a leaf's table, where it is known and its node is the only one of its role that
    /// the operation reaches.
    #[inline]
    pub(crate) fn own_table(self, route: &Route) -> Option<GlobalAddr> {
        let at = self.0.node.pool.resolve_cached(route.table)?;
        let (table, leaf) = (at.node(), route.leaf.node());
        (table == leaf || table.is_compute() != leaf.is_compute()).then_some(at)
    }

    /// A point write, as far as it need not wait.
    #[inline]
    pub(crate) fn write<'w>(
        self,
        (key, hash): HashedKey<'w>,
        write: Write<'w>,
    ) -> DirectWrite<'c, 'w> {
        if !self.0.is_direct {
            return DirectWrite::Posted;
        }
        let r = reading();
        self.write_at(self.0.node.cache.find(1, key, &r), (key, hash), write)
    }

    /// Point writes in their order, until one has to wait: how many have ended, and that one.
    pub(crate) fn write_some<'w>(
        self,
        writes: &[(&'w [u8], Write<'w>)],
        outcomes: &mut [Result<Outcome>],
    ) -> (usize, Option<DirectWrite<'c, 'w>>) {
        let r = reading();
        let mut found = [None; TOGETHER];
        let mut keys: [&[u8]; TOGETHER] = [&[]; TOGETHER];
        keys.iter_mut().zip(writes).for_each(|(to, (key, _))| *to = key);
        let count = writes.len().min(TOGETHER);
        let hashes = keys.map(KeyHash::of);
        let is_near = self.0.node.cache.nodes() <= NEAR_NODES;
        if !is_near {
            self.0.node.cache.lookup_many(1, &keys[..count], &r, |n, parent| found[n] = parent);
            self.prefetch_entries(&found, &hashes);
        }
        for (n, (key, write)) in writes[..count].iter().enumerate() {
            // A split of this thread's may have replaced the node.
            let parent = match found[n] {
                None if is_near => self.0.node.cache.find(1, key, &r),
                Some((node, _)) if !node.is_cached() => self.0.node.cache.find(1, key, &r),
                parent => parent,
            };
            match self.write_at(parent, (key, hashes[n]), *write) {
                DirectWrite::Ended(outcome) => outcomes[n] = Ok(outcome),
                waits => return (n, Some(waits)),
            }
        }
        (count, None)
    }

    /// The lines that operations reach first are on their way: the table's cell, and the first
    /// entry that the mirror names.
    fn prefetch_entries(self, parents: &[Option<(&CachedNode, usize)>], hashes: &[KeyHash]) {
        let Some(op) = self.0.begin_direct(OpKind::WriteMany) else { return };
        for ((node, i), hash) in parents.iter().zip(hashes).filter_map(|(p, h)| Some(((*p)?, h))) {
            let (route, slots) = Router(self.0).route_with_slots(node, i, hash.fingerprint());
            if let Some(at) = self.own_table(&route) {
                op.prefetch(at, BODY_AT + Table::body_len(route.capacity));
            }
            if let Some(slot) = slots.and_then(|mut slots| slots.next()) {
                let place = Place { leaf: route.leaf, slot };
                op.prefetch(Entries(self.0).at(place), self.0.entry);
            }
        }
        op.cancel();
    }

    /// A point write to the leaf of this record, as far as it need not wait.
    fn write_at<'w>(
        self,
        parent: Option<(&CachedNode, usize)>,
        (key, hash): (&'w [u8], KeyHash),
        write: Write<'w>,
    ) -> DirectWrite<'c, 'w> {
        let g = &self.0.node.g;
        let fits = key.len() <= g.k && write.value().is_none_or(|v| v.len() <= g.v);
        let Some(parent) = parent.filter(|_| fits) else { return DirectWrite::Posted };
        let Some(mut op) = self.0.begin_direct(write.kind()) else { return DirectWrite::Posted };
        let Ok(pin) = self.0.op.pin_briefly() else {
            op.cancel();
            return DirectWrite::Posted;
        };
        let Some((mut leaf, old)) = self.lock(&mut op, parent, hash.fingerprint()) else {
            return match op.has_begun() {
                true => DirectWrite::Again(op.go_on()),
                false => {
                    op.cancel();
                    DirectWrite::Posted
                }
            };
        };
        let mut steps = PointWrite::new(key, hash, write, old);
        match self.run(&mut op, &mut leaf, &mut steps) {
            Ok(done) => {
                self.0.had.set(steps.is_present());
                self.0.found.set(steps.old);
                DirectWrite::Ended(self.unlock(&mut op, leaf, key, done))
            }
            Err(MustWait(looked)) => {
                self.0.hold(leaf.tag, Lockable::Leaf(leaf.route));
                let (route, at, tag, table) = (leaf.route, leaf.at, leaf.tag, leaf.table);
                let fifo_guard = LeafFifoGuard::Table(None);
                let locked = LockedLeaf::new(&route, (at, tag), table, fifo_guard);
                let (scope, pin) = (op.go_on(), pin.lasting());
                DirectWrite::Locked(Box::new(LockedWrite { scope, pin, locked, steps, looked }))
            }
        }
    }

    /// Locks a leaf if no other client wants it. With it, memory for the value that is found.
    #[inline]
    fn lock<'r>(
        self,
        op: &mut DirectOp<'_>,
        parent: (&'r CachedNode, usize),
        fp: u8,
    ) -> Option<(OwnLeaf<'r>, Vec<u8>)> {
        let (route, mirrored) = Router(self.0).route_with_slots(parent.0, parent.1, fp);
        let lock = route.table.bits();
        let calm = self.0.node.contenders.calm(lock)?;
        if self.0.node.leaf_fifo.is_busy(lock) {
            return None;
        }
        let at = self.own_table(&route)?;
        // The lock's word and the entry are far apart: both are on their way at once.
        if let Some(slot) = mirrored.and_then(|mut slots| slots.next()) {
            let place = Place { leaf: route.leaf, slot };
            op.prefetch(Entries(self.0).at(place), self.0.entry);
        }
        let tag = self.0.tags.next();
        let mut body = [0; MAX_BODY];
        let body = &mut body[..Table::body_len(route.capacity)];
        op.list();
        let locked = op.list_at(at.node(), |verbs| match verbs.cas(at, 0, tag.0)? {
            0 => Ok(Some(verbs.read(at.plus(BODY_AT as u64), body))),
            _ => Ok(None),
        });
        let Some(read) = locked.ok()? else {
            Mark::LockHeld.hit();
            return None;
        };
        self.0.hits.count();
        calm.took();
        let mut table = self.0.spare_table();
        if read.is_ok() && table.load(route.table, route.capacity, body) && route.matches(&table) {
            return Some((OwnLeaf { route, at, tag, table, parent }, self.0.found.take()));
        }
        Mark::LockStale.hit();
        self.0.keep_table(table);
        if !op.detached_list(|op| op.cas(at, tag.0, 0)) {
            self.0.node.abandon_leaf(tag, route);
        }
        None
    }

    /// The steps of a write under its lock.
    #[inline]
    fn run(
        self,
        op: &mut DirectOp<'_>,
        leaf: &mut OwnLeaf<'_>,
        steps: &mut PointWrite<'_>,
    ) -> std::result::Result<Done, MustWait> {
        let mut entry = [0; MAX_ENTRY];
        let entry = &mut entry[..self.0.entry];
        loop {
            let place = |slot| Place { leaf: leaf.route.leaf, slot };
            let (slot, done) = match steps.next(&leaf.table) {
                Next::Probe(slot) => {
                    op.list();
                    op.read(Entries(self.0).at(place(slot)), entry)?;
                    let (g, key) = (&self.0.node.g, (steps.key, steps.hash));
                    let looked = Looked::at(g, place(slot), entry, key, &mut steps.old);
                    match looked.probe() {
                        Some(probe) => steps.saw(slot, &probe),
                        None => return Err(MustWait(Some(looked))),
                    }
                    continue;
                }
                Next::Refuse(outcome, counted) => {
                    self.0.check_lease_untouched()?;
                    return Ok(Done::SameTable(outcome, counted));
                }
                Next::Free(present) => {
                    debug_assert_ne!(leaf.table.fps()[present.slot], 0, "F: the slot is live");
                    let free = slot::free_word(place(present.slot), leaf.table.ver);
                    self.0.check_lease_untouched()?;
                    self.append(steps.key, None)?;
                    op.list();
                    op.write_word(Entries(self.0).at(place(present.slot)), free)?;
                    return Ok(Done::Slot(present.slot, 0, OpOutcome::Hit));
                }
                Next::Replace(present) => {
                    debug_assert_ne!(leaf.table.fps()[present.slot], 0, "F: the slot is live");
                    (present.slot, Done::SameTable(Outcome::Done, OpOutcome::Hit))
                }
                Next::Fill => {
                    let slot = leaf.table.free_slot().ok_or(MustWait(None))?;
                    let fp = steps.hash.fingerprint();
                    (slot, Done::Slot(slot, fp, OpOutcome::InsertPlain))
                }
            };
            let pair = (steps.key, steps.write.value().unwrap_or(&[]));
            let fits = Entries(self.0).encode_inline(place(slot), leaf.table.ver, pair, entry);
            debug_assert!(fits, "checked before");
            self.0.check_lease_untouched()?;
            self.append(pair.0, Some(pair.1))?;
            op.list();
            op.write(Entries(self.0).at(place(slot)), entry)?;
            return Ok(done);
        }
    }

    /// The effect of a write, into the journal of a durable index.
    #[inline]
    fn append(self, key: &[u8], value: Option<&[u8]>) -> std::result::Result<(), MustWait> {
        match Journaled(self.0).append_at_once(key, value) {
            true => Ok(()),
            false => Err(MustWait(None)),
        }
    }

    /// Ends a write: the table, if it has changed, and the lock behind it.
    #[inline]
    fn unlock(
        self,
        op: &mut DirectOp<'_>,
        mut leaf: OwnLeaf<'_>,
        key: &[u8],
        done: Done,
    ) -> Outcome {
        let (at, tag, route) = (leaf.at, leaf.tag, leaf.route);
        let (unlocked, outcome, counted) = match done {
            Done::SameTable(outcome, counted) => {
                (op.detached_list(|op| op.cas(at, tag.0, 0)), outcome, counted)
            }
            Done::Slot(slot, fp, counted) => {
                leaf.table.set(slot, fp);
                Router(self.0).note_mirror_at(leaf.parent, key, &route, (slot, fp));
                let mut body = [0; MAX_BODY];
                let body = &mut body[..Table::body_len(route.capacity)];
                leaf.table.body(route.table, body);
                let unlocked = op.detached_list(|op| {
                    op.list_at(at.node(), |verbs| {
                        verbs.write(at.plus(BODY_AT as u64), body)?;
                        verbs.cas(at, tag.0, 0)
                    })
                });
                (unlocked, Outcome::Done, counted)
            }
        };
        if !unlocked {
            self.0.node.abandon_leaf(tag, route);
        }
        op.end(counted);
        if matches!(done, Done::Slot(_, 0, _)) && leaf.table.live() * 4 <= route.capacity {
            self.0.node.push_chore(Chore::Merge(key.to_vec()));
        }
        self.0.keep_table(leaf.table);
        outcome
    }
}
