//! Futures that an executor runs beside its clients: jobs of simulated nodes, and handlers of calls
//! that wait for clients of the same thread.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::rc::{Rc, Weak};
use std::task::{Context, Poll};

use crate::core::Core;

/// One of them.
pub(crate) type Task = Pin<Box<dyn Future<Output = ()>>>;

/// Those of an executor, by slot. They run whenever it waits for a slot of a client.
pub(crate) struct Tasks {
    executor: Weak<Core>,
    /// One that is being polled is not there.
    all: RefCell<BTreeMap<u32, Option<Task>>>,
    /// Slots of futures that have ended.
    free: RefCell<Vec<u32>>,
}

impl Tasks {
    pub(crate) fn of(executor: &Weak<Core>) -> Self {
        Self { executor: executor.clone(), all: RefCell::default(), free: RefCell::default() }
    }

    /// Adds a future, made from its slot. It ends with the run of the clients ([`Tasks::end`]).
    pub(crate) fn spawn(&self, task: impl FnOnce(Rc<Core>, u32) -> Task) {
        let Some(core) = self.executor.upgrade() else { return };
        // A verb of a dropped future may still be in flight on a slot.
        let mut free = self.free.borrow_mut();
        let quiet = free.iter().position(|slot| core.is_quiet(*slot));
        let slot = quiet.map_or_else(|| core.add_slot(), |at| free.swap_remove(at));
        drop(free);
        self.all.borrow_mut().insert(slot, Some(task(core.clone(), slot)));
        core.wake(slot);
    }

    /// Polls the future of a slot; false when the slot is a client's.
    pub(crate) fn poll(&self, core: &Core, slot: u32) -> bool {
        let task = match self.all.borrow_mut().get_mut(&slot) {
            Some(task) => task.take(),
            None => return false,
        };
        // No borrow is held: it may start others.
        if let Some(mut task) = task {
            let waker = core.waker(slot);
            let polled = task.as_mut().poll(&mut Context::from_waker(&waker));
            let mut all = self.all.borrow_mut();
            match polled {
                Poll::Ready(()) => {
                    all.remove(&slot);
                    self.free.borrow_mut().push(slot);
                }
                Poll::Pending => _ = all.insert(slot, Some(task)),
            }
        }
        true
    }

    /// Drops all of them, which hold the executor, and those that begin meanwhile; waits for their
    /// verbs. Time may stand still from then on: a verb that is left ends no more.
    pub(crate) fn end(&self, core: &Core) {
        let mut slots = Vec::new();
        core.reap_while(|| {
            let tasks = std::mem::take(&mut *self.all.borrow_mut());
            slots.extend(tasks.keys().copied());
            drop(tasks);
            slots.retain(|slot| !core.is_quiet(*slot));
            !slots.is_empty()
        });
    }
}
