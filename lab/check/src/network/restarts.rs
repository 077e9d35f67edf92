//! The compute processes of a run, from their starts to their ends, and their membership agents.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use dmtree_fabric::net::virt::Process;
use dmtree_fabric::net::{NetFabric, NicConfig, Place};
use dmtree_fabric::{
    Change, Endpoint, ErrorKind, Fabric, GlobalAddr, Member, MemberPhase, Membership,
    MembershipState, Nanos, NodeId, OpKind, OpOutcome, Result, Role,
};

use super::hosts::COUNT;
use super::{FIRST, MS, NetworkRun, Phase, REGION, SHARED_KEYS, SHARED_WORDS, pause};
use crate::log::{Answer, Call};

/// A process joins the pool.
pub(super) async fn join(
    run: &NetworkRun,
    process: &Process,
    role: Role,
    wanted: Option<u16>,
    slot: u32,
) -> Result<NetFabric> {
    let nic_config = &NicConfig::default();
    let (listen, within) = ("0.0.0.0:0", Duration::from_secs(60));
    let place = Place { first: FIRST, listen, wanted, within, data_path: None, nic_config };
    process.join(&place, role, REGION, &run.network.clock(slot)).await
}

/// Longest time that an operation takes: two verbs to a host that does not answer, or a call. The
/// deadline of an endpoint, and an attempt.
const MOST_NS: Nanos = 11_000 * MS;
/// The same of a verb to a peer.
const MOST_OF_A_VERB_NS: Nanos = 5_000 * MS;

/// Longest time from the start of a job to its end, while the process of its node runs.
const LONGEST_JOB_NS: Nanos = 3_000 * MS;

/// The state that the coroutines of an incarnation share.
#[derive(Clone)]
struct Incarnation {
    me: Member,
    process: Process,
    fabric: NetFabric,
    /// It owns the words of the former incarnations.
    has_inherited: Rc<Cell<bool>>,
    is_over: Rc<Cell<bool>>,
}

/// A slot for a compute process: one process after the other. A number can have two slots. Then one
/// waits while a process of the other one runs, and that process continues after a stall, unaware
/// of its successor.
pub(super) struct ProcessSlot {
    run: Rc<NetworkRun>,
    number: u16,
    place: usize,
    incarnation: RefCell<Option<Incarnation>>,
}

impl ProcessSlot {
    pub(super) fn new(run: Rc<NetworkRun>, number: u16) -> Self {
        let place = {
            let mut living = run.living.borrow_mut();
            living.push(None);
            living.len() - 1
        };
        Self { run, number, place, incarnation: RefCell::default() }
    }

    /// Whether this incarnation writes the word of its number.
    fn is_owner(&self, incarnation: &Incarnation) -> bool {
        self.run.owners.borrow()[usize::from(self.number)] == incarnation.me.incarnation
    }

    fn set_living(&self, process: Option<Process>) {
        self.run.living.borrow_mut()[self.place] = process;
    }

    /// Starts processes, one after the other, and runs the membership agent of each.
    pub(super) async fn run_processes(self: Rc<Self>, slot: u32) {
        let clock = self.run.network.clock(slot);
        let mut is_revoked = false;
        while self.run.phase.get() < Phase::Leaving {
            let is_paused = self.run.phase.get() == Phase::Faults && self.run.below(16) == 0;
            let most = match is_paused {
                true => 12_000,
                false if is_revoked => 3_000,
                false => 400,
            };
            pause(&clock, self.run.below(most) * MS).await;
            let process = self.run.network.start(4 + self.number);
            self.set_living(Some(process.clone()));
            self.run.outcome.borrow_mut().restarts += 1;
            let ended = process.run(self.run_agent(&process, slot)).await;
            is_revoked = matches!(&ended, Some(Err(e)) if e.kind() == ErrorKind::Revoked);
            if let Some(Err(e)) = &ended
                && self.run.phase.get() == Phase::Recovering
                && !e.is_retryable()
                && e.kind() != ErrorKind::Revoked
            {
                self.run.violation(format!("process {} ends: {e}", self.number));
            }
            if let Some(incarnation) = self.incarnation.borrow_mut().take() {
                incarnation.is_over.set(true);
            }
            // A process that has not ended by itself is killed.
            process.kill(None);
            self.set_living(None);
        }
    }

