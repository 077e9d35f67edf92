//! Turns at remote locks: of the clients of one compute node, at most one at a time tries for a lock; the others queue here,
//! first come, first served, and cost no verbs.

use std::rc::Rc;
use std::sync::Arc;

use dmtree_fabric::wait::FifoMutex;
use dmtree_fabric::{DetachedHook, Endpoint, Result, WaitReason, golden_hash};

/// A fixed number of turnstiles; a lock's number picks one. Two locks may share one: that costs waiting, never correctness, as
/// long as whoever waits for a turn while holding another waits for one of a higher rank. (Ranks share none.)
#[derive(Debug)]
pub struct TurnTable {
    slots: Box<[FifoMutex]>,
    /// Turnstiles of one rank: a power of two.
    of_rank: usize,
}

/// The place of a lock in the order in which turns are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rank(pub u8);

impl TurnTable {
    /// `slots` turnstiles, rounded up to a power of two.
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

    /// Waits for the turn at lock number `lock`.
    ///
    /// # Errors
    /// `TimedOut` at the deadline of the operation.
    pub async fn turn(self: &Arc<Self>, ep: &Endpoint, lock: u64) -> Result<Turn> {
        self.turn_of(ep, Rank(0), lock).await
    }

    /// The same for a lock of some rank. The caller holds turns of lower ranks only.
    ///
    /// # Errors
    /// As [`TurnTable::turn`].
    pub async fn turn_of(self: &Arc<Self>, ep: &Endpoint, rank: Rank, lock: u64) -> Result<Turn> {
        let index = self.index(rank, lock);
        let why = WaitReason { what: "turn at a lock", at: lock };
        self.slots[index].acquire(ep, why).await?;
        Ok(Turn { table: self.clone(), index, held: true })
    }

    /// The same for a lock whose ticket waiting threads poll.
    ///
    /// # Errors
    /// As [`TurnTable::turn`].
    pub async fn polled_turn(self: &Arc<Self>, ep: &Endpoint, lock: u64) -> Result<Turn> {
        let index = self.index(Rank(0), lock);
        let why = WaitReason { what: "turn at a ticket", at: lock };
        self.slots[index].acquire_polled(ep, why).await?;
        Ok(Turn { table: self.clone(), index, held: true })
    }

    /// Takes the turn when nobody has it.
    pub fn try_turn(self: &Arc<Self>, lock: u64) -> Option<Turn> {
        self.try_turn_of(Rank(0), lock)
    }

    /// The same for a lock of some rank.
    pub fn try_turn_of(self: &Arc<Self>, rank: Rank, lock: u64) -> Option<Turn> {
        let index = self.index(rank, lock);
        let held = self.slots[index].try_acquire();
        held.then(|| Turn { table: self.clone(), index, held: true })
    }
}

/// A turn; passed on when dropped.
#[derive(Debug)]
pub struct Turn {
    table: Arc<TurnTable>,
    index: usize,
    held: bool,
}

impl Turn {
    /// Whether clients of this node queue behind.
    pub fn is_awaited(&self) -> bool {
        self.table.slots[self.index].is_awaited()
    }

    /// How many threads have clients that poll for it behind ([`TurnTable::polled_turn`]).
    pub fn threads_waiting(&self) -> usize {
        self.table.slots[self.index].threads_waiting()
    }

    /// Leaves passing the turn on to a detached list: the number to give to [`TurnHook`].
    #[must_use]
    pub fn hand_over(mut self) -> u64 {
        self.held = false;
        self.index as u64
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        if self.held {
            self.table.slots[self.index].release();
        }
    }
}

/// Passes a turn on when the detached unlock has been executed, so that the next client of this node finds the lock free.
#[derive(Debug)]
pub struct TurnHook(Arc<TurnTable>);

impl TurnHook {
    /// A hook for the turns of one table.
    pub fn of(table: &Arc<TurnTable>) -> Rc<dyn DetachedHook> {
        Rc::new(Self(table.clone()))
    }
}

impl DetachedHook for TurnHook {
    fn finished(&self, index: u64) {
        self.0.slots[index as usize].release();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A client that held the lock of an inner node waited for that of its parent, which had the same turnstile: for itself.
    #[test]
    fn locks_of_different_ranks_never_share_a_fifo_mutex() {
        let turns = TurnTable::ranked(Rank(2), 1);
        let node = turns.try_turn_of(Rank(1), 7).expect("nobody has it");
        assert!(turns.try_turn_of(Rank(1), 8).is_none(), "one of a rank");
        let parent = turns.try_turn_of(Rank(2), 7).expect("another rank");
        assert!(turns.try_turn_of(Rank(9), 1).is_none(), "counts as the highest");
        drop(node);
        drop(parent);
        assert!(turns.try_turn_of(Rank(1), 8).is_some());
    }
}
