//! Hopscotch leaves: a key is in one of the H slots of its *neighbourhood*, and clients READ a
//! neighbourhood instead of a leaf.
//!
//! *Layout.* A leaf has a span of slots, each the *home* of some keys, H - 1 more behind them, and
//! before every H slots a *replica*: a slot in the state `Replica` with the leaf's version and the
//! tag of its upper fence; in a tombstone, a tag that no fence has. Replicas are numbered among the
//! slots. A neighbourhood is H slots from the key's home on, with the one replica among or just
//! before them: one READ of H + 1 slots.
//!
//! *Claim.* No key changes its slot within one version (range) of the leaf. A READ counts if its
//! replica and its H slots are valid, carry one version of the route's generation, and the replica
//! has the route's fence tag (`near.rs`).
//!
//! - A live entry with the key is the answer, at its sample (P).
//! - Without one the key was absent at some instant between the samples. For let it be present
//!   throughout. By P it had one slot in each version. The version READ has the fence tag of the
//!   route, so the key belonged to this leaf in it, in one slot of the neighbourhood. That slot was
//!   sampled with this version; it had the entry as long as it had the version, because the next
//!   version's WRITE is what takes it away. So the sample has it.
//!
//! It does not matter how the READ is torn, nor how many changes it meets: two samples of different
//! versions are refused, and a version never comes back (`MAX_RANGE`, and L).
//!
//! *Writers* READ the same in one chain with the lock's compare-and-swap. Under the lock nothing
//! of the leaf changes, so the READ is exact.
//!
//! *Changes.* An insert that finds its neighbourhood full moves entries to free slots of their own
//! neighbourhoods (`shift.rs`). A split keeps every slot number, in the old leaf and in the new
//! one, and so does a relocation. A merge places by hash, and gives up where an entry finds no
//! place. A bulk load places by hash, and divides a leaf that has no placement.

mod near;
mod repair;
mod shift;

pub(crate) use near::{NO_FENCE, Neighbourhoods, put_replica, replica};
pub(crate) use repair::settle;
pub(crate) use shift::Shift;

use std::ops::Range;

use crate::format::Table;
use crate::{KeyHash, Options};

/// Slots in which a key may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Places {
    /// Any slot of its leaf.
    Any,
    /// Those of its neighbourhood.
    Near(Hop),
}

/// The neighbourhoods of a leaf.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hop {
    /// Slots of a neighbourhood.
    pub h: usize,
    /// Slots of a leaf in which a neighbourhood may begin.
    pub span: usize,
}

impl Hop {
    /// Slots of a leaf, with its replicas.
    pub fn capacity(self) -> usize {
        self.number(self.span + self.h - 2) + 1
    }

    /// The number of the n-th slot that is no replica.
    fn number(self, n: usize) -> usize {
        n + n / self.h + 1
    }

    fn home(self, hash: KeyHash) -> usize {
        // Of the bits that also stand beside pointers to long keys.
        (((hash.0 & 0xffff_ffff) * self.span as u64) >> 32) as usize
    }

    /// The neighbourhood of a key, with its replica.
    pub fn reach(self, hash: KeyHash) -> Range<usize> {
        self.reach_of(self.home(hash))
    }

    fn reach_of(self, home: usize) -> Range<usize> {
        let first = self.number(home) - usize::from(home.is_multiple_of(self.h));
        first..first + self.h + 1
    }

    pub fn is_replica(self, slot: usize) -> bool {
        slot.is_multiple_of(self.h + 1)
    }

    /// The slots of a neighbourhood, without its replica.
    fn slots(self, reach: Range<usize>) -> impl Iterator<Item = usize> {
        reach.filter(move |i| !self.is_replica(*i))
    }
}

impl Places {
    pub fn of(o: &Options) -> Self {
        match o.neighbourhood as usize {
            0 => Self::Any,
            h => Self::Near(Hop { h, span: o.leaf_capacity as usize }),
        }
    }

    /// Slots of a leaf that is created with so many.
    pub fn capacity(self, leaf_capacity: usize) -> usize {
        match self {
            Self::Any => leaf_capacity,
            Self::Near(hop) => hop.capacity(),
        }
    }

    /// Whether a slot holds no entry ever.
    #[inline]
    pub fn is_replica(self, slot: usize) -> bool {
        matches!(self, Self::Near(hop) if hop.is_replica(slot))
    }