    async fn run_agent(&self, process: &Process, slot: u32) -> Result<()> {
        let run = &self.run;
        let fabric = join(run, process, Role::Compute, Some(self.number), slot).await?;
        let ep = process.client(&fabric, slot)?;
        let me = fabric.me();
        let mut agent = Agent::join(&fabric, &ep).await?;
        let former = (me.incarnation > 1).then(|| Member { incarnation: me.incarnation - 1, ..me });
        let incarnation = Incarnation {
            me,
            process: process.clone(),
            fabric: fabric.clone(),
            has_inherited: Rc::default(),
            is_over: Rc::default(),
        };
        *self.incarnation.borrow_mut() = Some(incarnation.clone());
        let until = ep.now() + (100 + run.below(if run.is_long { 500 } else { 4_000 })) * MS;
        let is_short = run.is_long || run.below(3) == 0;
        loop {
            let kept = agent.step(&ep).await;
            if kept.as_ref().is_err_and(|e| e.kind() == ErrorKind::Revoked) {
                return kept;
            }
            let over = |m: Member| agent.state.phase(m).is_none_or(|s| s >= MemberPhase::Draining);
            if !incarnation.has_inherited.get() && former.is_none_or(over) {
                let owner = &mut run.owners.borrow_mut()[usize::from(self.number)];
                if *owner < incarnation.me.incarnation {
                    *owner = incarnation.me.incarnation;
                    run.log.borrow_mut().end_puts(self.number.into(), ep.now());
                }
                former.into_iter().for_each(|m| run.calls().fence(m));
                incarnation.has_inherited.set(true);
            }
            let leaves = match run.phase.get() {
                Phase::Faults => is_short && ep.now() > until,
                Phase::Recovering => false,
                _ => true,
            };
            if leaves {
                incarnation.is_over.set(true);
                return agent.propose(&ep, Change::Leave).await;
            }
            pause(&ep, agent.lease_ns / STEPS_PER_LEASE).await;
        }
    }

    /// The client of each process.
    pub(super) async fn work(self: Rc<Self>, slot: u32) {
        let clock = self.run.network.clock(slot);
        while self.run.phase.get() < Phase::Leaving {
            let incarnation = self.incarnation.borrow().clone();
            let Some(incarnation) =
                incarnation.filter(|l| l.has_inherited.get() && !l.is_over.get())
            else {
                pause(&clock, 5 * MS).await;
                continue;
            };
            let work = incarnation.process.run(async {
                let ep = incarnation.process.client(&incarnation.fabric, slot)?;
                while !incarnation.is_over.get() && self.run.phase.get() < Phase::Leaving {
                    self.operate(&ep, &incarnation).await;
                    let slowly = if self.run.is_long { 20 } else { 1 };
                    pause(&ep, slowly * self.run.below(20) * MS / 4).await;
                }
                Ok::<_, dmtree_fabric::Error>(())
            });
            work.await;
            pause(&clock, MS).await;
        }
    }

    async fn operate(&self, ep: &Endpoint, incarnation: &Incarnation) {
        let run = &self.run;
        let (began, stood) = (ep.now(), incarnation.process.stood_still());
        let is_recovering = run.phase.get() == Phase::Recovering;
        let done = match run.below(6) {
            0 => Some(self.write_own(ep, incarnation).await),
            1 => Some(self.read_own(ep, incarnation).await),
            2 => Some(self.read_shared(ep).await.map(|_| ())),
            // In a long run too many of them would have an unknown outcome to be judged.
            3 if !run.is_long => Some(self.swap_shared(ep).await),
            3 | 4 if run.below(2) == 0 => Some(self.call(ep).await),
            3 | 4 => Some(self.job(ep, incarnation.me).await),
            _ => {
                // The result of a verb to another compute process does not matter.
                let peer = NodeId::compute(run.below(u64::from(run.compute_nodes)) as u16);
                let _ = ep.faa(GlobalAddr::new(peer, 64), 1).await;
                None
            }
        };
        let took = (ep.now() - began).saturating_sub(incarnation.process.stood_still() - stood);
        let Some(done) = done else {
            // A peer may be another incarnation by now, or none.
            if took > MOST_OF_A_VERB_NS {
                run.violation(format!("a verb of process {} took {took} ns", self.number));
            }
            return;
        };
        let mut outcome = run.outcome.borrow_mut();
        match &done {
            Ok(()) => outcome.operations += 1,
            Err(_) => outcome.failed += 1,
        }
        drop(outcome);
        if took > MOST_NS && !incarnation.is_over.get() {
            run.violation(format!("an operation of process {} took {took} ns", self.number));
        }
        if let Err(e) = &done
            && is_recovering
            && e.kind() == ErrorKind::Unreachable
            && e.to_string().contains("is lost")
            && !run.is_one_lost.get()
        {
            run.violation(format!("process {} hears that {e}", self.number));
        }
        if done.is_ok() && is_recovering {
            run.has_worked.borrow_mut()[usize::from(self.number)] = true;
        }
    }

