//! Fair shares of leaf locks between compute nodes: see `dmtree_parts::fairness` for the rule and
//! its argument.
//!
//! The problem: a node that tries again faster than tries of other nodes arrive would take a lock
//! again and again. The rule, the same for all nodes:
//!
//! 1. A waiter that meets other nodes' tags WRITEs a stamp (lock, node, takes, announcements) to
//!    its node's word of four at the table's owner, at every second try.
//! 2. A client that takes the lock replaces its node's stamp by a detached CAS: by the next one
//!    while other clients of the node queue, else by 0.
//! 3. A node in company READs the stamps along with lock and table, in the same round trip. When it
//!    finds stamps of others, its next client leaves the lock free until each of those nodes has
//!    had it.
//! 4. A lock is left free for a bounded time: 20 ms without a new announcement, 200 ms in all, once
//!    for each stamp. So a waiter that dies delays the others once.
//!
//! A node waits only for nodes that have had the lock before its own last take and not since, so
//! there is no circle of nodes that wait for each other at one lock. Nor is there one over several
//! locks that share a FIFO mutex: a node announces only a client that has the mutex, or is the next
//! to get it, and never one behind a client that leaves another lock. A lock that is abandoned, or
//! held by this node, is not left: no waiter gets it before it is recovered.
//!
//! Fairness only: the stamps are hints, and no invariant rests on them. A lost, late or foreign
//! stamp (nodes equal modulo four share a word) costs time within the bound of step 4.
//!
//! Without company and without a queue no verb is added. Lock words, and tables on memory nodes,
//! have no stamps.

use std::ops::Range;

use dmtree_fabric::verb::{Read, beside, cas, chain, read};
use dmtree_fabric::{GlobalAddr, Nanos, Result, Sampled, Step};
use dmtree_parts::fairness::{Next, Said, WORDS};
use dmtree_parts::fifo_mutex::FifoGuard;

use crate::format::BODY_AT;
use crate::lock::HeldLock;
use crate::{Client, Mark, Route, is_away, reached};

/// A waiter announces itself after this many tries, and after every so many further ones.
const ANNOUNCE_EVERY: u32 = 2;
/// Longest time that a lock is left to waiters that do not renew their announcement, ns. A waiter
/// tries again and again, but its thread may have to wait for its processor.
const QUIET_NS: Nanos = 20_000_000;
/// Longest time that a lock is left free at a time, ns.
const LEFT_FOR_NS: Nanos = 200_000_000;
/// Pauses between probes of the lock meanwhile, ns: the first, and the longest.
const PROBES_AFTER_NS: (Nanos, Nanos) = (2_000, 64_000);

/// Length of the stamps of a lock.
pub(crate) const STAMP_BYTES: u32 = WORDS as u32 * 8;

/// A slot of an image that ends so many bytes behind the beginning of the table comes with the
/// table, in one READ; farther ones have a READ of their own. Bytes between the two load the
/// owner's link, another READ its responder: at this bound both are full together (100 Gb/s, 20 ns
/// a READ, 32 slots).
const ONE_READ_BYTES: usize = 448;

/// What a try for a lock READs behind it.
pub(crate) struct BehindLock {
    /// The table's body, or a slot, and where it ends.
    body: GlobalAddr,
    len: usize,
    /// A slot of the image with a READ of its own.
    beside: Option<Read>,
}

impl BehindLock {
    /// The first `len` bytes of a cell from the table's body on, and perhaps a slot of the image,
    /// counted from there, too.
    pub(crate) fn of(cell: GlobalAddr, len: usize, slot: Option<Range<usize>>) -> Self {
        let body = cell.plus(BODY_AT as u64);
        let (len, beside) = match slot {
            None => (len, None),
            Some(slot) if slot.end <= ONE_READ_BYTES => (slot.end, None),
            Some(slot) => (len, Some(read(body.plus(slot.start as u64), slot.len() as u32))),
        };
        Self { body, len, beside }
    }

    /// A slot of the image alone, counted from the table's body.
    pub(crate) fn slot(cell: GlobalAddr, slot: &Range<usize>) -> Self {
        let body = cell.plus((BODY_AT + slot.start) as u64);
        Self { body, len: slot.len(), beside: None }
    }
}

/// What a try for a lock has READ.
pub(crate) struct TriedFor {
    /// The lock word before it.
    pub was: u64,
    /// The table's body, and what may be behind it; or a slot of the image alone.
    pub body: Sampled,
    /// The slot of the image, if it has a READ of its own.
    pub beside: Option<Sampled>,
    /// The stamps, in company.
    pub said: Option<Sampled>,
}

fn stamps(said: &Sampled) -> Said {
    std::array::from_fn(|i| said.word(i))
}

/// Shares the locks of leaves with other compute nodes.
#[derive(Clone, Copy)]
pub(crate) struct Contenders<'c>(pub &'c Client);

