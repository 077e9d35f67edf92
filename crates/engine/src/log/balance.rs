//! Which updates go past a log that has room.
//!
//! An update through the log loads the owner of its leaf: with the slot, with the table, which has
//! the count of the record and is written behind it, and with the lock. One that goes past the log
//! needs the slot and the lock alone, and loads the memory node with a WRITE instead. So each
//! compute node lets the updates of a *share* of the leaves go past its log, and moves the share
//! towards the side that is less loaded.
//!
//! Loads are seen by what verbs take: a try for a lock at an owner, a WRITE at a memory node. What
//! they take beyond the least that they have ever taken is the wait there. The share grows while
//! verbs wait longer at owners, and shrinks while they wait longer at memory nodes. While tries for
//! locks take less than twice the least, owners are not loaded, and the share does not grow: the
//! log costs a memory node least.
//!
//! The leaves are chosen by a hash of their addresses, so that the nodes agree on most of them: a
//! slot with a record is not updated past the log (G6). Where many looks at slots find such records
//! the share shrinks: at a node with a larger share than others have, or behind inserts.
//!
//! A hint: no invariant rests on it. Its words are updated without an order, and may lose samples.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use dmtree_fabric::{GlobalAddr, Nanos, golden_hash};

/// All leaves.
const ALL: u32 = 1 << 16;
/// Largest change of a share by the loads.
const STEP: i64 = ALL as i64 / 128;
/// It is made where one side waits less than the other by this part of the longer wait.
const STEP_PART: i64 = 4;
/// The share changes once in this time at most, ns: some round trips, until the loads have
/// followed.
const STEP_NS: Nanos = 20_000;
/// Beside a round trip, what verbs wait for at an owner without load, ns.
const IDLE_NS: i64 = 1_000;
/// Looks that are judged together; the share shrinks where one in so many has found a record. Such
/// a look costs a round trip.
const LOOKS: u32 = 32;
const LOOKS_PER_RECORD: u32 = 2;
/// A sample has this part in the usual time, and counts as so many usual ones at most: a thread
/// that has lost its processor says nothing of a load.
const PART: u64 = 16;
const MOST: u64 = 4;
/// One in so many verbs is a sample. Odd, because an update has two of them.
const SAMPLED: u32 = 7;

/// The share of the leaves that a node updates past its log.
#[derive(Debug)]
pub(crate) struct Balance {
    share: AtomicU32,
    /// The share does not change.
    is_fixed: bool,
    /// Verbs that might have been samples.
    verbs: AtomicU32,
    owners: Load,
    memory: Load,
    /// Looks at slots that were not judged yet, and those that have found a record.
    looks: AtomicU32,
    logged: AtomicU32,
    /// Time of the last change.
    changed_at: AtomicU64,
}

/// What verbs of one kind take.
#[derive(Debug, Default)]
struct Load {
    least_ns: AtomicU64,
    usual_ns: AtomicU64,
}

impl Load {
    fn took(&self, ns: Nanos) {
        let usual = self.usual_ns.load(Ordering::Relaxed);
        if usual == 0 {
            self.least_ns.store(ns, Ordering::Relaxed);
            self.usual_ns.store(ns, Ordering::Relaxed);
            return;
        }
        let sample = ns.min(usual * MOST);
        self.usual_ns.store(usual - usual / PART + sample / PART, Ordering::Relaxed);
        self.least_ns.fetch_min(ns, Ordering::Relaxed);
    }

    fn wait_ns(&self) -> Nanos {
        let least = self.least_ns.load(Ordering::Relaxed);
        self.usual_ns.load(Ordering::Relaxed).saturating_sub(least)
    }
}

impl Balance {
    /// With a fixed share from 0 to 1, or one that follows the loads.
    pub fn new(fixed: Option<f64>) -> Self {
        Self {
            share: AtomicU32::new(fixed.map_or(0, |share| (share * f64::from(ALL)) as u32)),
            is_fixed: fixed.is_some(),
            verbs: AtomicU32::new(0),
            owners: Load::default(),
            memory: Load::default(),
            looks: AtomicU32::new(0),
            logged: AtomicU32::new(0),
            changed_at: AtomicU64::new(0),
        }
    }

    /// Whether the share follows the loads.
    pub fn moves(&self) -> bool {
        !self.is_fixed
    }

    /// Whether updates of a leaf go past the log.
    #[inline]
    pub fn is_past(&self, leaf: GlobalAddr) -> bool {
        (golden_hash(leaf.bits()) >> 48) < u64::from(self.share.load(Ordering::Relaxed))
    }