    async fn write_own(&self, ep: &Endpoint, incarnation: &Incarnation) -> Result<()> {
        let run = &self.run;
        let value = run.value();
        if !self.is_owner(incarnation) {
            return self.stray(ep, incarnation, Some(value)).await;
        }
        let record = run.call(Call::Put(self.number.into(), value));
        let done = ep.write_word(run.own_word(self.number), value).await;
        if self.is_owner(incarnation) {
            let failed = |e| match Answer::from(e) {
                Answer::Failed(why) => Answer::Tried(why),
                refused => refused,
            };
            run.ret(record, done.as_ref().map_or_else(failed, |()| Answer::Done));
        }
        done
    }

    /// An operation of an incarnation that has a successor: it must not take effect. (A missing
    /// memory node serves it until that one comes back, while no other incarnation uses its
    /// memory.)
    async fn stray(&self, ep: &Endpoint, by: &Incarnation, value: Option<u64>) -> Result<()> {
        let at = self.run.own_word(self.number);
        if at.node() != NodeId::memory(0) {
            return Err(dmtree_fabric::Error::new(ErrorKind::Unreachable, "not tried"));
        }
        let (done, what) = match value {
            Some(value) => (ep.write_word(at, value).await, "written"),
            None => (ep.read(at, 8).await.map(drop), "read"),
        };
        if done.is_ok() {
            let later = "the word that a later incarnation has taken over";
            self.run.violation(format!("{} has {what} {later}", by.me));
        }
        done
    }

    async fn call(&self, ep: &Endpoint) -> Result<()> {
        let number = self.run.calls().number();
        let mut reply = Vec::new();
        ep.renew_deadline();
        let done = ep.rpc(NodeId::memory(0), COUNT, &number.to_le_bytes(), &mut reply).await;
        self.judge_answer(number, &done);
        done
    }

    fn judge_answer<T>(&self, number: u64, answer: &Result<T>) {
        let mut calls = self.run.calls();
        match answer {
            Ok(_) => calls.answered(number),
            Err(e) => calls.refused(number, e.effect()),
        }
    }

    /// Starts a job, cancels one of four, waits for its end, and forgets it.
    async fn job(&self, ep: &Endpoint, me: Member) -> Result<()> {
        let first = NodeId::memory(0);
        let number = self.run.calls().job(me);
        let host = self.run.memory.borrow()[0].0.clone();
        let (began, stood) = (ep.now(), host.stood_still());
        let scope = ep.begin(OpKind::Admin);
        let started = ep.start_job(first, COUNT, &number.to_le_bytes()).await;
        self.judge_answer(number, &started);
        let job = started?;
        let is_cancelled = number.is_multiple_of(4);
        if is_cancelled {
            ep.cancel_job(first, job).await?;
        }
        let end = ep.job(first, job).await;
        self.run.calls().heard(number, &end, is_cancelled);
        let lasted = (ep.now() - began).saturating_sub(host.stood_still() - stood);
        if lasted > LONGEST_JOB_NS && !self.run.calls().has_ended(number) {
            self.run.violation(format!("job {number} goes on after {lasted} ns"));
        }
        match end {
            Ok(_) => {}
            Err(e) if e.kind() == ErrorKind::Closed => {}
            Err(e) => return Err(e),
        }
        ep.forget_job(first, job).await?;
        scope.end(OpOutcome::Other);
        Ok(())
    }

