//! The distributions of records over operations, by name.

mod zeta;
mod zipf_exact;
mod zipf_ycsb;

use std::fmt;
use std::str::FromStr;

pub use zeta::zeta;
pub use zipf_exact::ZipfExact;
pub use zipf_ycsb::ZipfYcsb;

use crate::error::{Error, Result};
use crate::inserts::InsertCounter;
use crate::permute::Permutation;
use crate::rng::{Rng, Seed};
use crate::text;

/// The exponent that YCSB and the published benchmarks use.
pub const THETA: f64 = 0.99;

/// The largest nominal key count: 2^48, so that a double represents every rank exactly.
pub const MAX_NOMINAL: u64 = 1 << 48;

/// A distribution over the records. Its text form is its name in results: `uniform`,
/// `zipfian-exact(0.99)`, `zipfian-ycsb(0.99)`, `latest`. On input, `zipfian` means
/// `zipfian-exact`, and theta may be left out.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum Distribution {
    /// Every loaded record with the same probability.
    Uniform,
    /// Rank k (from 1) with probability proportional to k^-theta, exactly; ranks are scattered over
    /// the loaded records by a seeded bijection.
    ZipfExact {
        /// The exponent.
        theta: f64,
    },
    /// The approximation that YCSB computes, a closed form; scattered in the same way. Papers
    /// that say "YCSB, zipfian 0.99" usually ran it.
    ZipfYcsb {
        /// The exponent, below 1.
        theta: f64,
    },
    /// Recent inserts are popular: the exact zipf law over the number of records since. Loaded
    /// records follow the inserts, the highest number first.
    Latest {
        /// The exponent.
        theta: f64,
    },
}

impl fmt::Display for Distribution {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Distribution::Uniform => f.write_str("uniform"),
            Distribution::ZipfExact { theta } => write!(f, "zipfian-exact({theta})"),
            Distribution::ZipfYcsb { theta } => write!(f, "zipfian-ycsb({theta})"),
            Distribution::Latest { theta } if theta.to_bits() == THETA.to_bits() => {
                f.write_str("latest")
            }
            Distribution::Latest { theta } => write!(f, "latest({theta})"),
        }
    }
}

impl FromStr for Distribution {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let (name, args) = text::call(text)?;
        let most = usize::from(name != "uniform");
        if args.len() > most {
            return Err(Error::new(format!(
                "{name} takes at most {most} argument(s), not {}: remove some",
                args.len()
            )));
        }
        let theta = args.first().map_or(Ok(THETA), |t| text::theta(t))?;
        match name {
            "uniform" => Ok(Distribution::Uniform),
            "zipfian" | "zipfian-exact" => Ok(Distribution::ZipfExact { theta }),
            "zipfian-ycsb" => Ok(Distribution::ZipfYcsb { theta }),
            "latest" => Ok(Distribution::Latest { theta }),
            _ => Err(Error::unknown(
                "distribution",
                text,
                "uniform, zipfian-exact(THETA), zipfian-ycsb(THETA), latest",
            )),
        }
    }
}

text::serde_by_text!(Distribution, "a distribution such as \"uniform\" or \"zipfian-exact(0.99)\"");

/// A distribution over popularity ranks, prepared for drawing. Ranks count from 0, the most
/// popular.
#[derive(Debug, Clone)]
enum Ranks {
    Uniform,
    Exact(ZipfExact),
    Ycsb(ZipfYcsb),
}

/// A distribution over `n` records, prepared for drawing.
///
/// **Folding.** A zipf law over the few keys that fit a test machine is too hot: at theta 0.99 the
/// most popular of 10^6 keys gets 6.5 % of all operations, the most popular of 10^9 only 4.2 %. So
/// a rank is drawn from the law over a *nominal* key count, and ranks beyond the actual `n` are
/// spread uniformly over the `n`. Popular keys are then as hot as in the large run.
#[derive(Debug, Clone)]
pub struct Chooser {
    distribution: Distribution,
    n: u64,
    ranks: Ranks,
    scatter: Permutation,
}

