//! `drain`: ask a compute node of a running pool to leave it, and wait until it has.

use std::time::Duration;

use dmtree_command::{Failure, Result};
use dmtree_fabric::net::NicConfig;
use dmtree_pool::Leaving;

use crate::args::DrainArgs;
use crate::{clock, output};

/// Between two looks.
const LOOK: Duration = Duration::from_millis(50);

/// Asks, and waits.
pub fn run(a: &DrainArgs) -> Result<()> {
    let nic_config = NicConfig::with(a.pool.access.access()?);
    let leaving = Leaving::ask(&a.pool.connect, &nic_config, &a.node).map_err(Failure::refused)?;
    let (began, within) = (clock::now(), Duration::from_secs(a.wait));
    while let Some(standing) = leaving.standing()? {
        if began.elapsed() >= within {
            return Err(Failure::violation(format!(
                "{} was asked to leave and is {standing} after {} s: an application looks at \
                 Pool::is_asked_to_leave and drops its pool; otherwise its process is to be ended",
                leaving.member(),
                a.wait
            )));
        }
        std::thread::park_timeout(LOOK);
    }
    output::line(&format!("{} has left the pool", leaving.member()));
    Ok(())
}
