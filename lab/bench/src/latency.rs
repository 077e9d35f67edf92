//! Latency histograms, one per thread and kind of operation, merged afterwards.

use dmtree_workload::OpKind;
use hdrhistogram::Histogram;

use crate::results::Percentiles;

/// The longest recorded latency: one minute. Longer ones count as this.
const LONGEST_NS: u64 = 60_000_000_000;

/// Latencies in ns, with three significant digits.
pub type Latency = Histogram<u64>;

/// No latencies.
pub fn empty() -> Latency {
    Histogram::new_with_bounds(1, LONGEST_NS, 3).unwrap_or_else(|_| unreachable!("constant bounds"))
}

/// The percentiles of latencies; 0 if there are none.
pub fn percentiles(l: &Latency) -> Percentiles {
    let quantile = |share| if l.is_empty() { 0 } else { l.value_at_quantile(share) };
    let [p50_ns, p90_ns, p99_ns, p999_ns] = [0.5, 0.9, 0.99, 0.999].map(quantile);
    Percentiles { p50_ns, p90_ns, p99_ns, p999_ns }
}

/// The points of a distribution function: latency, ns, and the share of operations that took no
/// longer. Every twentieth up to 95 %, then closer; of points at one latency the last.
pub fn cdf(l: &Latency) -> Vec<(u64, f64)> {
    const TAIL: [f64; 8] = [0.97, 0.98, 0.99, 0.995, 0.998, 0.999, 0.9999, 1.0];
    if l.is_empty() {
        return Vec::new();
    }
    let shares = [0.001, 0.01].into_iter().chain((1..20).map(|n| f64::from(n) / 20.0)).chain(TAIL);
    let mut points: Vec<(u64, f64)> = Vec::new();
    for point in shares.map(|share| (l.value_at_quantile(share), share)) {
        match points.last_mut() {
            Some(last) if last.0 == point.0 => *last = point,
            _ => points.push(point),
        }
    }
    points
}

/// Latencies by kind of operation; kinds that do not occur take no memory.
#[derive(Clone, Debug, Default)]
pub struct ByKind([Option<Box<Latency>>; OpKind::ALL.len()]);

impl ByKind {
    fn of(&mut self, kind: usize) -> &mut Latency {
        self.0[kind].get_or_insert_with(|| Box::new(empty()))
    }

    /// Records a latency.
    #[inline]
    pub fn record(&mut self, kind: OpKind, ns: u64) {
        self.of(kind as usize).saturating_record(ns);
    }

    /// Adds other histograms.
    pub fn add(&mut self, other: &Self) {
        for (kind, theirs) in other.0.iter().enumerate() {
            // All have the same bounds, so this cannot fail.
            theirs.iter().for_each(|theirs| _ = self.of(kind).add(&**theirs));
        }
    }

    /// All kinds together.
    pub fn total(&self) -> Latency {
        let mut sum = empty();
        self.0.iter().flatten().for_each(|l| _ = sum.add(&**l));
        sum
    }

    /// The kinds that occur, and their latencies.
    pub fn iter(&self) -> impl Iterator<Item = (OpKind, &Latency)> {
        OpKind::ALL.iter().filter_map(|k| Some((*k, self.0[*k as usize].as_deref()?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn merged_quantiles_are_those_of_all() {
        let (mut a, mut b) = (ByKind::default(), ByKind::default());
        for ns in 1..=900 {
            a.record(OpKind::Read, ns);
        }
        for ns in 901..=1000 {
            b.record(OpKind::Read, ns);
        }
        b.record(OpKind::Scan, u64::MAX);
        a.add(&b);
        let (kind, read) = a.iter().next().unwrap();
        assert_eq!((kind, read.len()), (OpKind::Read, 1000));
        let p = percentiles(read);
        assert!(p.p50_ns.abs_diff(500) <= 1 && p.p99_ns.abs_diff(990) <= 1);
        assert_eq!(a.iter().count(), 2);
        assert_eq!(a.total().len(), 1001);
        assert!(a.total().max() >= LONGEST_NS);
        assert_eq!(percentiles(&empty()), Percentiles::default());
        let points = cdf(read);
        assert_eq!(points[2], (50, 0.05));
        assert_eq!(points.last(), Some(&(1000, 1.0)));
        assert!(points.is_sorted_by(|a, b| a.0 < b.0 && a.1 < b.1), "{points:?}");
        assert_eq!(cdf(&empty()), []);
        let mut one = empty();
        one.record_n(7, 9).unwrap();
        assert_eq!(cdf(&one), [(7, 1.0)]);
    }
}
