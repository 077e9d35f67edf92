//! A journal node: the process with a part of a pool's journal.

use std::sync::Arc;

use dmtree_fabric::net::{JournalDirectory, NetFabric, ShardMark};
use dmtree_fabric::{Fabric, Result};

use crate::{DirectoryJournal, JOURNAL_SERVICE, Journal, JournalService};

/// A journal node. Dropped, it leaves the pool; what was appended is on its device then.
#[derive(Debug)]
pub struct JournalNode {
    /// It ends first.
    fabric: NetFabric,
    _journal: Arc<DirectoryJournal>,
}

impl JournalNode {
    /// Serves a directory, in the place that `join` takes for it in a pool. `replaces`: the
    /// directory of its part is lost, and it begins it anew.
    ///
    /// # Errors
    /// Those of `join`, and of a directory that cannot be read or marked.
    pub fn join(
        journal: DirectoryJournal,
        replaces: bool,
        join: impl FnOnce(JournalDirectory) -> Result<(NetFabric, ShardMark)>,
    ) -> Result<Self> {
        let has_indexes = !journal.cut()?.indexes().is_empty();
        let mark = journal.part();
        let (fabric, now) = join(JournalDirectory { mark, has_indexes, replaces })?;
        // Before the pool opens: no index is in it that the mark does not say.
        if mark != Some(now) {
            journal.set_part(now)?;
        }
        let journal = Arc::new(journal);
        let has_gap = now.gaps >> now.shard & 1 == 1;
        let service = JournalService::new(journal.clone(), has_gap && !has_indexes);
        let marked = journal.clone();
        fabric.hear_gaps(move |gaps| {
            if let Some(mark) = marked.part().filter(|mark| mark.gaps != gaps) {
                // One that fails is written when they are heard of again.
                let _ = marked.set_part(ShardMark { gaps, ..mark });
            }
        });
        fabric.serve(fabric.me().node, JOURNAL_SERVICE, Arc::new(service))?;
        fabric.ready()?;
        Ok(Self { fabric, _journal: journal })
    }

    /// Its fabric.
    pub fn fabric(&self) -> &NetFabric {
        &self.fabric
    }
}
