//! The exact zipf law. Its sampler takes one draw of the generator in every trial, that of
//! `rand_distr` takes two: recorded workloads would change. `rand_distr` is the oracle of the
//! tests.

use std::sync::Arc;

use super::zeta::{integral, integral_inverse};
use crate::error::{Error, Result};
use crate::rng::Rng;

/// Up to this many items the law is a table: 512 KiB, which stays in a processor's cache. A larger
/// table costs more in cache misses than rejection costs in arithmetic (in a whole operation stream
/// of 2^20 records 200 ns against 115).
const TABLE_MAX: u64 = 1 << 16;

/// Rank k (from 1) of `n` with probability k^-theta / zeta(n, theta).
///
/// Up to 2^16 items an alias table (A. J. Walker 1977; built after M. D. Vose, "A linear
/// algorithm for generating random numbers with a given distribution", IEEE TSE 17(9), 1991), exact
/// to 2^-32 per item and one random number per draw. Above, rejection-inversion (W. Hörmann, G.
/// Derflinger, "Rejection-inversion to generate variates from monotone discrete distributions", ACM
/// TOMACS 6(3), 1996), exact to the precision of a double, which needs no table and on average less
/// than 1.1 rounds.
#[derive(Debug, Clone)]
pub enum ZipfExact {
    Table(Arc<[Column]>),
    Reject(Reject),
}

/// A column of the alias table: its own rank if the coin is below `keep`, otherwise `alias`.
#[derive(Debug, Clone, Copy)]
pub struct Column {
    keep: u32,
    alias: u32,
}

/// The area under k^-theta, cut into one piece per rank. Names follow the paper's section 4.
#[derive(Debug, Clone, Copy)]
pub struct Reject {
    n: u64,
    theta: f64,
    /// Left end of the area that is drawn from: H(1.5) - h(1).
    low: f64,
    /// Right end: H(n + 0.5).
    high: f64,
    /// Points this close below their rank are accepted without a further test.
    squeeze: f64,
}

impl ZipfExact {
    /// The law over `n` items.
    ///
    /// # Errors
    /// No items, or theta outside 0 (excluded) to 10.
    pub fn new(n: u64, theta: f64) -> Result<Self> {
        if n == 0 || !(theta > 0.0 && theta <= 10.0) {
            return Err(Error::new(format!(
                "no zipf law with theta {theta} over {n} items: give at least 1 item and a theta above 0, up to 10"
            )));
        }
        Ok(if n <= TABLE_MAX {
            ZipfExact::Table(table(n as usize, theta))
        } else {
            ZipfExact::Reject(Reject::new(n, theta))
        })
    }

    /// A rank from 0, the most popular.
    #[inline]
    pub fn draw(&self, rng: &mut Rng) -> u64 {
        match self {
            ZipfExact::Table(columns) => {
                // The upper half of the product is a uniform column, the lower half a coin within
                // it.
                let wide = u128::from(rng.next_u64()) * columns.len() as u128;
                let at = (wide >> 64) as usize;
                let coin = (wide as u64 >> 32) as u32;
                let column = columns[at];
                if coin < column.keep { at as u64 } else { u64::from(column.alias) }
            }
            ZipfExact::Reject(law) => law.draw(rng) - 1,
        }
    }
}

/// The alias table of the law.
fn table(n: usize, theta: f64) -> Arc<[Column]> {
    let mut weight: Vec<f64> = (1..=n).map(|k| (k as f64).powf(-theta)).collect();
    let scale = n as f64 / weight.iter().rev().sum::<f64>();
    weight.iter_mut().for_each(|w| *w *= scale);
    // A column that stays short is full; only rounding made it look short.
    let mut columns: Vec<Column> =
        (0..n).map(|k| Column { keep: u32::MAX, alias: k as u32 }).collect();
    let (mut short, mut tall): (Vec<u32>, Vec<u32>) =
        (0..n as u32).partition(|&k| weight[k as usize] < 1.0);
    while let (Some(&low), Some(&high)) = (short.last(), tall.last()) {
        short.pop();
        let own = weight[low as usize];
        columns[low as usize] = Column { keep: (own * 2f64.powi(32)) as u32, alias: high };
        weight[high as usize] -= 1.0 - own;
        if weight[high as usize] < 1.0 {
            tall.pop();
            short.push(high);
        }
    }
    columns.into()
}

impl Reject {
    fn new(n: u64, theta: f64) -> Self {
        let high_of = |k: f64| integral(k + 0.5, theta);
        Reject {
            n,
            theta,
            low: high_of(1.0) - 1.0,
            high: high_of(n as f64),
            squeeze: 2.0 - integral_inverse(high_of(2.0) - 2f64.powf(-theta), theta),
        }
    }

