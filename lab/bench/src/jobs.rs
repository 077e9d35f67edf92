//! Groups of cells, several at a time where that changes no figure: simulated cells depend neither
//! on each other nor on real time.
//!
//! Threads take the groups in order. One of them at a time reports; a thread goes on when its
//! report has been received, so that a stop takes effect before the next cell.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use dmtree_fabric::sync::locked;

use crate::clock;
use crate::config::Config;
use crate::failure::{Failure, Result};
use crate::group::{Group, Host, Reports, run_group};

/// Stack of a thread, bytes: as much as a main thread has.
const STACK_BYTES: usize = 8 << 20;

/// Runs groups of so many cells in all, until the user wants to stop. After a failure no group
/// begins.
///
/// # Errors
/// The first failure of a group.
pub(crate) fn run(
    c: &Config,
    (groups, cells): (&[Group], usize),
    stop: &Arc<AtomicBool>,
    reports: Reports<'_>,
) -> Result<()> {
    let deadline = c.budget.map(|s| clock::now() + Duration::from_secs_f64(s));
    let at_a_time = c.jobs_at_a_time();
    let (next, failure) = (AtomicUsize::new(0), Mutex::new(None));
    let work = || {
        let host = Host::new(stop.clone(), cells, reports);
        let mut host = Host { deadline, is_alone: at_a_time == 1, ..host };
        loop {
            let i = next.fetch_add(1, Ordering::Relaxed);
            let Some(group) = groups.get(i).filter(|_| locked(&failure).is_none()) else { return };
            host.loads_left = groups.len() - i - 1;
            if let Err(e) = run_group(group, &mut host) {
                locked(&failure).get_or_insert(e);
            }
        }
    };
    std::thread::scope(|scope| -> Result<()> {
        for _ in 0..at_a_time.clamp(1, groups.len().max(1)) {
            let thread = std::thread::Builder::new().stack_size(STACK_BYTES);
            thread.spawn_scoped(scope, work).map_err(|e| Failure::input(e.to_string()))?;
        }
        Ok(())
    })?;
    locked(&failure).take().map_or(Ok(()), Err)
}
