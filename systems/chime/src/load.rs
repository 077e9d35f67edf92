//! Bulk load: what `parts::blink` has to know of leaves. A leaf gets as many keys as the fill
//! wants, or as find room in it.

use std::collections::BTreeMap;
use std::ops::Range;

use dmtree_fabric::{GlobalAddr, Result};
use dmtree_parts::blink::{BulkLoad, Header};
use dmtree_parts::fill::{self, Fill, Sizes, SplitRule};
use dmtree_parts::held::Unlock;
use dmtree_parts::pairs::Pairs;

use crate::format::{Geometry, Leaf, next};
use crate::index::Chime;
use crate::lock::Held;
use crate::lock::Locks;
use crate::options::Options;
use crate::read::Leaves;
use crate::split::Splits;

/// Keys of the small index that shows how full random inserts leave the leaves.
const TYPICAL: u64 = 250_000;
/// Sizes that are tried for a leaf before one is cut.
const TRIES: usize = 4;

/// A hopscotch leaf without bytes: how far each slot is behind its occupant's home, and which key
/// the occupant is.
struct Plan<'g> {
    g: &'g Geometry,
    offsets: Vec<Option<usize>>,
    slots: Vec<usize>,
}

impl<'g> Plan<'g> {
    fn new(g: &'g Geometry) -> Self {
        Self { g, offsets: vec![None; g.span], slots: vec![0; g.span] }
    }

    /// Adds key number `n`; false when it finds no room.
    fn add(&mut self, n: usize, key: &[u8]) -> bool {
        let home = self.g.home(key);
        let Some(room) = self.g.room(&self.offsets, home) else { return false };
        for (from, to) in room.moves {
            let offset = self.offsets[from].take();
            self.offsets[to] = offset.map(|offset| offset + self.g.distance(from, to));
            self.slots[to] = self.slots[from];
        }
        self.offsets[room.slot] = Some(self.g.distance(home, room.slot));
        self.slots[room.slot] = n;
        true
    }
}

impl Geometry {
    /// The first of these pairs, as many as find room in a leaf.
    fn plan(&self, all: &Pairs, range: Range<usize>) -> (Plan<'_>, usize) {
        let mut plan = Plan::new(self);
        let size = range.len();
        let fit = range.enumerate().find(|(_, i)| self.hopscotch && !plan.add(*i, all.key(*i)));
        (plan, fit.map_or(size, |(n, _)| n))
    }