    /// A rank from 1.
    fn draw(&self, rng: &mut Rng) -> u64 {
        loop {
            // In (low, high]: the unit draw excludes 1, so it is subtracted from the right end.
            let area = self.high + rng.unit() * (self.low - self.high);
            let x = integral_inverse(area, self.theta);
            let k = x.round().clamp(1.0, self.n as f64);
            if k - x <= self.squeeze || area >= integral(k + 0.5, self.theta) - k.powf(-self.theta)
            {
                return k as u64;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::zeta;
    use super::*;
    use crate::rng::Seed;

    /// Chi-square of the first ranks, each a cell, and everything above in cells of growing width.
    fn chi_square(n: u64, theta: f64, draws: u32, mut draw: impl FnMut() -> u64) -> (f64, usize) {
        let mut edges: Vec<u64> = (0..=20.min(n)).collect();
        while *edges.last().unwrap() < n {
            edges.push((edges.last().unwrap() * 3 / 2 + 1).min(n));
        }
        let mut cells = vec![0u32; edges.len() - 1];
        for _ in 0..draws {
            let rank = draw();
            assert!(rank < n);
            cells[edges.partition_point(|&e| e <= rank) - 1] += 1;
        }
        let total = zeta(n, theta);
        let mut chi2 = 0.0;
        let mut used = 0;
        for (cell, ends) in cells.iter().zip(edges.windows(2)) {
            let due = f64::from(draws) * (zeta(ends[1], theta) - zeta(ends[0], theta)) / total;
            if due > 10.0 {
                chi2 += (f64::from(*cell) - due).powi(2) / due;
                used += 1;
            }
        }
        (chi2, used - 1)
    }

    /// The 99.9 % point of chi-square, after Wilson and Hilferty.
    fn bound(degrees: usize) -> f64 {
        let d = degrees as f64;
        d * (1.0 - 2.0 / (9.0 * d) + 3.09 * (2.0 / (9.0 * d)).sqrt()).powi(3)
    }

    #[test]
    fn both_methods_follow_the_law() {
        for (n, theta) in [
            (10, 0.5),
            (1000, 0.99),
            (1_000_000, 0.99),
            (1_000_000, 1.2),
            (1 << 16, 0.99),
            (1 << 16, 1.0),
            ((1 << 16) + 1, 0.99),
            (1_000_000_000, 0.99),
            (1_000_000_000, 1.0),
            (1 << 40, 0.5),
            (1 << 40, 2.5),
        ] {
            let law = ZipfExact::new(n, theta).unwrap();
            let mut rng = Seed(n ^ 77).rng();
            let (chi2, degrees) = chi_square(n, theta, 400_000, || law.draw(&mut rng));
            assert!(chi2 < bound(degrees), "n {n} theta {theta}: {chi2} of {degrees}");
        }
    }

    /// Rejection must also be right where the table is used, so that the switch between both
    /// changes nothing.
    #[test]
    fn rejection_follows_the_law_at_any_size() {
        for (n, theta) in [(1, 0.99), (2, 0.99), (3, 5.0), (100, 0.99), (100, 1.0)] {
            let law = Reject::new(n, theta);
            let mut rng = Seed(n).rng();
            if n == 1 {
                assert!((0..1000).all(|_| law.draw(&mut rng) == 1));
                continue;
            }
            let (chi2, degrees) = chi_square(n, theta, 300_000, || law.draw(&mut rng) - 1);
            assert!(chi2 < bound(degrees), "n {n} theta {theta}: {chi2} of {degrees}");
        }
    }

    /// The same test must accept the independent implementation, and refuse one with a theta that
    /// is off by 3 %.
    #[test]
    fn the_oracle_agrees_and_the_test_can_fail() {
        use proptest::test_runner::{RngAlgorithm, TestRng};
        use rand_distr::{Distribution as _, Zipf};
        let (n, theta) = (1_000_000, 0.99);
        let oracle = Zipf::new(n as f64, theta).unwrap();
        let mut bits = TestRng::from_seed(RngAlgorithm::ChaCha, &[3; 32]);
        let (chi2, degrees) = chi_square(n, theta, 200_000, || oracle.sample(&mut bits) as u64 - 1);
        assert!(chi2 < bound(degrees), "{chi2} of {degrees}");
        // Rank by rank, both implementations within five standard deviations of the difference.
        let law = ZipfExact::new(n, theta).unwrap();
        let mut rng = Seed(4).rng();
        let (mut ours, mut theirs) = ([0f64; 10], [0f64; 10]);
        for _ in 0..200_000 {
            if let Some(c) = ours.get_mut(law.draw(&mut rng) as usize) {
                *c += 1.0;
            }
            if let Some(c) = theirs.get_mut(oracle.sample(&mut bits) as usize - 1) {
                *c += 1.0;
            }
        }
        for (a, b) in ours.iter().zip(theirs) {
            assert!((a - b).abs() < 5.0 * (a + b).sqrt(), "{ours:?} {theirs:?}");
        }
        let wrong = ZipfExact::new(n, theta * 1.03).unwrap();
        let (chi2, degrees) = chi_square(n, theta, 200_000, || wrong.draw(&mut rng));
        assert!(chi2 > 2.0 * bound(degrees), "{chi2}");
    }

    #[test]
    fn impossible_laws_are_refused() {
        for (n, theta) in
            [(0, 0.99), (1, 0.0), (1, -1.0), (1, f64::NAN), (1, f64::INFINITY), (1, 10.1)]
        {
            assert!(ZipfExact::new(n, theta).is_err(), "{n} {theta}");
        }
    }
}
