//! Hooks of detached unlocks: a release that fails leaves an abandoned lock by itself.
//!
//! A release is posted and not awaited, so no caller is left to handle its failure. Each release
//! therefore carries a hook with the lock's tag and place, and with the FIFO guard of the next
//! client on this node.
//!
//! - `finished`: the list has ended, or it was posted by a caller that blocks. The FIFO guard
//!   passes to the next client of the node.
//! - `ended`: none of the list's verbs executes any more. An error turns the lock into an abandoned
//!   lock of this node, and `recovery/locks.rs` frees the word if it still holds the tag, after the
//!   repair of what it covers.
//!
//! The failure matters for an owner that hangs for a while and is not dead: it still holds the lock
//! of an operation that ended long ago. No membership change frees that lock, and without its entry
//! among the abandoned locks it would be held for ever. A release to a dead owner leaves an entry
//! too; the table is then unowned or unbuilt, and repaired as such.
//!
//! Places in `locks` are reused: a client allocates nothing per release once it has reached its
//! largest number of detached lists.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use dmtree_fabric::{DetachedHook, Result};
use dmtree_parts::fifo_mutex::{FifoGuard, FifoMutexes, FifoReleaseHook};
use dmtree_parts::held::LockNode;

use crate::DmNode;
use crate::lock::HeldLock;

/// The hook argument's FIFO guard when the unlock has none to pass on.
const NO_FIFO_GUARD: u64 = u32::MAX as u64;

/// A hook, and its argument.
pub(crate) type Hooking = Option<(Rc<dyn DetachedHook>, u64)>;

/// The locks that the detached lists of one client are giving back.
pub(crate) struct UnlockHook {
    node: Arc<DmNode>,
    fifo: Rc<dyn DetachedHook>,
    in_flight: RefCell<InFlight>,
}

#[derive(Default)]
struct InFlight {
    locks: Vec<HeldLock>,
    /// Free places in `locks`.
    free: Vec<u32>,
}

impl UnlockHook {
    /// A hook for unlocks that pass on FIFO guards of `fifo`.
    pub fn of(node: &Arc<DmNode>, fifo: &Arc<FifoMutexes>) -> Rc<Self> {
        let (node, fifo) = (node.clone(), FifoReleaseHook::of(fifo));
        Rc::new(Self { node, fifo, in_flight: RefCell::default() })
    }

    /// A lock is about to be given back: the hook to post the unlock with.
    pub fn watch(self: &Rc<Self>, lock: HeldLock, fifo_guard: Option<FifoGuard>) -> Hooking {
        let mut u = self.in_flight.borrow_mut();
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
        let fifo_guard = fifo_guard.map_or(NO_FIFO_GUARD, FifoGuard::hand_over);
        Some((self.clone(), u64::from(place) << 32 | fifo_guard))
    }
}

impl DetachedHook for UnlockHook {
    fn finished(&self, arg: u64) {
        let fifo_guard = arg & NO_FIFO_GUARD;
        if fifo_guard != NO_FIFO_GUARD {
            self.fifo.finished(fifo_guard);
        }
    }

    fn ended(&self, arg: u64, result: &Result<()>) {
        let place = (arg >> 32) as u32;
        let lock = {
            let mut u = self.in_flight.borrow_mut();
            u.free.push(place);
            u.locks[place as usize]
        };
        if result.is_err() {
            self.node.abandon(lock);
        }
    }
}
