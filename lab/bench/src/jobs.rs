//! Groups of cells, several at a time where that changes no figure: simulated cells depend neither
//! on each other nor on real time.
//!
//! Threads take the groups in order. One of them at a time reports; a thread goes on when its report
//! has been received, so that a stop takes effect before the next cell.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use dmtree_fabric::sync::locked;

use crate::failure::{Failure, Result};
use crate::group::{Group, Host, Reports, run_group};

/// Stack of a thread, bytes: as much as a main thread has.
const STACK_BYTES: usize = 8 << 20;

/// Groups to be run.
pub(crate) struct Jobs<'a> {
    /// In the order of their runs.
    pub groups: &'a [Group],
    /// Groups at a time.
    pub at_a_time: usize,
    /// Set when the user wants to stop.
    pub stop: &'a Arc<AtomicBool>,
    /// The end of the time budget.
    pub deadline: Option<Instant>,
}

impl Jobs<'_> {
    /// Number of cells.
    pub fn cells(&self) -> usize {
        self.groups.iter().map(|g| g.cells.len()).sum()
    }

    /// Runs all groups. After a failure no group begins.
    ///
    /// # Errors
    /// The first failure of a group.
    pub fn run(&self, reports: Reports<'_>) -> Result<()> {
        let (next, failure) = (AtomicUsize::new(0), Mutex::new(None));
        std::thread::scope(|scope| -> Result<()> {
            let work = || {
                if let Err(e) = self.work(&next, &failure, reports) {
                    locked(&failure).get_or_insert(e);
                }
            };
            for _ in 0..self.at_a_time.clamp(1, self.groups.len().max(1)) {
                let thread = std::thread::Builder::new().stack_size(STACK_BYTES);
                thread.spawn_scoped(scope, work).map_err(|e| Failure::input(e.to_string()))?;
            }
            Ok(())
        })?;
        failure.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(Ok(()), Err)
    }

    /// One thread: runs groups until none is left, or one has failed.
    fn work(
        &self,
        next: &AtomicUsize,
        failure: &Mutex<Option<Failure>>,
        reports: Reports<'_>,
    ) -> Result<()> {
        let host = Host::new(self.stop.clone(), self.cells(), reports);
        let (deadline, is_alone) = (self.deadline, self.at_a_time == 1);
        let mut host = Host { deadline, is_alone, ..host };
        loop {
            let i = next.fetch_add(1, Ordering::Relaxed);
            let Some(group) = self.groups.get(i) else { return Ok(()) };
            if locked(failure).is_some() {
                return Ok(());
            }
            host.loads_left = self.groups.len() - i - 1;
            run_group(group, &mut host)?;
        }
    }
}
