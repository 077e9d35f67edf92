//! FIFO mutexes in front of remote locks: of the clients of one compute node, at most one at a time
//! tries for a remote lock; the others queue here, first come, first served, and cost no verbs.

use std::rc::Rc;
use std::sync::Arc;

use dmtree_fabric::wait::FifoMutex;
use dmtree_fabric::{DetachedHook, Endpoint, Result, WaitReason, golden_hash};

/// A fixed number of FIFO mutexes; a lock's number picks one. Two locks may share one: that costs
/// waiting, never correctness, as long as a client that holds one mutex waits only for a mutex of a
/// higher rank. (Ranks share none.)
#[derive(Debug)]
pub struct FifoMutexes {
    slots: Box<[FifoMutex]>,
    /// Mutexes of one rank: a power of two.
    of_rank: usize,
}

/// The place of a lock in the order in which mutexes are acquired.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rank(pub u8);

impl FifoMutexes {
    /// `slots` mutexes, rounded up to a power of two.
    pub fn new(slots: usize) -> Arc<Self> {
        Self::ranked(Rank(0), slots)
    }

    /// As many for each rank up to `highest`.
    pub fn ranked(highest: Rank, slots: usize) -> Arc<Self> {
        let of_rank = slots.next_power_of_two();
        let all = (usize::from(highest.0) + 1) * of_rank;
        Arc::new(Self { slots: (0..all).map(|_| FifoMutex::new()).collect(), of_rank })
    }

    /// A rank above the highest counts as the highest.
    fn index(&self, rank: Rank, lock: u64) -> usize {
        let hash = (golden_hash(lock) >> 32) as usize;
        let highest = self.slots.len() / self.of_rank - 1;
        usize::from(rank.0).min(highest) * self.of_rank + (hash & (self.of_rank - 1))
    }

    /// Acquires the mutex of lock number `lock`.
    ///
    /// # Errors
    /// `TimedOut` at the deadline of the operation.
    pub fn lock(
        self: &Arc<Self>,
        ep: &Endpoint,
        lock: u64,
    ) -> impl Future<Output = Result<FifoGuard>> {
        self.lock_ranked(ep, Rank(0), lock)
    }

    /// The same for a lock of some rank. The caller holds mutexes of lower ranks only.
    pub async fn lock_ranked(
        self: &Arc<Self>,
        ep: &Endpoint,
        rank: Rank,
        lock: u64,
    ) -> Result<FifoGuard> {
        let index = self.index(rank, lock);
        if let Some(place) = self.slots[index].enter(lock) {
            place.wait(ep, WaitReason { what: "FIFO mutex of a lock", at: lock }).await?;
        }
        Ok(FifoGuard { table: self.clone(), index, held: true })
    }

    /// The same for a lock with a ticket that waiting threads poll.
    pub async fn lock_polled(self: &Arc<Self>, ep: &Endpoint, lock: u64) -> Result<FifoGuard> {
        let index = self.index(Rank(0), lock);
        let why = WaitReason { what: "FIFO mutex of a ticket", at: lock };
        self.slots[index].acquire_polled(ep, why).await?;
        Ok(FifoGuard { table: self.clone(), index, held: true })
    }

    /// Whether a client has the mutex of a lock: a load, and a hint.
    #[inline]
    pub fn is_busy(&self, lock: u64) -> bool {
        let hash = (golden_hash(lock) >> 32) as usize;
        self.slots[hash & (self.of_rank - 1)].is_busy()
    }

    /// Acquires the mutex when it is free.
    pub fn try_lock(self: &Arc<Self>, lock: u64) -> Option<FifoGuard> {
        self.try_lock_ranked(Rank(0), lock)
    }

    /// The same for a lock of some rank.
    pub fn try_lock_ranked(self: &Arc<Self>, rank: Rank, lock: u64) -> Option<FifoGuard> {
        let index = self.index(rank, lock);
        let held = self.slots[index].try_acquire();
        held.then(|| FifoGuard { table: self.clone(), index, held: true })
    }
}

/// An acquired mutex; released when dropped.
#[derive(Debug)]
pub struct FifoGuard {
    table: Arc<FifoMutexes>,
    index: usize,
    held: bool,
}

impl FifoGuard {
    /// Whether the next client of this node waits for this lock, and not for another one that
    /// shares the mutex.
    pub fn is_next(&self, lock: u64) -> bool {
        self.table.slots[self.index].is_next(lock)
    }

    /// How many threads have clients that poll behind ([`FifoMutexes::lock_polled`]).
    pub fn threads_waiting(&self) -> usize {
        self.table.slots[self.index].threads_waiting()
    }

    /// Leaves the release to a detached list: the number to give to [`FifoReleaseHook`].
    #[must_use]
    pub fn hand_over(mut self) -> u64 {
        self.held = false;
        self.index as u64
    }
}

impl Drop for FifoGuard {
    fn drop(&mut self) {
        if self.held {
            self.table.slots[self.index].release();
        }
    }
}

/// Releases a mutex when the detached unlock has been executed, so that the next client of this
/// node finds the remote lock free.
#[derive(Debug)]
pub struct FifoReleaseHook(Arc<FifoMutexes>);

impl FifoReleaseHook {
    /// A hook for the mutexes of one table.
    pub fn of(table: &Arc<FifoMutexes>) -> Rc<dyn DetachedHook> {
        Rc::new(Self(table.clone()))
    }
}

impl DetachedHook for FifoReleaseHook {
    fn finished(&self, index: u64) {
        self.0.slots[index as usize].release();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A client that held the lock of an inner node waited for that of its parent, which had the
    /// same mutex: a deadlock with itself.
    #[test]
    fn locks_of_different_ranks_never_share_a_fifo_mutex() {
        let mutexes = FifoMutexes::ranked(Rank(2), 1);
        let node = mutexes.try_lock_ranked(Rank(1), 7).expect("free");
        assert!(mutexes.try_lock_ranked(Rank(1), 8).is_none(), "one of a rank");
        let parent = mutexes.try_lock_ranked(Rank(2), 7).expect("another rank");
        assert!(mutexes.try_lock_ranked(Rank(9), 1).is_none(), "counts as the highest");
        drop(node);
        drop(parent);
        assert!(mutexes.try_lock_ranked(Rank(1), 8).is_some());
    }

    /// A node that announced a waiter for lock 7, while the next client behind the mutex waited
    /// for lock 8, had other nodes leave lock 7 to it; they did the same with lock 8, and all of
    /// them waited for each other for 20 ms.
    #[test]
    fn a_client_behind_a_shared_mutex_waits_for_its_own_lock() {
        let mutexes = FifoMutexes::new(1);
        let held = mutexes.try_lock(7).expect("free");
        assert!(!held.is_next(7) && !held.is_next(8));
        let _first = mutexes.slots[0].enter(8).expect("held");
        let _second = mutexes.slots[0].enter(7).expect("held");
        assert!(held.is_next(8) && !held.is_next(7), "first come, first served");
    }
}
