//! Sampled latencies of operations, as nodes report them.

use serde::{Deserialize, Serialize};

/// Latencies by powers of two: bucket `i` has those below 2^(`i` + 8) ns (0.256 us), the last one
/// (34 s) all others.
pub const LATENCY_BUCKETS: usize = 28;
const FIRST: u32 = 8;

/// The sampled latencies of one kind of operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Latencies {
    counts: [u64; LATENCY_BUCKETS],
    sum_ns: u64,
}

impl Latencies {
    /// Samples by bucket, and their sum, ns.
    pub fn new(counts: [u64; LATENCY_BUCKETS], sum_ns: u64) -> Self {
        Self { counts, sum_ns }
    }

    /// The bucket of a latency.
    pub fn bucket(ns: u64) -> usize {
        let bits = (u64::BITS - ns.leading_zeros()).saturating_sub(FIRST) as usize;
        bits.min(LATENCY_BUCKETS - 1)
    }

    /// How many were sampled.
    pub fn samples(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Their sum, ns.
    pub fn sum_ns(&self) -> u64 {
        self.sum_ns
    }

    /// Upper bounds, ns, and the number of samples below each and not below the one before.
    pub fn buckets(&self) -> impl Iterator<Item = (u64, u64)> {
        self.counts.iter().enumerate().map(|(i, count)| (1 << (i as u32 + FIRST), *count))
    }

    /// A bound that a share (0 to 1) of the samples did not exceed, ns; `None` without samples.
    pub fn quantile_ns(&self, share: f64) -> Option<u64> {
        let need = (self.samples() as f64 * share).ceil() as u64;
        let mut seen = 0;
        let mut up_to = self.buckets().map(|(bound, count)| {
            seen += count;
            (bound, seen)
        });
        up_to.find(|(_, seen)| *seen >= need.max(1)).map(|(bound, _)| bound)
    }

    /// Adds those of others to these.
    pub fn add(&mut self, other: &Self) {
        self.counts.iter_mut().zip(&other.counts).for_each(|(sum, count)| *sum += count);
        self.sum_ns += other.sum_ns;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_in_the_bucket_below_whose_bound_they_are() {
        let mut counts = [0; LATENCY_BUCKETS];
        for ns in [0, 255, 256, 511, 512, 1_000_000, u64::MAX] {
            counts[Latencies::bucket(ns)] += 1;
        }
        let all = Latencies::new(counts, 0);
        let filled: Vec<_> = all.buckets().filter(|(_, count)| *count > 0).collect();
        assert_eq!(filled, [(256, 2), (512, 2), (1024, 1), (1 << 20, 1), (1 << 35, 1)]);
        assert_eq!((all.quantile_ns(0.5), all.quantile_ns(1.0)), (Some(512), Some(1 << 35)));
        assert_eq!(Latencies::default().quantile_ns(0.5), None);
    }
}