impl Contenders<'_> {
    /// Called before a client tries for a lock: a lock that other nodes wait for is left to them.
    /// Costs one load unless other nodes wait.
    pub(crate) async fn yield_lock(self, route: &Route) -> Result<()> {
        let lock = route.table.bits();
        if !self.0.node.contenders.is_awaited(lock) {
            return Ok(());
        }
        let left = Box::pin(self.leave_lock(route)).await;
        self.0.node.contenders.left(lock);
        left
    }

    /// The FIFO guard of a lock, when no client of this node has it and no other node waits.
    pub(crate) fn try_fifo_guard(self, route: &Route) -> Option<FifoGuard> {
        let lock = route.table.bits();
        let fifo_guard = self.0.node.leaf_fifo.try_lock(lock)?;
        (!self.0.node.contenders.is_awaited(lock)).then_some(fifo_guard)
    }

    /// Leaves a lock free until the waiting nodes have had it, or for a bounded time.
    async fn leave_lock(self, route: &Route) -> Result<()> {
        let c = self.0;
        Mark::LockLeft.hit();
        let (contenders, lock) = (&c.node.contenders, route.table.bits());
        let last = c.ep.now() + LEFT_FOR_NS;
        let (mut until, mut before) = (0, None);
        let (mut pause, longest) = PROBES_AFTER_NS;
        loop {
            let Some(at) = c.cell(route.table).await? else { return Ok(()) };
            let Some(words) = c.node.pool.wait_words(route.table, at) else { return Ok(()) };
            c.ep.step(Step::Lock);
            let Some((was, said)) =
                reached(c.ep.batch((cas(at, 0, 0), read(words, STAMP_BYTES))).await)?
            else {
                return Ok(());
            };
            // No waiter gets a lock that a dead node or a failed operation has abandoned before its
            // recovery.
            let is_stuck = c.node.is_abandoned(was) || (was != 0 && !self.is_rival(was));
            if is_stuck {
                return Ok(());
            }
            let Some(waiting) = contenders.still_waiting(lock, &stamps(&said)) else {
                return Ok(());
            };
            let now = c.ep.now();
            if before.replace(waiting) != Some(waiting) {
                until = last.min(now + QUIET_NS);
            }
            if until <= now {
                contenders.gave_up(lock, waiting);
                return Ok(());
            }
            c.ep.check_deadline("leaf lock", route.leaf.bits())?;
            c.op.quiescent_point();
            c.ep.sleep(pause).await;
            pause = (pause * 2).min(longest);
        }
    }

    /// Whether a lock is another node's.
    fn is_rival(self, tag: u64) -> bool {
        tag != 0 && (tag >> 48) as u16 != self.0.ep.node().bits()
    }

    /// A try has found the lock held. Other nodes are recorded as contenders; now and then the
    /// waiter announces itself by a stamp.
    pub(crate) async fn meet(
        self,
        route: &Route,
        at: GlobalAddr,
        was: u64,
        tries: u32,
    ) -> Result<()> {
        if !self.is_rival(was) {
            return Ok(());
        }
        let lock = route.table.bits();
        self.0.node.contenders.met(lock);
        if tries == 0 || !tries.is_multiple_of(ANNOUNCE_EVERY) {
            return Ok(());
        }
        let Some(word) = self.own_wait_word(route, at) else { return Ok(()) };
        match self.0.ep.write_word(word, self.0.node.contenders.says(lock)).await {
            Err(e) if !is_away(&e) => Err(e),
            _ => Ok(()),
        }
    }

    fn own_wait_word(self, route: &Route, at: GlobalAddr) -> Option<GlobalAddr> {
        let words = self.0.node.pool.wait_words(route.table, at)?;
        Some(words.plus((self.0.ep.node().index() % WORDS * 8) as u64))
    }

    /// A waiting client has taken the lock: the stamp tells other nodes, and whether more clients
    /// of this node wait. Costs one load unless this node has announced a waiter.
    #[inline]
    pub(crate) fn announce_taken(self, route: &Route, at: GlobalAddr, fifo_guard: &FifoGuard) {
        let lock = route.table.bits();
        let more = || fifo_guard.is_next(lock);
        let Some(next) = self.0.node.contenders.next(lock, more) else { return };
        if let Some(word) = self.own_wait_word(route, at) {
            let Next { was, now } = next;
            self.0.ep.detach(cas(word, was, now), None);
        }
    }

    /// The stamp words that a try for a lock reads along with it.
    #[inline]
    pub(crate) fn stamps_at(
        self,
        route: &Route,
        at: GlobalAddr,
        fifo_guard: &FifoGuard,
    ) -> Option<GlobalAddr> {
        let lock = route.table.bits();
        let looks = self.0.node.contenders.looks(lock, || fifo_guard.is_next(lock));
        looks.then(|| self.0.node.pool.wait_words(route.table, at)).flatten()
    }

    /// A try has taken the lock, and read these stamps.
    #[inline]
    pub(crate) fn took(self, route: &Route, said: Option<&Sampled>) {
        self.0.node.contenders.took(route.table.bits(), said.map(stamps).as_ref());
    }

    /// As [`Client::try_for`] a leaf's lock, with these READs; in company it READs the stamps in
    /// the same round trip.
    pub(crate) async fn try_for(
        self,
        route: &Route,
        lock: HeldLock,
        (at, behind): (GlobalAddr, BehindLock),
        fifo_guard: &FifoGuard,
    ) -> Result<TriedFor> {
        let BehindLock { body, len, beside: near } = behind;
        let body = read(body, len as u32);
        let reads = beside(body, near);
        let Some(words) = self.stamps_at(route, at, fifo_guard) else {
            // Most locks are taken with a table alone: their chain has no place for another READ.
            let (was, (body, beside)) = match near {
                Some(_) => self.0.try_for(lock, (at, 0), reads).await?,
                None => {
                    let (was, body) = self.0.try_for(lock, (at, 0), body).await?;
                    (was, (body, None))
                }
            };
            return Ok(TriedFor { was, body, beside, said: None });
        };
        let take = chain((cas(at, 0, lock.tag.0), reads));
        let verbs = self.0.ep.batch((take, read(words, STAMP_BYTES)));
        let ((was, (body, beside)), said) = self.0.op.try_for(&[lock], verbs).await?;
        Ok(TriedFor { was, body, beside, said: Some(said) })
    }
}
