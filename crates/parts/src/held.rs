//! The pin and the locks of a running operation, and the abandoned locks of a compute node.
//!
//! *Pins.* Every operation runs under a pin ([`Pinned`]): the client's epoch slot announces it, so
//! that no object that it may reach is reused before it ends. An index that was dropped gives no
//! pin: its memory is about to be another index's. A caller may drop the operation's
//! future at any await. Its verbs in flight execute all the same; announcement and locks are kept
//! until they have completed.
//!
//! *Locks.* [`Running`] lists the locks that the operation holds, and apart from them those that it
//! tries for, or has tried for without learning the outcome. Whatever is left in either list when
//! the pin ends becomes an abandoned lock of the node ([`AbandonedLocks`]), and its recovery
//! repairs what it covers. A verb under a failed lock may still land only before the operation has
//! ended; that is why a lock is not abandoned earlier. A part of an operation may fail while the
//! operation goes on ([`Running::part`]).
//!
//! *Errors under a lock.* Steps that fail before anything was changed give the lock back
//! ([`Unlock::under`]). Steps from a commit on own the lock: when they fail it stays in the list.
//!
//! *Quiescent points and sections.* A table moves when no running operation can write under the old
//! owner's lock. An operation that holds no lock passes a quiescent point between two tries, and
//! waits for other operations of its node in a quiescent section. One that holds a lock never does.
//!
//! A crash of the compute node loses all of this. Other nodes then take its locks over when its
//! access is revoked, by the holder that a lock word names.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use dmtree_fabric::{Effect, Endpoint, Error, OpOutcome, Result};
use dmtree_pool::{EpochHandle, Gate, PoolNode, QuiescentSection};

use crate::op::counted;

/// A lock as an operation remembers it.
pub trait RemoteLock: Copy + 'static {
    /// What tells the locks of one operation apart.
    type Tag: Copy + Eq;
    /// What tells the locks of a compute node apart.
    type Key: Ord;

    /// Its name within the operation.
    fn tag(&self) -> Self::Tag;
    /// Its name within the compute node.
    fn key(&self) -> Self::Key;
}

/// The shared state of a compute node, as its clients' operations need it.
pub trait LockNode: 'static {
    /// A lock of the index.
    type Lock: RemoteLock;

    /// Its memory.
    fn pool(&self) -> &PoolNode;
    /// The number of its index.
    fn index(&self) -> u32;
    /// An operation has left a lock. None of its verbs executes any more.
    fn abandon(&self, lock: Self::Lock);
    /// An operation was dropped with verbs in flight.
    fn dropped_in_flight(&self) {}
}

/// The running operation of a client.
pub struct Running<N: LockNode> {
    ep: Endpoint,
    node: Arc<N>,
    epoch: RefCell<Rc<EpochHandle>>,
    gate: Arc<Gate>,
    held: RefCell<Vec<N::Lock>>,
    tries: RefCell<Vec<N::Lock>>,
    /// Something has forced it to repeat a step.
    pub retried: Cell<bool>,
}

type Tag<N> = <<N as LockNode>::Lock as RemoteLock>::Tag;

/// A pin: nothing that the operation may reach is reused before it is dropped. Locks that are left
/// then become abandoned locks.
#[must_use = "the operation ends with its pin"]
pub struct Pinned<'c, N: LockNode>(&'c Running<N>);

impl<N: LockNode> Pinned<'_, N> {
    /// The operation has come to its end, and its verbs have completed: locks that it has left are
    /// abandoned at once, also while verbs of an earlier operation that was dropped are in flight.
    pub fn end(self) {
        self.0.abandon_from((0, 0));
    }
}

/// The pin of an operation that holds no lock in its list and has no verb in flight: one that
/// executes at once, or that has not got that far.
#[must_use = "the operation ends with its pin"]
pub struct BriefPin<'c, N: LockNode>(&'c Running<N>);

impl<'c, N: LockNode> BriefPin<'c, N> {
    /// The operation goes on: it may hold locks, and wait.
    pub fn lasting(self) -> Pinned<'c, N> {
        let op = self.0;
        std::mem::forget(self);
        Pinned(op)
    }
}

impl<N: LockNode> Drop for BriefPin<'_, N> {
    #[inline]
    fn drop(&mut self) {
        self.0.epoch.borrow().leave();
    }
}

impl<N: LockNode> Drop for Pinned<'_, N> {
    fn drop(&mut self) {
        let op = self.0;
        if op.ep.is_quiet() {
            op.abandon_from((0, 0));
            op.epoch.borrow().leave();
            return;
        }
        // The operation ends when the verbs in flight have completed. The client goes on with
        // another announcement.
        op.node.dropped_in_flight();
        let mut locks = op.held.take();
        locks.append(&mut op.tries.borrow_mut());
        let epoch = op.epoch.replace(Rc::new(op.node.pool().register()));
        let node = op.node.clone();
        op.ep.when_quiet(move || {
            locks.into_iter().for_each(|lock| node.abandon(lock));
            epoch.leave();
        });
    }
}