    async fn read_own(&self, ep: &Endpoint, incarnation: &Incarnation) -> Result<()> {
        let at = self.run.own_word(self.number);
        if !self.is_owner(incarnation) {
            return self.stray(ep, incarnation, None).await;
        }
        let record = self.run.call(Call::Get(self.number.into()));
        let value = ep.read(at, 8).await?.word(0);
        if self.is_owner(incarnation) {
            self.run.ret(record, found(value));
        }
        Ok(())
    }

    async fn read_shared(&self, ep: &Endpoint) -> Result<(u64, u64)> {
        let word = self.run.below(SHARED_WORDS);
        let record = self.run.call(Call::Get(SHARED_KEYS + word));
        let value = ep.read(NetworkRun::shared_word(word), 8).await?.word(0);
        self.run.ret(record, found(value));
        Ok((word, value))
    }

    async fn swap_shared(&self, ep: &Endpoint) -> Result<()> {
        let (word, old) = self.read_shared(ep).await?;
        let (key, new) = (SHARED_KEYS + word, self.run.value());
        let record = self.run.call(match old {
            0 => Call::Insert(key, new),
            old => Call::CompareAndSet(key, old, new),
        });
        let done = ep.cas(NetworkRun::shared_word(word), old, new).await;
        let answer = match &done {
            Ok(was) if *was == old => Answer::Done,
            Ok(0) => Answer::NotFound,
            Ok(_) if old == 0 => Answer::Exists,
            Ok(_) => Answer::Mismatch,
            Err(e) => e.into(),
        };
        self.run.ret(record, answer);
        done.map(|_| ())
    }
}

/// The value of a word that was read. One that was never written is absent.
fn found(value: u64) -> Answer {
    Answer::Found((value != 0).then_some(value))
}

const STEPS_PER_LEASE: u64 = 16;

/// The membership agent of a process without a pool: it holds a lease, hears of crashes, and
/// acknowledges them.
struct Agent {
    fabric: NetFabric,
    membership: Arc<dyn Membership>,
    me: Member,
    lease_ns: Nanos,
    renew_at: Nanos,
    state: Arc<MembershipState>,
}

impl Agent {
    async fn join(fabric: &NetFabric, ep: &Endpoint) -> Result<Self> {
        let (fabric, membership, me) = (fabric.clone(), fabric.membership(), fabric.me());
        let asked_at = ep.now();
        let lease_ns = membership.join(me, asked_at).await?.for_ns;
        let state = membership.state(me, ep.now()).await?;
        Ok(Self { fabric, membership, me, lease_ns, renew_at: asked_at + lease_ns / 4, state })
    }

    async fn step(&mut self, ep: &Endpoint) -> Result<()> {
        if ep.now() >= self.renew_at {
            let asked_at = ep.now();
            let lease = self.membership.renew(self.me, asked_at).await?;
            self.renew_at = asked_at + lease.for_ns / 4;
        }
        let state = self.membership.state(self.me, ep.now()).await?;
        let own: NodeId = self.me.node;
        for m in &state.memory {
            self.fabric.set_presence(own, m.member.node, m.presence);
        }
        for dead in state.dead().into_iter().filter(|m| m.node != own) {
            self.fabric.abandon(own, dead);
        }
        self.state = state.clone();
        for m in &state.members {
            let open = !m.acknowledged.contains(&self.me);
            match m.phase {
                MemberPhase::Revoking if open => {
                    self.fabric.revoke(own, m.member.node, m.member.incarnation)?;
                    self.propose(ep, Change::Acknowledge(m.member, m.phase)).await?;
                }
                MemberPhase::Draining if open => {
                    self.propose(ep, Change::Acknowledge(m.member, m.phase)).await?;
                }
                MemberPhase::Reassigning if m.claimant == Some(self.me) => {
                    self.propose(ep, Change::Reassigned(m.member)).await?;
                }
                MemberPhase::Reassigning => self.propose(ep, Change::Claim(m.member)).await?,
                _ => {}
            }
        }
        for m in state.away().filter(|m| !m.acknowledged.contains(&self.me)) {
            self.propose(ep, Change::Avoided(m.member)).await?;
        }
        Ok(())
    }

    async fn propose(&self, ep: &Endpoint, change: Change) -> Result<()> {
        self.membership.propose(self.me, change, ep.now()).await
    }
}
