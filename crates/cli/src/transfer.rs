//! `export` and `import`: an index of a running pool as files. `restore`: a whole pool.

use std::path::Path;
use std::time::Duration;

use dmtree::{CheckpointSize, Index, Loaded, Pool};
use dmtree_command::{Failure, Result};
use dmtree_fabric::ErrorKind;

use crate::args::{AccessArgs, ExportArgs, ImportArgs, NicArgs, PoolArgs, RestoreArgs};
use crate::output;

/// How long to wait for a pool that is not ready.
const POOL_WITHIN: Duration = Duration::from_secs(10);

/// `export`.
pub fn export(a: &ExportArgs) -> Result<()> {
    let (_pool, index) = open(&a.pool)?;
    let pairs = index.export(&a.out).map_err(failed)?;
    output::line(&format!("{pairs} pairs of {} exported to {}", a.pool.index, a.out.display()));
    Ok(())
}

/// `import`.
pub fn import(a: &ImportArgs) -> Result<()> {
    let name = &a.pool.index;
    if a.into_new {
        let pool = join(&a.pool)?;
        let (_, loaded) = pool.import_into_new(name, &a.files).map_err(failed)?;
        say(name, loaded);
        return Ok(());
    }
    let (_pool, index) = open(&a.pool)?;
    let loaded = match a.unsorted {
        true => index.import_unsorted(&a.files),
        false => index.import(&a.files),
    };
    let loaded = loaded.map_err(failed)?;
    say(name, loaded);
    Ok(())
}

/// `restore`.
pub fn restore(a: &RestoreArgs) -> Result<()> {
    let pool = match (&a.connect, &a.durable) {
        (Some(first), _) => connect(first, &a.nic, &a.access)?,
        (None, Some(directory)) => {
            let builder = Pool::embedded().memory(a.memory_bytes.0).durable(directory);
            builder.open().map_err(Failure::refused)?
        }
        (None, None) => return Err(Failure::input("name a pool: --connect or --durable")),
    };
    let size = pool.restore(&a.from).map_err(failed)?;
    say_all(size, "restored from", &a.from);
    Ok(())
}

/// What a checkpoint is said to have.
pub fn say_all(size: CheckpointSize, how: &str, place: &Path) {
    let indexes = if size.indexes == 1 { "index" } else { "indexes" };
    output::line(&format!(
        "{} {indexes} with {} pairs {how} {}",
        size.indexes,
        size.pairs,
        place.display()
    ));
}

/// A file or name that is there already, or is not, is bad input.
pub fn failed(e: dmtree::Error) -> Failure {
    match e.kind() {
        ErrorKind::Exists | ErrorKind::NotFound | ErrorKind::Busy => Failure::refused(e),
        _ => e.into(),
    }
}

fn say(name: &str, loaded: Loaded) {
    let how = if loaded.leaves > 0 { "loaded into" } else { "put into" };
    output::line(&format!("{} pairs {how} {name}", loaded.pairs));
}

fn join(a: &PoolArgs) -> Result<Pool> {
    connect(&a.connect, &a.nic, &a.access)
}

/// Joins a running pool, and says what it misses.
///
/// # Errors
/// A pool that is not ready in time, or refuses.
pub fn connect(first: &str, nic: &NicArgs, access: &AccessArgs) -> Result<Pool> {
    let nic_config = nic.nic_config(access)?;
    let connector = Pool::connect(first).nic_config(nic_config).wait(POOL_WITHIN);
    let pool = connector.open().map_err(Failure::refused)?;
    for missing in pool.missing()? {
        output::note(&format!("note: {missing}"));
    }
    Ok(pool)
}

fn open(a: &PoolArgs) -> Result<(Pool, Index)> {
    let pool = join(a)?;
    match pool.open(&a.index) {
        Ok(index) => Ok((pool, index)),
        Err(e) if e.kind() == ErrorKind::NotFound => {
            let names = pool.list()?;
            let there = match &names[..] {
                [] => "the pool has none".to_owned(),
                names => format!("the pool has {}", names.join(", ")),
            };
            Err(Failure::input(format!("{e}; {there}; `import --into-new` makes a new one")))
        }
        Err(e) => Err(e.into()),
    }
}
