//! The pairs of a bulk load, leaf by leaf.
//!
//! Sorted pairs are taken as leaves need them, so that a load of any size holds the pairs of two
//! leaves.

use dmtree_fabric::Result;
use dmtree_parts::fill::{Fill, Sizes, SplitRule};
use dmtree_parts::pairs::{Arriving, Pairs};

use crate::hop::Places;
use crate::{KeyHash, Mark};

/// Where the pairs come from, in key order.
enum Source<'p> {
    /// Their order is known to be that of their keys: a leaf's are held at a time.
    Arriving(Arriving<'p>),
    /// All of them, sorted, and how many are taken.
    Held(Pairs, usize),
}

impl<'p> Source<'p> {
    /// Unsorted pairs are held until all have come. So are all pairs when their number decides the
    /// sizes of leaves, and is not known.
    fn new(mut arriving: Arriving<'p>, fill: Fill) -> Result<Self> {
        let knows_sizes = matches!(fill, Fill::Even(_)) || arriving.left().is_some();
        if arriving.is_sorted() && knows_sizes {
            return Ok(Self::Arriving(arriving));
        }
        Ok(Self::Held(arriving.collect()?, 0))
    }

    /// How many are left, if that is known.
    fn left(&self) -> Option<u64> {
        match self {
            Self::Arriving(arriving) => arriving.left(),
            Self::Held(all, taken) => Some((all.len() - taken) as u64),
        }
    }

    /// Adds the next pairs, until `to` has so many or none is left.
    fn fill(&mut self, to: &mut Pairs, pairs: usize) -> Result<()> {
        match self {
            Self::Arriving(arriving) => arriving.fill(to, pairs),
            Self::Held(all, taken) => {
                while to.len() < pairs && *taken < all.len() {
                    let (key, value) = all.get(*taken);
                    to.push(key, value)?;
                    *taken += 1;
                }
                Ok(())
            }
        }
    }
}

/// The pairs of leaves.
pub(super) struct LeafPairs<'p> {
    source: Source<'p>,
    sizes: Sizes,
    /// Pairs of a leaf when there are more than were announced.
    beyond: usize,
    places: Places,
    /// Of leaves that had no placement: the parts to come, the next one last.
    divided: Vec<Pairs>,
}

impl<'p> LeafPairs<'p> {
    /// For leaves of so many slots.
    pub(super) fn new(
        arriving: Arriving<'p>,
        fill: Fill,
        (places, capacity): (Places, usize),
    ) -> Result<Self> {
        let source = Source::new(arriving, fill)?;
        let full = places.full(capacity);
        let sizes = fill.sizes(rule(full), source.left().unwrap_or(u64::MAX), 0);
        Ok(Self { source, sizes, beyond: full / 2, places, divided: Vec::new() })
    }

    /// Those of the next leaf; none at the end.
    pub(super) fn next(&mut self, to: &mut Pairs) -> Result<()> {
        to.clear();
        match self.divided.pop() {
            Some(part) => *to = part,
            None => self.source.fill(to, self.sizes.next().unwrap_or(self.beyond))?,
        }
        while to.len() > 1 && placed(self.places, to).is_none() {
            Mark::HopLoadHalf.hit();
            self.divided.push(to.split_off(to.len() / 2));
        }
        Ok(())
    }

    /// Adds all that are left.
    pub(super) fn rest(&mut self, to: &mut Pairs) -> Result<()> {
        for part in std::mem::take(&mut self.divided).into_iter().rev() {
            for (key, value) in (0..part.len()).map(|i| part.get(i)) {
                to.push(key, value)?;
            }
        }
        self.source.fill(to, usize::MAX)
    }
}

/// Slots for the pairs of a leaf.
pub(super) fn placed(places: Places, pairs: &Pairs) -> Option<Vec<usize>> {
    places.fill((0..pairs.len()).map(|n| KeyHash::of(pairs.key(n))))
}

/// A node keeps half of what a full one and the pending pair hold, rounded down.
pub(super) fn rule(slots: usize) -> SplitRule {
    SplitRule::new(slots as u32, slots as u32 / 2)
}
