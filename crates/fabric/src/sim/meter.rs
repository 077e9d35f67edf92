//! Measured CPU: the code of an index is charged for the time that it takes here.
//!
//! A profile prices the steps that an index names (`stage_cost`). An index that names none would
//! be free. Its polls are timed instead, by the CPU time of this thread, so that other processes of
//! the machine do not count; times the profile's `cpu.measured_factor`, that is what the simulated
//! thread works. The simulator's own work inside a poll (it takes verbs) is left out, and so is
//! what reading the clock costs.

use std::cell::Cell;
use std::sync::LazyLock;

use rustix::time::{ClockId, clock_gettime};

use super::Picos;

/// What two readings of the clock in a row differ by, ns: the least of many.
static READING_NS: LazyLock<u64> = LazyLock::new(|| {
    let difference = || {
        let before = cpu_ns();
        cpu_ns() - before
    };
    (0..1000).map(|_| difference()).min().unwrap_or_default()
});

/// CPU time of this thread, ns.
fn cpu_ns() -> u64 {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// The clock of one thread's polls.
pub(super) struct Meter {
    factor: f64,
    /// When the code that runs now began, or was measured last.
    since: Cell<Option<u64>>,
}

impl Meter {
    pub(super) fn new(factor: f64) -> Self {
        Self { factor, since: Cell::new(None) }
    }

    /// The code of the index runs from here on.
    pub(super) fn begin(&self) {
        self.since.set(Some(cpu_ns()));
    }

    /// It stops here: what it has taken since it began, in time of the profile. `None` when it did
    /// not run.
    pub(super) fn end(&self) -> Option<Picos> {
        let since = self.since.take()?;
        let taken = (cpu_ns() - since).saturating_sub(*READING_NS);
        Some((taken as f64 * self.factor * 1000.0) as Picos)
    }
}

#[cfg(test)]
mod tests {
    use super::Meter;

    #[test]
    fn more_work_takes_more_time() {
        let measure = |rounds: u64| {
            let meter = Meter::new(2.0);
            let least = (0..20).map(|_| {
                meter.begin();
                std::hint::black_box((0..rounds).fold(1u64, |x, i| std::hint::black_box(x ^ i)));
                meter.end().expect("it ran")
            });
            least.min().expect("rounds")
        };
        assert!(measure(100_000) > 10 * measure(1000));
        assert_eq!(Meter::new(1.0).end(), None);
    }
}
