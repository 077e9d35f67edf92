//! Fair shares of a remote lock between compute nodes.
//!
//! The clients of one node queue for a lock (`fifo_mutex.rs`), and the next one tries for it the
//! moment the mutex is released. A node with tries that follow its unlocks faster than tries of
//! other nodes arrive would take the lock again and again: the owner of the lock word on an idle
//! machine, any node on a busy one. So a node with waiting clients announces it: it writes a
//! *stamp* to a word of its own beside the locks. A node that takes the lock writes its next stamp
//! when the next client in its queue waits for the same lock, and clears its stamp otherwise.
//!
//! A node that contends with others for a lock READs the stamps whenever it takes the lock. Those
//! of other nodes make the lock *awaited*: the node leaves it free until each of them has had it,
//! which shows in the stamps. So nodes with clients that always wait have the lock in turn, once
//! each. A node waits only for nodes that have had the lock before its own last take, and not
//! since: nodes never wait for each other in a circle.
//!
//! A node that has met no others for long is *alone* at a lock. While clients of it queue there, it
//! reads the stamps at every eighth take in a row, so that a waiter with tries that always come too
//! late is noticed all the same.
//!
//! Stamps that do not change are those of waiters that have gone. The node stops waiting for them
//! after a bounded time, remembers them, and does not wait for the same ones again.
//!
//! Locks share slots, and a slot remembers the company at one lock alone, and one stamp. What a
//! node has announced for a lock is therefore taken from the stamps that it READs with the lock. By
//! its memory alone, a stamp would stay for ever once another lock has used its slot, and each of
//! the other nodes would leave the lock for that bounded time.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};

use dmtree_fabric::golden_hash;

/// Words for stamps beside a lock. Nodes that share a word hide each other's stamps.
pub const WORDS: usize = 4;
/// The contents of these words.
pub type Said = [u64; WORDS];
/// A node is alone after so many looks in a row at which no other node waited.
const LOOKS_UNTIL_ALONE: u32 = 16;
/// A node that is alone looks at every so many takes of one lock in a row.
const ALONE_LOOKS_EVERY: u32 = 8;
/// A stamp is the hash of its lock 32, node 16, the node's takes 8, announcements 8 bits.
const NODE_AT: u32 = 16;
const TAKES_AT: u32 = 8;

#[derive(Debug, Default)]
struct LockSlot {
    /// The lock at which this node was met last, by its hash 32, whether it has seen waiters there
    /// 1, and the looks there without a waiter after which it is alone 31; none when it is.
    contended: AtomicU64,
    /// Alone: takes of one lock in a row.
    streak: AtomicU32,
    /// Alone: the lock that was taken last.
    last: AtomicU64,
    /// The stamp of this node; 0 when it does not announce that it waits.
    stamp: AtomicU64,
    /// The last number that this node announced: takes and announcements.
    number: AtomicU32,
    /// Whether this node leaves the lock to others.
    is_awaited: AtomicBool,
    /// Node and takes of the waiters for which the lock is left, by word; 0 for none.
    awaited: [AtomicU32; WORDS],
    /// Node, takes and announcements of the waiters that did not come, by word.
    given_up: [AtomicU32; WORDS],
}

/// Of the low half of [`LockSlot::contended`]: this node has seen waiters.
const SAW_WAITERS: u32 = 1 << 31;

impl LockSlot {
    /// This node has company at a lock, for so many looks.
    fn contend(&self, lock: u64, looks: u32) {
        self.contended.store(hash(lock) << 32 | u64::from(looks), Relaxed);
    }

    /// What is known of the company at a lock.
    #[inline]
    fn company(&self, lock: u64) -> u32 {
        let contended = self.contended.load(Relaxed);
        if contended >> 32 == hash(lock) { contended as u32 } else { 0 }
    }

    #[inline]
    fn looks_left(&self, lock: u64) -> u32 {
        self.company(lock) & !SAW_WAITERS
    }
}

/// The change of a node's stamp when it has taken a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Next {
    /// The old stamp.
    pub was: u64,
    /// The new stamp; 0 for none.
    pub now: u64,
}

/// A lock that no other node is known to want.
#[derive(Debug)]
pub struct CalmLock<'f> {
    slot: &'f LockSlot,
    lock: u64,
}

