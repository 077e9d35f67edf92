//! The calls and jobs of a simulated network, and what their callers heard of them.

use std::collections::{BTreeMap, BTreeSet};

use dmtree_fabric::{Effect, ErrorKind, Member, NodeId, Result};

/// What jobs come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum JobEnd {
    /// The caller got the result.
    Result,
    /// It was cancelled.
    Cancelled,
    /// Its caller lost its access while it ran.
    Revoked,
    /// It was started, and its caller never heard its number.
    Unheard,
}

/// Calls and jobs, each with a number of its own.
#[derive(Debug, Default)]
pub(super) struct Calls {
    next: u64,
    /// Those that a handler has begun.
    begun: BTreeSet<u64>,
    /// Jobs that have ended: their handlers have returned.
    ended: BTreeSet<u64>,
    /// Those that failed without effect.
    failed: BTreeSet<u64>,
    /// The caller of each job.
    callers: BTreeMap<u64, Member>,
    /// The last incarnation of each node that has lost its access.
    fenced: BTreeMap<NodeId, u32>,
    pub(super) wrong: Option<String>,
    /// What jobs have come to.
    pub(super) ends: BTreeSet<JobEnd>,
}

impl Calls {
    pub(super) fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// The number of a job of this member.
    pub(super) fn job(&mut self, caller: Member) -> u64 {
        let number = self.number();
        self.callers.insert(number, caller);
        number
    }

    fn must(&mut self, holds: bool, number: u64, wrong: &str) {
        if !holds {
            self.wrong = Some(format!("call {number} {wrong}"));
        }
    }

    /// A handler begins.
    pub(super) fn begin(&mut self, number: u64) {
        let is_first = self.begun.insert(number);
        self.must(is_first, number, "was executed twice");
        self.must(!self.failed.contains(&number), number, "was executed after it had failed");
    }

    /// A job does something.
    pub(super) fn step(&mut self, number: u64) {
        let over = |m: &Member| self.fenced.get(&m.node).is_some_and(|last| *last >= m.incarnation);
        let is_over = self.callers.get(&number).is_some_and(over);
        self.must(!is_over, number, "goes on as a job of a member that has lost its access");
        self.must(!self.ended.contains(&number), number, "goes on as a job that has ended");
    }

    /// The handler of a job returns.
    pub(super) fn end(&mut self, number: u64) {
        self.step(number);
        self.ended.insert(number);
    }

    /// The caller got its answer, or the number of its job.
    pub(super) fn answered(&mut self, number: u64) {
        self.must(self.begun.contains(&number), number, "was answered and never executed");
    }

    /// The caller got an error.
    pub(super) fn refused(&mut self, number: u64, effect: Effect) {
        if effect != Effect::None && self.begun.contains(&number) {
            self.ends.extend(self.callers.get(&number).map(|_| JobEnd::Unheard));
        }
        if effect == Effect::None {
            self.failed.insert(number);
            let was_begun = self.begun.contains(&number);
            self.must(!was_begun, number, "was executed and failed without an effect");
        }
    }

    /// The caller heard how its job has ended. From now on the job does nothing.
    pub(super) fn heard(&mut self, number: u64, end: &Result<Vec<u8>>, is_cancelled: bool) {
        match end {
            Ok(result) => {
                self.ends.insert(JobEnd::Result);
                self.must(*result == number.to_le_bytes(), number, "has another job's result");
                self.must(self.ended.contains(&number), number, "ended before its work");
            }
            Err(e) if e.kind() == ErrorKind::Closed => {
                self.ends.insert(JobEnd::Cancelled);
                self.must(is_cancelled, number, "was cancelled, and not by its caller");
                self.ended.insert(number);
            }
            Err(e) => {
                self.must(e.kind() != ErrorKind::NotFound, number, "is gone as a job");
            }
        }
    }

    /// Whether the handler of a job has returned, or was cancelled.
    pub(super) fn has_ended(&self, number: u64) -> bool {
        self.ended.contains(&number)
    }

    /// A member has lost its access everywhere.
    pub(super) fn fence(&mut self, member: Member) {
        self.fenced.insert(member.node, member.incarnation);
        let mut running = self.begun.difference(&self.ended);
        if running.any(|number| self.callers.get(number) == Some(&member)) {
            self.ends.insert(JobEnd::Revoked);
        }
    }
}
