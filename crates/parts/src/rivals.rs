//! Fair shares of a remote lock between compute nodes.
//!
//! Clients of one node take turns at a lock (`turns.rs`), and the next one tries for it the moment
//! its turn comes. A node whose tries follow its unlocks faster than tries of other nodes arrive
//! would take the lock again and again: the home of the lock word on an idle machine, any node on a
//! busy one. So a node whose clients wait says so: it writes a *stamp* to a word of its own beside
//! the locks. A node that takes the lock writes its next stamp, or takes the stamp back when no
//! more of its clients wait.
//!
//! A node counts its *lead*, the times that it has taken a lock less the times that it has met
//! other nodes there. While it leads, its tries read the stamps, too, and a try that finds those of
//! other nodes makes the lock *awaited*: the node leaves the lock free until another node has had
//! it. That shows in the lock or in the stamps, so nodes that leave a lock to each other never wait
//! for each other: the last one that has had it waits, and the others see that it has.
//!
//! A node that has met no others for long is *alone* at a lock. It looks at every eighth take in a
//! row, so that a waiter that is always too late is heard all the same.
//!
//! Stamps that do not change are those of waiters that have gone. The node stops waiting for them
//! after a bounded time, remembers them, and does not wait for the same ones again.

use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering::Relaxed};

/// Nobody else is known to want the lock.
const ALONE: i32 = 0;
/// A lead of nothing: leads lie around it.
const EVEN: i32 = 1 << 16;
/// Leads count up to this in either direction: what was long ago does not matter.
const MOST: i32 = 8;
/// After so many looks at which no other node waited a node is alone.
const IN_VAIN: u32 = 16;
/// A node that is alone looks at every so many takes of one lock in a row.
const ALONE_LOOKS_EVERY: u32 = 8;
/// A stamp is the hash of its lock 32, node 16, the node's takes 8, announcements 8 bits.
const NODE_AT: u32 = 16;
const TAKES_AT: u32 = 8;

#[derive(Debug, Default)]
struct Slot {
    lead: AtomicI32,
    /// Alone: takes of one lock in a row. Else: looks at which no other node waited, since another
    /// node was met.
    count: AtomicU32,
    /// Alone: the lock that was taken last.
    last: AtomicU64,
    /// The stamp of this node; 0 when it does not say that it waits.
    said: AtomicU64,
    /// What this node has said last: takes and announcements.
    number: AtomicU32,
    /// [`Waiting::takes`] of those to whom the lock is to be left; 0 when there are none.
    awaited: AtomicU64,
    /// [`Waiting::stamps`] of those that did not come.
    given_up: AtomicU64,
}

/// The nodes that wait for a lock, as one number each. Two that differ mean that something has
/// happened between them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// Which nodes, and how often each has had the lock.
    takes: u64,
    /// The same with how often each has said that it waits.
    pub stamps: u64,
}

/// How a node changes its stamp when it has taken a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Next {
    /// What it has said.
    pub was: u64,
    /// What it says; 0 for nothing.
    pub now: u64,
}

/// Leads over other nodes, by a lock's number; several locks may share one. Only the client that
/// has its node's turn at a lock changes its lead.
#[derive(Debug)]
pub struct Rivals {
    /// The node whose leads these are.
    node: u16,
    slots: Box<[Slot]>,
}

fn hash(lock: u64) -> u64 {
    lock.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32
}

/// One of a sum whose parts may come in any order.
fn part(bits: u64) -> u64 {
    let x = bits.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (x ^ x >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9)
}

impl Rivals {
    /// The leads of `node`: `slots` of them, rounded up to a power of two.
    pub fn new(node: u16, slots: usize) -> Self {
        let slots = (0..slots.next_power_of_two()).map(|_| Slot::default()).collect();
        Self { node, slots }
    }

    fn slot(&self, lock: u64) -> &Slot {
        &self.slots[hash(lock) as usize & (self.slots.len() - 1)]
    }

    /// Another node has, or has had, the lock: counted once for each time that it takes it.
    pub fn met(&self, lock: u64) {
        let slot = self.slot(lock);
        let next = match slot.lead.load(Relaxed) {
            ALONE => EVEN,
            n => (n - 1).max(EVEN - MOST),
        };
        slot.lead.store(next, Relaxed);
        slot.count.store(0, Relaxed);
        slot.awaited.store(0, Relaxed);
    }

