//! Detached unlocks that fail: nobody waits for them, so they leave an orphan by themselves.
//!
//! A home that does not answer for a while, and is not dead, still holds the lock of an operation that ended long ago. Without its
//! orphan the lock would be held for ever.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use dmtree_fabric::{DetachedHook, Result};
use dmtree_parts::fifo_mutex::{FifoGuard, FifoMutexes, FifoReleaseHook};

use crate::client::HeldLock;
use crate::node::DmNode;

/// The argument's turn when the unlock has none to pass on.
const NO_TURN: u64 = u32::MAX as u64;

/// A hook, and the number to give it.
pub(crate) type Hooking = Option<(Rc<dyn DetachedHook>, u64)>;

/// The locks that the detached lists of one client are giving back.
pub(crate) struct UnlockHook {
    node: Arc<DmNode>,
    turns: Rc<dyn DetachedHook>,
    under_way: RefCell<UnderWay>,
}

#[derive(Default)]
struct UnderWay {
    locks: Vec<HeldLock>,
    /// Places in `locks` that nobody uses.
    free: Vec<u32>,
}

impl UnlockHook {
    /// A hook for unlocks whose turns are those of `turns`.
    pub fn of(node: &Arc<DmNode>, turns: &Arc<FifoMutexes>) -> Rc<Self> {
        let (node, turns) = (node.clone(), FifoReleaseHook::of(turns));
        Rc::new(Self { node, turns, under_way: RefCell::default() })
    }

    /// A lock is about to be given back: what to post the unlock with.
    pub fn watch(self: &Rc<Self>, lock: HeldLock, turn: Option<FifoGuard>) -> Hooking {
        let mut u = self.under_way.borrow_mut();
        let place = match u.free.pop() {
            Some(place) => {
                u.locks[place as usize] = lock;
                place
            }
            None => {
                u.locks.push(lock);
                u.locks.len() as u32 - 1
            }
        };
        let turn = turn.map_or(NO_TURN, FifoGuard::hand_over);
        Some((self.clone(), u64::from(place) << 32 | turn))
    }
}

impl DetachedHook for UnlockHook {
    fn finished(&self, arg: u64) {
        let turn = arg & NO_TURN;
        if turn != NO_TURN {
            self.turns.finished(turn);
        }
    }

    fn ended(&self, arg: u64, result: &Result<()>) {
        let place = (arg >> 32) as u32;
        let lock = {
            let mut u = self.under_way.borrow_mut();
            u.free.push(place);
            u.locks[place as usize]
        };
        if result.is_err() {
            self.node.abandoned_lock(lock);
        }
    }
}
