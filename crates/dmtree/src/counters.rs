//! The counters of a session for `stats`. One thread writes, any thread reads.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use dmtree_fabric::{Nanos, Result, Snapshot};
use dmtree_parts::Outcome;

use crate::latency::{LatencySum, Samples};
use crate::pool::locked;
use crate::stats::{Operation, OperationCounts};

const KINDS: usize = Operation::ALL.len();
/// Done, Exists, NotFound, Mismatch, error.
const RESULTS: usize = 5;
const ERROR: usize = 4;

#[derive(Debug)]
pub(crate) struct SessionCounters {
    cells: [AtomicU64; KINDS * RESULTS],
    samples: Samples,
    /// Maintenance that ended in an error; it is tried again later.
    maintenance_errors: AtomicU64,
    costs: Mutex<Snapshot>,
}

impl Default for SessionCounters {
    fn default() -> Self {
        Self {
            cells: [const { AtomicU64::new(0) }; KINDS * RESULTS],
            samples: Samples::default(),
            maintenance_errors: AtomicU64::new(0),
            costs: Mutex::default(),
        }
    }
}

fn bump(cell: &AtomicU64) {
    // Only the session's own thread writes.
    cell.store(cell.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
}

impl SessionCounters {
    /// An operation ended with this outcome.
    #[inline]
    pub(crate) fn count(&self, what: Operation, result: Result<Outcome, ()>) {
        let result = match result {
            Ok(Outcome::Done) => 0,
            Ok(Outcome::Exists) => 1,
            Ok(Outcome::NotFound) => 2,
            Ok(Outcome::Mismatch) => 3,
            Err(()) => ERROR,
        };
        bump(&self.cells[what as usize * RESULTS + result]);
    }

    /// An operation that was timed took so long.
    pub(crate) fn sample(&self, what: Operation, ns: Nanos) {
        self.samples.sample(what, ns);
    }

    pub(crate) fn maintenance_failed(&self) {
        bump(&self.maintenance_errors);
    }

    /// Publishes the costs that the endpoint has counted.
    pub(crate) fn publish(&self, costs: Snapshot) {
        *locked(&self.costs) = costs;
    }
}

/// The sum over several sessions.
#[derive(Clone, Debug, Default)]
pub(crate) struct CounterSum {
    cells: [[u64; RESULTS]; KINDS],
    pub(crate) latencies: LatencySum,
    pub(crate) maintenance_errors: u64,
    pub(crate) costs: Snapshot,
}

impl CounterSum {
    pub(crate) fn add(&mut self, t: &SessionCounters) {
        for (sum, cell) in self.cells.iter_mut().flatten().zip(&t.cells) {
            *sum += cell.load(Ordering::Relaxed);
        }
        self.latencies.add(&t.samples);
        self.maintenance_errors += t.maintenance_errors.load(Ordering::Relaxed);
        self.costs.add(&locked(&t.costs));
    }

    pub(crate) fn counts(&self, what: Operation) -> OperationCounts {
        let [done, exists, not_found, mismatch, errors] = self.cells[what as usize];
        OperationCounts { done, exists, not_found, mismatch, errors }
    }
}