    /// What has to be READ for a key instead of its leaf.
    #[inline]
    pub fn reach(self, hash: KeyHash) -> Option<Range<usize>> {
        match self {
            Self::Any => None,
            Self::Near(hop) => Some(hop.reach(hash)),
        }
    }

    /// A free slot for a key, by what is known of the leaf.
    #[inline]
    pub fn free_slot(self, table: &Table, hash: KeyHash) -> Option<usize> {
        match self {
            Self::Any => table.free_slot(),
            Self::Near(hop) => hop.slots(hop.reach(hash)).find(|i| table.fps()[*i] == 0),
        }
    }

    /// The slot of the n-th entry that is copied into a new leaf: its old one where keys have a
    /// neighbourhood.
    pub fn copied(self, n: usize, old: usize) -> usize {
        match self {
            Self::Any => n,
            Self::Near(_) => old,
        }
    }

    /// Slots of an empty leaf for some keys; `None` when there is no placement. Neighbourhoods are
    /// equally long, so the lowest slot in the order of their beginnings finds one if there is any.
    pub fn fill(self, hashes: impl ExactSizeIterator<Item = KeyHash>) -> Option<Vec<usize>> {
        let Self::Near(hop) = self else { return Some((0..hashes.len()).collect()) };
        let (mut slots, mut next) = (vec![0; hashes.len()], 0);
        let mut order: Vec<(usize, usize)> =
            hashes.enumerate().map(|(i, hash)| (hop.home(hash), i)).collect();
        order.sort_unstable();
        for (home, i) in order {
            next = home.max(next);
            if next >= home + hop.h {
                return None;
            }
            slots[i] = hop.number(next);
            next += 1;
        }
        Some(slots)
    }

    /// Keys of a leaf that inserts in random order have filled.
    pub fn full(self, capacity: usize) -> usize {
        match self {
            Self::Any => capacity,
            Self::Near(hop) => hop.span,
        }
    }

    /// Whether a leaf may be small enough for a merge, after a delete with this knowledge of it.
    /// Of a hopscotch leaf only the neighbourhood is known.
    pub fn is_small(self, table: &Table) -> bool {
        let live = table.live() - 1;
        match self {
            Self::Any => live * 4 <= table.fps().len(),
            Self::Near(_) => live == 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn any_hop() -> impl Strategy<Value = Hop> {
        (2usize..=16, 0usize..40).prop_map(|(h, more)| Hop { h, span: 2 * h + more })
    }

    proptest! {
        #[test]
        fn a_neighbourhood_is_one_read_with_one_replica(hop in any_hop(), hash: u64) {
            let hash = KeyHash(hash);
            let reach = hop.reach(hash);
            prop_assert!(reach.end <= hop.capacity());
            prop_assert_eq!(reach.clone().filter(|i| hop.is_replica(*i)).count(), 1);
            let slots: Vec<usize> = hop.slots(reach).collect();
            let wanted: Vec<usize> =
                (hop.home(hash)..).take(hop.h).map(|n| hop.number(n)).collect();
            prop_assert_eq!(slots, wanted);
            prop_assert!(!hop.is_replica(hop.capacity() - 1), "the last slot holds entries");
        }

        #[test]
        fn placements_keep_keys_near(hop in any_hop(), seeds in proptest::collection::vec(any::<u32>(), 0..40)) {
            let hashes: Vec<KeyHash> = seeds.iter().map(|n| KeyHash(u64::from(*n))).collect();
            if let Some(slots) = Places::Near(hop).fill(hashes.iter().copied()) {
                for (slot, hash) in slots.iter().zip(&hashes) {
                    prop_assert!(hop.slots(hop.reach(*hash)).any(|i| i == *slot));
                }
                let mut all = slots;
                all.sort_unstable();
                prop_assert!(all.windows(2).all(|w| w[0] < w[1]), "no slot twice");
            }
        }
    }

    #[test]
    fn more_keys_of_one_home_than_a_neighbourhood_holds_have_no_placement() {
        let hop = Places::Near(Hop { h: 4, span: 16 });
        assert!(hop.fill([KeyHash(9); 4].into_iter()).is_some());
        assert!(hop.fill([KeyHash(9); 5].into_iter()).is_none());
    }
}
