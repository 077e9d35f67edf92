//! Fair shares of a remote lock between compute nodes.
//!
//! Clients of one node take turns at a lock (`turns.rs`), and the next one tries for it the moment
//! its turn comes. A node whose tries follow its unlocks faster than tries of other nodes arrive
//! would take the lock again and again: the home of the lock word on an idle machine, any node on a
//! busy one. So a waiter says that it waits: it writes a *stamp* (lock, node, a changing number) to
//! a word beside the locks, and takes it back when it has had the lock. A node counts its *lead*,
//! the times that it has taken a lock less the times that it has met other nodes there. While it
//! leads, its tries read the stamp, too, and a try that finds another node's makes the lock
//! *awaited*: the node leaves the lock free until another node has had it.
//!
//! A node that has met no others for long is *alone* at a lock. It looks at every eighth take in a
//! row, so that a waiter that is always too late is heard all the same.
//!
//! A stamp that is not taken back is that of a waiter that has gone: the node stops waiting for it
//! after a bounded time, remembers it, and never waits for the same one again.

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

#[derive(Debug, Default)]
struct Slot {
    lead: AtomicI32,
    /// Alone: takes of one lock in a row. Else: looks at which no other node waited, since another
    /// node was met.
    count: AtomicU32,
    /// Alone: the lock that was taken last.
    last: AtomicU64,
    /// The stamp of a waiter to whom the lock is to be left; 0 when there is none.
    awaited: AtomicU64,
    /// The stamp of a waiter that did not come.
    given_up: AtomicU64,
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

/// What a waiter of a node for a lock writes. `number` changes from one stamp to the next.
pub fn stamp(lock: u64, node: u16, number: u16) -> u64 {
    hash(lock) << 32 | u64::from(node) << 16 | u64::from(number)
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

    /// Another node has the lock: counted once for each time that it takes it.
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

    /// Whether a try for a lock shall read the stamp, too.
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

    /// This node has taken the lock. `said`: what the word of the stamps held, if the try has read
    /// it. Whether the lock is awaited from now on.
    #[inline]
    pub fn took(&self, lock: u64, said: Option<u64>) -> bool {
        let slot = self.slot(lock);
        match slot.lead.load(Relaxed) {
            ALONE => {
                let is_same = slot.last.swap(lock, Relaxed) == lock;
                let n = if is_same { slot.count.load(Relaxed) } else { 0 };
                slot.count.store(n + 1, Relaxed);
            }
            n => slot.lead.store((n + 1).min(EVEN + MOST), Relaxed),
        }
        said.is_some_and(|said| self.looked(lock, said))
    }

    #[cold]
    fn looked(&self, lock: u64, said: u64) -> bool {
        let slot = self.slot(lock);
        let is_alone = slot.lead.load(Relaxed) == ALONE;
        if self.is_rival(lock, said) {
            if is_alone {
                slot.lead.store(EVEN + 1, Relaxed);
            }
            slot.count.store(0, Relaxed);
            slot.awaited.store(said, Relaxed);
            return true;
        }
        self.in_vain(slot, is_alone);
        false
    }

    /// Nobody waits: this node may go on, and is alone when that is so for long.
    fn in_vain(&self, slot: &Slot, is_alone: bool) {
        let n = if is_alone { 0 } else { slot.count.load(Relaxed) + 1 };
        slot.count.store(n % IN_VAIN, Relaxed);
        slot.lead.store(if is_alone || n >= IN_VAIN { ALONE } else { EVEN }, Relaxed);
    }

    /// Whether a stamp is that of another node's waiter for this lock, who may still come.
    pub fn is_rival(&self, lock: u64, said: u64) -> bool {
        said >> 32 == hash(lock)
            && (said >> 16) as u16 != self.node
            && said != self.slot(lock).given_up.load(Relaxed)
    }

    /// Whether the lock is to be left to another node before this one takes it again. A load.
    #[inline]
    pub fn is_awaited(&self, lock: u64) -> bool {
        let awaited = self.slot(lock).awaited.load(Relaxed);
        awaited != 0 && awaited >> 32 == hash(lock)
    }

    /// The lock was left, and no waiter says any more that it wants it.
    pub fn left(&self, lock: u64) {
        let slot = self.slot(lock);
        slot.awaited.store(0, Relaxed);
        self.in_vain(slot, slot.lead.load(Relaxed) == ALONE);
    }

    /// The lock was left long enough, and the waiter that says so has not come.
    pub fn gave_up(&self, lock: u64, said: u64) {
        self.slot(lock).given_up.store(said, Relaxed);
        self.left(lock);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ME: u16 = 1;

    #[test]
    fn a_node_that_leads_looks_until_it_has_looked_in_vain_for_long() {
        let r = Rivals::new(ME, 4);
        r.met(1);
        assert!(!r.looks(1));
        r.took(1, None);
        assert!(r.looks(1));
        r.met(1);
        assert!(!r.looks(1), "one each");
        (0..100).for_each(|_| r.met(1));
        (0..MOST).for_each(|_| _ = r.took(1, None));
        assert!(!r.looks(1), "it has fallen behind");
        r.took(1, None);
        assert!(r.looks(1), "and not by more than counts");
        for _ in 1..IN_VAIN {
            assert!(!r.took(1, Some(0)));
            assert!(!r.looks(1));
            r.took(1, None);
            assert!(r.looks(1));
        }
        r.took(1, Some(0));
        r.took(1, None);
        assert!(!r.looks(1), "alone");
    }

    /// A waiter whose tries always come too late is never met.
    #[test]
    fn a_node_that_is_alone_looks_now_and_then() {
        let r = Rivals::new(ME, 1);
        let mut takes = 0;
        while !r.looks(7) {
            r.took(7, None);
            takes += 1;
        }
        assert_eq!(takes, ALONE_LOOKS_EVERY - 1);
        assert!(!r.looks(8), "in a row");
        assert!(!r.took(7, Some(0)) && !r.looks(7) && !r.is_awaited(7));
        (1..ALONE_LOOKS_EVERY).for_each(|_| _ = r.took(7, None));
        assert!(r.looks(7) && r.took(7, Some(stamp(7, 2, 9))));
        assert!(r.is_awaited(7) && !r.is_awaited(8));
        r.met(7);
        assert!(!r.is_awaited(7), "it has come");
        for _ in 0..100 {
            r.took(7, None);
            r.took(8, None);
        }
    }

    #[test]
    fn a_stamp_is_that_of_a_rival_for_this_lock_until_it_is_given_up() {
        let r = Rivals::new(ME, 4);
        assert!(!r.is_rival(7, 0) && !r.is_rival(7, stamp(8, 2, 1)));
        assert!(!r.is_rival(7, stamp(7, ME, 1)), "its own");
        assert!(r.is_rival(7, stamp(7, 2, 1)) && r.is_rival(7, stamp(7, 2, 1)));
        r.gave_up(7, stamp(7, 2, 1));
        assert!(!r.is_rival(7, stamp(7, 2, 1)) && r.is_rival(7, stamp(7, 2, 2)));
        assert!(!r.is_awaited(7));
    }
}
