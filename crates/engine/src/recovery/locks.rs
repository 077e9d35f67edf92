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
//! For one lock: `CAS 0->0` reads the word. When it still holds the tag, the recovery
//! of leaves, inner nodes or lock words takes it over and repairs what it covers. When it holds
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
use dmtree_fabric::{DetachedHook, Result};
use dmtree_parts::held::RemoteLock;

use crate::inner::InnerLocks;
use crate::lock::{HeldLock, Lockable};
use crate::recovery::{InnerRecovery, LeafRecovery, WordRecovery};
use crate::{Chore, Client, DmNode};

/// Shortest time between two checks of the abandoned locks by operations, ns.
const RECOVER_LOCK_PAUSE_NS: u64 = 1_000_000;

/// Whether [`recover_locks_due`] may have something to do before an operation of this client.
#[inline]
pub(crate) fn has_abandoned_locks(c: &Client) -> bool {
    debug_assert!(!c.ep.is_in_operation() && !c.op.epoch().is_entered(), "none has begun");
    c.node.abandoned_locks.any()
}

/// Before its own operation, a client recovers abandoned locks of its node: other nodes may
/// wait for them. The recovery is an operation with a pin of its own, so none may have begun.
pub(crate) async fn recover_locks_due(c: &Client) {
    let now = c.ep.now();
    let due = c.node.abandoned_locks.due(now, now + RECOVER_LOCK_PAUSE_NS, |_| true);
    let Some((h, answers)) = due else { return };
    if !answers {
        return ask_after(c, h);
    }
    c.node.abandoned_locks.answers(&h.key(), false);
    let scope = c.ep.begin(dmtree_fabric::OpKind::Maintain);
    // A failed recovery is tried again later.
    let Ok(pin) = c.pin() else { return };
    let recovered = Box::pin(recover_lock(c, h)).await;
    pin.end();
    if recovered.is_ok() {
        scope.end(dmtree_fabric::OpOutcome::Other);
    }
}

/// A waiting client may wait for an abandoned lock of another node, while all clients of that
/// node wait for abandoned locks of this one, so a waiter recovers locks meanwhile. While it
/// holds locks it touches no leaf, since a client that waits for a leaf's lock holds none.
pub(crate) async fn recover_locks_while_waiting(c: &Client) {
    if !c.node.abandoned_locks.any() {
        return;
    }
    let (now, free) = (c.ep.now(), c.op.is_free());
    let may = |h: &HeldLock| free || matches!(h.on, Lockable::Inner(_));
    let due = c.node.abandoned_locks.due(now, now + RECOVER_LOCK_PAUSE_NS, may);
    if let Some((h, _)) = due {
        let _ = c.op.part(Box::pin(recover_lock(c, h))).await;
    }
}

/// Probes the node with an abandoned lock's word, and waits for no answer.
fn ask_after(c: &Client, h: HeldLock) {
    let at = match h.on {
        Lockable::Leaf(route) => c.node.pool.resolve_cached(route.table),
        Lockable::Word(at) => Some(at),
        Lockable::Inner(addr) => Some(InnerLocks(c).word(addr)),
    };
    // A table without a known owner is left to maintenance.
    if let Some(at) = at {
        let probe = Rc::new(Probe { node: c.node.clone(), key: h.key() });
        c.ep.detach(cas(at, 0, 0), Some((probe, 0)));
    }
}

/// An operation of this node has failed under a lock: when the lock word still has its tag,
/// what it covers is repaired.
pub(crate) async fn recover_lock(c: &Client, h: HeldLock) -> Result<()> {
    match h.on {
        Lockable::Leaf(route) => {
            let at = c.node.pool.resolve(&c.ep, route.table).await?;
            if c.ep.cas(at, 0, 0).await? == h.tag.0 {
                match LeafRecovery(c).recover(&route, at, h.tag.0).await? {
                    // The outcome of the take-over may be unknown.
                    true if c.ep.cas(at, 0, 0).await? == h.tag.0 => return Ok(()),
                    true => {}
                    // The cell was another leaf's when it was locked: nothing was done under
                    // the lock.
                    false => {
                        c.ep.cas(at, h.tag.0, 0).await?;
                    }
                }
            }
        }
        Lockable::Word(at) => {
            let was = c.ep.cas(at, 0, 0).await?;
            if was == h.tag.0 {
                WordRecovery(c).recover(at, was).await?;
                // The outcome of the take-over may be unknown.
                if c.ep.cas(at, 0, 0).await? == was {
                    c.node.push_chore(Chore::RecoverLock(h));
                    return Ok(());
                }
            }
            c.node.adopted_at(h.tag, at);
            return Ok(());
        }
        Lockable::Inner(addr) => {
            if c.ep.cas(InnerLocks(c).word(addr), 0, 0).await? == h.tag.0 {
                InnerRecovery(c).recover(addr, h.tag.0).await?;
            }
        }
    }
    c.node.adopted(h.tag);
    Ok(())
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
