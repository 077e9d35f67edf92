//! `node`: a compute node without a program.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use dmtree::Pool;
use dmtree_command::{Failure, Result};
use dmtree_fabric::sync::locked;

use crate::args::NodeArgs;
use crate::metrics::Port;
use crate::{Hangup, log, output, stop_flag};

/// Longest wait between two looks at whether to stop, and at what is missing.
const LOOK: Duration = Duration::from_millis(100);

/// Serves until the process is told to stop.
pub fn run(a: &NodeArgs) -> Result<()> {
    let stop = stop_flag(Hangup::GoesOn)?;
    log::begin(&a.log)?;
    let port = Port::open(&a.metrics)?;
    let mut connector = Pool::connect(&a.connect)
        .nic_config(a.nic.nic_config(&a.access)?)
        .wait(Duration::from_secs(a.wait));
    if let Some(listen) = &a.listen {
        connector = connector.listen(listen);
    }
    if let Some(number) = a.index {
        connector = connector.node(number);
    }
    output::note(&format!("joining the pool of {}", a.connect));
    let pool = connector.open().map_err(Failure::refused)?;
    let mut former = pool.incarnation()?;
    // The thread of metrics outlives the pool.
    let watched = Arc::new(Mutex::new(Some(pool.clone())));
    let of = watched.clone();
    port.serve(Arc::new(move || locked(&of).as_ref()?.status()))?;
    output::line(&format!("cn{} serves the pool of {}", former.0, a.connect));
    let mut missing = Vec::new();
    while !stop.load(Ordering::SeqCst) {
        if pool.is_asked_to_leave() {
            output::note("an operator asks this node to leave: it hands its tables over");
            break;
        }
        if let Ok(now) = pool.incarnation()
            && now != former
        {
            output::note(&format!("joined again as cn{}, incarnation {}", now.0, now.1));
            former = now;
        }
        let away = pool.missing().unwrap_or_default();
        away.iter().filter(|line| !missing.contains(*line)).for_each(|line| output::note(line));
        missing = away;
        std::thread::park_timeout(LOOK);
    }
    // The node hands its tables over and leaves.
    *locked(&watched) = None;
    drop(pool);
    Ok(())
}
