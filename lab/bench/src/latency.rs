//! Latency histograms, one per thread and kind of operation, merged afterwards.

use dmtree_workload::OpKind;
use hdrhistogram::Histogram;

use crate::results::Percentiles;

/// The longest recorded latency: one minute. Longer ones count as this.
const LONGEST_NS: u64 = 60_000_000_000;

/// Latencies in ns, with three significant digits.
#[derive(Clone, Debug)]
pub struct Latency(Histogram<u64>);

impl Default for Latency {
    fn default() -> Self {
        Self::new()
    }
}

impl Latency {
    /// An empty histogram.
    pub fn new() -> Self {
        // These bounds are within what the histogram takes.
        let h = Histogram::new_with_bounds(1, LONGEST_NS, 3);
        Self(h.unwrap_or_else(|_| unreachable!("constant bounds")))
    }

    /// Records a latency.
    #[inline]
    pub fn record(&mut self, ns: u64) {
        self.0.saturating_record(ns);
    }

    /// Adds another histogram.
    pub fn add(&mut self, other: &Self) {
        // Both have the same bounds, so this cannot fail.
        let _ = self.0.add(&other.0);
    }

    /// Number of latencies.
    pub fn len(&self) -> u64 {
        self.0.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Its percentiles.
    pub fn percentiles(&self) -> Percentiles {
        Percentiles {
            p50_ns: self.quantile(0.5),
            p90_ns: self.quantile(0.9),
            p99_ns: self.quantile(0.99),
            p999_ns: self.quantile(0.999),
        }
    }

    /// The latency that this share of operations did not exceed; 0 if there are none.
    pub fn quantile(&self, share: f64) -> u64 {
        if self.0.is_empty() { 0 } else { self.0.value_at_quantile(share) }
    }
}

/// Latencies by kind of operation; kinds that do not occur take no memory.
#[derive(Clone, Debug, Default)]
pub struct ByKind([Option<Box<Latency>>; OpKind::ALL.len()]);

impl ByKind {
    /// Records a latency.
    #[inline]
    pub fn record(&mut self, kind: OpKind, ns: u64) {
        self.0[kind as usize].get_or_insert_default().record(ns);
    }

    /// Adds other histograms.
    pub fn add(&mut self, other: &Self) {
        for (mine, theirs) in self.0.iter_mut().zip(&other.0) {
            if let Some(t) = theirs {
                mine.get_or_insert_default().add(t);
            }
        }
    }

    /// All kinds together.
    pub fn total(&self) -> Latency {
        let mut sum = Latency::new();
        self.0.iter().flatten().for_each(|l| sum.add(l));
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
        assert!(read.quantile(0.5).abs_diff(500) <= 1 && read.quantile(0.99).abs_diff(990) <= 1);
        assert_eq!(a.iter().count(), 2);
        assert_eq!(a.total().len(), 1001);
        assert!(a.total().quantile(1.0) >= LONGEST_NS);
        assert_eq!(Latency::new().quantile(0.5), 0);
    }
}
