//! Turns at remote locks: of the clients of one compute node, at most one at a time tries for a lock; the others queue here,
//! first come, first served, and cost no verbs.

use std::rc::Rc;
use std::sync::Arc;

use dmtree_fabric::wait::Turnstile;
use dmtree_fabric::{DetachedHook, Endpoint, Result, WaitReason};

/// A fixed number of turnstiles; a lock's number picks one. Two locks may share one: that costs waiting, never correctness, as
/// long as nobody waits for a turn while holding another.
#[derive(Debug)]
pub struct TurnTable {
    slots: Box<[Turnstile]>,
}

impl TurnTable {
    /// `slots` turnstiles, rounded up to a power of two.
    pub fn new(slots: usize) -> Arc<Self> {
        let n = slots.next_power_of_two();
        Arc::new(Self { slots: (0..n).map(|_| Turnstile::new()).collect() })
    }

    fn index(&self, lock: u64) -> usize {
        (lock.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize & (self.slots.len() - 1)
    }

    /// Waits for the turn at lock number `lock`.
    ///
    /// # Errors
    /// `TimedOut` at the deadline of the operation.
    pub async fn turn(self: &Arc<Self>, ep: &Endpoint, lock: u64) -> Result<Turn> {
        let index = self.index(lock);
        let why = WaitReason { what: "turn at a lock", at: lock };
        self.slots[index].acquire(ep, why).await?;
        Ok(Turn { table: self.clone(), index, held: true })
    }

    /// Takes the turn when nobody has it.
    pub fn try_turn(self: &Arc<Self>, lock: u64) -> Option<Turn> {
        let index = self.index(lock);
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