    /// Whether a try for a lock shall read the stamps, too.
    #[inline]
    pub fn looks(&self, lock: u64) -> bool {
        let slot = self.slot(lock);
        match slot.lead.load(Relaxed) {
            ALONE => {
                slot.count.load(Relaxed) + 1 >= ALONE_LOOKS_EVERY && slot.last.load(Relaxed) == lock
            }
            n => n > EVEN,
        }
    }

    /// This node has taken the lock.
    #[inline]
    pub fn took(&self, lock: u64) {
        let slot = self.slot(lock);
        match slot.lead.load(Relaxed) {
            ALONE => {
                let is_same = slot.last.swap(lock, Relaxed) == lock;
                let n = if is_same { slot.count.load(Relaxed) } else { 0 };
                slot.count.store(n + 1, Relaxed);
            }
            n => slot.lead.store((n + 1).min(EVEN + MOST), Relaxed),
        }
    }

    /// The try that has taken the lock has found these stamps.
    #[cold]
    pub fn looked(&self, lock: u64, said: impl Iterator<Item = u64>) {
        let slot = self.slot(lock);
        let is_alone = slot.lead.load(Relaxed) == ALONE;
        let Some(waiting) = self.waiting(lock, said) else { return self.in_vain(slot, is_alone) };
        if is_alone {
            slot.lead.store(EVEN + 1, Relaxed);
        }
        slot.count.store(0, Relaxed);
        slot.awaited.store(waiting.takes, Relaxed);
    }

    /// No other node waits: this one may go on, and is alone when that is so for long.
    fn in_vain(&self, slot: &Slot, is_alone: bool) {
        let n = if is_alone { 0 } else { slot.count.load(Relaxed) + 1 };
        slot.count.store(n % IN_VAIN, Relaxed);
        slot.lead.store(if is_alone || n >= IN_VAIN { ALONE } else { EVEN }, Relaxed);
    }

    /// The other nodes that wait for a lock, and may still come.
    pub fn waiting(&self, lock: u64, said: impl Iterator<Item = u64>) -> Option<Waiting> {
        let is_other = |s: &u64| s >> 32 == hash(lock) && (s >> NODE_AT) as u16 != self.node;
        let none = Waiting { takes: 0, stamps: 0 };
        let all = said.filter(is_other).fold(none, |w, s| Waiting {
            takes: w.takes.wrapping_add(part(s >> TAKES_AT)),
            stamps: w.stamps.wrapping_add(part(s)),
        });
        let is_new = all.stamps != self.slot(lock).given_up.load(Relaxed);
        (all.takes != 0 && is_new).then_some(all)
    }

    /// Whether the lock is to be left to another node before this one takes it again. A load.
    #[inline]
    pub fn is_awaited(&self, lock: u64) -> bool {
        self.slot(lock).awaited.load(Relaxed) != 0
    }

    /// Whether those that waited for the lock when this node took it still do, and none of them has
    /// had it.
    pub fn is_still_awaited(&self, lock: u64, waiting: Waiting) -> bool {
        self.slot(lock).awaited.load(Relaxed) == waiting.takes
    }

    /// The lock was left, and no other node says any more that it waits.
    pub fn left(&self, lock: u64) {
        let slot = self.slot(lock);
        slot.awaited.store(0, Relaxed);
        self.in_vain(slot, slot.lead.load(Relaxed) == ALONE);
    }

    /// The lock was left long enough, and those that say so have not come.
    pub fn gave_up(&self, lock: u64, waiting: Waiting) {
        self.slot(lock).given_up.store(waiting.stamps, Relaxed);
        self.left(lock);
    }

    /// The stamp with which this node says, once more, that it waits.
    pub fn says(&self, lock: u64) -> u64 {
        let slot = self.slot(lock);
        let number = slot.number.load(Relaxed);
        let number = (number & !0xff) | (number + 1) & 0xff;
        self.say(slot, lock, number)
    }

    fn say(&self, slot: &Slot, lock: u64, number: u32) -> u64 {
        let said = hash(lock) << 32 | u64::from(self.node) << NODE_AT | u64::from(number as u16);
        slot.number.store(number, Relaxed);
        slot.said.store(said, Relaxed);
        said
    }

