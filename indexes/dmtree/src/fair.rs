//! Leaf locks are shared fairly between compute nodes: see `dmtree_parts::fairness`.

use dmtree_fabric::verb::{cas, chain, read};
use dmtree_fabric::{GlobalAddr, Nanos, Result, Sampled, Step};
use dmtree_parts::fairness::{Next, Said, WORDS};
use dmtree_parts::fifo_mutex::FifoGuard;

use crate::client::{DmTree, HeldLock, Route, is_away};
use crate::marks::Mark;

/// A waiter says that it waits after so many tries, and every so many further ones.
const SAYS_EVERY: u32 = 2;
/// Longest time that a lock is left to waiters that do not say again that they wait, ns. They try
/// again and again, but their threads may have to wait for their processor.
const QUIET_NS: Nanos = 20_000_000;
/// Longest time that a lock is left at a time, ns.
const LEFT_FOR_NS: Nanos = 200_000_000;
/// Pauses between looks meanwhile, ns: the first, and the longest.
const LOOKS_AFTER_NS: (Nanos, Nanos) = (2_000, 64_000);

/// How long the stamps of a lock are.
pub(crate) const STAMP_BYTES: u32 = WORDS as u32 * 8;

fn stamps(said: &Sampled) -> Said {
    std::array::from_fn(|i| said.word(i))
}

impl DmTree {
    /// Before a client tries for a lock: a lock that other nodes wait for is left to them. Costs a
    /// load unless other nodes wait.
    pub(crate) async fn let_others_in(&self, route: &Route) -> Result<()> {
        let lock = route.table.bits();
        if !self.node.rivals.is_awaited(lock) {
            return Ok(());
        }
        let left = Box::pin(self.leave_lock(route)).await;
        self.node.rivals.left(lock);
        left
    }

    /// The turn at a lock, when no client of this node has it and no other node waits.
    pub(crate) fn try_turn(&self, route: &Route) -> Option<FifoGuard> {
        let lock = route.table.bits();
        let turn = self.node.leaf_turns.try_turn(lock)?;
        (!self.node.rivals.is_awaited(lock)).then_some(turn)
    }

    /// Leaves a lock free until those that wait for it have had it, or for a bounded time.
    async fn leave_lock(&self, route: &Route) -> Result<()> {
        Mark::LockLeft.hit();
        let (rivals, lock) = (&self.node.rivals, route.table.bits());
        let last = self.ep.now() + LEFT_FOR_NS;
        let (mut until, mut before) = (0, None);
        let (mut pause, longest) = LOOKS_AFTER_NS;
        loop {
            let at = match self.node.pool.resolve(&self.ep, route.table).await {
                Ok(at) => at,
                Err(e) if is_away(&e) => return Ok(()),
                Err(e) => return Err(e),
            };
            let Some(words) = self.node.pool.wait_words(route.table, at) else { return Ok(()) };
            self.ep.step(Step::Lock);
            let (was, said) = match self.ep.batch((cas(at, 0, 0), read(words, STAMP_BYTES))).await {
                Ok(looked) => looked,
                Err(e) if is_away(&e) => return Ok(()),
                Err(e) => return Err(e),
            };
            // No waiter gets what a dead node or an orphan of this one holds before its repair.
            let is_stuck = self.node.is_abandoned(was) || (was != 0 && !self.is_rival(was));
            if is_stuck {
                return Ok(());
            }
            let Some(waiting) = rivals.still_waiting(lock, &stamps(&said)) else { return Ok(()) };
            let now = self.ep.now();
            if before.replace(waiting) != Some(waiting) {
                until = last.min(now + QUIET_NS);
            }
            if until <= now {
                rivals.gave_up(lock, waiting);
                return Ok(());
            }
            self.ep.check_deadline("leaf lock", route.leaf.bits())?;
            self.pass();
            self.ep.sleep(pause).await;
            pause = (pause * 2).min(longest);
        }
    }

    /// Whether a lock is another node's.
    fn is_rival(&self, tag: u64) -> bool {
        tag != 0 && (tag >> 48) as u16 != self.ep.node().bits()
    }

    /// A try has found the lock in other hands. Other nodes are noticed; a waiter says now and then
    /// that it waits.
    pub(crate) async fn meet(
        &self,
        route: &Route,
        at: GlobalAddr,
        was: u64,
        tries: u32,
    ) -> Result<()> {
        if !self.is_rival(was) {
            return Ok(());
        }
        let lock = route.table.bits();
        self.node.rivals.met(lock);
        if tries == 0 || !tries.is_multiple_of(SAYS_EVERY) {
            return Ok(());
        }
        let Some(word) = self.own_wait_word(route, at) else { return Ok(()) };
        match self.ep.write_word(word, self.node.rivals.says(lock)).await {
            Err(e) if !is_away(&e) => Err(e),
            _ => Ok(()),
        }
    }

    fn own_wait_word(&self, route: &Route, at: GlobalAddr) -> Option<GlobalAddr> {
        let words = self.node.pool.wait_words(route.table, at)?;
        Some(words.plus((self.ep.node().index() % WORDS * 8) as u64))
    }

    /// A client has the lock that it has waited for: other nodes hear so, and whether more clients
    /// of this one wait. Costs a load unless this node has said that it waits.
    pub(crate) fn say_taken(&self, route: &Route, at: GlobalAddr, turn: &FifoGuard) {
        let Some(next) = self.node.rivals.next(route.table.bits(), turn.is_awaited()) else {
            return;
        };
        if let Some(word) = self.own_wait_word(route, at) {
            let Next { was, now } = next;
            self.ep.detach(cas(word, was, now), None);
        }
    }

    /// The words that a try for a lock reads, too.
    pub(crate) fn looks_at(
        &self,
        route: &Route,
        at: GlobalAddr,
        turn: &FifoGuard,
    ) -> Option<GlobalAddr> {
        let looks = self.node.rivals.looks(route.table.bits(), || turn.is_awaited());
        looks.then(|| self.node.pool.wait_words(route.table, at)).flatten()
    }

    /// A try has taken the lock, and read these stamps.
    pub(crate) fn took(&self, route: &Route, said: Option<&Sampled>) {
        self.node.rivals.took(route.table.bits(), said.map(stamps).as_ref());
    }

    /// As [`DmTree::try_for`] a leaf's lock, and READs stamps in the same round trip.
    pub(crate) async fn try_and_look(
        &self,
        lock: HeldLock,
        at: GlobalAddr,
        (body, len): (GlobalAddr, usize),
        words: GlobalAddr,
    ) -> Result<(u64, Sampled, Sampled)> {
        let take = chain((cas(at, 0, lock.tag.0), read(body, len as u32)));
        let verbs = self.ep.batch((take, read(words, STAMP_BYTES)));
        let ((was, body), said) = self.try_with(lock, verbs).await?;
        Ok((was, body, said))
    }
}