impl<N: LockNode> Running<N> {
    /// Of a new client.
    pub fn new(ep: &Endpoint, node: &Arc<N>) -> Self {
        Self {
            ep: ep.clone(),
            node: node.clone(),
            epoch: RefCell::new(Rc::new(node.pool().register())),
            gate: node.pool().gate(node.index()),
            held: RefCell::default(),
            tries: RefCell::default(),
            retried: Cell::new(false),
        }
    }

    /// An operation begins.
    ///
    /// # Errors
    /// `Closed` when the index was dropped.
    pub fn pin(&self) -> Result<Pinned<'_, N>> {
        Ok(self.pin_briefly()?.lasting())
    }

    /// An operation begins, and may end before it has anything to clean up.
    ///
    /// # Errors
    /// `Closed` when the index was dropped.
    #[inline]
    pub fn pin_briefly(&self) -> Result<BriefPin<'_, N>> {
        self.epoch.borrow().enter();
        let pin = BriefPin(self);
        // Behind the announcement: see the head of the pool's `gates.rs`.
        self.gate.check()?;
        self.retried.set(false);
        Ok(pin)
    }

    /// The same without the announcement, for a mutant.
    pub fn unannounced(&self) -> Pinned<'_, N> {
        self.retried.set(false);
        Pinned(self)
    }

    /// The announcement of the client's operations.
    pub fn epoch(&self) -> Rc<EpochHandle> {
        self.epoch.borrow().clone()
    }

    /// The outcome to count: `plain`, or `Retried` if a step was repeated.
    pub fn outcome(&self, plain: OpOutcome) -> OpOutcome {
        counted(plain, &self.retried)
    }

    /// Whether the operation holds no lock.
    pub fn is_free(&self) -> bool {
        self.held.borrow().is_empty()
    }

    /// An operation that waits and holds no lock does not block tables that move.
    pub fn quiescent_point(&self) {
        if self.is_free() {
            self.epoch.borrow().quiescent_point();
        }
    }

    /// While an operation that holds no lock waits for another operation of its node, it does not
    /// block tables that move: the other operation may wait for exactly that.
    pub fn quiescent_section(&self) -> Option<QuiescentSection> {
        self.is_free().then(|| self.epoch.borrow().quiescent_section())
    }

    /// The operation holds this lock from now on.
    pub fn hold(&self, lock: N::Lock) {
        self.held.borrow_mut().push(lock);
    }

    /// Whether the operation holds this lock.
    pub fn holds(&self, tag: Tag<N>) -> bool {
        self.held.borrow().iter().any(|l| l.tag() == tag)
    }

    /// The operation has given the lock back, or is about to, in a way that does not fail. Returns
    /// the lock if it was held.
    pub fn let_go(&self, tag: Tag<N>) -> Option<N::Lock> {
        let mut held = self.held.borrow_mut();
        let i = held.iter().rposition(|l| l.tag() == tag)?;
        Some(held.swap_remove(i))
    }

    /// The operation could not give this lock back, and does nothing under it any more.
    pub fn give_up(&self, tag: Tag<N>) {
        if let Some(lock) = self.let_go(tag) {
            self.node.abandon(lock);
        }
    }

    /// Executes verbs, posted when their future is polled, that may take these locks. Until the
    /// outcome is known the locks count as tried for, also when the future is dropped meanwhile and
    /// when the try fails.
    pub async fn try_for<T>(
        &self,
        locks: &[N::Lock],
        verbs: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        // An earlier try for the same lock has left it in doubt.
        let doubts = self.tries.borrow().len();
        locks.iter().for_each(|l| self.doubt(*l));
        let tried = verbs.await;
        match &tried {
            Ok(_) => locks.iter().for_each(|l| self.forget_try(l.tag())),
            Err(e) if e.effect() == Effect::None => self.tries.borrow_mut().truncate(doubts),
            Err(_) => {}
        }
        tried
    }

    /// A lock counts as tried for from now on.
    pub fn doubt(&self, lock: N::Lock) {
        let mut tries = self.tries.borrow_mut();
        if tries.iter().all(|t| t.tag() != lock.tag()) {
            tries.push(lock);
        }
    }

    /// The outcome of a try is known, or another operation takes care of it.
    pub fn forget_try(&self, tag: Tag<N>) {
        self.tries.borrow_mut().retain(|t| t.tag() != tag);
    }

    /// A try has failed with an unknown outcome, and the operation continues without the lock.
    pub fn leave_try(&self, lock: N::Lock) {
        self.forget_try(lock.tag());
        self.node.abandon(lock);
    }

    /// A part of the operation. When it fails the operation may continue: the locks of that part
    /// become abandoned locks.
    ///
    /// # Errors
    /// Those of the part.
    pub async fn part<T>(&self, steps: impl Future<Output = Result<T>>) -> Result<T> {
        let before = (self.held.borrow().len(), self.tries.borrow().len());
        let done = steps.await;
        if done.is_err() {
            self.abandon_from(before);
        }
        done
    }

    /// Abandons the locks behind these places in the two lists.
    #[inline]
    fn abandon_from(&self, (held, tries): (usize, usize)) {
        for (list, from) in [(&self.held, held), (&self.tries, tries)] {
            if list.borrow().len() > from {
                let left = list.borrow_mut().split_off(from);
                left.into_iter().for_each(|lock| self.node.abandon(lock));
            }
        }
    }
}

