//! The offered load: closed (a client begins its next operation when the last one has ended), or
//! open (operations fall due by themselves, whether or not the system keeps up).
//!
//! An open load is one Poisson process per compute node. Idle clients of the node take due
//! operations in order. An operation that finds all clients busy waits, and its latency counts from
//! the time it fell due, so there is no coordinated omission.

use std::fmt;
use std::str::FromStr;
use std::sync::Mutex;

use dmtree_fabric::sync::locked;
use dmtree_workload::{Rng, Seed};
use serde::{Deserialize, Serialize};

/// Share of the due operations of a window that may be missing at its end.
pub const TOLERATED: f64 = 0.01;
/// The criterion, as text.
pub const CRITERION: &str = "saturated: of the operations that fell due in the measuring window, fewer than 99 % were completed in it, or more than 1 % had not begun at its end";

/// How operations are offered. As text: `closed`, `open:1500000`, `open:1.5M`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum LoadShape {
    /// As many operations at a time as there are clients.
    #[default]
    Closed,
    /// This many operations per second in all, at any speed of the system.
    Open {
        /// Operations per second of all clients together.
        ops_per_s: f64,
    },
}

impl fmt::Display for LoadShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Closed => f.write_str("closed"),
            Self::Open { ops_per_s } => write!(f, "open:{ops_per_s}"),
        }
    }
}

impl FromStr for LoadShape {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "closed" {
            return Ok(Self::Closed);
        }
        let usage = || {
            format!(
                "unknown load {text:?}: give closed, or open:RATE in operations per second, such as open:1.5M"
            )
        };
        let rate = text.strip_prefix("open:").ok_or_else(usage)?;
        let (number, factor) = match rate.char_indices().last() {
            Some((at, 'k' | 'K')) => (&rate[..at], 1e3),
            Some((at, 'M')) => (&rate[..at], 1e6),
            Some((at, 'G')) => (&rate[..at], 1e9),
            _ => (rate, 1.0),
        };
        let ops_per_s = number.replace('_', "").parse::<f64>().map_err(|_| usage())? * factor;
        if (1.0..=1e12).contains(&ops_per_s) {
            Ok(Self::Open { ops_per_s })
        } else {
            Err(format!("a load of {ops_per_s} operations per second: give 1 to 1e12"))
        }
    }
}

dmtree_workload::serde_by_text!(LoadShape, "a load such as \"closed\" or \"open:1.5M\"");

/// The times at which the operations of one compute node fall due, ns after the start of the phase.
#[derive(Clone, Debug)]
struct Schedule {
    rng: Rng,
    mean_gap_ns: f64,
    at_ns: f64,
}

impl Schedule {
    /// The time of the next operation, ns.
    fn take(&mut self) -> u64 {
        // 53 bits, never 0, so that the logarithm is finite.
        let uniform = ((self.rng.next_u64() >> 11) + 1) as f64 / (1u64 << 53) as f64;
        self.at_ns -= uniform.ln() * self.mean_gap_ns;
        self.at_ns as u64
    }
}

/// The schedules of all compute nodes of a cell.
#[derive(Debug)]
pub struct Arrivals {
    seed: Seed,
    /// Operations per second in all.
    pub ops_per_s: f64,
    by_node: Vec<Mutex<Schedule>>,
}

impl Arrivals {
    /// `ops_per_s` in all, spread evenly over `nodes` compute nodes.
    pub fn new(seed: Seed, ops_per_s: f64, nodes: usize) -> Self {
        let by_node = (0..nodes).map(|cn| Mutex::new(Self::schedule(seed, ops_per_s, nodes, cn)));
        Self { seed, ops_per_s, by_node: by_node.collect() }
    }

    /// A Poisson process for a compute node, determined by the seed.
    fn schedule(seed: Seed, ops_per_s: f64, nodes: usize, cn: usize) -> Schedule {
        let rng = seed.numbered("arrivals", cn as u64).rng();
        Schedule { rng, mean_gap_ns: 1e9 / (ops_per_s / nodes as f64), at_ns: 0.0 }
    }

