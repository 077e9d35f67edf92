//! Verbs that may overtake each other in their chain: READs, between which the contract has no
//! order, and what platforms let pass that keep less than the contract. No index may run on those;
//! they show that the rules of the contract are necessary. Only litmus tests use one.

use std::collections::BTreeSet;

use crate::transport::{Opcode, WorkRequest};

/// The guarantees of the contract that a platform breaks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Laxity {
    /// Memory is registered for relaxed ordering: the WRITEs of a chain do not wait for each other.
    /// Atomics and READs wait for all of them, as on a NIC.
    pub relaxed_writes: bool,
    /// A verb to on-chip memory does not wait for a WRITE to main memory before it in its chain:
    /// that WRITE is accepted, but not visible yet.
    pub on_chip_first: bool,
    /// A node executes a data call before it keeps the call's number: the repetition of a call with
    /// a lost reply is executed, too.
    pub forgets_calls: bool,
    /// The jobs of a member that has lost its access go on.
    pub keeps_jobs: bool,
}

/// Verbs that were overtaken by the next one of their chain.
#[derive(Debug, Default)]
pub(super) struct Overtaken {
    pub laxity: Laxity,
    /// List and verb, until it ends.
    running: BTreeSet<(u32, u32)>,
}

impl Overtaken {
    /// Whether `next` may begin concurrently with `verb`, which precedes it in a chain.
    fn passes(&self, verb: &WorkRequest, next: &WorkRequest) -> bool {
        let is_write = |wr: &WorkRequest| matches!(wr.op, Opcode::Write | Opcode::WriteWord);
        let on_chip = next.at.is_on_chip() && !verb.at.is_on_chip();
        let lax =
            self.laxity.relaxed_writes && is_write(next) || self.laxity.on_chip_first && on_chip;
        let reads = verb.op == Opcode::Read && next.op == Opcode::Read;
        !next.fenced && (reads || is_write(verb) && lax)
    }

    /// A verb of a list has begun: whether the next one begins concurrently.
    pub(super) fn begins(&mut self, list: u32, verb: u32, requests: &[WorkRequest]) -> bool {
        let (this, next) = (&requests[verb as usize], requests.get(verb as usize + 1));
        let passes = this.chained && next.is_some_and(|next| self.passes(this, next));
        if passes {
            self.running.insert((list, verb));
        }
        passes
    }

    /// Whether a verb has to wait for one that others of its chain have overtaken.
    pub(super) fn holds_back(&self, list: u32, verb: u32, requests: &[WorkRequest]) -> bool {
        let mut before = self.running.range((list, 0)..(list, verb)).map(|(_, v)| *v as usize);
        before.any(|v| !self.passes(&requests[v], &requests[verb as usize]))
    }

    /// A verb has ended: whether it was overtaken.
    pub(super) fn ends(&mut self, list: u32, verb: u32) -> bool {
        self.running.remove(&(list, verb))
    }
}