/// A client that holds locks of a kind.
#[allow(async_fn_in_trait, reason = "clients are !Send on purpose: one per slot")]
pub trait Unlock<L> {
    /// Gives a lock back under which nothing was changed.
    async fn unlock(&self, lock: L) -> Result<()>;

    /// An error under a lock: when nothing was changed the lock is given back; otherwise it is
    /// kept, because a WRITE may still land and must not land under the next holder.
    async fn fail<T>(&self, lock: L, e: Error) -> Result<T> {
        if e.effect() == Effect::None {
            self.unlock(lock).await?;
        }
        Err(e)
    }

    /// The result of steps under a lock, with the lock; or their error, as [`Unlock::fail`].
    async fn under<T>(&self, lock: L, steps: Result<T>) -> Result<(L, T)> {
        match steps {
            Ok(done) => Ok((lock, done)),
            Err(e) => self.fail(lock, e).await,
        }
    }
}

/// The abandoned locks of a compute node: locks that failed or dropped operations have left, for
/// their recovery. Their node lives, so no membership change frees them.
#[derive(Debug)]
pub struct AbandonedLocks<L: RemoteLock> {
    locks: Mutex<BTreeMap<L::Key, (L, bool)>>,
    /// When an operation next checks the locks, ns of the fabric's clock; `u64::MAX` while there
    /// are none.
    due_at: AtomicU64,
}

impl<L: RemoteLock> Default for AbandonedLocks<L> {
    fn default() -> Self {
        Self { locks: Mutex::default(), due_at: AtomicU64::new(u64::MAX) }
    }
}

impl<L: RemoteLock> AbandonedLocks<L> {
    fn locks(&self) -> MutexGuard<'_, BTreeMap<L::Key, (L, bool)>> {
        self.locks.lock().expect("no panic under this lock")
    }

    /// Whether there are any: a load.
    #[inline]
    pub fn any(&self) -> bool {
        self.is_due(u64::MAX - 1)
    }

    /// Whether one is due for a check: a load.
    pub fn is_due(&self, now: u64) -> bool {
        self.due_at.load(Ordering::Relaxed) <= now
    }

    /// An operation has left this lock.
    pub fn add(&self, lock: L) {
        let mut locks = self.locks();
        locks.insert(lock.key(), (lock, false));
        self.due_at.store(0, Ordering::Relaxed);
    }

    /// A client has taken the lock over, or the lock is gone.
    pub fn remove(&self, key: &L::Key) {
        let mut locks = self.locks();
        locks.remove(key);
        if locks.is_empty() {
            self.due_at.store(u64::MAX, Ordering::Relaxed);
        }
    }

    /// The abandoned lock of this name.
    pub fn get(&self, key: &L::Key) -> Option<L> {
        if !self.any() {
            return None;
        }
        self.locks().get(key).map(|(lock, _)| *lock)
    }

    /// The first one behind number `n`, modulo their number, that `may` be touched, and whether the
    /// node with its lock word has answered since the last probe.
    pub fn nth(&self, n: u64, may: impl Fn(&L) -> bool) -> Option<(L, bool)> {
        if !self.any() {
            return None;
        }
        let locks = self.locks();
        let first = (n % locks.len().max(1) as u64) as usize;
        let mut all = locks.values().skip(first).chain(locks.values().take(first));
        all.find(|(lock, _)| may(lock)).copied()
    }

    /// The same for one that is due now; the next one is due not before `again`.
    pub fn due(&self, now: u64, again: u64, may: impl Fn(&L) -> bool) -> Option<(L, bool)> {
        if !self.is_due(now) {
            return None;
        }
        let locks = self.locks();
        self.due_at.store(if locks.is_empty() { u64::MAX } else { again }, Ordering::Relaxed);
        drop(locks);
        self.nth(now, may)
    }

    /// The node with the lock word has answered just now, which makes the lock due, or is to be
    /// probed again.
    pub fn answers(&self, key: &L::Key, now: bool) {
        if let Some((_, answers)) = self.locks().get_mut(key) {
            *answers = now;
            if now {
                self.due_at.store(0, Ordering::Relaxed);
            }
        }
    }
}
