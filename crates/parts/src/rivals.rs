//! Fair shares of a remote lock between compute nodes.
//!
//! Clients of one node take turns at a lock (`turns.rs`), and each tries for it the moment its turn
//! comes. The node that has the lock word in its own memory would take the lock again and again
//! before any other node's try arrives. So a waiter of another node says that it waits: it writes a
//! *stamp*, a value that is always a new one, to a word beside the locks. The home counts how far
//! it is ahead of the nodes that it meets at a lock, and while it is ahead and the stamp is a new
//! one it leaves the lock free until somebody has had it. No lock word says who waits, and nobody
//! takes a stamp back: that of a waiter that has died does not change any more.

use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering};

/// Nobody else is known to want the lock.
const ALONE: i32 = 0;
/// A lead of nothing: leads lie around it.
const EVEN: i32 = 1 << 16;
/// Leads count up to this in either direction: what was long ago does not matter.
const MOST: i32 = 8;
/// After so many looks at which nobody waited a node is alone.
const IN_VAIN: u32 = 64;

#[derive(Debug, Default)]
struct Slot {
    lead: AtomicI32,
    /// Looks at which nobody waited, since another node was met.
    in_vain: AtomicU32,
    /// The stamp that was seen last.
    stamp: AtomicU64,
}

/// Leads over other nodes, by a lock's number; several locks may share one. Only who has the turn
/// at a lock changes its lead.
#[derive(Debug)]
pub struct Rivals(Box<[Slot]>);

fn hash(lock: u64) -> u64 {
    lock.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32
}

/// What a waiter for a lock writes: never the same twice in a row.
pub fn stamp(lock: u64, client: u16, tries: u32) -> u64 {
    hash(lock) << 32 | u64::from(client) << 16 | u64::from(tries as u16)
}

impl Rivals {
    /// `slots` leads, rounded up to a power of two.
    pub fn new(slots: usize) -> Self {
        Self((0..slots.next_power_of_two()).map(|_| Slot::default()).collect())
    }

    fn slot(&self, lock: u64) -> &Slot {
        &self.0[hash(lock) as usize & (self.0.len() - 1)]
    }

    /// Another node has the lock: counted once for each time that it takes it.
    pub fn met(&self, lock: u64) {
        let slot = self.slot(lock);
        let next = match slot.lead.load(Ordering::Relaxed) {
            ALONE => EVEN,
            n => (n - 1).max(EVEN - MOST),
        };
        slot.lead.store(next, Ordering::Relaxed);
        slot.in_vain.store(0, Ordering::Relaxed);
    }

    /// This node has taken the lock. A load while it is alone there.
    #[inline]
    pub fn took(&self, lock: u64) {
        let lead = &self.slot(lock).lead;
        match lead.load(Ordering::Relaxed) {
            ALONE => {}
            n => lead.store((n + 1).min(EVEN + MOST), Ordering::Relaxed),
        }
    }

    /// Whether this node is ahead: it looks at the stamp before it tries. A load.
    #[inline]
    pub fn is_ahead(&self, lock: u64) -> bool {
        self.slot(lock).lead.load(Ordering::Relaxed) > EVEN
    }

    /// Whether a stamp says that somebody waits for this lock who did not when it was looked at
    /// last.
    pub fn is_news(&self, lock: u64, stamp: u64) -> bool {
        stamp >> 32 == hash(lock) && self.slot(lock).stamp.swap(stamp, Ordering::Relaxed) != stamp
    }

    /// Nobody waits, or who did has not come: this node may go on, and is alone when that is so for
    /// long.
    pub fn nobody_came(&self, lock: u64) {
        let slot = self.slot(lock);
        let n = slot.in_vain.load(Ordering::Relaxed) + 1;
        slot.in_vain.store(n % IN_VAIN, Ordering::Relaxed);
        slot.lead.store(if n < IN_VAIN { EVEN } else { ALONE }, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_ahead_looks_until_nobody_comes_for_long() {
        let r = Rivals::new(4);
        r.took(1);
        assert!(!r.is_ahead(1), "alone, however often");
        r.met(1);
        assert!(!r.is_ahead(1));
        r.took(1);
        assert!(r.is_ahead(1));
        r.met(1);
        assert!(!r.is_ahead(1), "one each");
        (0..100).for_each(|_| r.met(1));
        (0..MOST).for_each(|_| r.took(1));
        assert!(!r.is_ahead(1), "it has fallen behind");
        r.took(1);
        assert!(r.is_ahead(1), "and not by more than counts");
        for _ in 1..IN_VAIN {
            r.nobody_came(1);
            r.took(1);
            assert!(r.is_ahead(1));
        }
        r.nobody_came(1);
        r.took(1);
        assert!(!r.is_ahead(1));
    }

    #[test]
    fn a_stamp_is_news_once_and_of_its_lock() {
        let r = Rivals::new(4);
        assert!(!r.is_news(7, 0) && !r.is_news(7, stamp(8, 1, 1)));
        assert!(r.is_news(7, stamp(7, 1, 1)) && !r.is_news(7, stamp(7, 1, 1)));
        assert!(r.is_news(7, stamp(7, 1, 2)) && r.is_news(7, stamp(7, 2, 2)));
    }
}