impl CalmLock<'_> {
    /// This node has taken the lock, without a look at the stamps.
    #[inline]
    pub fn took(&self) {
        let Self { slot, lock } = *self;
        let is_same = slot.last.load(Relaxed) == lock;
        let streak = if is_same { slot.streak.load(Relaxed) } else { 0 };
        slot.last.store(lock, Relaxed);
        slot.streak.store(streak.saturating_add(1), Relaxed);
    }
}

/// A node's knowledge of other waiters at locks, by a lock's number; several locks may share a
/// slot. Only the client that holds its node's mutex of a lock changes its slot.
#[derive(Debug)]
pub struct FairShare {
    /// This node.
    node: u16,
    slots: Box<[LockSlot]>,
}

fn hash(lock: u64) -> u64 {
    golden_hash(lock) >> 32
}

impl FairShare {
    /// The knowledge of `node`: `slots` slots, rounded up to a power of two.
    pub fn new(node: u16, slots: usize) -> Self {
        let slots = (0..slots.next_power_of_two()).map(|_| LockSlot::default()).collect();
        Self { node, slots }
    }

    #[inline]
    fn slot(&self, lock: u64) -> &LockSlot {
        &self.slots[hash(lock) as usize & (self.slots.len() - 1)]
    }

    /// Another node has the lock.
    pub fn met(&self, lock: u64) {
        let slot = self.slot(lock);
        slot.contend(lock, LOOKS_UNTIL_ALONE | slot.company(lock) & SAW_WAITERS);
    }

    /// Whether a try for a lock shall read the stamps, too. `more`: whether the next client of this
    /// node in the queue waits for the same lock.
    #[inline]
    pub fn looks(&self, lock: u64, more: impl FnOnce() -> bool) -> bool {
        let slot = self.slot(lock);
        slot.looks_left(lock) > 0
            || (slot.streak.load(Relaxed) >= ALONE_LOOKS_EVERY - 1
                && slot.last.load(Relaxed) == lock
                && more())
    }

    /// This node has taken the lock. `stamps`: the stamps, if the try has read them.
    #[inline]
    pub fn took(&self, lock: u64, stamps: Option<&Said>) {
        let slot = self.slot(lock);
        if let Some(stamps) = stamps {
            return self.looked(lock, stamps);
        }
        CalmLock { slot, lock }.took();
    }

    #[cold]
    fn looked(&self, lock: u64, stamps: &Said) {
        let slot = self.slot(lock);
        slot.streak.store(0, Relaxed);
        let is_own = |s: &&u64| **s >> 32 == hash(lock) && (**s >> NODE_AT) as u16 == self.node;
        if let Some(own) = stamps.iter().find(is_own) {
            slot.stamp.store(*own, Relaxed);
        }
        let waiting = self.waiting(lock, stamps);
        let is_awaited = waiting.iter().any(|s| *s != 0);
        for (place, s) in slot.awaited.iter().zip(waiting) {
            place.store(s >> TAKES_AT, Relaxed);
        }
        slot.is_awaited.store(is_awaited, Relaxed);
        match slot.looks_left(lock) {
            _ if is_awaited => slot.contend(lock, LOOKS_UNTIL_ALONE | SAW_WAITERS),
            0 => {}
            1 => slot.contend(lock, 0),
            _ => slot.contend(lock, slot.company(lock) - 1),
        }
    }

    /// The other nodes that wait for a lock, and may still come, by word; 0 for none.
    fn waiting(&self, lock: u64, stamps: &Said) -> [u32; WORDS] {
        let slot = self.slot(lock);
        std::array::from_fn(|i| {
            let s = stamps[i];
            let is_other = s >> 32 == hash(lock) && (s >> NODE_AT) as u16 != self.node;
            let comes = s as u32 != slot.given_up[i].load(Relaxed);
            if is_other && comes { s as u32 } else { 0 }
        })
    }

