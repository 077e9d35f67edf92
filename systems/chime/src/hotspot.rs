//! The hotspot buffer (CHIME, section 4.3): in which slot of a leaf a hot key is, as the last
//! successful access of this compute node saw it. A hint: the READ of the slot proves the key.
//!
//! A spot takes 16 bytes: leaf, slot, the last two bytes of the key, and how often it was used. The
//! spots of a leaf are in one shard, each in a bucket of its own hash. A full bucket makes the
//! shard grow; at its budget the least used spot of the bucket gives way.

use std::sync::{Mutex, MutexGuard};

use dmtree_fabric::GlobalAddr;

/// Spots of a bucket.
const BUCKET: usize = 8;
const SHARDS: usize = 64;
const SPOT_BYTES: u64 = size_of::<Spot>() as u64;

#[derive(Clone, Copy, Debug, Default)]
struct Spot {
    /// The leaf; 0 where there is no spot.
    leaf: u64,
    slot: u16,
    fingerprint: u16,
    uses: u32,
}

type Bucket = [Spot; BUCKET];

/// The hotspot buffer of one index on one compute node.
#[derive(Debug)]
pub struct Hotspots {
    shards: Box<[Mutex<Vec<Bucket>>]>,
    /// Most buckets of a shard: a power of two.
    most: usize,
}

/// The last two bytes of a key.
pub fn fingerprint(key: &[u8]) -> u16 {
    key.iter().rev().take(2).fold(0, |all, b| all << 8 | u16::from(*b))
}

fn mix(leaf: u64, slot: usize) -> usize {
    let x = (leaf ^ (slot as u64) << 48).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (x ^ x >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9) as usize >> 16
}

impl Hotspots {
    /// An empty buffer of so many bytes at most.
    pub fn new(budget: u64) -> Self {
        let each = budget / (SPOT_BYTES * BUCKET as u64 * SHARDS as u64);
        let most = if each == 0 { 0 } else { 1 << each.ilog2() };
        Self { shards: (0..SHARDS).map(|_| Mutex::default()).collect(), most }
    }

    fn shard(&self, leaf: GlobalAddr) -> MutexGuard<'_, Vec<Bucket>> {
        let shard = &self.shards[mix(leaf.bits(), 0) % SHARDS];
        shard.lock().expect("no panic under this lock")
    }

    /// The most used of these slots of a leaf that may have this key.
    pub fn find(
        &self,
        leaf: GlobalAddr,
        slots: impl Iterator<Item = usize>,
        key: &[u8],
    ) -> Option<usize> {
        let (buckets, fingerprint) = (self.shard(leaf), fingerprint(key));
        if buckets.is_empty() {
            return None;
        }
        let spot = |slot: usize| {
            let bucket = &buckets[mix(leaf.bits(), slot) % buckets.len()];
            let is_it = |s: &&Spot| s.leaf == leaf.bits() && usize::from(s.slot) == slot;
            bucket.iter().find(is_it).filter(|s| s.fingerprint == fingerprint)
        };
        slots.filter_map(spot).max_by_key(|s| s.uses).map(|s| s.slot.into())
    }

    /// A key was found in a slot.
    pub fn note(&self, leaf: GlobalAddr, slot: usize, key: &[u8]) {
        if self.most == 0 {
            return;
        }
        let (mut buckets, fingerprint) = (self.shard(leaf), fingerprint(key));
        if buckets.is_empty() {
            buckets.push(Bucket::default());
        }
        loop {
            let n = buckets.len();
            let bucket = &mut buckets[mix(leaf.bits(), slot) % n];
            let is_it = |s: &Spot| s.leaf == leaf.bits() && usize::from(s.slot) == slot;
            let new = Spot { leaf: leaf.bits(), slot: slot as u16, fingerprint, uses: 1 };
            if let Some(spot) = bucket.iter_mut().find(|s| is_it(s)) {
                let same = spot.fingerprint == fingerprint;
                *spot =
                    if same { Spot { uses: spot.uses.saturating_add(1), ..*spot } } else { new };
                return;
            }
            if let Some(free) = bucket.iter_mut().find(|s| s.leaf == 0) {
                *free = new;
                return;
            }
            if n >= self.most {
                if let Some(least) = bucket.iter_mut().min_by_key(|s| s.uses) {
                    *least = new;
                }
                return;
            }
            grow(&mut buckets);
        }
    }

    /// Bytes of the budget, and those in use.
    pub fn bytes(&self) -> (u64, u64) {
        let bytes = |buckets: usize| (buckets * BUCKET) as u64 * SPOT_BYTES;
        let len = |s: &Mutex<Vec<Bucket>>| s.lock().expect("no panic under this lock").len();
        (bytes(self.most * SHARDS), bytes(self.shards.iter().map(len).sum()))
    }
}

/// Twice as many buckets: the spots of a bucket go into it and into one other.
fn grow(buckets: &mut Vec<Bucket>) {
    let old = std::mem::take(buckets);
    let n = 2 * old.len();
    buckets.resize(n, Bucket::default());
    for spot in old.into_iter().flatten().filter(|s| s.leaf != 0) {
        let bucket = &mut buckets[mix(spot.leaf, spot.slot.into()) % n];
        if let Some(free) = bucket.iter_mut().find(|s| s.leaf == 0) {
            *free = spot;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dmtree_fabric::NodeId;

    fn leaf(n: u64) -> GlobalAddr {
        GlobalAddr::new(NodeId::memory(0), n * 1280)
    }

    #[test]
    fn the_hottest_spot_with_the_fingerprint_is_found() {
        let h = Hotspots::new(1 << 20);
        h.note(leaf(1), 3, b"key7");
        h.note(leaf(1), 5, b"kex7");
        (0..2).for_each(|_| h.note(leaf(1), 5, b"key7"));
        assert_eq!(h.find(leaf(1), 0..8, b"key7"), Some(5));
        assert_eq!(h.find(leaf(1), 0..5, b"key7"), Some(3));
        assert_eq!((h.find(leaf(1), 0..8, b"kex7"), h.find(leaf(2), 0..8, b"key7")), (None, None));
    }

    #[test]
    fn it_keeps_its_budget_and_hot_spots() {
        let h = Hotspots::new(100_000);
        for n in 1..20_000 {
            h.note(leaf(n), 1, b"ab");
            (1..20).for_each(|hot| h.note(leaf(hot), 2, b"ab"));
        }
        let (budget, used) = h.bytes();
        assert!(used <= budget && budget <= 100_000 && used * 2 > budget, "{used} of {budget}");
        assert!((1..20).all(|hot| h.find(leaf(hot), 0..8, b"ab").is_some()));
        let none = Hotspots::new(100);
        none.note(leaf(1), 1, b"ab");
        assert_eq!((none.bytes(), none.find(leaf(1), 0..8, b"ab")), ((0, 0), None));
    }
}
