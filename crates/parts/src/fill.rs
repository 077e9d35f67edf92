//! The fill of nodes: bulk loads that leave the same fill as insertions in random order.
//!
//! Let `a[j]` be the expected number of nodes with `j` keys after `n` insertions. The next key is
//! equally likely to fall into any gap, so it meets a node of `j` keys with probability `j * a[j] /
//! n`; that node gets `j + 1` keys, or is split when it is full. This recurrence (fringe analysis:
//! Yao, "On random 2-3 trees", 1978) is linear in `a`. It is iterated key by key at first, and then
//! as a differential equation over `ln n`, so that a billion keys cost a few thousand steps and no
//! more memory than `a`.
//!
//! [`Sizes`] then deals out node sizes with that expectation as histogram, rounded, in a seeded
//! random order. They add up to the number of keys exactly.

use dmtree_fabric::{Error, Result};
use rand_xoshiro::SplitMix64;
use rand_xoshiro::rand_core::{Rng as _, SeedableRng as _};
use serde::{Deserialize, Serialize};

/// How full a bulk load makes the nodes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum Fill {
    /// All alike: this share of the slots, above 0 and at most 1.
    Even(f64),
    /// As insertions in random order would have left them.
    RandomInserts {
        /// Decides the sizes of the nodes.
        seed: u64,
    },
}

impl From<f64> for Fill {
    fn from(share: f64) -> Self {
        Self::Even(share)
    }
}

impl Fill {
    /// Refuses shares that are none.
    ///
    /// # Errors
    /// `InvalidArgument`.
    pub fn check(self) -> Result<()> {
        match self {
            Self::Even(share) if !(share > 0.0 && share <= 1.0) => {
                Err(Error::invalid(format!("a fill of {share} is not above 0 and at most 1")))
            }
            _ => Ok(()),
        }
    }

    /// The sizes of the nodes of one level that hold `n` things. `level` makes levels differ: 0 for
    /// leaves.
    pub fn sizes(self, rule: SplitRule, n: u64, level: u32) -> Sizes {
        match self {
            Self::Even(share) => {
                let least = if level == 0 { 1 } else { 2 };
                let each = (f64::from(rule.capacity) * share).round() as u32;
                Sizes::even(n, each.clamp(least, rule.capacity))
            }
            Self::RandomInserts { seed } => {
                Sizes::random_inserts(rule, n, seed ^ u64::from(level) << 32)
            }
        }
    }
}

/// For layouts in which the highest key of all stands for the right end: a lone last key could be
/// that one, which no lower fence may be. It gets a neighbour.
pub fn give_company(sizes: &mut Vec<usize>, capacity: usize) {
    if let [.., before, last @ 1] = &mut sizes[..] {
        if *before < capacity {
            *before += 1;
            sizes.pop();
        } else {
            (*before, *last) = (*before - 1, 2);
        }
    }
}

/// The split of a full node with one key more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SplitRule {
    /// Slots of a node.
    pub capacity: u32,
    /// Keys in the left node after a split. The right one has the rest of `capacity + 1`.
    pub stays: u32,
}

impl SplitRule {
    /// A rule. A split leaves something on both sides.
    pub fn new(capacity: u32, stays: u32) -> Self {
        debug_assert!(stays >= 1 && stays <= capacity);
        Self { capacity, stays }
    }

    /// Keys in the right node after a split.
    pub fn moves(self) -> u32 {
        self.capacity + 1 - self.stays
    }

    /// The expected number of nodes by size (the index) after `n` insertions in random order into
    /// one node.
    pub fn expected(self, n: u64) -> Vec<f64> {
        let slots = self.capacity as usize;
        let mut a = vec![0.0; slots + 1];
        if n <= u64::from(self.capacity) {
            a[n as usize] = 1.0;
            return a;
        }
        a[slots] = 1.0;
        let mut at = u64::from(self.capacity);
        // Step by step while a step changes much.
        let exact = n.min(64 * u64::from(self.capacity));
        let mut d = vec![0.0; slots + 1];
        while at < exact {
            self.change(&a, &mut d);
            for (a, d) in a.iter_mut().zip(&d) {
                *a += d / at as f64;
            }
            at += 1;
        }
        if at < n {
            // The fastest term decays with e^-(capacity * step): well inside the stable range of
            // the method.
            let span = (n as f64 / at as f64).ln();
            let steps = (span * f64::from(self.capacity)).ceil().max(1.0) as u64;
            let step = span / steps as f64;
            (0..steps).for_each(|_| self.advance(&mut a, step));
        }
        let keys: f64 = a.iter().enumerate().map(|(j, a)| j as f64 * a).sum();
        a.iter_mut().for_each(|a| *a *= n as f64 / keys);
        a
    }