    /// The lock, if no other node is known to want it, and this one has not announced that it
    /// waits: loads. Then a client takes the lock without further ado.
    #[inline]
    pub fn calm(&self, lock: u64) -> Option<CalmLock<'_>> {
        let slot = self.slot(lock);
        let is_announced = slot.stamp.load(Relaxed) >> 32 == hash(lock);
        let is_wanted = slot.is_awaited.load(Relaxed) || slot.looks_left(lock) > 0;
        (!is_wanted && !is_announced).then_some(CalmLock { slot, lock })
    }

    /// Whether the lock is to be left to others before this node takes it again. A load.
    #[inline]
    pub fn is_awaited(&self, lock: u64) -> bool {
        self.slot(lock).is_awaited.load(Relaxed)
    }

    /// The stamps, by word, of those that waited for the lock when this node took it, still wait,
    /// and have not had it since; `None` when there are none: the lock need not be left any more.
    pub fn still_waiting(&self, lock: u64, stamps: &Said) -> Option<[u32; WORDS]> {
        let slot = self.slot(lock);
        let mut waiting = self.waiting(lock, stamps);
        for (s, awaited) in waiting.iter_mut().zip(&slot.awaited) {
            if *s >> TAKES_AT != awaited.load(Relaxed) {
                *s = 0;
            }
        }
        waiting.iter().any(|s| *s != 0).then_some(waiting)
    }

    /// Whether other nodes have waited for the lock of late: those that have found it held twice. A
    /// load.
    #[inline]
    pub fn is_contended(&self, lock: u64) -> bool {
        self.slot(lock).company(lock) & SAW_WAITERS != 0
    }

    /// The lock has been left to others.
    pub fn left(&self, lock: u64) {
        self.slot(lock).is_awaited.store(false, Relaxed);
    }

    /// The lock was left long enough, and these waiters have not come.
    pub fn gave_up(&self, lock: u64, waiting: [u32; WORDS]) {
        let slot = self.slot(lock);
        for (place, s) in slot.given_up.iter().zip(waiting).filter(|(_, s)| *s != 0) {
            place.store(s, Relaxed);
        }
    }

    /// The stamp with which this node announces, once more, that it waits.
    pub fn says(&self, lock: u64) -> u64 {
        let slot = self.slot(lock);
        let number = slot.number.load(Relaxed);
        self.say(slot, lock, (number & !0xff) | ((number + 1) & 0xff))
    }

    fn say(&self, slot: &LockSlot, lock: u64, number: u32) -> u64 {
        let stamp = hash(lock) << 32 | u64::from(self.node) << NODE_AT | u64::from(number as u16);
        slot.number.store(number, Relaxed);
        slot.stamp.store(stamp, Relaxed);
        stamp
    }

    /// The change of the stamp of a node that has taken the lock. `more`: whether its next client
    /// in the queue waits for the same lock.
    #[inline]
    pub fn next(&self, lock: u64, more: impl FnOnce() -> bool) -> Option<Next> {
        let slot = self.slot(lock);
        let was = slot.stamp.load(Relaxed);
        if was == 0 || was >> 32 != hash(lock) {
            return None;
        }
        let number = slot.number.load(Relaxed).wrapping_add(1 << TAKES_AT);
        let now = self.say(slot, lock, number);
        if more() {
            return Some(Next { was, now });
        }
        slot.stamp.store(0, Relaxed);
        Some(Next { was, now: 0 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: Said = [0; WORDS];

    fn stamps(at: usize, stamp: u64) -> Said {
        std::array::from_fn(|i| if i == at { stamp } else { 0 })
    }

    fn take(r: &FairShare, lock: u64, stamps: &Said) {
        r.took(lock, r.looks(lock, || true).then_some(stamps));
    }

    /// With many locks that rarely meet, looks at all locks of a slot cost more than the locks do.
    #[test]
    fn company_at_a_lock_is_none_at_others_of_its_slot() {
        let r = FairShare::new(1, 1);
        r.met(1);
        assert!(r.looks(1, || true) && !r.looks(2, || true));
        assert!(r.calm(1).is_none() && r.calm(2).is_some());
        take(&r, 2, &NONE);
        assert!(r.looks(1, || true));
        r.met(2);
        assert!(r.looks(2, || true) && !r.looks(1, || true), "it was met there last");
    }

    #[test]
    fn a_contended_node_looks_until_it_has_met_no_waiter_for_long() {
        let r = FairShare::new(1, 4);
        assert!(!r.looks(1, || true));
        r.met(1);
        for _ in 0..LOOKS_UNTIL_ALONE {
            assert!(r.looks(1, || true) && !r.is_awaited(1));
            take(&r, 1, &NONE);
        }
        assert!(!r.looks(1, || true), "alone");
    }

    #[test]
    fn a_lock_is_contended_while_waiters_have_been_seen_of_late() {
        let (r, other) = (FairShare::new(1, 1), FairShare::new(2, 1));
        r.met(7);
        take(&r, 7, &NONE);
        assert!(!r.is_contended(7), "met, and gone");
        take(&r, 7, &stamps(1, other.says(7)));
        assert!(r.is_contended(7) && !r.is_contended(8));
        r.met(7);
        for _ in 0..LOOKS_UNTIL_ALONE {
            assert!(r.is_contended(7));
            take(&r, 7, &NONE);
        }
        assert!(!r.is_contended(7), "alone");
        r.met(7);
        assert!(!r.is_contended(7));
    }

    /// A waiter with tries that always come too late is never met.
    #[test]
    fn a_node_that_is_alone_looks_now_and_then() {
        let (r, other) = (FairShare::new(1, 1), FairShare::new(2, 1));
        let mut takes = 0;
        while !r.looks(7, || true) {
            take(&r, 7, &NONE);
            takes += 1;
        }
        assert_eq!(takes, ALONE_LOOKS_EVERY - 1);
        assert!(!r.looks(8, || true), "in a row");
        assert!(!r.looks(7, || false), "no client of its own waits");
        take(&r, 7, &NONE);
        assert!(!r.looks(7, || true) && !r.is_awaited(7));
        (1..ALONE_LOOKS_EVERY).for_each(|_| take(&r, 7, &NONE));
        take(&r, 7, &stamps(2, other.says(7)));
        assert!(r.is_awaited(7) && r.looks(7, || true));
        for _ in 0..100 {
            r.took(7, None);
            r.took(8, None);
        }
    }

    /// Its unlock may come before the next look of a node that has left the lock to it.
    #[test]
    fn a_stamp_tells_that_its_node_has_had_the_lock() {
        let (r, b, c) = (FairShare::new(1, 4), FairShare::new(2, 4), FairShare::new(3, 4));
        r.met(7);
        let mut now = [0, b.says(7), c.says(7), 0];
        take(&r, 7, &now);
        assert!(r.is_awaited(7) && r.still_waiting(7, &now).is_some());
        now[1] = b.says(7);
        let next = b.next(7, || true).expect("it has announced that it waits");
        assert_eq!(next.was, now[1]);
        now[1] = next.now;
        assert!(r.still_waiting(7, &now).is_some(), "the other has not had it");
        now[2] = c.next(7, || false).expect("it has announced that it waits").now;
        assert_eq!((now[2], c.next(7, || false)), (0, None));
        assert!(r.still_waiting(7, &now).is_none());
        r.left(7);
        assert!(!r.is_awaited(7));
    }

    /// The stamp is replaced although another lock has used its slot: else the other nodes leave
    /// the lock to a node that has had it.
    #[test]
    fn a_stamp_is_found_again_when_another_lock_has_used_its_slot() {
        let r = FairShare::new(1, 1);
        r.met(7);
        let first = r.says(7);
        r.says(8);
        assert_eq!(r.next(7, || true), None, "not by its memory");
        take(&r, 7, &stamps(1, first));
        let next = r.next(7, || true).expect("it is among the stamps");
        assert!(next.was == first && next.now >> TAKES_AT != first >> TAKES_AT, "{next:x?}");
    }

    #[test]
    fn stamps_count_when_they_are_of_other_nodes_and_not_given_up() {
        let (r, other) = (FairShare::new(1, 4), FairShare::new(2, 4));
        let awaits = |stamp: u64| {
            r.met(7);
            take(&r, 7, &stamps(2, stamp));
            r.is_awaited(7)
        };
        assert!(!awaits(r.says(7)), "its own");
        assert!(!awaits(other.says(8)), "another lock's");
        let stamp = other.says(7);
        assert!(awaits(stamp));
        r.gave_up(7, r.still_waiting(7, &stamps(2, stamp)).expect("it has not come"));
        assert!(!awaits(stamp));
        assert!(awaits(other.says(7)), "it is there after all");
    }
}
