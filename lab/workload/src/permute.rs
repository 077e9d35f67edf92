//! A seeded bijection of `0..n`, without a table.
//!
//! It scatters popularity ranks over the records, orders a load, orders the deletes, and embeds
//! record numbers in random keys. YCSB hashes a rank and takes it modulo the number of records; two
//! ranks may then meet on one record, and some records are never drawn. A bijection preserves the
//! law.

use crate::rng::{Rng, Seed, mix64};

/// Rounds of multiply and shift. Frozen.
const ROUNDS: usize = 4;

/// A seeded bijection of `0..n`. On the next power of two above `n` every step (add, multiply by an
/// odd number, xor with the own upper half) is invertible, so the whole is a bijection there. A
/// result at or above `n` is mapped again until it is below ("cycle walking": J. Black, P. Rogaway,
/// "Ciphers with arbitrary finite domains", CT-RSA 2002), on average less than twice.
#[derive(Debug, Clone)]
pub struct Permutation {
    n: u64,
    mask: u64,
    shift: u32,
    add: [u64; ROUNDS],
    multiply: [u64; ROUNDS],
}

impl Permutation {
    /// The bijection of `0..n` for `seed`.
    pub fn new(n: u64, seed: Seed) -> Self {
        let bits = 64 - n.saturating_sub(1).leading_zeros();
        Self::with_bits(n, bits, seed)
    }

    /// The bijection of all numbers of `bytes` bytes (1 to 8) for `seed`.
    pub fn of_bytes(bytes: usize, seed: Seed) -> Self {
        let bits = 8 * bytes.clamp(1, 8) as u32;
        // A domain of 2^64 does not fit `n`; 0 stands for it, see `apply`.
        Self::with_bits(if bits == 64 { 0 } else { 1 << bits }, bits, seed)
    }

    fn with_bits(n: u64, bits: u32, seed: Seed) -> Self {
        let mask = if bits >= 64 { u64::MAX } else { (1 << bits) - 1 };
        let mut rng: Rng = seed.rng();
        let mut add = [0; ROUNDS];
        let mut multiply = [0; ROUNDS];
        for round in 0..ROUNDS {
            add[round] = rng.next_u64();
            multiply[round] = mix64(rng.next_u64()) | 1;
        }
        Permutation { n, mask, shift: bits.div_ceil(2).clamp(1, 63), add, multiply }
    }

    /// The image of `x`. `x` must be below `n`; a larger one is taken modulo `n`.
    #[inline]
    pub fn apply(&self, x: u64) -> u64 {
        if self.mask == u64::MAX && self.n == 0 {
            return self.once(x);
        }
        if self.n <= 1 {
            return 0;
        }
        let mut x = if x < self.n { x } else { x % self.n };
        loop {
            x = self.once(x);
            if x < self.n {
                return x;
            }
        }
    }

    #[inline]
    fn once(&self, mut x: u64) -> u64 {
        for round in 0..ROUNDS {
            x = x.wrapping_add(self.add[round]).wrapping_mul(self.multiply[round]) & self.mask;
            x ^= x >> self.shift;
        }
        x
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn is_bijection(n: u64, seed: u64) -> bool {
        let p = Permutation::new(n, Seed(seed));
        let mut seen = vec![false; n as usize];
        for x in 0..n {
            let y = p.apply(x);
            if y >= n || std::mem::replace(&mut seen[y as usize], true) {
                return false;
            }
        }
        true
    }

    #[test]
    fn every_small_domain_is_permuted() {
        for n in 0..300 {
            assert!(is_bijection(n, n), "n = {n}");
        }
        assert!(is_bijection(1_000_003, 9));
    }

    #[test]
    fn bytes_are_permuted() {
        for bytes in [1, 2] {
            let p = Permutation::of_bytes(bytes, Seed(3));
            let n = 1u64 << (8 * bytes);
            let mut seen = vec![false; n as usize];
            for x in 0..n {
                assert!(!std::mem::replace(&mut seen[p.apply(x) as usize], true));
            }
        }
        let p = Permutation::of_bytes(8, Seed(3));
        let mut out: Vec<u64> = (0..10_000).chain((0..10_000).map(|x| (1 << 63) | x)).collect();
        out.iter_mut().for_each(|x| *x = p.apply(*x));
        out.sort_unstable();
        out.dedup();
        assert_eq!(out.len(), 20_000);
    }

    #[test]
    fn seeds_and_order_differ() {
        let a = Permutation::new(1 << 20, Seed(1));
        let b = Permutation::new(1 << 20, Seed(2));
        let same = (0..1000).filter(|&x| a.apply(x) == b.apply(x)).count();
        assert!(same < 5);
        // Neighbours must not stay neighbours, or the popular ranks would share a leaf.
        let near = (0..1000).filter(|&x| a.apply(x).abs_diff(a.apply(x + 1)) < 1000).count();
        assert!(near < 20, "{near}");
    }

    /// The images of the first ranks must fill the domain evenly for any seed, or hot keys would
    /// cluster.
    #[test]
    fn images_are_spread() {
        let mut bins = [0u64; 64];
        for seed in 0..2000 {
            let p = Permutation::new(1_000_000, Seed(seed));
            for x in 0..10 {
                bins[(p.apply(x) * 64 / 1_000_000) as usize] += 1;
            }
        }
        let expected = 20_000.0 / 64.0;
        let chi2: f64 = bins.iter().map(|&b| (b as f64 - expected).powi(2) / expected).sum();
        // 63 degrees of freedom: the 99.9 % point is 103.4.
        assert!(chi2 < 103.4, "{chi2}");
    }

    proptest! {
        #![proptest_config(crate::property_config())]
        #[test]
        fn any_domain_and_seed(n in 1u64..5000, seed: u64) {
            prop_assert!(is_bijection(n, seed));
        }
    }
}
