//! A simulated cell over virtual time: figures of every so many microseconds.
//!
//! Every client reports the ends of its operations. The first one that ends behind a bucket closes
//! it: what the counters of all clients have gained since then, and the caches as they are, are its
//! figures. The last bucket, in which clients stop, is left out.

use std::fmt;
use std::sync::Mutex;

use dmtree_fabric::sync::locked;
use dmtree_fabric::{Endpoint, OpKind as Kind, OpOutcome, Snapshot};
use dmtree_parts::AnyNode;
use dmtree_workload::OpKind;
use serde::{Deserialize, Serialize};

use crate::latency::{Latency, empty, percentiles};
use crate::results::per;

/// The most buckets of a cell; what happens behind them is not recorded.
const MAX_BUCKETS: usize = 10_000;

/// One bucket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Bucket {
    /// Millions of operations per second.
    pub mops: f64,
    /// 99th percentile of the latency of reads, ns; 0 without any.
    pub read_p99_ns: u64,
    /// READs of a read at memory nodes.
    pub reads_of_read: f64,
    /// Bytes in the cache of the average compute node at its end.
    pub cache_bytes: u64,
    /// Trainings of models that were published.
    pub trainings: u64,
}

/// A cell over time.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Series {
    /// Length of a bucket, us.
    pub bucket_us: u64,
    /// The buckets, from the start of the phase on.
    pub buckets: Vec<Bucket>,
    /// 99th percentile of reads in all of them, ns.
    pub read_p99_ns: u64,
    /// The same in those with a training; none without trainings.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub training_p99_ns: Option<u64>,
}

impl Series {
    /// In a line.
    pub fn text(&self) -> String {
        let us = |ns: u64| format!("{:.1} us", ns as f64 / 1e3);
        let mut out = format!(
            "{} buckets of {} us; p99 of reads {}",
            self.buckets.len(),
            self.bucket_us,
            us(self.read_p99_ns)
        );
        if let Some(p99) = self.training_p99_ns {
            let trainings: u64 = self.buckets.iter().map(|b| b.trainings).sum();
            let with = self.buckets.iter().filter(|b| b.trainings > 0).count();
            let ratio = per(p99, self.read_p99_ns);
            out += &format!(
                ", {} ({ratio:.2} of that) in the {with} with one of the {trainings} trainings",
                us(p99)
            );
        }
        out
    }
}

/// What the counters say that a bucket needs.
#[derive(Clone, Copy, Debug, Default)]
struct Counted {
    gets: u64,
    reads: u64,
    trainings: u64,
}

impl Counted {
    fn of(counts: &Snapshot) -> Self {
        let gets = counts.total(&[Kind::Get]);
        let trainings = counts.cell(Kind::Train, OpOutcome::Other).ops;
        Self { gets: gets.ops, reads: gets.counts.mn.read, trainings }
    }

    fn gained(&mut self, from: Self, to: Self) {
        self.gets += to.gets - from.gets;
        self.reads += to.reads - from.reads;
        self.trainings += to.trainings - from.trainings;
    }
}

/// The bucket that is open, and those that are closed.
#[derive(Debug)]
struct Recorded {
    /// The counters when they were looked at last.
    seen: Counted,
    gained: Counted,
    ops: u64,
    latency: Latency,
    all: Latency,
    training: Latency,
    closed: Vec<Bucket>,
}

/// Records the series of a cell; all clients share it.
pub struct Recorder {
    bucket_ns: u64,
    nodes: Vec<AnyNode>,
    recorded: Mutex<Recorded>,
}

impl fmt::Debug for Recorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recorder").field("bucket_ns", &self.bucket_ns).finish_non_exhaustive()
    }
}

impl Recorder {
    /// A recorder of buckets of so many microseconds, over an index on these compute nodes.
    pub fn new(bucket_us: u64, nodes: Vec<AnyNode>) -> Self {
        let (latency, all, training) = (empty(), empty(), empty());
        let (seen, gained, ops, closed) = Default::default();
        let recorded = Recorded { seen, gained, ops, latency, all, training, closed };
        Self { bucket_ns: bucket_us * 1000, nodes, recorded: Mutex::new(recorded) }
    }

    /// An operation has ended, so many ns after the start of the phase.
    pub fn ended(&self, ep: &Endpoint, at_ns: u64, kind: OpKind, took_ns: u64) {
        let r = &mut *locked(&self.recorded);
        while r.closed.len() < MAX_BUCKETS && at_ns >= (r.closed.len() as u64 + 1) * self.bucket_ns
        {
            r.look(Counted::of(&ep.snapshot()));
            let cache: u64 = self.nodes.iter().map(|node| node.cache_stats().used_bytes).sum();
            r.close(self.bucket_ns, cache / self.nodes.len().max(1) as u64);
        }
        r.ops += 1;
        if kind == OpKind::Read {
            r.latency.saturating_record(took_ns);
        }
    }

    /// The counters are about to begin anew.
    pub fn before_reset(&self, ep: &Endpoint) {
        let r = &mut *locked(&self.recorded);
        r.look(Counted::of(&ep.snapshot()));
        r.seen = Counted::default();
    }

    /// The series so far.
    pub fn series(&self) -> Series {
        let r = &*locked(&self.recorded);
        Series {
            bucket_us: self.bucket_ns / 1000,
            buckets: r.closed.clone(),
            read_p99_ns: percentiles(&r.all).p99_ns,
            training_p99_ns: (!r.training.is_empty()).then(|| percentiles(&r.training).p99_ns),
        }
    }
}

impl Recorded {
    fn look(&mut self, now: Counted) {
        self.gained.gained(self.seen, now);
        self.seen = now;
    }

    fn close(&mut self, bucket_ns: u64, cache_bytes: u64) {
        let Counted { gets, reads, trainings } = std::mem::take(&mut self.gained);
        self.closed.push(Bucket {
            mops: self.ops as f64 * 1e3 / bucket_ns as f64,
            read_p99_ns: percentiles(&self.latency).p99_ns,
            reads_of_read: per(reads, gets),
            cache_bytes,
            trainings,
        });
        // All have the same bounds, so these cannot fail.
        let _ = self.all.add(&self.latency);
        if trainings > 0 {
            let _ = self.training.add(&self.latency);
        }
        self.latency.reset();
        self.ops = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_have_what_happened_in_them() {
        let mut r = Recorder::new(1, Vec::new()).recorded.into_inner().unwrap();
        let counted = |gets, reads, trainings| Counted { gets, reads, trainings };
        (1..=100).for_each(|ns| r.latency.record(ns).unwrap());
        r.ops = 200;
        r.look(counted(100, 300, 0));
        // The counters begin anew in the midst of a bucket.
        r.seen = Counted::default();
        r.look(counted(50, 100, 1));
        r.close(1_000, 7);
        r.latency.record(5_000).unwrap();
        r.ops = 1;
        r.look(counted(51, 104, 1));
        r.close(1_000, 9);
        let [first, second] = r.closed[..] else { panic!("two") };
        assert_eq!((first.mops, first.cache_bytes, first.trainings), (200.0, 7, 1));
        assert!((first.reads_of_read - 400.0 / 150.0).abs() < 1e-9 && first.read_p99_ns == 99);
        assert_eq!((second.reads_of_read, second.trainings), (4.0, 0));
        assert!(percentiles(&r.training).p99_ns == 99 && r.all.len() == 101);
    }
}
