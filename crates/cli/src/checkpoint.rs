//! `checkpoint`: a whole pool as files, once, or again and again.

use std::sync::atomic::AtomicBool;
use std::time::Duration;

use dmtree::{CheckpointSeries, Pool};
use dmtree_command::{Failure, Result};

use crate::args::CheckpointArgs;
use crate::transfer::{connect, failed, say_all};
use crate::{Hangup, clock, output, stop_flag};

/// `checkpoint`.
pub fn run(a: &CheckpointArgs) -> Result<()> {
    let size = match (&a.connect, &a.durable) {
        (Some(first), _) => {
            let open = || connect(first, &a.nic, &a.access);
            match a.keep {
                Some(keep) => return series(a, &CheckpointSeries::new(&a.to, keep), open),
                None => open()?.checkpoint(&a.to),
            }
        }
        (None, Some(directory)) => dmtree::checkpoint_of(directory, &a.to),
        (None, None) => return Err(Failure::input("name a pool: --connect or --durable")),
    };
    say_all(size.map_err(failed)?, "written to", &a.to);
    Ok(())
}

/// The first error of what is repeated ends it: it would be the error of each.
fn series(
    a: &CheckpointArgs,
    series: &CheckpointSeries,
    open: impl Fn() -> Result<Pool>,
) -> Result<()> {
    let Some(every) = a.every else { return write(series, &open()?) };
    let stop = stop_flag(Hangup::GoesOn)?;
    write(series, &open()?)?;
    repeat(series, every, &stop, open);
    Ok(())
}

/// Writes the next of a series.
fn write(series: &CheckpointSeries, pool: &Pool) -> Result<()> {
    let written = series.write(pool).map_err(failed)?;
    say_all(written.size, "written to", &written.at);
    for old in written.removed {
        output::note(&format!("{} removed", old.display()));
    }
    Ok(())
}

/// Writes one whenever its time has come, until it is told to stop. The pool is joined for each of
/// them, and left: in between it has no compute node more. What fails is said, and is tried again
/// the next time.
pub fn repeat(
    series: &CheckpointSeries,
    every: Duration,
    stop: &AtomicBool,
    open: impl Fn() -> Result<Pool>,
) {
    while clock::reaches(clock::now() + every, stop) {
        if let Err(e) = open().and_then(|pool| write(series, &pool)) {
            output::error(&format!("no checkpoint: {e}; the next in {every:?}"));
        }
    }
}