    /// Whether the next try or WRITE is to be a sample: one in a few. With a fixed share none is.
    #[inline]
    pub fn samples(&self) -> bool {
        let verbs = self.verbs.load(Ordering::Relaxed).wrapping_add(1);
        self.verbs.store(verbs, Ordering::Relaxed);
        !self.is_fixed && verbs.is_multiple_of(SAMPLED)
    }

    /// A look at a slot alone, under the lock: has it a record?
    pub fn looked(&self, is_logged: bool) {
        self.looks.fetch_add(1, Ordering::Relaxed);
        self.logged.fetch_add(u32::from(is_logged), Ordering::Relaxed);
    }

    /// A try for a lock has taken this long.
    pub fn tried(&self, ns: Nanos) {
        self.owners.took(ns);
    }

    /// A WRITE at a memory node has taken this long.
    pub fn wrote(&self, ns: Nanos, now: Nanos) {
        self.memory.took(ns);
        let changed_at = self.changed_at.load(Ordering::Relaxed);
        if now < changed_at + STEP_NS {
            return;
        }
        self.changed_at.store(now, Ordering::Relaxed);
        let change = if self.meets_records() { -STEP } else { self.by_loads() };
        let share = i64::from(self.share.load(Ordering::Relaxed)) + change;
        self.share.store(share.clamp(0, i64::from(ALL)) as u32, Ordering::Relaxed);
    }

    /// Whether many of the last looks have found records.
    fn meets_records(&self) -> bool {
        if self.looks.load(Ordering::Relaxed) < LOOKS {
            return false;
        }
        let [looks, logged] = [&self.looks, &self.logged].map(|n| n.swap(0, Ordering::Relaxed));
        logged * LOOKS_PER_RECORD > looks
    }

    /// The change of the share by the loads, in proportion to their difference.
    fn by_loads(&self) -> i64 {
        let [owners, memory] = [&self.owners, &self.memory].map(|load| load.wait_ns() as i64);
        let least = self.owners.least_ns.load(Ordering::Relaxed) as i64;
        let most = if owners > least + IDLE_NS { STEP } else { 0 };
        (STEP * STEP_PART * (owners - memory) / owners.max(memory).max(1)).clamp(-STEP, most)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Both sides take so long for a while.
    fn run(b: &Balance, from: Nanos, (tried, wrote): (Nanos, Nanos)) -> u32 {
        for n in 0..4000 {
            b.tried(tried);
            b.wrote(wrote, from + n * 2_000);
        }
        b.share.load(Ordering::Relaxed)
    }

    #[test]
    fn the_share_follows_the_side_that_waits_less() {
        let b = Balance::new(None);
        assert_eq!(run(&b, 1_000_000, (3_000, 2_000)), 0, "no side waits");
        assert_eq!(run(&b, 10_000_000, (3_400, 2_000)), 0, "a short wait");
        assert_eq!(run(&b, 20_000_000, (9_000, 2_000)), ALL, "owners are loaded");
        assert_eq!(run(&b, 30_000_000, (9_000, 20_000)), 0, "memory nodes are loaded more");
        assert!(run(&b, 40_000_000, (9_000, 2_000)) == ALL);
        (0..100).for_each(|n| b.looked(n % 3 != 0));
        b.wrote(2_000, 50_000_000);
        let share = i64::from(b.share.load(Ordering::Relaxed));
        assert_eq!(share, i64::from(ALL) - STEP, "slots have records");
    }

    #[test]
    fn one_sample_is_no_load() {
        let b = Balance::new(None);
        run(&b, 1_000_000, (3_000, 2_000));
        b.tried(50_000_000);
        assert_eq!(run(&b, 10_000_000, (3_000, 2_000)), 0);
    }

    #[test]
    fn a_fixed_share_stays_and_is_that_of_the_leaves() {
        for (share, leaves) in [(0.0, 0..1), (0.25, 2_300..2_700), (1.0, 10_000..10_001)] {
            let b = Balance::new(Some(share));
            assert!((0..100).all(|_| !b.samples()));
            let at = |n: u64| GlobalAddr::from_bits(0x4_0000 + n * 1_472);
            let past = (0..10_000).filter(|n| b.is_past(at(*n))).count();
            assert!(leaves.contains(&past), "{past} of 10 000 at {share}");
        }
    }
}
