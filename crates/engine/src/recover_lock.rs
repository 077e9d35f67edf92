//! Abandoned locks of this node: locks that a failed or dropped operation has left, with what they
//! cover.
//!
//! Their node lives, so no membership change frees them. Their operation is over and its verbs have
//! completed, which is the precondition of every repair. The node keeps them in a list, by tag.
//!
//! Three callers work on the list:
//!
//! - An operation, before it begins: one lock, no more often than once in a pause. Other nodes may
//!   wait for it.
//! - A waiter for a lock, between two tries: the lock that it waits for may depend on an abandoned
//!   one of its own node. While it holds a lock it recovers inner nodes only, because a client that
//!   waits for a leaf's lock holds no lock.
//! - Maintenance, through `Chore::RecoverLock`.
//!
//! For one lock: `CAS 0->0` reads the word. When it still holds the tag, `recover_leaf`,
//! `recover_inner` or `recover_lock_word` takes it over and repairs what it covers. When it holds
//! anything else, the lock was never taken, was given back, or another client was faster. Either
//! way the entry leaves the list, except after a take-over with an unknown outcome.
//!
//! An operation first probes the node with the lock word by a detached CAS, and recovers the lock
//! only after an answer: its own leaf may be on quite another node, and a dead owner keeps a caller
//! waiting until the fabric gives up.
//!
//! A crash of this node makes all of its locks abandoned by membership, and survivors recover them
//! from their tags; the list needs no persistence.

use std::rc::Rc;
use std::sync::Arc;

use dmtree_fabric::verb::cas;
use dmtree_fabric::{DetachedHook, GlobalAddr, Result};
use dmtree_parts::held::RemoteLock;

use crate::client::{DmTree, HeldLock, Lockable};
use crate::node::{Chore, DmNode};

/// Shortest time between two checks of the abandoned locks by operations, ns.
const RECOVER_LOCK_PAUSE_NS: u64 = 1_000_000;

impl DmTree {
    /// Before its own operation, a client recovers abandoned locks of its node: other nodes may
    /// wait for them. The recovery is an operation with a pin of its own, so none may have begun.
    pub(crate) async fn recover_some_locks(&self) {
        debug_assert!(
            !self.ep.is_in_operation() && !self.op.epoch().is_entered(),
            "none has begun"
        );
        if !self.node.abandoned_locks.any() {
            return;
        }
        let now = self.ep.now();
        let due = self.node.abandoned_locks.due(now, now + RECOVER_LOCK_PAUSE_NS, |_| true);
        let Some((h, answers)) = due else { return };
        if !answers {
            return self.ask_after(h);
        }
        self.node.abandoned_locks.answers(&h.key(), false);
        let scope = self.ep.begin(dmtree_fabric::OpKind::Maintain);
        // A failed recovery is tried again later.
        let pin = self.pin();
        let recovered = Box::pin(self.recover_lock(h)).await;
        pin.end();
        if recovered.is_ok() {
            scope.end(dmtree_fabric::OpOutcome::Other);
        }
    }

    /// A waiting client may wait for an abandoned lock of another node, while all clients of that
    /// node wait for abandoned locks of this one, so a waiter recovers locks meanwhile. While it
    /// holds locks it touches no leaf, since a client that waits for a leaf's lock holds none.
    pub(crate) async fn recover_locks_while_waiting(&self) {
        if !self.node.abandoned_locks.any() {
            return;
        }
        let (now, free) = (self.ep.now(), self.op.is_free());
        let may = |h: &HeldLock| free || matches!(h.on, Lockable::Inner(_));
        let due = self.node.abandoned_locks.due(now, now + RECOVER_LOCK_PAUSE_NS, may);
        if let Some((h, _)) = due {
            let _ = self.op.part(Box::pin(self.recover_lock(h))).await;
        }
    }

    /// Probes the node with an abandoned lock's word, and waits for no answer.
    fn ask_after(&self, h: HeldLock) {
        let at = match h.on {
            Lockable::Leaf(route) => self.node.pool.resolve_cached(route.table),
            Lockable::Word(at) => Some(at),
            Lockable::Inner(addr) => Some(self.inner_lock(addr)),
        };
        // A table without a known owner is left to maintenance.
        if let Some(at) = at {
            let probe = Rc::new(Probe { node: self.node.clone(), key: h.key() });
            self.ep.detach(cas(at, 0, 0), Some((probe, 0)));
        }
    }

    fn inner_lock(&self, addr: GlobalAddr) -> GlobalAddr {
        addr.plus(self.node.g.inner_lock_at() as u64)
    }

    /// An operation of this node has failed under a lock: when the lock word still has its tag,
    /// what it covers is repaired.
    pub(crate) async fn recover_lock(&self, h: HeldLock) -> Result<()> {
        match h.on {
            Lockable::Leaf(route) => {
                let at = self.node.pool.resolve(&self.ep, route.table).await?;
                if self.ep.cas(at, 0, 0).await? == h.tag.0 {
                    match self.recover_leaf(&route, at, h.tag.0).await? {
                        // The outcome of the take-over may be unknown.
                        true if self.ep.cas(at, 0, 0).await? == h.tag.0 => return Ok(()),
                        true => {}
                        // The cell was another leaf's when it was locked: nothing was done under
                        // the lock.
                        false => {
                            self.ep.cas(at, h.tag.0, 0).await?;
                        }
                    }
                }
            }
            Lockable::Word(at) => {
                let was = self.ep.cas(at, 0, 0).await?;
                if was == h.tag.0 {
                    self.recover_lock_word(at, was).await?;
                    // The outcome of the take-over may be unknown.
                    if self.ep.cas(at, 0, 0).await? == was {
                        self.node.push_chore(Chore::RecoverLock(h));
                        return Ok(());
                    }
                }
                self.node.adopted_at(h.tag, at);
                return Ok(());
            }
            Lockable::Inner(addr) => {
                if self.ep.cas(self.inner_lock(addr), 0, 0).await? == h.tag.0 {
                    self.recover_inner(addr, h.tag.0).await?;
                }
            }
        }
        self.node.adopted(h.tag);
        Ok(())
    }
}

/// Receives the answer to the probe of an abandoned lock.
struct Probe {
    node: Arc<DmNode>,
    key: (u64, u64),
}

impl DetachedHook for Probe {
    fn finished(&self, _: u64) {}

    fn ended(&self, _: u64, result: &Result<()>) {
        if result.is_ok() {
            self.node.abandoned_locks.answers(&self.key, true);
        }
    }
}
