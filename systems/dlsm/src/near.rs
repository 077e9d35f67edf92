//! Merges near the data: jobs of the memory node that has the tables.
//!
//! A worker that is dropped, or fails, leaves its jobs behind. A later piece of work ends them, and
//! frees what they have made; until then their inputs are held.

use std::sync::{Arc, Mutex};

use dmtree_fabric::sync::locked;
use dmtree_fabric::{Endpoint, Error, ErrorKind, JobNumber, NodeId, Result};
use dmtree_pool::DATA_SERVICE;

use crate::client::Client;
use crate::garbage::Garbage;
use crate::shard::{Compaction, Shard};
use crate::table::{Meta, Table};
use crate::wire::{self, Merge, Request, Rule};

/// Pauses between two questions about a job: the first and the longest, ns.
const ASK_NS: (u64, u64) = (10_000, 1_000_000);
/// Longest request of a job, bytes.
const LONGEST_JOB: usize = wire::MOST_BYTES / 2;

/// A job that its memory node knows.
#[derive(Debug)]
struct Job {
    number: JobNumber,
    /// Its answer is known: it is only to be forgotten.
    has_answered: bool,
}

/// The jobs of a merge, and what they read.
#[derive(Debug)]
struct Batch {
    memory: NodeId,
    jobs: Vec<Job>,
    _inputs: Vec<Vec<Arc<Table>>>,
}

/// Jobs that their workers have left.
#[derive(Debug, Default)]
pub(crate) struct Left(Mutex<Vec<Batch>>);

impl Left {
    pub(crate) fn is_empty(&self) -> bool {
        locked(&self.0).is_empty()
    }

    /// Leaves jobs, as a worker does that is dropped.
    #[cfg(test)]
    pub(crate) fn add(&self, memory: NodeId, numbers: Vec<JobNumber>) {
        let job = |number| Job { number, has_answered: false };
        let jobs = numbers.into_iter().map(job).collect();
        locked(&self.0).push(Batch { memory, jobs, _inputs: Vec::new() });
    }

    fn take(&self) -> Option<Jobs<'_>> {
        locked(&self.0).pop().map(|batch| Jobs(self, Some(batch)))
    }
}

/// Jobs that a worker looks after; dropped before they are forgotten, they are left.
struct Jobs<'n>(&'n Left, Option<Batch>);

impl Drop for Jobs<'_> {
    fn drop(&mut self) {
        let left = self.1.take().filter(|batch| !batch.jobs.is_empty());
        locked(&self.0.0).extend(left);
    }
}

/// Tables that were made, the last one first; those that are not taken are garbage, once no READ of
/// a dropped future is on its way to them.
pub(crate) struct Made<'n>(pub(crate) &'n Endpoint, pub(crate) Arc<Garbage>, pub(crate) Vec<Meta>);

impl Drop for Made<'_> {
    fn drop(&mut self) {
        let (garbage, metas) = (self.1.clone(), std::mem::take(&mut self.2));
        self.0.when_quiet(move || metas.iter().for_each(|meta| garbage.add(meta)));
    }
}

/// Whether a call has failed, and not the job that it has asked about.
fn is_of_call(e: &Error) -> bool {
    use ErrorKind::{Busy, Revoked, TimedOut, Unreachable};
    matches!(e.kind(), Busy | Revoked | TimedOut | Unreachable)
}

/// Merges by jobs of memory nodes.
pub(crate) struct NearMerges<'c>(pub(crate) &'c Client);

