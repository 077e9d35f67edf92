//! Merges near the data: jobs of the memory node that has the tables.

use std::sync::Arc;

use dmtree_fabric::{Error, ErrorKind, JobNumber, NodeId, Result};
use dmtree_pool::DATA_SERVICE;

use crate::client::Dlsm;
use crate::shard::{Compaction, Shard};
use crate::table::{Meta, Table};
use crate::wire::{self, Merge, Request, Rule};

/// Pauses between two questions about a job: the first and the longest, ns.
const ASK_NS: (u64, u64) = (10_000, 1_000_000);
/// Longest request of a job, bytes.
const LONGEST_JOB: usize = wire::MOST_BYTES / 2;

impl Dlsm {
    /// Merges by jobs of a memory node, all parts at a time; `None` when it has no room for jobs,
    /// or a job names more tables than a message.
    pub(crate) async fn merge_near(
        &self,
        shard: &Shard,
        compaction: &Compaction<'_>,
        memory: NodeId,
        rules: &[Rule],
    ) -> Result<Option<Vec<Arc<Table>>>> {
        let node = &self.node;
        let metas = |run: Vec<Arc<Table>>| run.iter().map(|table| table.meta.clone()).collect();
        let runs: Vec<Vec<Meta>> = compaction.pick.runs().into_iter().map(metas).collect();
        let mut started = Vec::new();
        for rule in rules {
            let merge = Merge { index: node.root.index, runs: runs.clone(), rule: rule.clone() };
            let message = wire::message(&Request::Merge(merge))?;
            let job = match message.len() > LONGEST_JOB {
                true => Err(Error::busy("too many tables")),
                false => self.ep.start_job(memory, DATA_SERVICE, &message).await,
            };
            match job {
                Ok(number) => started.push(number),
                Err(e) => {
                    self.forget(memory, &started).await?;
                    return if e.kind() == ErrorKind::Busy { Ok(None) } else { Err(e) };
                }
            }
        }
        let mut made = Vec::new();
        let mut failed = None;
        for number in &started {
            match self.ended(memory, *number).await.and_then(|answer| wire::decode(&answer)) {
                Ok(metas) => made.extend::<Vec<Meta>>(metas),
                Err(e) => failed = Some(e),
            }
        }
        self.forget(memory, &started).await?;
        let mut tables = Vec::new();
        for meta in made {
            let (number, garbage) = (shard.next_number(), Some(node.garbage.clone()));
            if failed.is_some() {
                node.garbage.add(&meta);
                continue;
            }
            match Table::open(&node.remote(&self.ep), meta.clone(), number, garbage).await {
                Ok(table) => tables.push(table),
                Err(e) => {
                    node.garbage.add(&meta);
                    failed = Some(e);
                }
            }
        }
        failed.map_or(Ok(Some(tables)), Err)
    }

    async fn forget(&self, memory: NodeId, jobs: &[JobNumber]) -> Result<()> {
        for number in jobs {
            self.ep.forget_job(memory, *number).await?;
        }
        Ok(())
    }

    /// Waits for the end of a job, however long it takes: it ends with its node, or with the access
    /// of this one.
    async fn ended(&self, memory: NodeId, number: JobNumber) -> Result<Vec<u8>> {
        let (mut pause, longest) = ASK_NS;
        loop {
            self.ep.renew_deadline();
            if let Some(answer) = self.ep.ask_job(memory, number).await? {
                return Ok(answer);
            }
            self.ep.sleep(pause).await;
            pause = (2 * pause).min(longest);
        }
    }
}