impl Chooser {
    /// `distribution` over records `0..n`, its law taken over `nominal` (default `n`; the uniform
    /// law does not use it). `seed` determines the scatter over the records.
    ///
    /// # Errors
    /// No records, a nominal count below `n` or above [`MAX_NOMINAL`], or an exponent that the law
    /// does not permit.
    pub fn new(
        distribution: Distribution,
        n: u64,
        nominal: Option<u64>,
        seed: Seed,
    ) -> Result<Self> {
        let nominal = nominal.unwrap_or(n);
        if n == 0 {
            return Err(Error::new(
                "no records to choose from: load at least 1, or use a workload of inserts only",
            ));
        }
        if nominal < n {
            return Err(Error::new(format!(
                "a nominal key count of {nominal} is below the {n} records: give at least {n}, or leave it out"
            )));
        }
        let zipf = |theta| -> Result<f64> {
            if nominal > MAX_NOMINAL {
                return Err(Error::new(format!(
                    "a key count of {nominal} is too large for a zipf law: give at most {MAX_NOMINAL}"
                )));
            }
            Ok(theta)
        };
        let ranks = match distribution {
            Distribution::Uniform => Ranks::Uniform,
            Distribution::ZipfExact { theta } | Distribution::Latest { theta } => {
                Ranks::Exact(ZipfExact::new(nominal, zipf(theta)?)?)
            }
            Distribution::ZipfYcsb { theta } => Ranks::Ycsb(ZipfYcsb::new(nominal, zipf(theta)?)?),
        };
        Ok(Chooser { distribution, n, ranks, scatter: Permutation::new(n, seed) })
    }

    /// Draws a record: one of `0..n`, or under `latest` also one that is stored according to
    /// `inserts`.
    #[inline]
    pub fn draw(&self, rng: &mut Rng, inserts: &InsertCounter) -> u64 {
        let rank = match &self.ranks {
            Ranks::Uniform => return rng.below(self.n),
            Ranks::Exact(law) => law.draw(rng),
            Ranks::Ycsb(law) => law.draw(rng),
        };
        if let Distribution::Latest { .. } = self.distribution {
            let acknowledged = inserts.acknowledged();
            let ago = fold(rank, self.n + acknowledged, rng);
            if ago < acknowledged {
                inserts.number(acknowledged - 1 - ago)
            } else {
                self.n - 1 - (ago - acknowledged)
            }
        } else {
            self.scatter.apply(fold(rank, self.n, rng))
        }
    }
}

