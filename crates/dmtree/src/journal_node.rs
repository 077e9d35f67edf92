//! The process of a journal node: its directory, and its place in a pool.

use std::path::Path;

use dmtree_fabric::net::NetFabric;
use dmtree_fabric::{Error, Result};
use dmtree_journal::{DirectoryJournal, Level};
use dmtree_pool::{Place, PoolJournal, join_as_journal, open_pool_config};

/// A journal node: it keeps a part of a pool's journal in a directory. Dropped, it leaves the pool,
/// and what was appended is on its device. `dmtree journalnode` is one.
#[derive(Debug)]
pub struct JournalNode {
    node: dmtree_journal::JournalNode,
    syncs: bool,
}

impl JournalNode {
    /// Joins a pool with an empty directory, in the place of a journal node that has lost its own:
    /// as the part that `place` wants. The part has a gap until
    /// [`Pool::refill_journal`](crate::Pool::refill_journal) has written what the pool's memory
    /// has; without it no write of the part is accepted.
    ///
    /// # Errors
    /// Those of [`JournalNode::join`]; `InvalidArgument` for a directory that has indexes, and for
    /// a journal of one part.
    pub fn replace(place: &Place<'_>, directory: &Path, syncs: Option<bool>) -> Result<Self> {
        Self::begin(place, directory, syncs, true)
    }

    /// Joins a pool with a directory, which is made when there is none. `syncs` says whether the
    /// pool must be one at level `sync`, if it matters: the level is the pool's.
    ///
    /// # Errors
    /// Those of a pool that cannot be joined; `InvalidArgument` for one without journal nodes or of
    /// another level, and for a directory that is no part of its journal; `Busy` for a directory
    /// that a process has open, and for a part that another process serves.
    pub fn join(place: &Place<'_>, directory: &Path, syncs: Option<bool>) -> Result<Self> {
        Self::begin(place, directory, syncs, false)
    }

    fn begin(
        place: &Place<'_>,
        directory: &Path,
        syncs: Option<bool>,
        replaces: bool,
    ) -> Result<Self> {
        let options = open_pool_config(place.first, place.nic_config, place.within)?;
        let syncs = check(options.journal, syncs)?;
        let level = if syncs { Level::Sync } else { Level::default() };
        let journal = DirectoryJournal::open_part(directory, level)?;
        let node = dmtree_journal::JournalNode::join(journal, replaces, |said| {
            join_as_journal(place, said, |now| check(now, Some(syncs)).map(drop))
        });
        let node = node.map_err(|e| e.context(format!("journal {}", directory.display())))?;
        Ok(Self { node, syncs })
    }

    /// Its fabric.
    #[doc(hidden)]
    pub fn fabric(&self) -> &NetFabric {
        self.node.fabric()
    }

    /// Whether a write that the pool acknowledges is on the device.
    pub fn syncs(&self) -> bool {
        self.syncs
    }
}

/// Whether the pool's level is `sync`, when that fits.
fn check(journal: Option<PoolJournal>, wanted: Option<bool>) -> Result<bool> {
    let Some(PoolJournal { syncs, .. }) = journal else {
        return Err(Error::invalid(
            "the pool has no journal nodes: found it with `dmtree memnode --journal N`",
        ));
    };
    match wanted {
        Some(wanted) if wanted != syncs => Err(Error::invalid(format!(
            "the pool was founded with `--level {}`: leave `--level` out, or found another pool",
            if syncs { "sync" } else { "process" }
        ))),
        _ => Ok(syncs),
    }
}