    /// `d = n * da/dn`.
    fn change(self, a: &[f64], d: &mut [f64]) {
        for j in (1..a.len()).rev() {
            d[j] = (j - 1) as f64 * a[j - 1] - j as f64 * a[j];
        }
        let splits = f64::from(self.capacity) * a[self.capacity as usize];
        d[self.stays as usize] += splits;
        d[self.moves() as usize] += splits;
    }

    /// One step of the classical Runge-Kutta method over `ln n`.
    fn advance(self, a: &mut [f64], h: f64) {
        let n = a.len();
        let (mut k, mut at, mut sum) = (vec![0.0; n], a.to_vec(), a.to_vec());
        for (weight, next) in [(1.0, 0.5), (2.0, 0.5), (2.0, 1.0), (1.0, 0.0)] {
            self.change(&at, &mut k);
            for j in 0..n {
                sum[j] += h * weight / 6.0 * k[j];
                at[j] = a[j] + h * next * k[j];
            }
        }
        a.copy_from_slice(&sum);
    }
}

/// The sizes of nodes, one after the other; they add up to the number of keys.
#[derive(Clone, Debug)]
pub struct Sizes {
    /// By size, how many nodes are still to come.
    counts: Vec<u64>,
    left: u64,
    /// The order of the sizes; without it the largest come first.
    order: Option<Draws>,
}

impl Sizes {
    /// Nodes of `each` keys, and one with the rest.
    pub fn even(n: u64, each: u32) -> Self {
        let mut counts = vec![0; each as usize + 1];
        counts[each as usize] = n / u64::from(each);
        let rest = (n % u64::from(each)) as usize;
        if rest > 0 {
            counts[rest] += 1;
        }
        Self::dealt(counts, None)
    }

    /// Nodes as `n` insertions in random order leave them.
    pub fn random_inserts(rule: SplitRule, n: u64, seed: u64) -> Self {
        Self::like(&rule.expected(n), n, seed)
    }

    /// Nodes with this many of each size (the index), in a random order, for `n` keys. The numbers
    /// need not add up to `n` exactly.
    pub fn like(expected: &[f64], n: u64, seed: u64) -> Self {
        let mut counts = vec![0u64; expected.len()];
        // Rounded so that the totals up to each size are right.
        let (mut sum, mut given) = (0.0, 0u64);
        for (count, expected) in counts.iter_mut().zip(expected) {
            sum += expected;
            *count = (sum.round() as u64).saturating_sub(given);
            given += *count;
        }
        settle(&mut counts, n);
        Self::dealt(counts, Some(seed))
    }

    fn dealt(counts: Vec<u64>, seed: Option<u64>) -> Self {
        let left = counts.iter().sum();
        Self { counts, left, order: seed.map(Draws::new) }
    }

    /// How many nodes are still to come.
    pub fn nodes(&self) -> u64 {
        self.left
    }
}

/// Frozen: results name the seed of a fill. Every second output of SplitMix64.
#[derive(Clone, Debug)]
struct Draws(SplitMix64);

impl Draws {
    fn new(seed: u64) -> Self {
        Self(SplitMix64::seed_from_u64(seed.wrapping_mul(2) | 1))
    }

    /// A number below `n`.
    fn below(&mut self, n: u64) -> u64 {
        self.0.next_u64();
        ((u128::from(self.0.next_u64()) * u128::from(n)) >> 64) as u64
    }
}

/// Makes the sizes add up to `n`: single nodes get a key more or less, spread over the sizes that
/// there are.
fn settle(counts: &mut [u64], n: u64) {
    let keys = |counts: &[u64]| counts.iter().enumerate().map(|(j, c)| j as u64 * c).sum::<u64>();
    let top = counts.len() - 1;
    let mut have = keys(counts);
    while have != n {
        let up = have < n;
        let before = have;
        for j in if up { 1..top } else { 2..top + 1 } {
            if have != n && counts[j] > 0 {
                counts[j] -= 1;
                let to = if up { j + 1 } else { j - 1 };
                counts[to] += 1;
                have = if up { have + 1 } else { have - 1 };
            }
        }
        if have == before {
            // Every node is full (or has one key): another node, or one less.
            if up {
                counts[(n - have).min(top as u64) as usize] += 1;
            } else {
                counts[1] -= 1;
            }
            have = keys(counts);
        }
    }
}

impl Iterator for Sizes {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        if self.left == 0 {
            return None;
        }
        let size = match &mut self.order {
            None => self.counts.iter().rposition(|c| *c > 0)?,
            Some(order) => {
                let mut at = order.below(self.left);
                self.counts.iter().position(|c| {
                    let here = at < *c;
                    at = at.saturating_sub(*c);
                    here
                })?
            }
        };
        self.counts[size] -= 1;
        self.left -= 1;
        Some(size)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left as usize, Some(self.left as usize))
    }
}