    /// What becomes of the stamp of a node that has taken the lock. `more`: clients of it wait.
    #[inline]
    pub fn next(&self, lock: u64, more: bool) -> Option<Next> {
        let slot = self.slot(lock);
        let was = slot.said.load(Relaxed);
        if was == 0 || was >> 32 != hash(lock) {
            return None;
        }
        let number = slot.number.load(Relaxed).wrapping_add(1 << TAKES_AT);
        let now = self.say(slot, lock, number);
        if more {
            return Some(Next { was, now });
        }
        slot.said.store(0, Relaxed);
        Some(Next { was, now: 0 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take(r: &Rivals, lock: u64, said: &[u64]) {
        let looks = r.looks(lock);
        r.took(lock);
        if looks {
            r.looked(lock, said.iter().copied());
        }
    }

    #[test]
    fn a_node_that_leads_looks_until_it_has_looked_in_vain_for_long() {
        let r = Rivals::new(1, 4);
        r.met(1);
        assert!(!r.looks(1));
        r.took(1);
        assert!(r.looks(1));
        r.met(1);
        assert!(!r.looks(1), "one each");
        (0..100).for_each(|_| r.met(1));
        (0..MOST).for_each(|_| r.took(1));
        assert!(!r.looks(1), "it has fallen behind");
        r.took(1);
        assert!(r.looks(1), "and not by more than counts");
        for _ in 1..IN_VAIN {
            take(&r, 1, &[0]);
            assert!(!r.looks(1));
            r.took(1);
            assert!(r.looks(1));
        }
        take(&r, 1, &[0]);
        r.took(1);
        assert!(!r.looks(1), "alone");
    }

    /// A waiter whose tries always come too late is never met.
    #[test]
    fn a_node_that_is_alone_looks_now_and_then() {
        let (r, other) = (Rivals::new(1, 1), Rivals::new(2, 1));
        let mut takes = 0;
        while !r.looks(7) {
            r.took(7);
            takes += 1;
        }
        assert_eq!(takes, ALONE_LOOKS_EVERY - 1);
        assert!(!r.looks(8), "in a row");
        take(&r, 7, &[0]);
        assert!(!r.looks(7) && !r.is_awaited(7));
        (1..ALONE_LOOKS_EVERY).for_each(|_| r.took(7));
        take(&r, 7, &[0, other.says(7)]);
        assert!(r.is_awaited(7));
        r.met(7);
        assert!(!r.is_awaited(7), "it has come");
    }

    /// Its unlock may come before the next look of who has left the lock to it.
    #[test]
    fn a_stamp_tells_that_its_node_has_had_the_lock() {
        let (r, other) = (Rivals::new(1, 4), Rivals::new(2, 4));
        let waiting = |said: u64| r.waiting(7, [0, said].into_iter());
        let first = other.says(7);
        r.met(7);
        r.took(7);
        take(&r, 7, &[first]);
        assert!(r.is_still_awaited(7, waiting(first).expect("another node")));
        let again = other.says(7);
        assert!(r.is_still_awaited(7, waiting(again).expect("it says so again")));
        let next = other.next(7, true).expect("it has said that it waits");
        assert_eq!(next.was, again);
        assert!(!r.is_still_awaited(7, waiting(next.now).expect("more of its clients wait")));
        assert_eq!(other.next(7, false), Some(Next { was: next.now, now: 0 }));
        assert_eq!(other.next(7, false), None, "it says nothing");
        assert_eq!(waiting(0), None);
    }

    #[test]
    fn stamps_count_when_they_are_of_other_nodes_and_not_given_up() {
        let (r, other) = (Rivals::new(1, 4), Rivals::new(2, 4));
        let waiting = |said: u64| r.waiting(7, [said].into_iter());
        assert_eq!(waiting(r.says(7)), None, "its own");
        assert_eq!(waiting(other.says(8)), None, "another lock's");
        let said = other.says(7);
        r.gave_up(7, waiting(said).expect("another node"));
        assert_eq!(waiting(said), None);
        assert!(waiting(other.says(7)).is_some(), "it is there after all");
    }
}
