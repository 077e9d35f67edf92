//! Groups of cells, several at a time where that changes no figure: simulated cells depend neither
//! on each other nor on real time.
//!
//! Threads take the groups in order. The thread that called receives their reports one by one; a
//! thread goes on when the result of its cell has been received, so that a stop takes effect before
//! the next cell.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use dmtree_fabric::sync::locked;

use crate::failure::{Failure, Result};
use crate::group::{CellPlan, Group, Host, Measured, Progress, run_group};

/// Stack of a thread, bytes: as much as a main thread has.
const STACK_BYTES: usize = 8 << 20;

/// A report of a group.
pub(crate) enum Report {
    /// Progress of a phase: the cell's or group's name, the phase, operations, share.
    Progress(String, &'static str, u64, f64),
    /// The result of a cell.
    Measured(Box<(Group, CellPlan, Measured)>),
}

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
    pub fn run(&self, report: &mut dyn FnMut(Report)) -> Result<()> {
        let (next, failure) = (AtomicUsize::new(0), Mutex::new(None));
        std::thread::scope(|scope| -> Result<()> {
            let (sender, reports) = channel();
            for _ in 0..self.at_a_time.clamp(1, self.groups.len().max(1)) {
                let (sender, next, failure) = (sender.clone(), &next, &failure);
                let work = move || {
                    if let Err(e) = self.work(next, failure, &sender) {
                        locked(failure).get_or_insert(e);
                    }
                };
                let thread = std::thread::Builder::new().stack_size(STACK_BYTES);
                thread.spawn_scoped(scope, work).map_err(|e| Failure::input(e.to_string()))?;
            }
            drop(sender);
            for (what, received) in reports {
                report(what);
                // The thread may have panicked; the scope says so.
                let _ = Sender::send(&received, ());
            }
            Ok(())
        })?;
        failure.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner).map_or(Ok(()), Err)
    }

    /// One thread: runs groups until none is left, or one has failed.
    fn work(
        &self,
        next: &AtomicUsize,
        failure: &Mutex<Option<Failure>>,
        sender: &Sender<(Report, Sender<()>)>,
    ) -> Result<()> {
        let (received, wait) = channel();
        let tell = |what: Report| {
            if sender.send((what, received.clone())).is_ok() {
                let _ = wait.recv();
            }
        };
        let mut progress = |p: Progress<'_>| {
            tell(Report::Progress(p.what.to_owned(), p.phase, p.done, p.share));
        };
        let mut measured = |g: &Group, plan: &CellPlan, m: Measured| {
            tell(Report::Measured(Box::new((g.clone(), plan.clone(), m))));
        };
        let cells = self.cells();
        let mut host = Host {
            stop: self.stop.clone(),
            deadline: self.deadline,
            is_alone: self.at_a_time == 1,
            cells_left: cells,
            cells,
            loads_left: 0,
            load_cost: Duration::ZERO,
            oracle: None,
            progress: &mut progress,
            measured: &mut measured,
        };
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
