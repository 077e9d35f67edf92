//! Latencies of operations, of one in 64: a session reads the clock for no other.

use std::sync::atomic::{AtomicU64, Ordering};

use dmtree_fabric::trace::report_slow;
use dmtree_pool::{LATENCY_BUCKETS as BUCKETS, Latencies};

use crate::stats::Operation;

/// One operation in so many is timed.
pub(crate) const ONE_IN: u32 = 64;

/// Operations of this length and longer are events of the log, as waits of this length are: for the
/// whole process; 100 ms unless set. An operation is timed from its first wait for a lock, a
/// reply or another client, and one in 64 from its begin.
#[cfg(feature = "tracing")]
pub fn set_slow_operations(bound: std::time::Duration) {
    let ns = u64::try_from(bound.as_nanos()).unwrap_or(u64::MAX);
    dmtree_fabric::trace::set_slow_ns(ns);
}

/// The sampled latencies of a session. One thread writes, any thread reads.
#[derive(Debug)]
pub(crate) struct Samples([Cells; Operation::ALL.len()]);

#[derive(Debug)]
struct Cells {
    counts: [AtomicU64; BUCKETS],
    sum_ns: AtomicU64,
}

impl Default for Samples {
    fn default() -> Self {
        Self(std::array::from_fn(|_| Cells {
            counts: [const { AtomicU64::new(0) }; BUCKETS],
            sum_ns: AtomicU64::new(0),
        }))
    }
}

impl Samples {
    /// An operation took so long.
    pub(crate) fn sample(&self, what: Operation, ns: u64) {
        report_slow(ns, |ms| format!("{what:?}: {ms} ms").to_lowercase());
        let cells = &self.0[what as usize];
        cells.counts[Latencies::bucket(ns)].fetch_add(1, Ordering::Relaxed);
        cells.sum_ns.fetch_add(ns, Ordering::Relaxed);
    }
}

/// The sum over several sessions.
#[derive(Clone, Debug, Default)]
pub(crate) struct LatencySum([Latencies; Operation::ALL.len()]);

impl LatencySum {
    pub(crate) fn add(&mut self, samples: &Samples) {
        for (sum, cells) in self.0.iter_mut().zip(&samples.0) {
            let counts = std::array::from_fn(|i| cells.counts[i].load(Ordering::Relaxed));
            sum.add(&Latencies::new(counts, cells.sum_ns.load(Ordering::Relaxed)));
        }
    }

    /// Those of one kind of operation.
    pub(crate) fn of(&self, what: Operation) -> Latencies {
        self.0[what as usize]
    }
}
