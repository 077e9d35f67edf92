//! What is in flight in the simulated cluster: threads with their CPU, posted lists, their verbs in
//! groups by target, calls, and the events that move them (`world.rs`).

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::Picos;
use super::chaos::Step;
use super::costs::Slowdown;
use super::crash::{CrashPlan, Late};
use super::nic::QueuePair;
use crate::addr::NodeId;
use crate::error::Error;
use crate::host::Host;
use crate::membership::Member;
use crate::rpc::ServiceId;
use crate::transport::Ticket;

/// A thread's CPU: a server shared by the thread's clients.
#[derive(Debug)]
pub(super) struct Cpu {
    /// By how much the other threads of its node slow it down ([`Slowdown`]).
    pub slowdown: AtomicU64,
    /// When it is free next, ps.
    pub free: AtomicU64,
    /// How long it has been busy, ps.
    pub busy: AtomicU64,
    /// Since when that is counted.
    pub since: AtomicU64,
    /// Jobs that run on it, if it is a core for them.
    pub jobs: AtomicU64,
}

impl Default for Cpu {
    fn default() -> Self {
        Self {
            slowdown: AtomicU64::new(Slowdown::NONE.0),
            free: AtomicU64::new(0),
            busy: AtomicU64::new(0),
            since: AtomicU64::new(0),
            jobs: AtomicU64::new(0),
        }
    }
}

impl Cpu {
    /// An idle share of `time`: a client that waits for a word polls it only when its thread has
    /// nothing else to do.
    pub(super) fn polls(&self, now: Picos, time: Picos) -> Picos {
        let past = now.saturating_sub(self.since.load(Ordering::Relaxed)).max(1);
        let busy = self.busy.load(Ordering::Relaxed).min(past);
        (u128::from(time) * u128::from(past - busy) / u128::from(past)) as Picos
    }

    /// Works for `time` from `now` on; when it has finished.
    pub(super) fn work(&self, now: Picos, time: Picos) -> Picos {
        let time = Slowdown(self.slowdown.load(Ordering::Relaxed)).of(time);
        let end = self.free.load(Ordering::Relaxed).max(now) + time;
        self.free.store(end, Ordering::Relaxed);
        self.busy.store(self.busy.load(Ordering::Relaxed) + time, Ordering::Relaxed);
        end
    }
}

pub(super) struct Thread {
    pub cpu: Arc<Cpu>,
    /// Number of its node among the NICs.
    pub nic: u32,
    /// Its node, in the incarnation to which it belongs.
    pub own: Arc<Host>,
    /// Its number among the threads of its node.
    pub number: u32,
    /// The member that it runs a job of.
    pub job_of: Option<Member>,
    /// Whether it runs a job.
    pub is_job: bool,
    pub queue_pairs: Vec<QueuePair>,
    /// Lists that have completed and wait for the CPU.
    pub done: VecDeque<u32>,
    /// A resume event is scheduled.
    pub resuming: bool,
}

/// A remote call in flight.
pub(super) struct Call {
    pub to: NodeId,
    pub service: ServiceId,
    pub request: Vec<u8>,
    pub reply: Vec<u8>,
    /// The target has answered it, and would repeat the answer.
    pub answered: bool,
    /// What the handler of a data service has charged, ps.
    pub charged: Picos,
}

/// A posted list.
pub(super) struct List {
    pub ticket: Ticket,
    pub thread: u32,
    /// When it was posted.
    pub posted: Picos,
    /// Groups that have not been delivered, or chains that have not ended.
    pub pending: u32,
    /// The first verb that has not been launched: behind a fence.
    pub next: u32,
    pub detached: bool,
    /// Its client's slot.
    pub slot: u32,
    pub error: Option<Error>,
    pub call: Option<Box<Call>>,
    /// Since when a cut link holds it up.
    pub cut_since: Option<Picos>,
    /// Its issuer has crashed.
    pub crash_plan: Option<CrashPlan>,
    /// Fault injection delays a verb of it.
    pub late: Option<Late>,
    /// The target at which a verb of it, or the call, has failed because the node is gone; in
    /// adversarial mode.
    pub failed_at: Option<NodeId>,
}

/// Verbs of a list that go to one node together.
#[derive(Clone, Copy)]
pub(super) struct VerbGroup {
    pub list: u32,
    pub nic: u32,
    pub from: u32,
    pub to: u32,
    pub verbs: u32,
    /// READs and atomics among them.
    pub reads: u32,
    /// Bytes of the responses.
    pub bytes: u32,
    /// The response has passed the client's wire.
    pub received: bool,
    /// Address of its first verb's memory, for a prefetch before the arrival.
    pub target: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Event {
    Launch(u32),
    Arrive(u32),
    Deliver(u32),
    Resume(u32),
    CallArrives(u32),
    CallReturns(u32),
    /// A step of the adversarial mode.
    Chaos(Step),
    /// The completion of a list there.
    Complete(u32),
    /// A data call asks for a core.
    CallQueues(u32),
    /// A core has ended with a data call.
    CallEnds(u32),
    /// The handler of a held call has ended.
    CallAnswered(u32),
}