/// Folds a rank of the nominal law below `n`: keeps it, or spreads it uniformly.
#[inline]
fn fold(rank: u64, n: u64, rng: &mut Rng) -> u64 {
    if rank < n { rank } else { rng.below(n) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn draws(chooser: &Chooser, n: u64, count: u32) -> Vec<u32> {
        let mut rng = Seed(5).rng();
        let inserts = InsertCounter::new(n, u64::MAX);
        let mut hits = vec![0; n as usize];
        for _ in 0..count {
            hits[chooser.draw(&mut rng, &inserts) as usize] += 1;
        }
        hits
    }

    #[test]
    fn uniform_is_uniform() {
        let chooser = Chooser::new(Distribution::Uniform, 1000, None, Seed(1)).unwrap();
        let hits = draws(&chooser, 1000, 1_000_000);
        let chi2: f64 = hits.iter().map(|&h| (f64::from(h) - 1000.0).powi(2) / 1000.0).sum();
        // 999 degrees of freedom: mean 999, standard deviation 44.7.
        assert!((850.0..1150.0).contains(&chi2), "{chi2}");
    }

    /// The share of the top key at a nominal 10^9 is 4.24 %, at 10^6 it is 6.50 %; top ten 12.5 %
    /// and 19.2 %.
    #[test]
    fn folding_keeps_the_heat_of_the_large_run() {
        let n = 1_000_000;
        let law = Distribution::ZipfExact { theta: THETA };
        let count = 1_000_000;
        for (nominal, top, ten) in [(1_000_000_000, 0.0424, 0.125), (n, 0.0650, 0.192)] {
            let chooser = Chooser::new(law, n, Some(nominal), Seed(1)).unwrap();
            let hits = draws(&chooser, n, count);
            let share =
                |rank| f64::from(hits[chooser.scatter.apply(rank) as usize]) / f64::from(count);
            let first = share(0);
            let first_ten: f64 = (0..10).map(share).sum();
            assert!((first - top).abs() < 0.001, "{nominal}: {first}");
            assert!((first_ten - ten).abs() < 0.002, "{nominal}: {first_ten}");
        }
    }

    /// Ranks above `n` are spread evenly over all records: the coldest half gets its share of them.
    #[test]
    fn the_folded_tail_is_uniform() {
        let (n, nominal) = (1000, 1_000_000_000);
        let law = Distribution::ZipfExact { theta: THETA };
        let chooser = Chooser::new(law, n, Some(nominal), Seed(1)).unwrap();
        let hits = draws(&chooser, n, 1_000_000);
        let tail = 1.0 - zeta(n, THETA) / zeta(nominal, THETA);
        for from in [500, 750] {
            let got: u32 =
                (from..from + 250).map(|r| hits[chooser.scatter.apply(r) as usize]).sum();
            let own = (zeta(from + 250, THETA) - zeta(from, THETA)) / zeta(nominal, THETA);
            let due = 1e6 * (own + tail / 4.0);
            assert!((f64::from(got) - due).abs() < 5.0 * due.sqrt(), "{got} {due}");
        }
    }

    #[test]
    fn the_hottest_record_is_not_record_0() {
        let law = Distribution::ZipfExact { theta: THETA };
        let hottest: Vec<u64> = (0..20)
            .map(|s| Chooser::new(law, 1 << 20, None, Seed(s)).unwrap().scatter.apply(0))
            .collect();
        assert!(hottest.iter().filter(|&&r| r < 1000).count() < 2, "{hottest:?}");
    }

    #[test]
    fn latest_follows_the_inserts() {
        let n = 1000;
        let law = Distribution::Latest { theta: THETA };
        let chooser = Chooser::new(law, n, None, Seed(1)).unwrap();
        let inserts = InsertCounter::new(n, u64::MAX);
        let mut rng = Seed(1).rng();
        let share_of = |record: u64, rng: &mut Rng| {
            let hits = (0..100_000).filter(|_| chooser.draw(rng, &inserts) == record).count();
            hits as f64 / 1e5
        };
        let top = 1.0 / zeta(n, THETA);
        assert!((share_of(999, &mut rng) - top).abs() < 0.006);
        for _ in 0..50 {
            let ticket = inserts.take().unwrap();
            inserts.acknowledge(ticket);
        }
        assert!((share_of(1049, &mut rng) - top).abs() < 0.006);
        // Taken, but not yet stored: must not be drawn.
        let _ = inserts.take().unwrap();
        assert!((share_of(1049, &mut rng) - top).abs() < 0.006);
        // All records up to there are drawn, and none above.
        let mut seen = vec![false; 1050];
        for _ in 0..300_000 {
            seen[chooser.draw(&mut rng, &inserts) as usize] = true;
        }
        assert!(seen[50..].iter().filter(|&&s| s).count() > 990);
    }

    #[test]
    fn names_survive_and_say_which_zipf() {
        for text in ["uniform", "zipfian-exact(0.99)", "zipfian-ycsb(0.8)", "latest", "latest(0.5)"]
        {
            assert_eq!(text.parse::<Distribution>().unwrap().to_string(), text);
        }
        let plain: Distribution = "zipfian".parse().unwrap();
        assert_eq!(plain.to_string(), "zipfian-exact(0.99)");
        for bad in
            ["", "zipf", "uniform(1)", "zipfian(0)", "zipfian(nan)", "zipfian(1,2)", "latest(11)"]
        {
            assert!(bad.parse::<Distribution>().is_err(), "{bad}");
        }
        let message = "gauss".parse::<Distribution>().unwrap_err().to_string();
        assert!(message.contains("zipfian-ycsb(THETA)"), "{message}");
    }

    #[test]
    fn impossible_laws_are_refused() {
        let refused = |text: &str, n, nominal| {
            Chooser::new(text.parse().unwrap(), n, nominal, Seed(1)).unwrap_err().to_string()
        };
        assert!(refused("uniform", 0, None).contains("no records"));
        assert!(refused("zipfian", 10, Some(9)).contains("below the 10 records"));
        assert!(refused("zipfian", 10, Some(u64::MAX)).contains("too large"));
        assert!(refused("zipfian-ycsb(1)", 10, None).contains("below 1"));
    }
}
