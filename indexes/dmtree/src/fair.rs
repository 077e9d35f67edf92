//! Leaf locks are shared fairly between compute nodes: see `dmtree_parts::rivals`.

use dmtree_fabric::verb::{cas, chain, read};
use dmtree_fabric::{GlobalAddr, Nanos, Result, Sampled, Step};
use dmtree_parts::rivals::stamp;
use dmtree_parts::turns::Turn;

use crate::client::{DmTree, HeldLock, Route, is_away};
use crate::format::table::LockTag;
use crate::marks::Mark;

/// A waiter says that it waits after so many tries, and every so many further ones.
const SAYS_EVERY: u32 = 2;
/// Longest time that a lock is left to a waiter that does not stamp again, ns. A waiter tries again
/// and again, but its threads may have to wait for their processor.
const QUIET_NS: Nanos = 20_000_000;
/// Longest time that a lock is left at a time, ns.
const LEFT_FOR_NS: Nanos = 200_000_000;
/// Pauses between looks meanwhile, ns: the first, and the longest.
const LOOKS_AFTER_NS: (Nanos, Nanos) = (2_000, 64_000);

/// What a client has met while it waited for a lock.
#[derive(Default)]
pub(crate) struct Company {
    /// The tag of another node that was met last.
    met: u64,
    /// Where it says that it waits, and the stamp.
    said: Option<(GlobalAddr, u64)>,
}

impl DmTree {
    /// Before a client tries for a lock: a lock that another node waits for is left to it. What was
    /// met there. Costs a load unless another node waits.
    pub(crate) async fn let_others_in(&self, route: &Route) -> Result<Company> {
        match self.node.rivals.is_awaited(route.table.bits()) {
            false => Ok(Company::default()),
            true => {
                let met = Box::pin(self.leave_lock(route)).await?;
                Ok(Company { met, said: None })
            }
        }
    }

    /// The turn at a lock, when no client of this node has it and no other node waits.
    pub(crate) fn try_turn(&self, route: &Route) -> Option<Turn> {
        let lock = route.table.bits();
        let turn = self.node.leaf_turns.try_turn(lock)?;
        (!self.node.rivals.is_awaited(lock)).then_some(turn)
    }

    /// Leaves a lock free until another node has it, until nobody says any more that it waits, or
    /// for a bounded time. The tag that was met; 0 when none was.
    async fn leave_lock(&self, route: &Route) -> Result<u64> {
        Mark::LockLeft.hit();
        let (rivals, lock) = (&self.node.rivals, route.table.bits());
        let last = self.ep.now() + LEFT_FOR_NS;
        let (mut until, mut before) = (0, 0);
        let (mut pause, longest) = LOOKS_AFTER_NS;
        loop {
            let at = match self.node.pool.resolve(&self.ep, route.table).await {
                Ok(at) => at,
                Err(e) if is_away(&e) => return Ok(0),
                Err(e) => return Err(e),
            };
            let Some(word) = self.node.pool.wait_word(route.table, at) else { return Ok(0) };
            self.ep.step(Step::Lock);
            let (was, said) = match self.ep.batch((cas(at, 0, 0), read(word, 8))).await {
                Ok((was, said)) => (was, said.word(0)),
                Err(e) if is_away(&e) => return Ok(0),
                Err(e) => return Err(e),
            };
            if self.is_rival(was) {
                rivals.met(lock);
                return Ok(was);
            }
            // What an orphan of this node holds, no waiter gets before this node repairs it.
            if was != 0 || !rivals.is_rival(lock, said) {
                rivals.left(lock);
                return Ok(0);
            }
            let now = self.ep.now();
            if std::mem::replace(&mut before, said) != said {
                until = last.min(now + QUIET_NS);
            }
            if until <= now {
                rivals.gave_up(lock, said);
                return Ok(0);
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

    /// A try with `tag` has found the lock in other hands. Other nodes are counted; a waiter says
    /// now and then that it waits.
    pub(crate) async fn meet(
        &self,
        route: &Route,
        at: GlobalAddr,
        (was, tag): (u64, LockTag),
        company: &mut Company,
        tries: u32,
    ) -> Result<()> {
        if !self.is_rival(was) {
            return Ok(());
        }
        let lock = route.table.bits();
        if std::mem::replace(&mut company.met, was) != was {
            self.node.rivals.met(lock);
        }
        if tries == 0 || !tries.is_multiple_of(SAYS_EVERY) {
            return Ok(());
        }
        let Some(word) = self.node.pool.wait_word(route.table, at) else { return Ok(()) };
        let said = stamp(lock, self.ep.node().bits(), (tag.0 ^ tag.0 >> 16) as u16);
        company.said = Some((word, said));
        match self.ep.write_word(word, said).await {
            Err(e) if !is_away(&e) => Err(e),
            _ => Ok(()),
        }
    }

    /// A client has had the lock that it has waited for, or needs it no more.
    pub(crate) fn take_back(&self, company: &Company) {
        if let Some((word, said)) = company.said {
            self.ep.detach(cas(word, said, 0), None);
        }
    }

    /// The word that a try for a lock reads, too.
    pub(crate) fn looks_at(&self, route: &Route, at: GlobalAddr) -> Option<GlobalAddr> {
        let looks = self.node.rivals.looks(route.table.bits());
        looks.then(|| self.node.pool.wait_word(route.table, at)).flatten()
    }

    /// As [`DmTree::try_for`] a leaf's lock, and READs a word of stamps in the same round trip.
    pub(crate) async fn try_and_look(
        &self,
        lock: HeldLock,
        at: GlobalAddr,
        (body, len): (GlobalAddr, usize),
        word: GlobalAddr,
    ) -> Result<(u64, Sampled, u64)> {
        let take = cas(at, 0, lock.tag.0);
        let verbs = (chain((take, read(body, len as u32))), read(word, 8));
        let ((was, body), said) = self.try_with(lock, self.ep.batch(verbs)).await?;
        Ok((was, body, said.word(0)))
    }
}