impl ExactSizeIterator for Sizes {}

/// The largest difference between two cumulative distributions, given as counts by size
/// (Kolmogorov's distance): what a comparison of histograms looks at.
pub fn distance(a: &[f64], b: &[f64]) -> f64 {
    let (total_a, total_b): (f64, f64) = (a.iter().sum(), b.iter().sum());
    let (mut sum_a, mut sum_b, mut worst) = (0.0, 0.0, 0.0f64);
    for i in 0..a.len().max(b.len()) {
        sum_a += a.get(i).unwrap_or(&0.0) / total_a;
        sum_b += b.get(i).unwrap_or(&0.0) / total_b;
        worst = worst.max((sum_a - sum_b).abs());
    }
    worst
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn histogram(sizes: impl Iterator<Item = usize>, capacity: u32) -> Vec<f64> {
        let mut out = vec![0.0; capacity as usize + 1];
        sizes.for_each(|s| out[s] += 1.0);
        out
    }

    /// Really inserts keys in random order into leaves that split.
    fn simulated(rule: SplitRule, n: u64, seed: u64) -> Vec<f64> {
        let mut draws = Draws::new(seed);
        let mut leaves: BTreeMap<u64, Vec<u64>> = BTreeMap::from([(0, Vec::new())]);
        for _ in 0..n {
            let key = draws.below(u64::MAX);
            let (_, leaf) = leaves.range_mut(..=key).next_back().expect("the first begins at 0");
            let at = leaf.partition_point(|k| *k < key);
            leaf.insert(at, key);
            if leaf.len() > rule.capacity as usize {
                let right = leaf.split_off(rule.stays as usize);
                leaves.insert(right[0], right);
            }
        }
        histogram(leaves.values().map(Vec::len), rule.capacity)
    }

    #[test]
    fn draws_are_frozen() {
        let mut draws = Draws::new(7);
        let first = [u64::MAX, 1000, 10].map(|n| draws.below(n));
        assert_eq!(first, [14_391_278_412_279_324_495, 215, 9]);
    }

    #[test]
    fn agrees_with_random_insertion() {
        for (capacity, stays, n) in [(32, 16, 1_000_000), (64, 32, 1_500_000), (16, 4, 400_000)] {
            let rule = SplitRule::new(capacity, stays);
            let real = simulated(rule, n, 7);
            let d = distance(&rule.expected(n), &real);
            assert!(d < 0.01, "{rule:?}: expected and simulated differ by {d}");
            let dealt = histogram(Sizes::random_inserts(rule, n, 3), capacity);
            let d = distance(&dealt, &real);
            assert!(d < 0.01, "{rule:?}: dealt and simulated differ by {d}");
            // The comparison matters: an even fill is far off.
            let even = histogram(Sizes::even(n, capacity * 7 / 10), capacity);
            assert!(distance(&even, &real) > 0.2);
        }
    }

    #[test]
    fn the_published_mean() {
        let a = SplitRule::new(32, 16).expected(1_000_000_000);
        let nodes: f64 = a.iter().sum();
        let mean = 1e9 / nodes;
        assert!((22.3..22.45).contains(&mean), "{mean} keys per leaf");
    }

    #[test]
    fn the_two_ways_of_iterating_agree() {
        let rule = SplitRule::new(32, 16);
        let n = 64 * 32;
        let (before, after) = (rule.expected(n), rule.expected(n + 1));
        for j in 0..before.len() {
            assert!((before[j] - after[j]).abs() < 0.1, "{j}: {} {}", before[j], after[j]);
        }
    }

    #[test]
    fn a_seed_decides_the_order_and_nothing_else() {
        let deal = |seed| Sizes::random_inserts(SplitRule::new(32, 16), 9_999, seed);
        let (a, b): (Vec<_>, Vec<_>) = (deal(1).collect(), deal(2).collect());
        assert_eq!(a, deal(1).collect::<Vec<_>>());
        assert_ne!(a, b);
        assert_eq!(histogram(a.into_iter(), 32), histogram(b.into_iter(), 32));
    }

    proptest! {
        #[test]
        fn sizes_add_up(capacity in 4u32..130, left in 1u32..100, n in 0u64..20_000, seed: u64, share in 0.01f64..1.0) {
            let rule = SplitRule::new(capacity, left.min(capacity));
            for fill in [Fill::RandomInserts { seed }, Fill::Even(share)] {
                for level in 0..2 {
                    let sizes = fill.sizes(rule, n, level);
                    prop_assert_eq!(sizes.nodes() as usize, sizes.clone().count());
                    // Nothing is one empty node.
                    let least = usize::from(n > 0);
                    prop_assert!(sizes.clone().all(|s| s >= least && s <= capacity as usize));
                    prop_assert_eq!(sizes.sum::<usize>() as u64, n);
                }
            }
        }
    }
}
