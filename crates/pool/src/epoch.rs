//! Epochs of running operations: how long retired memory must wait, and when tables may move.
//!
//! Every client has a slot of two words on a line of its own. The first is the epoch that its node
//! knew when the running operation began, 0 while none runs. The second counts beginnings, ends and
//! quiescent points, and is odd while an operation runs outside of a quiescent section. Two parties
//! read them:
//!
//! - A **reclaimer** (`reclaim.rs`) tells each node an epoch and gets the smallest epoch in which a
//!   running operation began ([`Epochs::adopt`]; over the network [`ask_epoch`]). Memory that was
//!   retired before that epoch is free.
//! - The **membership agent** takes a [`Drain`] of the operations that run now, and waits until
//!   each has ended or has passed a quiescent point. A quiescent point means: the operation holds
//!   no lock, and nothing that it has read of a table will count any more. It says nothing about
//!   memory that the operation may still read.
//!
//! Invariants. Entering is one store of the known epoch and one sequentially consistent barrier;
//! the scan has the same barrier between learning the epoch and reading the slots. So either the
//! scan sees the slot, or the operation's first READ comes after the scan. The known epoch only
//! grows, and a slot never holds an epoch above it: an older one than needed delays reclamation,
//! and harms nothing. The scan holds a lock that entering never takes.
//!
//! A dropped future leaves through its guard, a dropped handle deregisters its slot. The slots of a
//! node that dies are not asked any more once its access is revoked.

use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex};

use dmtree_fabric::{Endpoint, Error, NodeId, Result, Service, ServiceId};

use crate::wire::{self, LONGEST_CALL_NS, Word, call_within, locked};

/// Epochs, on every compute node.
pub(crate) const EPOCH_SERVICE: ServiceId = ServiceId(0x12);
/// The first epoch; 0 means idle.
pub(crate) const FIRST_EPOCH: u64 = 1;

/// A slot on a line of its own: clients of one node enter without disturbing each other.
#[derive(Debug, Default)]
#[repr(align(64))]
struct EpochSlot(AtomicU64, AtomicU64);

impl EpochSlot {
    /// The second word counts beginnings and ends of operations, and quiescent points: odd while
    /// one runs.
    #[inline]
    fn count(&self, by: u64, order: Ordering) {
        // Written by one client only.
        self.1.store(self.1.load(Ordering::Relaxed) + by, order);
    }
}

/// Operations that ran at some moment.
#[derive(Debug, Default)]
pub(crate) struct Drain(Vec<(Arc<EpochSlot>, u64)>);

impl Drain {
    /// Whether each of them has ended, or has passed a quiescent point.
    pub(crate) fn is_over(&mut self) -> bool {
        self.0.retain(|(slot, then)| slot.1.load(Ordering::SeqCst) == *then);
        self.0.is_empty()
    }
}

/// The epochs of one compute node.
#[derive(Debug)]
pub(crate) struct Epochs {
    known: AtomicU64,
    slots: Mutex<Vec<Arc<EpochSlot>>>,
}

impl Epochs {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self { known: AtomicU64::new(FIRST_EPOCH), slots: Mutex::default() })
    }

    pub(crate) fn register(self: &Arc<Self>) -> EpochHandle {
        let slot = Arc::new(EpochSlot::default());
        locked(&self.slots).push(slot.clone());
        EpochHandle { slot, epochs: self.clone() }
    }

    /// Learns an epoch, then looks at what runs: the smallest epoch in which a running operation
    /// began, `u64::MAX` when none runs.
    pub(crate) fn adopt(&self, epoch: u64) -> u64 {
        self.known.fetch_max(epoch, Ordering::SeqCst);
        // Pairs with the barrier of `enter`: either this scan sees the slot, or the operation's
        // first READ comes after the scan.
        fence(Ordering::SeqCst);
        let slots = locked(&self.slots);
        let running = slots.iter().map(|s| s.0.load(Ordering::SeqCst)).filter(|e| *e != 0);
        running.min().unwrap_or(u64::MAX)
    }

    /// The operations that run now.
    pub(crate) fn drain(&self) -> Drain {
        fence(Ordering::SeqCst);
        let slots = locked(&self.slots);
        let running = slots.iter().map(|s| (s.clone(), s.1.load(Ordering::SeqCst)));
        Drain(running.filter(|(_, count)| count % 2 == 1).collect())
    }
}

/// Answers reclaimers of other nodes. Holds no fabric: that would keep its own host alive.
pub(crate) struct EpochService(pub(crate) Arc<Epochs>);

impl Service for EpochService {
    async fn answer(&self, _: &Endpoint, _: NodeId, request: &[u8]) -> Result<Vec<u8>> {
        let Word(epoch) = wire::decode(request)?;
        Ok(wire::encode(&Word(self.0.adopt(epoch))))
    }
}

