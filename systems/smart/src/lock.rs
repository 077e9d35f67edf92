//! Locks in lock tables of the memory nodes: of inner nodes (ART), and of leaves before the lock
//! moves into the leaf.
//!
//! A lock table has words in memory nodes, in on-chip memory where the fabric has any. The address
//! of a node or leaf is hashed to a word, so several objects can share a lock. Every compute node
//! puts a FIFO of local locks in front of the remote words.
//!
//! Verbs in order:
//! 1. `Smart::lock` waits for the local lock of the word. A predecessor on this compute node may
//!    hand the remote lock over; then no verb follows.
//! 2. Otherwise CAS word: 0 -> tag of the client, repeated until it succeeds.
//! 3. `Smart::unlock` hands the lock over to the next local waiter (at most 8 times in a row), or
//!    CAS word: tag -> 0. `Smart::write_and_unlock` WRITEs the leaf and releases in one chain.
//!
//! Invariants: a lock word is 0, or has the tag of a client that took it; after hand-overs this may
//! be the tag of an earlier holder of the same compute node. A client holds at most one lock of the
//! tables at a time, so lock waits have no cycle, although objects share words.
//!
//! A crash of a holder leaves its tag in the word for ever. As published no client recovers an
//! abandoned lock: later clients time out.

use dmtree_fabric::verb::{cas, write};
use dmtree_fabric::{Buf, Error, GlobalAddr, Result, Stage, Step};
use dmtree_parts::handover::LocalGuard;
use dmtree_parts::lock_words::LockWord;

use crate::index::Smart;

#[derive(Debug)]
pub(crate) struct Held {
    word: GlobalAddr,
    guard: LocalGuard,
}

/// Locks of leaves, and of what they guard.
pub(crate) struct Locks<'c>(pub(crate) &'c Smart);

impl Locks<'_> {
    /// Takes the lock of a node or leaf.
    pub(crate) async fn lock(&self, of: GlobalAddr) -> Result<Held> {
        let (words, local) = self.0.node.locks.find(&self.0.ep, &self.0.node).await?;
        let LockWord { at: word, number } = words.by_hash(of)?;
        let guard = match local.try_lock(number) {
            Some(guard) => guard,
            None => {
                let guard = local.lock(&self.0.ep, number).await?;
                self.0.ep.stage_cost(Stage::PolledLine, guard.threads_waiting() as u32);
                guard
            }
        };
        self.0.ep.stage_cost(Stage::LocalQueue, 1);
        self.0.ep.point().await;
        if guard.is_handed {
            return Ok(Held { word, guard });
        }
        self.0.take_lock(word).await?;
        guard.set_tag(self.0.tag);
        Ok(Held { word, guard })
    }

    /// Releases a lock, or hands it over.
    pub(crate) async fn unlock(&self, held: Held) -> Result<()> {
        let Held { word, guard } = held;
        self.release(word, guard.hand_over_if_awaited()).await
    }

    /// Frees the word of a lock that was not handed over. It has the tag of the client of this
    /// compute node that took it.
    async fn release(&self, word: GlobalAddr, guard: Option<LocalGuard>) -> Result<()> {
        let Some(guard) = guard else { return Ok(()) };
        self.0.ep.step(Step::Lock);
        let was = self.0.ep.cas(word, guard.tag(), 0).await?;
        leave(word, was, guard)
    }

    /// WRITEs a leaf, and releases its lock in the same chain or hands the lock over.
    pub(crate) async fn write_and_unlock(
        &self,
        held: Held,
        at: GlobalAddr,
        image: Buf,
    ) -> Result<()> {
        let Held { word, guard } = held;
        self.0.ep.step(Step::Entry);
        if guard.may_hand_over() {
            self.0.ep.write(at, image).await?;
            return self.release(word, guard.hand_over()).await;
        }
        let (_, was) = self.0.ep.chain((write(at, image), cas(word, guard.tag(), 0))).await?;
        leave(word, was, guard)
    }
}

/// Ends the hold of a lock, if its word had the right tag when it was freed.
fn leave(word: GlobalAddr, was: u64, guard: LocalGuard) -> Result<()> {
    let tag = guard.tag();
    if was != tag {
        return Err(Error::corrupt(format!("lock {word} held {was:#x} instead of {tag:#x}")));
    }
    guard.leave();
    Ok(())
}