impl NearMerges<'_> {
    /// Merges by jobs of a memory node, all parts at a time; `None` when it has no room for jobs,
    /// or a job names more tables than a message.
    pub(crate) async fn merge_near(
        &self,
        shard: &Shard,
        compaction: &Compaction<'_>,
        memory: NodeId,
        rules: &[Rule],
    ) -> Result<Option<Vec<Arc<Table>>>> {
        let (node, inputs) = (&self.0.node, compaction.pick.runs());
        let metas = |run: &Vec<Arc<Table>>| run.iter().map(|table| table.meta.clone()).collect();
        let runs: Vec<Vec<Meta>> = inputs.iter().map(metas).collect();
        let batch = Batch { memory, jobs: Vec::new(), _inputs: inputs };
        let mut jobs = Jobs(&node.left, Some(batch));
        for rule in rules {
            let merge = Merge {
                index: node.root.index,
                owner: node.me,
                runs: runs.clone(),
                rule: rule.clone(),
            };
            let message = wire::message(&Request::Merge(merge))?;
            let job = match message.len() > LONGEST_JOB {
                true => Err(Error::busy("too many tables")),
                false => self.0.ep.start_job(memory, DATA_SERVICE, &message).await,
            };
            match (job, &mut jobs.1) {
                (Ok(number), Some(batch)) => batch.jobs.push(Job { number, has_answered: false }),
                (Err(e), _) if e.kind() != ErrorKind::Busy => return Err(e),
                _ => return Ok(None),
            }
        }
        let mut made = Made(&self.0.ep, node.garbage.clone(), Vec::new());
        self.end(&mut jobs, &mut made.2).await?;
        made.2.reverse();
        let mut tables = Vec::new();
        while let Some(meta) = made.2.last().cloned() {
            let (number, garbage) = (shard.next_number(), Some(node.garbage.clone()));
            let table = Table::open(&node.remote(&self.0.ep), meta, number, garbage).await?;
            node.indexes.add(&table);
            tables.push(table);
            made.2.pop();
        }
        Ok(Some(tables))
    }

    /// Waits for the ends of jobs, and has them forgotten.
    ///
    /// # Errors
    /// That of a job; those of calls: jobs that may go on are not forgotten.
    async fn end(&self, jobs: &mut Jobs<'_>, made: &mut Vec<Meta>) -> Result<()> {
        let Some(Batch { memory, jobs, .. }) = &mut jobs.1 else { return Ok(()) };
        let mut failed = Ok(());
        for job in jobs.iter_mut().filter(|job| !job.has_answered) {
            let answer = self.ended(*memory, job.number).await;
            match answer.and_then(|answer| wire::decode::<Vec<Meta>>(&answer)) {
                Ok(metas) => made.extend(metas),
                Err(e) if is_of_call(&e) => return Err(e),
                Err(e) => failed = Err(e),
            }
            job.has_answered = true;
        }
        while let Some(job) = jobs.last() {
            if let Err(e) = self.0.ep.forget_job(*memory, job.number).await
                && is_of_call(&e)
            {
                return Err(e);
            }
            jobs.pop();
        }
        failed
    }

    /// Ends jobs that a worker has left; what they have made is garbage. Whether there were any.
    pub(crate) async fn end_left(&self) -> bool {
        let node = &self.0.node;
        let Some(mut jobs) = node.left.take() else { return false };
        let mut made = Made(&self.0.ep, node.garbage.clone(), Vec::new());
        let ended = match self.cancel(&jobs).await {
            Ok(()) => self.end(&mut jobs, &mut made.2).await,
            cancelled => cancelled,
        };
        match ended {
            // Asked again later.
            Err(e) if matches!(e.kind(), ErrorKind::TimedOut | ErrorKind::Busy) => false,
            Err(e) if is_of_call(&e) => {
                // A memory node that is lost, or that has fenced this one, has ended them.
                jobs.1 = None;
                true
            }
            // All are forgotten, however each has ended.
            _ => true,
        }
    }

    /// # Errors
    /// Those of calls. A job that is not known has no effect on the others.
    async fn cancel(&self, jobs: &Jobs<'_>) -> Result<()> {
        let Some(batch) = &jobs.1 else { return Ok(()) };
        for job in batch.jobs.iter().filter(|job| !job.has_answered) {
            if let Err(e) = self.0.ep.cancel_job(batch.memory, job.number).await
                && is_of_call(&e)
            {
                return Err(e);
            }
        }
        Ok(())
    }

    /// Waits for the end of a job, however long it takes: it ends with its node, or with the access
    /// of this one.
    async fn ended(&self, memory: NodeId, number: JobNumber) -> Result<Vec<u8>> {
        let (mut pause, longest) = ASK_NS;
        loop {
            self.0.ep.renew_deadline();
            if let Some(answer) = self.0.ep.ask_job(memory, number).await? {
                return Ok(answer);
            }
            self.0.ep.sleep(pause).await;
            pause = (2 * pause).min(longest);
        }
    }
}