    /// Takes the next operation of a compute node; returns its time, ns after the start.
    pub fn take(&self, cn: usize) -> u64 {
        locked(&self.by_node[cn]).take()
    }

    /// Number of operations that fall due after `from_ns` and not after `to_ns`.
    pub fn due(&self, from_ns: u64, to_ns: u64) -> u64 {
        let nodes = self.by_node.len();
        let count = |cn| {
            let mut s = Self::schedule(self.seed, self.ops_per_s, nodes, cn);
            let times = std::iter::repeat_with(|| s.take()).take_while(|at| *at <= to_ns);
            times.filter(|at| *at > from_ns).count() as u64
        };
        (0..nodes).map(count).sum()
    }
}

/// The result of an open load in a measuring window.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct OpenFigures {
    /// Offered operations per second.
    pub offered_per_s: f64,
    /// Operations that fell due in the window.
    pub due: u64,
    /// Operations completed in the window.
    pub completed: u64,
    /// Due operations that have not begun at the end of the window.
    pub backlog: u64,
    /// Whether the system does not keep up: see [`CRITERION`].
    pub saturated: bool,
}

impl OpenFigures {
    /// Judges a window.
    pub fn judge(offered_per_s: f64, due: u64, completed: u64, backlog: u64) -> Self {
        let tolerated = due as f64 * TOLERATED;
        let missing = due.saturating_sub(completed) as f64;
        let saturated = missing > tolerated || backlog as f64 > tolerated;
        Self { offered_per_s, due, completed, backlog, saturated }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loads_have_names() {
        for (text, rate) in [("open:1.5M", 1.5e6), ("open:200k", 2e5), ("open:1_000", 1e3)] {
            assert_eq!(text.parse(), Ok(LoadShape::Open { ops_per_s: rate }));
        }
        assert_eq!("closed".parse(), Ok(LoadShape::Closed));
        let shape = LoadShape::Open { ops_per_s: 1.5e6 };
        assert_eq!(shape.to_string().parse(), Ok(shape));
        for bad in ["", "open", "open:", "open:x", "open:0", "open:-1", "open:1e13", "open:infM"] {
            assert!(bad.parse::<LoadShape>().is_err(), "{bad}");
        }
    }

    #[test]
    fn arrivals_are_poisson_and_repeat() {
        let sorted = |a: &Arrivals| {
            let mut times: Vec<u64> = (0..16_000).map(|i| a.take(i / 4000)).collect();
            times.sort_unstable();
            times
        };
        // 4000 per node in 16 ms. Gaps are exponential: the mean equals the deviation.
        let times = sorted(&Arrivals::new(Seed(7), 1e6, 4));
        let gaps: Vec<f64> = times.windows(2).map(|w| (w[1] - w[0]) as f64).collect();
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        let deviation =
            (gaps.iter().map(|g| (g - mean).powi(2)).sum::<f64>() / gaps.len() as f64).sqrt();
        assert!((mean - 1000.0).abs() < 50.0, "{mean}");
        assert!((deviation / mean - 1.0).abs() < 0.1, "{deviation}");
        let b = Arrivals::new(Seed(7), 1e6, 4);
        assert_eq!(times, sorted(&b));
        // Counting does not consume operations.
        let (from, to) = (times[99], times[1099]);
        assert_eq!(
            b.due(from, to),
            times.iter().filter(|t| **t > from && **t <= to).count() as u64
        );
        assert_ne!(Arrivals::new(Seed(8), 1e6, 4).take(0), Arrivals::new(Seed(7), 1e6, 4).take(0));
    }

    #[test]
    fn a_system_that_lags_is_saturated() {
        assert!(!OpenFigures::judge(1e6, 10_000, 9_950, 10).saturated);
        assert!(!OpenFigures::judge(1e6, 10_000, 10_050, 0).saturated, "it worked off older ones");
        assert!(OpenFigures::judge(1e6, 10_000, 9_850, 0).saturated);
        assert!(OpenFigures::judge(1e6, 10_000, 10_000, 101).saturated);
    }
}