/// Asks another compute node.
pub(crate) async fn ask_epoch(ep: &Endpoint, node: NodeId, epoch: u64) -> Result<u64> {
    let request = wire::encode(&Word(epoch));
    let reply = call_within(ep, LONGEST_CALL_NS, node, EPOCH_SERVICE, &request).await?;
    match wire::decode(&reply)? {
        Word(0) => Err(Error::corrupt(format!("{node} says that an operation runs in epoch 0"))),
        Word(oldest) => Ok(oldest),
    }
}

/// One client's announcement of its running operation; a client runs one at a time. Dropped, it is
/// deregistered.
#[derive(Debug)]
pub struct EpochHandle {
    slot: Arc<EpochSlot>,
    epochs: Arc<Epochs>,
}

impl EpochHandle {
    /// An operation begins: nothing that is reachable from now on is reused before
    /// [`EpochHandle::leave`].
    #[inline]
    pub fn enter(&self) {
        let known = self.epochs.known.load(Ordering::SeqCst);
        let running = self.slot.0.load(Ordering::Relaxed) != 0;
        // Released: the accesses of an operation that goes on have ended.
        self.slot.count(if running { 2 } else { 1 }, Ordering::Release);
        self.slot.0.store(known, Ordering::Release);
        // The operation's READs come after the announcement, whatever carries them.
        fence(Ordering::SeqCst);
    }

    /// Lets the client's endpoint prefetch the announcement before the client goes on.
    pub fn used_by(&self, ep: &Endpoint) {
        ep.prefetch(self);
        ep.prefetch(&*self.slot);
    }

    /// The operation has ended: it holds no address any more.
    #[inline]
    pub fn leave(&self) {
        if self.slot.0.load(Ordering::Relaxed) != 0 {
            // What sees one of these sees that the operation's accesses have ended.
            self.slot.0.store(0, Ordering::Release);
            self.slot.count(1, Ordering::Release);
        }
    }

    /// A quiescent point: the running operation holds no lock, and nothing that it has read of a
    /// table will count any more. Tables may move.
    pub fn quiescent_point(&self) {
        if self.slot.0.load(Ordering::Relaxed) != 0 {
            self.slot.count(2, Ordering::SeqCst);
        }
    }

    /// A quiescent section: the running operation waits for another of its node, holding no lock
    /// and nothing that it has read of a table. Until the guard is dropped it does not hold back
    /// tables that move. The awaited operation may itself wait for such a move.
    pub fn quiescent_section(&self) -> QuiescentSection {
        let running = self.is_entered();
        if running {
            self.slot.count(1, Ordering::SeqCst);
        }
        QuiescentSection(running.then(|| self.slot.clone()))
    }

    /// A long operation goes on from here holding only what it reads again after this call: as
    /// leaving and entering at once. A scan that keeps one leaf while it reads the next must not
    /// call it in between.
    pub fn renew(&self) {
        self.enter();
    }

    /// Enters, and leaves when the guard is dropped, so that a dropped future leaves too.
    pub fn guard(&self) -> EpochGuard<'_> {
        self.enter();
        EpochGuard(self)
    }

    /// Whether an operation runs.
    pub fn is_entered(&self) -> bool {
        self.slot.0.load(Ordering::Relaxed) != 0
    }
}

impl Drop for EpochHandle {
    fn drop(&mut self) {
        locked(&self.epochs.slots).retain(|s| !Arc::ptr_eq(s, &self.slot));
    }
}

/// See [`EpochHandle::quiescent_section`].
#[derive(Debug)]
pub struct QuiescentSection(Option<Arc<EpochSlot>>);

impl Drop for QuiescentSection {
    fn drop(&mut self) {
        if let Some(slot) = &self.0 {
            slot.count(1, Ordering::SeqCst);
        }
    }
}

/// See [`EpochHandle::guard`].
#[derive(Debug)]
pub struct EpochGuard<'h>(&'h EpochHandle);

impl Drop for EpochGuard<'_> {
    fn drop(&mut self) {
        self.0.leave();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_running_operation_counts() {
        let e = Epochs::new();
        let (a, b) = (e.register(), e.register());
        assert_eq!(e.adopt(2), u64::MAX);
        a.enter();
        assert_eq!(e.adopt(5), 2);
        b.enter();
        assert_eq!(e.adopt(3), 2, "an old epoch is not unlearned");
        a.leave();
        assert_eq!(e.adopt(5), 5);
        b.renew();
        drop(b);
        assert_eq!((e.adopt(6), locked(&e.slots).len()), (u64::MAX, 1));
        {
            let _in = a.guard();
            assert!(a.is_entered());
        }
        assert!(!a.is_entered());
    }

    #[test]
    fn a_drain_waits_for_what_runs_and_for_nothing_later() {
        let e = Epochs::new();
        let (a, b, c) = (e.register(), e.register(), e.register());
        a.enter();
        b.enter();
        let mut d = e.drain();
        c.enter();
        assert!(!d.is_over());
        a.leave();
        a.enter();
        assert!(!d.is_over());
        b.quiescent_point();
        assert!(d.is_over() && !e.drain().is_over());
    }
}
