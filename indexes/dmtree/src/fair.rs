//! Leaf locks are shared fairly with other nodes: see `dmtree_parts::rivals`.

use dmtree_fabric::verb::{cas, read};
use dmtree_fabric::{GlobalAddr, Result, Step};
use dmtree_parts::rivals::stamp;

use crate::client::{DmTree, Route, is_away};
use crate::marks::Mark;

/// A waiter says that it waits after so many tries, and every so many further ones.
const SAYS_EVERY: u32 = 2;
/// Longest time that a lock is left to a node that has said that it waits, ns. Such a node looks
/// again and again, but its threads may have to wait for their processor.
const LEFT_FOR_NS: u64 = 20_000_000;
/// Pauses between looks meanwhile, ns: the first, and the longest.
const LOOKS_AFTER_NS: (u64, u64) = (2_000, 64_000);

impl DmTree {
    /// Before a client of a lock's home tries for it: while its node is ahead of others and one of
    /// them says that it waits, the lock is left to them until one has it. The tag that was met; 0
    /// when none was. Costs a load unless others have been met there.
    pub(crate) async fn let_others_in(&self, route: &Route) -> Result<u64> {
        match self.node.rivals.is_ahead(route.table.bits()) {
            false => Ok(0),
            true => Box::pin(self.leave_lock(route)).await,
        }
    }

    async fn leave_lock(&self, route: &Route) -> Result<u64> {
        let (rivals, lock) = (&self.node.rivals, route.table.bits());
        let mut until = None;
        let (mut pause, longest) = LOOKS_AFTER_NS;
        loop {
            let at = match self.node.pool.resolve(&self.ep, route.table).await {
                Ok(at) => at,
                Err(e) if is_away(&e) => return Ok(0),
                Err(e) => return Err(e),
            };
            let word = self.node.pool.wait_word(route.table, at);
            let Some(word) = word.filter(|_| at.node() == self.ep.node()) else { return Ok(0) };
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
            let now = self.ep.now();
            if rivals.is_news(lock, said) && until.is_none() {
                Mark::LockLeft.hit();
                until = Some(now + LEFT_FOR_NS);
            }
            if until.is_none_or(|until| until <= now) {
                rivals.nobody_came(lock);
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

    /// A try has found the lock in other hands. The home of the lock counts other nodes; a waiter
    /// of another node says now and then that it waits.
    pub(crate) async fn meet(
        &self,
        route: &Route,
        at: GlobalAddr,
        was: u64,
        met: &mut u64,
        tries: u32,
    ) -> Result<()> {
        let lock = route.table.bits();
        if at.node() == self.ep.node() {
            if self.is_rival(was) && std::mem::replace(met, was) != was {
                self.node.rivals.met(lock);
            }
            return Ok(());
        }
        if tries == 0 || !tries.is_multiple_of(SAYS_EVERY) {
            return Ok(());
        }
        let Some(word) = self.node.pool.wait_word(route.table, at) else { return Ok(()) };
        let client = (self.next_tag().0 >> 16) as u16;
        match self.ep.write_word(word, stamp(lock, client, tries)).await {
            Err(e) if !is_away(&e) => Err(e),
            _ => Ok(()),
        }
    }
}
