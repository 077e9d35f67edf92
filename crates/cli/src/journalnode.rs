//! `journalnode`: be a journal node. `journal refill`: write the part of one anew.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use dmtree::{CheckpointSeries, JournalNode};
use dmtree_command::{Failure, Result};
use dmtree_pool::Place;

use crate::args::{JournalLevel, JournalnodeArgs, RefillArgs};
use crate::checkpoint::repeat;
use crate::metrics::Port;
use crate::transfer::connect;
use crate::{Hangup, log, output, stop_flag};

/// Longest wait between two looks at whether to stop.
const LOOK: Duration = Duration::from_millis(100);

/// Serves until the process is told to stop.
pub fn run(a: &JournalnodeArgs) -> Result<()> {
    let stop = stop_flag(Hangup::GoesOn)?;
    log::begin(&a.log)?;
    let port = Port::open(&a.metrics)?;
    let nic_config = &a.nic.nic_config(&a.access)?;
    let (first, within) = (a.join.as_str(), Duration::from_secs(a.wait));
    let listen = a.listen.as_deref().unwrap_or_else(|| nic_config.access.any_port());
    output::note(&format!("joining the pool of {first}"));
    let place = Place { first, listen, wanted: a.index, within, data_path: None, nic_config };
    let syncs = a.level.map(|level| level == JournalLevel::Sync);
    let node = match a.replace {
        true => JournalNode::replace(&place, &a.dir, syncs),
        false => JournalNode::join(&place, &a.dir, syncs),
    };
    let node = node.map_err(Failure::refused)?;
    let fabric = node.fabric().clone();
    output::line(&format!(
        "{} serves {} at {}; an acknowledged write is {}",
        fabric.me().node,
        a.dir.display(),
        fabric.listens(),
        match node.syncs() {
            true => "on its device",
            false => "with its system, and on its device 100 ms later",
        }
    ));
    port.serve(Arc::new(move || fabric.status()))?;
    if let (Some(to), Some(every), Some(keep)) = (&a.checkpoint_to, a.every, a.keep) {
        let (series, stop) = (CheckpointSeries::new(to, keep), stop.clone());
        let (first, nic, access) = (a.join.clone(), a.nic.clone(), a.access.clone());
        // What it is writing when the process ends is no checkpoint, and goes with older ones.
        let open = move || connect(&first, &nic, &access);
        spawn(move || repeat(&series, every, &stop, open));
    }
    while !stop.load(Ordering::SeqCst) {
        std::thread::park_timeout(LOOK);
    }
    Ok(())
}

/// `journal refill`.
pub fn refill(a: &RefillArgs) -> Result<()> {
    let pool = connect(&a.connect, &a.nic, &a.access)?;
    let done = pool.refill_journal(a.part).map_err(Failure::refused)?;
    output::line(&format!(
        "part {} of the journal lacks nothing: {} pairs of {} indexes were written",
        a.part, done.pairs, done.indexes
    ));
    Ok(())
}

#[expect(clippy::disallowed_methods, reason = "it waits in real time")]
fn spawn(run: impl FnOnce() + Send + 'static) {
    std::thread::spawn(run);
}