    /// A leaf with these pairs, which find room.
    fn filled(&self, all: &Pairs, range: Range<usize>) -> Leaf<'_> {
        let (mut leaf, (plan, _)) = (self.empty_leaf(), self.plan(all, range.clone()));
        if !self.hopscotch {
            let pairs: Vec<_> = range.map(|i| all.get(i)).collect();
            leaf.set_sorted(pairs.into_iter());
            return leaf;
        }
        for slot in (0..self.span).filter(|slot| plan.offsets[*slot].is_some()) {
            let (key, value) = all.get(plan.slots[slot]);
            leaf.fill(slot, key, value);
        }
        leaf
    }

    /// How many leaves of each size random inserts leave: those of a small index.
    fn typical(&self) -> Vec<f64> {
        let o = Options {
            key_bytes: 8,
            value_bytes: 0,
            span: self.span as u32,
            neighbourhood: self.near as u32,
            ..Options::sibling()
        };
        let g = Self::new(&o);
        let mut leaves = BTreeMap::from([(vec![0; 8], g.empty_leaf())]);
        for n in 1..=TYPICAL {
            // The order of SplitMix64.
            let mut x = n.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
            let key = (x ^ x >> 31).to_be_bytes().to_vec();
            let Some((_, leaf)) = leaves.range_mut(..=key.clone()).next_back() else { break };
            match g.room(&leaf.offsets(), g.home(&key)) {
                Some(room) => leaf.put_into(&room, &key, &[]),
                None => {
                    let Ok(d) = leaf.clone().divide(&key, &[]) else { break };
                    *leaf = d.left;
                    leaves.insert(d.separator, d.right);
                }
            }
        }
        let mut sizes = vec![0.0; self.span + 1];
        leaves.values().for_each(|leaf| sizes[leaf.used().count()] += 1.0);
        sizes
    }

    /// The wanted sizes of leaves.
    fn wanted(&self, n: u64, fill: Fill) -> Sizes {
        let span = self.span as u32;
        match fill {
            Fill::RandomInserts { seed } if self.hopscotch && n > u64::from(span) => {
                let share = n as f64 / TYPICAL as f64;
                let sizes: Vec<f64> = self.typical().iter().map(|s| s * share).collect();
                Sizes::like(&sizes, n, seed)
            }
            _ => fill.sizes(SplitRule::new(span, span / 2), n, 0),
        }
    }

    /// The sizes of all leaves: those that are wanted, in an order in which all keys find room.
    fn sizes(&self, all: &Pairs, fill: Fill) -> Vec<usize> {
        let (mut sizes, mut next, mut later) = (Vec::new(), 0, Vec::new());
        let mut wanted = self.wanted(all.len() as u64, fill);
        let fits = |next: usize, size: usize| self.plan(all, next..(next + size).min(all.len())).1;
        while next < all.len() {
            // A size without room waits for other keys.
            let waiting: Option<usize> = later.last().copied();
            let mut size = waiting.map_or(0, |size| fits(next, size));
            if waiting.is_some_and(|waiting| size == waiting.min(all.len() - next)) {
                later.pop();
            } else {
                for _ in 0..TRIES {
                    let Some(wanted) = wanted.next().or_else(|| later.pop()) else { break };
                    size = fits(next, wanted);
                    if size == wanted.min(all.len() - next) {
                        break;
                    }
                    later.push(wanted);
                }
            }
            sizes.push(size.max(1));
            next += size.max(1);
        }
        // The last key of all is no separator.
        fill::give_company(&mut sizes, 2);
        sizes
    }
}

impl BulkLoad for Chime {
    type NewLeaf<'c> = Leaf<'c>;

    async fn lock_first(&self, leaf: GlobalAddr) -> Result<(Held, bool)> {
        let held = Locks(self).lock_leaf(leaf).await?;
        let all = [self.node.g.whole()];
        let (held, leaf) = self.under(held, Leaves(self).read_parts(leaf, &all).await).await?;
        let is_empty = leaf.used().next().is_none() && leaf.sibling().is_null();
        Ok((held, is_empty))
    }

    fn leaf_sizes(&self, all: &Pairs, fill: Fill) -> Vec<usize> {
        self.node.g.sizes(all, fill)
    }

    /// As a division of the leaf before would leave it: no gap lies between two leaves.
    fn low_fence(&self, all: &Pairs, begin: usize) -> Vec<u8> {
        match self.node.o.loose_fences {
            true => all.key(begin).to_vec(),
            false => next(all.key(begin - 1)),
        }
    }

    async fn new_leaf(&self, h: &Header<'_>, all: &Pairs, range: Range<usize>) -> Result<Leaf<'_>> {
        let mut leaf = self.node.g.filled(all, range);
        leaf.set_metadata(h.sibling, h.low, h.high);
        Ok(leaf)
    }

    async fn write_new<'c>(&'c self, at: GlobalAddr, leaf: Leaf<'c>) -> Result<()> {
        Splits(self).write_new_leaf(at, &leaf).await
    }

    async fn write_first<'c>(
        &'c self,
        held: Held,
        at: GlobalAddr,
        mut leaf: Leaf<'c>,
    ) -> Result<()> {
        leaf.raise();
        let word = Some(self.node.g.word(&leaf)).filter(|_| self.node.g.has_vacancy);
        Locks(self).release(held, at, &leaf, &[self.node.g.whole()], word).await
    }
}
